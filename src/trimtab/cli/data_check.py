"""`trimtab data check FILE`: every fault of a data file, then how good it is."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.errors import DataError, ModelError, StorageError, UserError

if TYPE_CHECKING:
    from trimtab.data.quality import Found, Quality
    from trimtab.data.rows import Row

FILE = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help=".jsonl, .jsonl.gz, .json, .parquet, hf:NAME[:SPLIT], or builtin:addition.",
        show_default=False,
    ),
]
KIND = Annotated[
    str, typer.Option("--kind", help="auto, prompts, demonstrations, pairs or labels; auto goes by the first row.")
]
COLUMNS = Annotated[
    list[str] | None,
    typer.Option("--column", help="OURS=THEIRS, such as prompt=question; may be repeated.", show_default=False),
]
SCORED_PAIRS = 256
"""The reward model is asked about so many pairs, from all over the file."""


def check(
    file: FILE,
    kind: KIND = "auto",
    columns: COLUMNS = None,
    looks_near: Annotated[bool, typer.Option("--near", help="Look for near duplicates too (slower).")] = False,
    against: Annotated[
        str | None,
        typer.Option("--against", help="A file that must share no prompt with this one.", show_default=False),
    ] = None,
    annotator: Annotated[str, typer.Option("--annotator", help="The column that says who judged.")] = "annotator",
    reward_model: Annotated[
        str | None,
        typer.Option("--reward-model", help="Of pairs, how often it prefers the chosen side.", show_default=False),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with histograms.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """All faults of a file (up to 20), with file:line; then how good its rows are.

    Ends with 2 if there is a fault. What is said about quality is advice, and ends with 0.
    """
    from trimtab.data import quality as qualities

    named = column_names(columns)
    kind = kind_of(file, kind, named)
    try:
        rows = read(file, kind, named)
        others = read(against, kind, named) if against is not None else None
    except DataError as error:
        if as_json:
            faults = [{"place": f.place, "what": f.what, "hint": f.hint} for f in error.findings]
            typer.echo(json.dumps({"file": file, "kind": kind, "faults": faults}, indent=1, ensure_ascii=False))
        raise
    found = qualities.quality(rows, kind, against=others, looks_near=looks_near, annotator=annotator)
    preferred = None if reward_model is None else _preferred(rows, kind, reward_model)
    record = _record(file, found, forms_of(rows), preferred)
    if html is not None:
        from trimtab.cli.data_page import page
        from trimtab.store import writer

        try:
            writer.replace_bytes(html, page(record, found).encode())
        except OSError as error:
            raise StorageError(f"{html}: cannot be written: {error.strerror}") from None
    if as_json:
        typer.echo(json.dumps(record, indent=1, ensure_ascii=False))
        return
    _print(record, found)
    if html is not None:
        typer.echo(f"page: {html}")


# ---------------------------------------------------------------------------------------------------------- reading
def column_names(given: Sequence[str] | None) -> dict[str, str]:
    """
    >>> column_names(["prompt=question"])
    {'prompt': 'question'}
    """
    found = {}
    for word in given or ():
        ours, sign, theirs = word.partition("=")
        if not (ours and sign and theirs):
            raise UserError(f"--column: {word!r}, expected OURS=THEIRS, such as prompt=question")
        found[ours] = theirs
    return found


def kind_of(file: str, kind: str, columns: dict[str, str]) -> str:
    """The kind that is asked for, or the first row's."""
    from trimtab.data import formats, rows

    if kind == "auto":
        return formats.kind_of(rows.first_values(file, columns))
    if kind not in formats.KINDS:
        raise UserError(f"--kind: {kind!r}, expected auto, {', '.join(formats.KINDS)}")
    return kind


def read(file: str, kind: str, columns: dict[str, str]) -> Sequence[Row]:
    from trimtab.data import formats, rows

    return rows.read(file, columns, formats.REQUIRED[kind])


def forms_of(rows: Sequence[Row]) -> dict[str, int]:
    from trimtab.data import formats
    from trimtab.data.rows import Rows

    return dict(rows.formats) if isinstance(rows, Rows) else {formats.name_of(rows[0].values): len(rows)}


def _preferred(rows: Sequence[Row], kind: str, name: str) -> dict[str, Any]:
    """Of some pairs, how often a reward model gives the chosen side more."""
    from trimtab.data.judged import Encoder, pairs
    from trimtab.data.prompts import Limits
    from trimtab.models import scoring

    if kind != "pairs":
        raise UserError(f"--reward-model: the rows are {kind}, expected pairs")
    if not scoring.is_reward_model(name, "--reward-model"):
        raise ModelError(f"--reward-model: {name} has no head that gives a score; `algorithm: reward_model` trains one")
    model = scoring.load(name, seed=0, key="--reward-model")
    longest = int(getattr(model.model.config.get_text_config(), "max_position_embeddings", 0) or 4096)
    limits = Limits(max_prompt_length=longest, max_length=longest, long_prompts="drop")
    encoder = Encoder(tokenizer=model.tokenizer, limits=limits, end_ids=model.eos_ids)
    found, _ = pairs(rows[:: max(1, len(rows) // SCORED_PAIRS)][:SCORED_PAIRS], encoder)
    sides = [(*side.prompt.tokens, *side.completion) for pair in found for side in (pair.chosen, pair.rejected)]
    scores = scoring.scores_of(model.model, sides)
    ahead = [chosen - rejected for chosen, rejected in zip(scores[::2], scores[1::2], strict=True)]
    return {
        "model": name,
        "pairs": len(ahead),
        "chosen_preferred": sum((a > 0) + 0.5 * (a == 0) for a in ahead) / len(ahead),
        "mean_margin": statistics.fmean(ahead),
    }


# ---------------------------------------------------------------------------------------------------------- showing
def _record(file: str, found: Quality, forms: dict[str, int], preferred: dict[str, Any] | None) -> dict[str, Any]:
    bias, agreement = found.length_bias(), found.agreement
    return {
        "file": file,
        "kind": found.kind,
        "rows": found.rows,
        "formats": forms,
        "distinct_prompts": found.prompts,
        "estimated_tokens": found.tokens,
        "characters": {name: _spread(lengths) for name, lengths in found.lengths.items()},
        "findings": {
            name: {"rows": met.count, "share": met.count / found.rows, "examples": met.examples}
            for name, met in _findings(found).items()
        },
        "length_bias": None if bias is None else {"chosen_longer": bias[0], "mean_difference": bias[1]},
        "agreement": None
        if agreement is None
        else {
            "kappa": agreement.value,
            "name": agreement.name,
            "items": agreement.items,
            "annotators": agreement.annotators,
            "agreed": agreement.agreed,
        },
        "shares": {
            name: {value: count / found.rows for value, count in counts.most_common()}
            for name, counts in found.shares.items()
        },
        "reward_model": preferred,
    }


def _findings(found: Quality) -> dict[str, Found]:
    named: dict[str, Found | None] = {
        "duplicates": found.duplicates,
        "near duplicates": found.near,
        "empty sides": found.empty if found.kind != "prompts" else None,
        "cut off": found.cut_off if found.kind != "prompts" else None,
        "equal sides": found.equal if found.kind == "pairs" else None,
        "contradictions": found.contradictions if found.kind in ("pairs", "labels") else None,
        "leaked prompts": found.leaked,
    }
    return {name: met for name, met in named.items() if met is not None}


def _spread(lengths: Sequence[int]) -> dict[str, float]:
    ordered = sorted(lengths)
    return {
        "mean": statistics.fmean(ordered),
        "median": ordered[len(ordered) // 2],
        "p95": ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)],
        "max": ordered[-1],
    }


GRAVE = {"contradictions", "leaked prompts", "equal sides"}
MEANING = {
    "cut off": "a guess: long, and ends within a sentence",
    "duplicates": "word for word",
    "near duplicates": "four fifths of their runs of three words are the same",
    "leaked prompts": "also in the other file",
}


def _print(record: dict[str, Any], found: Quality) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from trimtab.data import formats

    console = Console(highlight=False)
    head = f"{record['rows']:,} rows of {found.kind}, {record['distinct_prompts']:,} different prompts"
    console.print(Text.assemble((record["file"], "bold"), f": {head}, about {record['estimated_tokens']:,} tokens"))
    console.print(Text(f"format: {formats.counted(record['formats'])}", style="dim"), soft_wrap=True)
    console.print(Text("no faults\n", style="green"))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("characters", "mean", "median", "95 %", "most"):
        table.add_column(name, justify="left" if name == "characters" else "right")
    for name, spread in record["characters"].items():
        table.add_row(name, *(f"{spread[key]:,.0f}" for key in ("mean", "median", "p95", "max")))
    console.print(table)
    console.print()
    for name, met in record["findings"].items():
        style = "green" if not met["rows"] else "bold red" if name in GRAVE else "yellow"
        share = f" ({_percent(met['share'])})" if met["rows"] else ""
        line = Text.assemble(f"{name:<16} ", (f"{met['rows']:>9,}{share}", style))
        console.print(
            line.append(f"  {MEANING[name]}" if name in MEANING and met["rows"] else "", style="dim"), soft_wrap=True
        )
        for example in met["examples"]:
            console.print(Text(f"{'':<17}{example}", style="dim"), soft_wrap=True)
    for label, text in _lines(record):
        console.print(Text.assemble(f"{label:<16} ", text), soft_wrap=True)


def _lines(record: dict[str, Any]) -> list[tuple[str, str]]:
    """What needs a sentence."""
    from trimtab.observe.live import printable

    found = []
    if bias := record["length_bias"]:
        text = f"chosen is the longer side in {_percent(bias['chosen_longer'])} of pairs, by {bias['mean_difference']:+,.1f} "
        found.append(("length bias", text + "characters on average"))
    if agreement := record["agreement"]:
        value = "undefined, all judgements are the same" if agreement["kappa"] is None else f"{agreement['kappa']:.2f}"
        text = (
            f"{agreement['name']}'s kappa {value}: {agreement['annotators']} annotators, {agreement['items']:,} judged "
        )
        found.append(("agreement", text + f"by several, {_percent(agreement['agreed'])} alike"))
    if model := record["reward_model"]:
        text = f"{model['model']} prefers chosen in {_percent(model['chosen_preferred'])} of {model['pairs']:,} pairs, "
        found.append(("reward model", text + f"by {model['mean_margin']:+.3f} on average"))
    for name, shares in record["shares"].items():
        found.append((printable(name), ", ".join(f"{printable(v)} {_percent(s)}" for v, s in shares.items())))
    return found


def _percent(share: float) -> str:
    """
    >>> _percent(0.5), _percent(0.0004), _percent(1)
    ('50 %', '0.04 %', '100 %')
    """
    return f"{100 * share:.3g} %"
