"""`trimtab check CONFIG`: everything that can fail before training, the cheap first."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab import config as configs
from trimtab.errors import DataError, Finding, RewardError, TrimtabError, UserError

if TYPE_CHECKING:
    from trimtab.assemble.inputs import RowSets
    from trimtab.models.memory import Demand, Sizes
    from trimtab.operate.versions import OtherRun

SAMPLED_ROWS = 256
"""Rows that are tokenised to see how long they are."""
LABEL = 9


def check(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file.", show_default=False)],
    like: Annotated[Path | None, typer.Option("--like", metavar="RUN", help="Say what differs from this run.")] = None,
    run_dir: Annotated[Path | None, typer.Option("--run-dir", help="Where the run would live, for the disk.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Check configuration, data, rewards, model, memory and disk; estimate the time; compare with the guides' figures.

    Nothing is trained and no weight is read. All faults of a stage are shown at once.
    KEY=VALUE (or --key value) behind the file overrides it.
    """
    page = _Page(is_silent=as_json, found={"ok": False})
    try:
        _examine(page, path, context.args, like, run_dir or Path("runs") / path.stem)
    except TrimtabError as error:
        page.found["problems"] = str(error).splitlines()
        raise
    finally:
        if as_json:
            typer.echo(json.dumps(page.found, indent=1, default=str))


@dataclass(slots=True)
class _Page:
    """What is printed as the stages are gone through, and the same for programs."""

    is_silent: bool
    found: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        if not self.is_silent:
            typer.echo(text)

    def row(self, word: str, label: str, text: str) -> None:
        self.say(f"{word:<5} {label:<{LABEL}} {text}".rstrip())

    def more(self, text: str) -> None:
        self.row("", "", text)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns as wide as what stands in them, under their heads."""
        lines = [list(head), *map(list, rows)]
        widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
        self.say("")
        for line in lines:
            self.say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())

    def fail(self, label: str, text: str) -> None:
        self.row("FAIL", label, text)
        self.problems.append(f"{label}: {text}")


def _examine(page: _Page, path: Path, words: list[str], like: Path | None, place: Path) -> None:
    """All stages.

    Raises:
        UserError: with every problem of the first stage that has one.
    """
    from trimtab.operate import versions

    config = _config(page, path, words)
    other = versions.other_run(like) if like is not None else None
    rows = _data(page, config)
    _rewards(page, config, rows)
    models = _models(page, config)
    longest = _longest(page, config, models["policy"])
    demand, numerics = _machine(page, config, models, longest, place)
    _time(page, config, demand, rows, numerics, other)
    _advise(page, config)
    if other is not None:
        _compare(page, config, rows, numerics, other)
    if page.problems:
        raise UserError("\n".join(page.problems))
    page.found["ok"] = True
    page.say("\nnothing is wrong")


# ------------------------------------------------------------------------------------------------- what is asked for
def _config(page: _Page, path: Path, words: list[str]) -> configs.RunConfig:
    config = configs.load(path, words)
    name = config.algorithm.name
    page.found["config"] = {"algorithm": name, "files": list(config.chain), "unused": list(config.unused)}
    page.row("ok", "config", f"{name}, {' <- '.join(config.chain)}")
    if config.unused:
        page.more(f"unused by {name}: {', '.join(config.unused)}")
    return config


def _data(page: _Page, config: configs.RunConfig) -> RowSets:
    from trimtab import assemble

    try:
        rows = assemble.read_rows(config)
    except DataError as error:
        raise DataError(_faults_of_all_files(config) or error.findings) from error
    page.found["data"] = {
        "train": {"name": config.data.train, "rows": len(rows.train)},
        "validation": {"name": config.data.validation, "rows": len(rows.validation)},
        "fingerprints": rows.fingerprints,
    }
    page.row("ok", "data", f"{len(rows.train):,} training rows, {len(rows.validation):,} validation rows")
    if config.data.validation is None:
        page.more("data.validation is not set: no evaluation, no early stop")
    return rows


def _faults_of_all_files(config: configs.RunConfig) -> list[Finding]:
    """Of training and validation rows at once, so that both are mended in one go."""
    from trimtab.assemble import inputs
    from trimtab.data import rows
    from trimtab.types import Need

    required = ("prompt", "completion") if config.need & Need.DEMONSTRATIONS else ("prompt",)
    found: list[Finding] = []
    sources = {config.data.train: False, config.data.validation or config.data.train: True}
    for source, is_held_out in sources.items():
        try:
            rows.read(inputs.find(config, source), config.data.columns, required, held_out=is_held_out)
        except DataError as error:
            found += error.findings
    return found


def _rewards(page: _Page, config: configs.RunConfig, rows: RowSets) -> None:
    """Every function imported, every column that a rule reads there, in validation rows too.

    Raises:
        DataError, RewardError: all that is missing.
    """
    from trimtab import assemble

    columns = _missing_columns(config, rows)
    try:
        scorer = assemble.scorer_of(config)
    except RewardError as error:
        if columns:
            raise UserError("\n".join([*map(str, columns), str(error)])) from error
        raise
    if columns:
        if scorer is not None:
            scorer.close()
        raise DataError(columns)
    if scorer is None:
        return
    scorer.close()
    page.found["rewards"] = list(scorer.labels)
    weights = [f"{label} x {spec.weight:g}" for label, spec in zip(scorer.labels, config.rewards, strict=True)]
    page.row("ok", "rewards", ", ".join(weights))


def _missing_columns(config: configs.RunConfig, rows: RowSets) -> list[Finding]:
    from trimtab.rewards import rules

    found = []
    for spec in config.rewards:
        for column in rules.columns_of(rules.make(spec.name, spec.options)) if spec.name in rules.RULES else ():
            for part in (rows.train, rows.validation):
                row = next((r for r in part if column not in r.values), None)
                if row is not None:
                    what = f"no column `{column}`, which reward {spec.name} reads"
                    hint = f"name the column that holds it: data.columns: {{{column}: ...}}"
                    found.append(Finding(place=row.place, what=what, hint=hint))
    return found


# ------------------------------------------------------------------------------------------------------------ models
def _models(page: _Page, config: configs.RunConfig) -> dict[str, Sizes]:
    """Sizes of the roles that have weights of their own.

    Raises:
        UserError: all that is wrong with any of them.
    """
    from trimtab.errors import ModelError
    from trimtab.models import memory
    from trimtab.types import Need

    names = {"policy": ("policy.model", config.policy.model)}
    if config.need & Need.VALUES and config.value.model != "shared":
        names["critic"] = ("value.model", config.value.model or config.policy.model)
    if config.need & Need.REFERENCE:
        names["reference"] = ("reference.model", config.reference.model or config.policy.model)
    found: dict[str, Sizes] = {}
    by_name: dict[str, Sizes | None] = {}
    problems = []
    for role, (key, name) in names.items():
        try:
            if name not in by_name:
                by_name[name] = None
                by_name[name] = memory.sizes(name, key)
                if role == "policy":
                    _check_tokenizer(name)
        except ModelError as error:
            problems.append(str(error))
        if (size := by_name[name]) is not None:
            found[role] = size
    if problems:
        raise UserError("\n".join(problems))
    page.found["models"] = found
    policy = found["policy"]
    page.row(
        "ok",
        "model",
        f"{policy['name']}: {policy['architecture']}, {policy['parameters']:,} parameters, {policy['layers']} layers, "
        f"{policy['vocabulary']:,} tokens, {policy['positions'] or 'any number of'} positions, tokenizer found",
    )
    for role in ("critic", "reference"):
        if role in found and found[role]["name"] != policy["name"]:
            page.more(f"{role}: {found[role]['name']}, {found[role]['parameters']:,} parameters")
    return found


def _check_tokenizer(name: str) -> None:
    from trimtab.errors import ModelError

    try:
        _tokenizer(name)
    except Exception as error:  # transformers raises whatever the files set off
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelError(
            f"policy.model: {name} has no tokenizer that can be read ({reason}); "
            "save one beside the model with `tokenizer.save_pretrained`"
        ) from error


def _tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    from trimtab.models import builtin, policy

    if name == builtin.NAME:
        return builtin.tokenizer()
    return AutoTokenizer.from_pretrained(policy.directory_of(name), trust_remote_code=False)


def _longest(page: _Page, config: configs.RunConfig, policy: Sizes) -> int:
    """Tokens of prompt and completion, at most."""
    positions, asked = policy["positions"], config.sampling.max_length
    if positions is None or asked <= positions:
        return asked
    page.more(f"sampling.max_length: {asked}, but the model has {positions} positions; {positions} is used")
    return positions


# ----------------------------------------------------------------------------------------------------------- machine
def _machine(
    page: _Page, config: configs.RunConfig, models: dict[str, Sizes], longest: int, place: Path
) -> tuple[Demand, Any]:
    """Memory and disk, against what is there."""
    from trimtab.assemble.numerics import choose_numerics
    from trimtab.models import memory
    from trimtab.operate import advice

    numerics = choose_numerics(config, memory.configuration(config.policy.model))
    demand = advice.demand_of(config, models, numerics, longest=longest)
    _memory(page, config, demand, numerics.device)
    _disk(page, config, demand, place)
    return demand, numerics


def _memory(page: _Page, config: configs.RunConfig, demand: Demand, device: str) -> None:
    import psutil

    from trimtab.models import memory

    program = float(psutil.Process().memory_info().rss) if device == "cpu" else 0.0
    free, total = memory.available_bytes(device)
    held, passing = demand.held(), demand.passing()
    peak = program + demand.peak()
    page.found["memory"] = {
        "held_bytes": held, "passing_bytes": passing, "program_bytes": program, "peak_bytes": peak,
        "available_bytes": free, "total_bytes": total, "device": device, "is_enough": peak <= free,
    }  # fmt: skip
    if peak <= free:
        page.row("ok", "memory", f"{_bytes(peak)} at the peak, {_bytes(free)} of {_bytes(total)} are free ({device})")
    else:
        change = memory.smallest_change(demand, free - program, group_size=config.sampling.group_size)
        page.fail("memory", f"{_bytes(peak)} at the peak, but {_bytes(free)} of {_bytes(total)} are free; {change}")
    words = {
        "policy": "weights, gradients, two moments: 16 bytes a parameter",
        "critic": "the same of the critic, as much again: a critic of its own doubles the trained memory",
        "reference": "weights, frozen: 4 bytes a parameter",
        "update": f"activations and logits of {demand.micro_batch:,} tokens",
        "rollout": f"keys, values and logits of {demand.rows_at_once:,} completions of {demand.longest:,} tokens",
        "saving": "the moments once more, while a checkpoint is written",
    }
    if "critic" in held:
        before, after = _bytes(held["policy"]), _bytes(held["policy"] + held["critic"])
        words["critic"] += f", {before} to {after}"
    lines = {**held, **passing}
    largest = max(passing, key=lambda name: passing[name])
    for name, size in lines.items():
        mark = "  (the largest of those that come in turn)" if name == largest else ""
        page.more(f"{name:<10}{_bytes(size):>10}  {words[name]}{mark}")
    if program:
        page.more(f"{'program':<10}{_bytes(program):>10}  Python, torch and transformers themselves")
    if config.value.model == "shared" and "critic" not in held and "value" in config.resolved:
        page.more("critic    none of its own: it is a head on the policy's trunk")


def _disk(page: _Page, config: configs.RunConfig, demand: Demand, place: Path) -> None:
    from trimtab.models import memory
    from trimtab.operate import advice

    size, count = memory.checkpoint_bytes(demand), advice.checkpoints_kept(config)
    final = float(memory.FLOAT * demand.policy["parameters"])
    wanted = (count + 1) * size + final  # one more while it is written
    there = next(p for p in (place.absolute(), *place.absolute().parents) if p.exists())
    free = float(shutil.disk_usage(there).free)
    page.found["disk"] = {
        "checkpoint_bytes": size, "checkpoints": count, "wanted_bytes": wanted, "free_bytes": free,
        "place": str(place), "is_enough": wanted <= free,
    }  # fmt: skip
    text = f"{_bytes(wanted)} for {place}: up to {count} checkpoints of {_bytes(size)}, one being written, and final/"
    if wanted <= free:
        page.row("ok", "disk", f"{text}; {_bytes(free)} are free")
    else:
        hint = "lower checkpoint.keep and checkpoint.rolling_keep, or give another --run-dir"
        page.fail("disk", f"{text}, but {_bytes(free)} are free; {hint}")


def _bytes(size: float) -> str:
    """
    >>> _bytes(13.1e6), _bytes(2**31)
    ('12.5 MiB', '2.0 GiB')
    """
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"


# -------------------------------------------------------------------------------------------------------------- time
def _time(
    page: _Page,
    config: configs.RunConfig,
    demand: Demand,
    rows: RowSets,
    numerics: Any,
    like: OtherRun | None,
) -> None:

    from trimtab.operate import advice

    if numerics.device != "cpu":
        page.row("", "time", "not estimated: what is measured here is the CPU")
        return
    prompt, completion, known = _lengths(config, rows, demand.longest, like)
    room = max(1.0, demand.longest - prompt)
    cases = [known] if known else [completion] if completion else [room, max(1.0, room / 4)]
    speed = _speed(demand, numerics, int(prompt + cases[0]))
    seconds = [
        advice.time_of(config, demand, speed, prompt_length=prompt, completion_length=length) for length in cases
    ]
    page.found["time"] = {
        "prompt_tokens": prompt,
        "speed": asdict(speed),
        "cases": [
            {"completion_tokens": length, "step_seconds": sum(phases.values()), "run_seconds": whole, "phases": phases}
            for length, (phases, whole) in zip(cases, seconds, strict=True)
        ],
    }
    source = f"as in {like.root}" if like and known else "as in the data" if completion else "the limit"
    count, more = config.train.max_steps, " and evaluations" if config.data.validation is not None else ""
    for number, (length, (phases, whole)) in enumerate(zip(cases, seconds, strict=True)):
        step = sum(phases.values())
        why = source if number == 0 else "a quarter of it"
        text = f"{_clock(step)} a step, {_clock(whole)} in all ({count} steps{more}), "
        text += f"if completions have {length:,.3g} tokens, {why}"
        page.row("" if number else "about", "" if number else "time", text)
        if number == 0:
            page.more("a step: " + ", ".join(f"{name} {_clock(part)}" for name, part in phases.items()))
    page.more("an estimate from a layer timed here, right within a factor of about 2; rewards and saving come on top")


def _lengths(
    config: configs.RunConfig, rows: RowSets, longest: int, like: OtherRun | None
) -> tuple[float, float | None, float | None]:
    """Mean tokens of the prompts, of the demonstrations if they are imitated, of the completions of the other run."""
    from trimtab.types import Need

    tokenizer = _tokenizer(config.policy.model)
    some = rows.train[:: max(1, len(rows.train) // SAMPLED_ROWS)][:SAMPLED_ROWS]

    def mean(column: str) -> float:
        counts = [len(tokenizer(row.values[column]).input_ids) for row in some]
        return sum(counts) / len(counts)

    limit = min(config.sampling.max_prompt_length, longest - 1)
    prompt = min(mean("prompt"), float(limit))
    if config.need & Need.DEMONSTRATIONS:
        return prompt, min(mean("completion") + 1, longest - prompt), None
    known = like.completion_length if like is not None else None
    return prompt, None, None if known is None else min(known, longest - prompt)


def _speed(demand: Demand, numerics: Any, width: int) -> Any:
    import torch

    from trimtab.operate import advice

    before = torch.get_num_threads()
    torch.set_num_threads(numerics.threads)
    try:
        return advice.measure(demand.policy, tokens=demand.micro_batch, width=width, rows=demand.rows_at_once)
    finally:
        torch.set_num_threads(before)


def _clock(seconds: float) -> str:
    """
    >>> _clock(0.0312), _clock(42.3), _clock(5400)
    ('31 ms', '42 s', '1.5 h')
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


# ------------------------------------------------------------------------------------------------------- comparisons
def _advise(page: _Page, config: configs.RunConfig) -> None:
    from trimtab.operate.advice import advice

    rows = advice(config)
    page.found["advice"] = [asdict(row) for row in rows]
    page.table(("setting", "yours", "guides say", "note"), [(r.setting, r.yours, r.guides, r.note) for r in rows])


def _compare(page: _Page, config: configs.RunConfig, rows: RowSets, numerics: Any, other: OtherRun) -> None:
    from trimtab.operate import versions

    found = versions.against(other, config=config, fingerprints=rows.fingerprints, numerics=numerics)
    page.found["like"] = {"run": str(other.root), "differences": [asdict(d) for d in found]}
    if not found:
        page.table((f"nothing differs from {other.root}",), [])
        return
    page.table(
        (f"differs from {other.root}", "there", "here"), [(d.what, _short(d.theirs), _short(d.ours)) for d in found]
    )


def _short(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
