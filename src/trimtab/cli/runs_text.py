"""How `trimtab runs` shows what it has found."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.operate.housekeeping import Item
    from trimtab.store.registry_index import Brief
    from trimtab.store.run_directory import RunDirectory

HEAD = ("NAME", "ALGORITHM", "MODEL", "STATE", "STEP", "RESULT", "TAGS", "STARTED", "SIZE")
MODEL = 24
"""Characters of a model's name in a table."""
WIDE = 60
"""Of a value where two stand beside each other."""


def plain(text: str) -> str:
    """A line without what steers a terminal: it may have come from a file that somebody else wrote.

    >>> plain("a\\x1b[2Jb")
    'a?[2Jb'
    """
    return "".join(c if c.isprintable() else "?" for c in text)


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of columns that are as wide as what stands in them."""
    lines = [list(head), *([plain(cell) for cell in row] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def size(count: float) -> str:
    from trimtab.store.checkpoints import mib

    return mib(count)


def moment(seconds: float | None) -> str:
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "-"


# ------------------------------------------------------------------------------------------------------------------ list
def table(
    found: Sequence[Brief], directories: Mapping[str, RunDirectory], metric: str | None, values: Mapping[str, float]
) -> Iterator[str]:
    """A line a run; beside its own result the metric by which they are sorted, if that is another one."""
    rows = []
    for brief in found:
        step = f"{brief.step}/{brief.max_steps}" if brief.max_steps is not None else str(brief.step)
        own, value = (metric, values.get(brief.name)) if metric else (brief.metric, brief.value)
        result = f"{own} {figure(value)}" if own and value is not None else "-"
        marks = [*(f"[{label}]" for label in brief.labels), *brief.tags]
        shown = [brief.name, brief.algorithm, _end_of(brief.model), brief.state(directories[brief.name])]
        rows.append([*shown, step, result, ", ".join(marks), moment(brief.started), size(brief.bytes)])
    yield from columns(HEAD, rows)
    yield f"{len(found)} run{'' if len(found) == 1 else 's'}"


def _end_of(model: str) -> str:
    return model if len(model) <= MODEL else f"...{model[-MODEL + 3 :]}"


def brief_plain(brief: Brief, directory: RunDirectory, metric: str | None, value: float | None) -> dict[str, Any]:
    """A run of the list, for programs."""
    from dataclasses import asdict

    sorted_by = {} if metric is None or value is None else {"sorted_by": {metric: value}}
    return {**asdict(brief), "state": brief.state(directory), "path": str(directory.root), **sorted_by}


# ------------------------------------------------------------------------------------------------------------------ show
def page(found: Mapping[str, Any]) -> Iterator[str]:
    """Everything about a run."""
    steps = f"{found['step']}/{found['max_steps']}"
    yield f"{found['name']}  {found['algorithm']}  step {steps}  {found['state']}"
    if found["failure"]:
        yield f"  failed      {found['failure'].get('cause')}"
    for word in ("path", "id", "model", "started", "ended"):
        yield f"  {word:<11} {found[word] if found[word] is not None else '-'}"
    yield f"  {'size':<11} {size(found['bytes'])}"
    yield f"  {'tags':<11} {', '.join(found['tags']) or '-'}"
    yield f"  {'bears':<11} {', '.join(found['labels']) or '-'}"
    data, prints = found["data"] or {}, found["data_fingerprints"] or {}
    for part in ("train", "validation"):
        if data.get(part) is not None:
            yield f"  {part:<11} {data[part]}  {str(prints.get(part, ''))[:16]}"
    yield f"  {'versions':<11} {', '.join(f'{k} {v}' for k, v in (found['versions'] or {}).items())}"
    yield f"  {'seeds':<11} {', '.join(f'{k} {v}' for k, v in (found['seeds'] or {}).items())}"
    if found["damaged_lines"]:
        yield f"  {'journal':<11} {found['damaged_lines']} damaged lines; see `trimtab verify`"
    yield from _results(found)
    yield "configurations"
    for version in found["config_versions"]:
        changes = ", ".join(f"{k}={v}" for k, v in version["changes"].items())
        yield f"  {version.get('version')}  {version.get('time')}  {version.get('who')}  {version.get('why')}  {changes}"
    yield from _lineage(found)
    yield "checkpoints"
    if found["checkpoints_behind_a_link"]:
        yield "  behind a link, which is not followed"
    for kept in found["checkpoints"]:
        evaluated = {n: v for n, v in kept["metrics"].items() if n == found["metric"]}
        note = "" if kept["resumable"] else "the policy's weights alone"
        said = "  ".join([*(f"{n} {figure(v)}" for n, v in evaluated.items()), note])
        yield f"  {kept['step']:<8} {size(kept['bytes']):>11}  {said}"
    if found["promotions"]:
        yield "promotions"
        yield from _promotions(found["promotions"])


def _results(found: Mapping[str, Any]) -> Iterator[str]:
    told = found["evaluations"]
    if not told:
        yield "results: no evaluation"
        for name, value in found["figures"].items():
            yield f"  {name:<40} {figure(value)}"
        return
    ends = [end for end in ("first", "best", "last") if end in told]
    heads = [f"{end} ({told[end]['step']})" for end in ends]
    names = sorted({name for end in ends for name in told[end]["metrics"]})
    rows = [[name, *(figure(told[end]["metrics"].get(name)) for end in ends)] for name in names]
    yield f"results, best by {found['metric']}"
    yield from (f"  {line}" for line in columns(["", *heads], rows))


def _lineage(found: Mapping[str, Any]) -> Iterator[str]:
    yield "lineage"
    for parent in found["parents"]:
        yield f"  from {parent['run']}  ({parent['key']}{', ' + parent['part'] if parent['part'] else ''})"
    for child in found["children"]:
        yield f"  went into {child['run']}  ({child['key']}{', ' + child['part'] if child['part'] else ''})"
    if not found["parents"] and not found["children"]:
        yield "  no other run here"


def _promotions(told: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in told:
        undone = one["undone"]
        end = f"; undone {moment(undone['time'])} by {undone['who']}" if undone else ""
        why = f": {one['why']}" if one["why"] else ""
        yield f"  {one['label']} {one['number']}  {one['run']}:{one['step']}  {moment(one['time'])} by {one['who']}{why}{end}"


# ------------------------------------------------------------------------------------------------------------------ diff
def comparison(found: Mapping[str, Any]) -> Iterator[str]:
    """Two runs beside each other."""
    yield f"a  {found['a']}  (step {found['steps'][0]})"
    yield f"b  {found['b']}  (step {found['steps'][1]})"
    heads = {
        "config": "configuration",
        "data_fingerprints": "data",
        "versions": "versions",
        "seeds": "seeds",
        "numerics": "numerics",
    }
    for part, head in heads.items():
        rows = [[key, _short(a), _short(b)] for key, a, b in found[part] if key]
        yield head if rows else f"{head}: no difference"
        if rows:
            yield from (f"  {line}" for line in columns(["", "a", "b"], rows))
    for end, result in found["results"].items():
        a, b = result["steps"]
        yield f"results, {end} evaluation (a: step {_or(a)}, b: step {_or(b)})"
        rows = [[name, figure(x), figure(y), _change(x, y)] for name, (x, y) in result["metrics"].items()]
        yield from (f"  {line}" for line in columns(["", "a", "b", "b - a"], rows))
    if not found["results"]:
        yield "results: no evaluation"


def _or(value: Any) -> str:
    return "-" if value is None else str(value)


def _short(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= WIDE else f"{text[: WIDE - 3]}..."


def _change(one: Any, other: Any) -> str:
    return f"{other - one:+.4g}" if isinstance(one, int | float) and isinstance(other, int | float) else ""


# ------------------------------------------------------------------------------------------------------ promotions, room
def history(told: Sequence[Mapping[str, Any]], bearer: int | None) -> Iterator[str]:
    """Every promotion to a label."""
    yield from _promotions(told)
    now = next((one for one in told if one["number"] == bearer), None)
    yield f"now: {now['run']}:{now['step']}  {now['path']}" if now else "now: nothing"


def model_lines(found: Mapping[str, Any] | None) -> Iterator[str]:
    """Where the model is that a label stands for."""
    if found is not None:
        adapter = ", an adapter: PEFT reads it, and policy.model merges it" if found["is_adapter"] else ""
        yield f"model  {found['path']}{adapter}"


def room(items: Sequence[Item], spared: Sequence[tuple[str, str]], above: Path, *, is_dry: bool) -> Iterator[str]:
    """What goes, and of which runs nothing does."""
    for item in items:
        yield f"{item.tier:<8}  {size(item.bytes):>11}  {item.path.relative_to(above)}"
    for name, why in spared:
        yield f"stays     {'':>11}  {name}: {why}"
    tiers = ", ".join(
        f"{tier} {size(sum(i.bytes for i in items if i.tier == tier))}" for tier in dict.fromkeys(i.tier for i in items)
    )
    what = "would go" if is_dry else "removed"
    count = f"{len(items)} thing{'' if len(items) == 1 else 's'}"
    yield f"{count} {what}, {size(sum(i.bytes for i in items))}{f' ({tiers})' if tiers else ''}" + (
        "; nothing was removed" if is_dry else ""
    )


def room_plain(
    items: Sequence[Item],
    spared: Sequence[tuple[str, str]],
    failures: Sequence[str],
    above: Path,
    *,
    is_dry: bool,
) -> dict[str, Any]:
    """The same for programs."""
    return {
        "dry_run": is_dry,
        "bytes": sum(i.bytes for i in items),
        "items": [
            {"run": i.run, "tier": i.tier, "path": str(i.path.relative_to(above)), "bytes": i.bytes} for i in items
        ],
        "stays": [{"run": name, "why": why} for name, why in spared],
        "failures": list(failures),
    }
