"""`trimtab data preview FILE`: rows as the model will see them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab import config as configs
from trimtab.cli import data_check, data_files
from trimtab.errors import DataError, Finding, UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from trimtab.data.prompts import Demonstration
    from trimtab.data.rows import Row

app = typer.Typer(help="Data files: their faults, their quality, what the model sees of them.", no_args_is_help=True)
app.command("check")(data_check.check)
app.command("split")(data_files.split)
app.command("convert")(data_files.convert)

PROMPT, READ, TRAINED = "dim", "yellow", "bold green"
"""Styles of the three kinds of tokens; every second token is underlined, so that their borders show."""
BORDER = "underline"


READERS: Mapping[str, dict[str, Any]] = {
    "labels": {"algorithm": "kto"},
    "demonstrations": {"algorithm": "sft"},
    "pairs": {"algorithm": "dpo"},
    "prompts": {"algorithm": "grpo", "rewards": ["exact_match"]},
}
"""Kind of rows -> what reads them, where there is no configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A row as it is shown."""

    row: int
    label: str
    """chosen, rejected, desirable, undesirable; empty where nothing is judged."""
    place: str
    prompt_length: int
    ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """For each id, whether it is trained on."""
    pieces: tuple[str, ...]
    """The text of each id; of several that are one character together, the last has it."""
    note: str
    """What becomes of the row, if it does not come through as it is."""

    def record(self) -> dict[str, Any]:
        return {
            "row": self.row,
            "label": self.label,
            "place": self.place,
            "prompt_length": self.prompt_length,
            "trained": sum(self.mask),
            "ids": self.ids,
            "mask": [int(on) for on in self.mask],
            "tokens": self.pieces,
            "text": "".join(self.pieces),
            "note": self.note,
        }


@app.command("preview", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def preview(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A JSONL file, or builtin:addition.", show_default=False)],
    path: Annotated[
        str | None, typer.Argument(metavar="CONFIG", help="Its columns, model and limits are used.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A model whose tokenizer is used.", show_default=False)
    ] = None,
    count: Annotated[int, typer.Option("-n", min=1, help="How many rows.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Ids, text and mask of a file's first rows, as training would see them.

    KEY=VALUE words count as on every command: data.columns.prompt=question, data.as_chat=true.
    """
    words = list(context.args)
    if path is not None and ("=" in path or path.startswith("-")):
        words.insert(0, path)
        path = None
    if path is None and model is None:
        raise UserError("data preview: whose tokenizer? Name a CONFIG, or --model DIR (or --model builtin:tiny)")
    config, found = _configured(file, path, [*words, *([f"policy.model={model}"] if model else [])], count)
    shown = _shown(config, found)
    if as_json:
        typer.echo(json.dumps([row.record() for row in shown], indent=1, ensure_ascii=False))
    else:
        _print(shown)


def _configured(
    file: str, path: str | None, words: Sequence[str], count: int
) -> tuple[configs.RunConfig, Sequence[Row]]:
    """The configuration, and the rows as its algorithm reads them; without a configuration, as the first row says."""
    from trimtab.assemble.admission import admit, find
    from trimtab.assemble.inputs import required_columns
    from trimtab.data import formats, rows

    if path is not None:
        config = configs.load(Path(path), words)
    else:
        config = configs.from_mapping(READERS["demonstrations"], words)
        admit(config, {"FILE": file})
        kind = formats.kind_of(rows.first_values(find(config, file), config.data.columns))
        if kind != "demonstrations":
            config = configs.from_mapping(READERS[kind], words)
    admit(config, {"FILE": file})
    return config, rows.read(find(config, file), config.data.columns, required_columns(config.need), first=count)


def _shown(config: configs.RunConfig, found: Sequence[Row]) -> list[Shown]:
    from trimtab.data.messages import MessageError
    from trimtab.models import policy as policies

    tokenizer = policies.load_tokenizer(config.policy.model)
    ends = end_ids(policies.directory_of(config.policy.model), tokenizer)
    shown, findings = [], []
    for row in found:
        try:
            shown += _row(config, row, tokenizer, ends)
        except MessageError as fault:
            findings.append(Finding(place=row.place, what=fault.what, hint=fault.hint))
    if findings:
        raise DataError(findings)
    return shown


def end_ids(place: str, tokenizer: Any) -> frozenset[int]:
    """Ids that end a sampled sequence, as the model's files name them, without loading it."""
    from transformers import AutoConfig, GenerationConfig

    found = [tokenizer.eos_token_id]
    for record in (GenerationConfig, AutoConfig) if not place.startswith("builtin:") else ():
        try:
            ids = getattr(record.from_pretrained(place), "eos_token_id", None)
        except (OSError, ValueError):  # no such file, or a kind of model that has none
            continue
        found += ids if isinstance(ids, list) else [ids]
    return frozenset(i for i in found if i is not None)


def _row(config: configs.RunConfig, row: Row, tokenizer: Any, ends: frozenset[int]) -> list[Shown]:
    """The row, of a pair each side."""
    from trimtab.data.judged import Encoder
    from trimtab.data.prompts import Demonstration, Limits, demonstration_of, prompt_of
    from trimtab.types import Need

    as_chat, s = config.data.as_chat, config.sampling
    limits = Limits(max_prompt_length=s.max_prompt_length, max_length=s.max_length, long_prompts=s.long_prompts)
    encoder = Encoder(tokenizer=tokenizer, limits=limits, end_ids=ends, as_chat=as_chat)
    made: dict[str, Demonstration | None] = {}
    if config.need & Need.PAIRS:
        made = {side: encoder.side(row, side) for side in ("chosen", "rejected")}
    elif config.need & Need.LABELS:
        judged = encoder.labelled(row)
        made = {"desirable" if row.values["label"] else "undesirable": judged.row if judged else None}
    elif config.need & Need.DEMONSTRATIONS:
        eos_id, on = tokenizer.eos_token_id, config.imitation.train_on
        made = {"": demonstration_of(row, tokenizer, eos_id, end_ids=ends, as_chat=as_chat, train_on=on)}
    else:
        prompt = prompt_of(row, tokenizer, as_chat=as_chat)
        made = {"": Demonstration(prompt=prompt, completion=(), text="")}
    sides = [side for side in made.values() if side is not None]
    is_equal = len(sides) == 2 and sides[0].completion == sides[1].completion
    return [_shown_side(config, row, label, side, tokenizer, is_equal=is_equal) for label, side in made.items()]


def _shown_side(
    config: configs.RunConfig, row: Row, label: str, made: Demonstration | None, tokenizer: Any, *, is_equal: bool
) -> Shown:
    if made is None:
        return Shown(
            row=row.id,
            label=label,
            place=row.place,
            prompt_length=0,
            ids=(),
            mask=(),
            pieces=(),
            note="empty: left out",
        )
    prompt, completion = made.prompt, made.completion
    mask = made.mask if made.mask is not None else (True,) * len(completion)
    ids = prompt.tokens + completion
    return Shown(
        row=row.id,
        label=label,
        place=row.place,
        prompt_length=len(prompt.tokens),
        ids=ids,
        mask=(False,) * len(prompt.tokens) + mask,
        pieces=tuple(_pieces(ids, tokenizer)),
        note="both sides are equal: left out" if is_equal else _note(config, len(prompt.tokens), len(completion)),
    )


def _note(config: configs.RunConfig, prompt: int, completion: int) -> str:
    """What the length limits do to the row."""
    s = config.sampling
    longest = min(s.max_prompt_length, s.max_length - 1)
    does = {"drop": "left out", "truncate": "cut at its front", "refuse": "refused"}[s.long_prompts]
    if prompt > longest:
        return f"the prompt is longer than {longest} tokens: {does}"
    if prompt + completion > s.max_length:
        return f"longer than sampling.max_length {s.max_length}: {'refused' if does == 'refused' else 'left out'}"
    return ""


def _pieces(ids: Sequence[int], tokenizer: Any) -> Iterator[str]:
    """Each id's text, as it reads behind the id before it."""
    start = 0
    for place in range(len(ids)):
        before = tokenizer.decode(ids[max(0, start - 1) : start])
        text = tokenizer.decode(ids[max(0, start - 1) : place + 1])[len(before) :]
        if text.endswith("\ufffd") and place - start < 8 and place + 1 < len(ids):
            yield ""  # bytes of a character that the next ids complete
            continue
        yield text
        start = place + 1


# ------------------------------------------------------------------------------------------------------- on a terminal
def _print(shown: Sequence[Shown]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for row in shown:
        _print_row(console, row)
    console.print(_legend(console, has_answers=any(any(row.mask) for row in shown)))


def _print_row(console: Console, row: Shown) -> None:
    from rich.text import Text

    sizes = [f"{row.prompt_length} prompt"]
    if len(row.ids) > row.prompt_length:
        sizes += [f"{len(row.ids) - row.prompt_length} completion", f"{sum(row.mask)} trained on"]
    name = f"row {row.row} {row.label}".rstrip()
    head = Text.assemble((name, "bold"), f"  {row.place}  ", (f"{len(row.ids)} tokens: ", "dim"))
    console.print(head.append(", ".join(sizes), style="dim"), soft_wrap=True)
    if row.note:
        console.print(Text(f"  {row.note}", style="bold red"))
    for label, parts in (("text", _visible(row.pieces)), ("ids", [f"{i}" for i in row.ids])):
        _print_indented(console, label, _marked(console, row, parts, between=" " if label == "ids" else ""))
    console.print()


def _print_indented(console: Console, label: str, text: Text) -> None:
    """Behind a label; broken at the terminal's width, and only there (a file keeps its lines whole)."""
    from rich.table import Table
    from rich.text import Text

    if console.is_terminal:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="dim", no_wrap=True, width=6, justify="right")
        grid.add_column(overflow="fold")
        grid.add_row(label, text)
        console.print(grid)
        return
    for number, line in enumerate(text.split("\n")):
        console.print(Text(f"{'' if number else label:>6}  ").append(line), soft_wrap=True)


def _marked(console: Console, row: Shown, parts: Sequence[str], *, between: str) -> Text:
    """The tokens in the colours of their kinds; without colours, what is trained on stands in brackets."""
    from rich.text import Text

    opening, closing = ("", "") if console.color_system else ("[[", "]]")
    text, last = Text(), len(parts) - 1
    for place, (part, is_on) in enumerate(zip(parts, row.mask, strict=True)):
        style = TRAINED if is_on else PROMPT if place < row.prompt_length else READ
        before = row.mask[place - 1] if place else False
        after = row.mask[place + 1] if place < last else False
        shown = part.encode(console.encoding, "replace").decode(console.encoding)
        body, line_end = (shown[:-1], "\n") if shown.endswith("\n") else (shown, "")
        text.append(opening if is_on and not before else "")
        text.append(body, style=f"{style} {BORDER}" if place % 2 and not between else style)
        text.append(closing if is_on and not after else "")
        text.append(line_end or (between if place < last else ""))
    text.rstrip()
    return text


def _visible(pieces: Sequence[str]) -> list[str]:
    """Line ends as an arrow before the line end, other control characters spelt out."""
    from trimtab.observe.live import printable

    return [printable(piece) + ("\n" if piece.endswith("\n") else "") for piece in pieces]


def _legend(console: Console, *, has_answers: bool) -> Text:
    from rich.text import Text

    if not has_answers:
        return Text("these are prompts: the model samples what follows them", style="dim")
    if console.color_system:
        return Text.assemble(("prompt", PROMPT), "  ", ("read, not trained on", READ), "  ", ("trained on", TRAINED))
    return Text("[[ trained on ]]")
