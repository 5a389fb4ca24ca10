"""`trimtab runs list|show|diff|tag|promote|gc`: the registry of the runs under a directory."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli import runs_text as text
from trimtab.errors import StorageError, UserError

if TYPE_CHECKING:
    from trimtab.store.registry import Registry
    from trimtab.store.registry_index import Brief

app = typer.Typer(
    help="The runs under a directory: list and search, one with its lineage, two compared, tags, promotions, room.",
    no_args_is_help=True,
)
ROOT = Annotated[Path, typer.Option("--root", envvar="TRIMTAB_RUNS", help="The directory that holds the runs.")]
RUN = Annotated[str, typer.Argument(metavar="RUN", help="A run's name from the root, or its path.", show_default=False)]
JSON = Annotated[bool, typer.Option("--json", help="For programs.")]
WHY = Annotated[str, typer.Option("--why", help="Kept beside it.", show_default=False)]
HERE = Path("runs")
SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@contextmanager
def _registry(root: Path) -> Iterator[Registry]:
    """Up to date."""
    from trimtab.store.registry import Registry
    from trimtab.store.registry_names import Root

    registry = Registry(Root(root), _note)
    try:
        for problem in registry.refresh().problems:
            _note(problem)
        yield registry
    finally:
        registry.close()


def _note(line: str) -> None:
    print(f"note: {text.plain(line)}", file=sys.stderr)


def _json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1, default=str))


@app.command("list")
def list_runs(
    root: ROOT = HERE,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="KEY=VALUE",
            help="Of the resolved configuration; = != < > <= >= or ~ (has in it). All of several.",
            show_default=False,
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Runs that have it.", show_default=False)] = None,
    algorithm: Annotated[str | None, typer.Option("--algorithm", help="Runs with it.", show_default=False)] = None,
    sort: Annotated[
        str | None,
        typer.Option("--sort", help="A metric, best first; or name, started, step, size. [default: started]"),
    ] = None,
    as_json: JSON = False,
) -> None:
    """Every run: what it was, how far it is, how good, and what it takes of the disk."""
    from trimtab.store import registry_names, registry_search

    conditions = [registry_search.parsed(words) for words in where or ()]
    if tag is not None:
        registry_names.checked(tag, "--tag")
    with _registry(root) as registry:
        found = [b for b in registry.briefs() if tag is None or tag in b.tags]
        found = [b for b in found if algorithm is None or b.algorithm == algorithm]
        for condition in conditions:
            names, remark = registry.matching(condition)
            if remark:
                _note(f"--where: {remark}")
            found = [b for b in found if b.name in names]
        values = _ordered(registry, found, sort)
        directories = {b.name: registry.root.directory(b.name) for b in found}
        for brief in found:
            if brief.problem:
                _note(f"{root / brief.name}: {brief.problem}; see `trimtab verify {root / brief.name}`")
    if as_json:
        _json([text.brief_plain(b, directories[b.name], sort, values.get(b.name)) for b in found])
        return
    for line in text.table(found, directories, sort if values else None, values):
        typer.echo(line)


def _ordered(registry: Registry, found: list[Brief], sort: str | None) -> dict[str, float]:
    """Put in order; the values of the metric, if it is one.

    Raises:
        UserError: no run has such a metric.
    """
    from trimtab.catalogue import is_better_lower
    from trimtab.errors import nearest

    keys: dict[str, Callable[[Brief], Any]] = {
        "name": lambda b: b.name,
        "started": lambda b: (-(b.started or 0.0), b.name),
        "step": lambda b: (-b.step, b.name),
        "size": lambda b: (-b.bytes, b.name),
    }
    if sort is None or sort in keys:
        found.sort(key=keys[sort or "started"])
        return {}
    values = registry.figures(sort)
    if not values:
        meant = nearest(sort, [*registry.metrics(), *keys])
        hint = f"did you mean {meant}?" if meant else f"expected a metric, or {', '.join(keys)}"
        raise UserError(f"--sort: no run has a metric {sort[:100]!r}; {hint}")
    sign = 1.0 if is_better_lower(sort) else -1.0
    found.sort(key=lambda b: (b.name not in values, sign * values.get(b.name, 0.0), b.name))
    return values


@app.command("show")
def show(run: RUN, root: ROOT = HERE, as_json: JSON = False) -> None:
    """Everything about a run: facts, results, versions of its configuration, lineage, checkpoints, promotions."""
    from trimtab.operate import registry as operate

    with _registry(root) as registry:
        found = operate.described(registry, registry.root.name_of(run))
    if as_json:
        _json(found)
        return
    for line in text.page(found):
        typer.echo(text.plain(line))


@app.command("diff")
def diff(
    one: Annotated[str, typer.Argument(metavar="A", show_default=False)],
    other: Annotated[str, typer.Argument(metavar="B", show_default=False)],
    root: ROOT = HERE,
    as_json: JSON = False,
) -> None:
    """What differs between two runs: configuration, data, versions; and their results beside each other."""
    from trimtab.operate import registry as operate

    with _registry(root) as registry:
        found = operate.compared(registry, registry.root.name_of(one), registry.root.name_of(other))
    if as_json:
        parts = ("config", "data_fingerprints", "versions", "seeds", "numerics")
        _json({**found, **{p: [{"key": k, "a": a, "b": b} for k, a, b in found[p]] for p in parts}})
        return
    for line in text.comparison(found):
        typer.echo(text.plain(line))


@app.command("tag")
def tag(
    run: RUN,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The tag.", show_default=False)],
    remove: Annotated[bool, typer.Option("--remove", help="Take it away.")] = False,
    why: WHY = "",
    root: ROOT = HERE,
) -> None:
    """Give a run a tag. `gc` removes nothing of a run that has one."""
    from trimtab.operate import registry as operate
    from trimtab.store import registry_names

    registry_names.checked(name, "NAME")
    with _registry(root) as registry:
        run_name = registry.root.name_of(run)
        is_changed = operate.tag(registry, run_name, name, remove=remove, why=why)
    said = {
        (True, False): f"{run_name} has the tag {name}",
        (False, False): f"{run_name} had the tag {name} already",
        (True, True): f"{run_name} has no tag {name} any more",
        (False, True): f"{run_name} had no tag {name}",
    }
    typer.echo(said[is_changed, remove])


@app.command("promote")
def promote(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN[:STEP]]", help="Without STEP the best checkpoint.", show_default=False)
    ] = None,
    label: Annotated[str, typer.Option("--as", help="What it is from now on; one checkpoint bears it.")] = "prod",
    why: WHY = "",
    undo: Annotated[bool, typer.Option("--undo", help="Give the label back to whatever bore it before.")] = False,
    history: Annotated[bool, typer.Option("--show", help="Every promotion to it, the newest last.")] = False,
    root: ROOT = HERE,
    as_json: JSON = False,
) -> None:
    """Let a label stand for a checkpoint that was verified; its model gets a directory that nothing removes.

    trimtab runs promote demo-grpo:120 --as prod --why "passed the review"
    """
    from trimtab.operate import registry as operate
    from trimtab.store import registry_names

    registry_names.checked(label, "--as")
    if [run is not None, undo, history].count(True) != 1:
        raise UserError("give one of RUN[:STEP], --undo and --show")
    with _registry(root) as registry:
        if history:
            shown = [operate.told(registry, p) for p in registry.promotions() if p.label == label]
            bearer = operate.bearer(registry, label)
            if as_json:
                _json(shown)
                return
            for line in text.history(shown, None if bearer is None else bearer.number):
                typer.echo(text.plain(line))
            return
        if undo:
            last, before = operate.undo(registry, label, why)
            now = "nothing" if before is None else f"{before.run}:{before.step}"
            found = None if before is None else operate.told(registry, before)
            lines = [f"{label}: {now} (was {last.run}:{last.step})"]
        else:
            name, step = _checkpoint(registry, str(run))
            promotion, is_new = operate.promote(registry, name, step, label, why)
            found = operate.told(registry, promotion)
            lines = [f"{label}: {promotion.run}:{promotion.step}" + ("" if is_new else ", as before")]
    if as_json:
        _json(found)
        return
    for line in [*lines, *text.model_lines(found)]:
        typer.echo(text.plain(line))


def _checkpoint(registry: Registry, words: str) -> tuple[str, int | None]:
    """RUN or RUN:STEP."""
    name, colon, step = words.rpartition(":")
    if colon and re.fullmatch(r"[0-9]{1,12}", step):
        return registry.root.name_of(name), int(step)
    return registry.root.name_of(words), None


@app.command("gc")
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go, and remove nothing.")] = False,
    days: Annotated[
        float, typer.Option("--keep-samples-days", min=0.0, help="Files of completions that are younger stay.")
    ] = 30.0,
    keep: Annotated[
        str,
        typer.Option(
            "--keep-checkpoints",
            help="Of finished runs: first, best, last and tagged always stay; kept: those of checkpoint.every, too.",
        ),
    ] = "kept,best,last,tagged",
    free: Annotated[
        str | None, typer.Option("--free", metavar="SIZE", help="Stop at so much, such as 10G.", show_default=False)
    ] = None,
    root: ROOT = HERE,
    as_json: JSON = False,
) -> None:
    """Make room: old samples first, then checkpoints that served a crash, then, if asked for, the kept ones.

    Nothing goes of a run that is tagged or promoted, or whose model a promoted one was made from, nor of one that trains.
    """
    from trimtab.operate import housekeeping

    rule = housekeeping.Rule(samples_days=days, keep=housekeeping.parsed_keep(keep), free=_size(free))
    with _registry(root) as registry:
        plan = housekeeping.plan(registry, rule)
        done = None if dry_run else housekeeping.collect(registry, plan, rule)
        above = registry.root.path
    items: Sequence[Any] = plan.items if done is None else done.items
    failures = () if done is None else done.failures
    if as_json:
        _json(text.room_plain(items, plan.spared, failures, above, is_dry=dry_run))
    else:
        for line in text.room(items, plan.spared, above, is_dry=dry_run):
            typer.echo(text.plain(line))
    if failures:
        raise StorageError("\n".join(failures))


def _size(words: str | None) -> int | None:
    """
    Raises:
        UserError: it is no size.

    >>> _size("10G"), _size("1.5MiB"), _size("0")
    (10737418240, 1572864, 0)
    """
    if words is None:
        return None
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kmgt]?)(?:i?b)?", words.strip().lower())
    if found is None:
        raise UserError(
            f"--free: {words[:60]!r} is no size; expected a number with K, M, G or T behind it, such as 10G"
        )
    return int(float(found[1]) * SIZES[found[2]])
