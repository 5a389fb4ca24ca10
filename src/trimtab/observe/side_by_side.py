"""Two evaluations of the same prompts as one page: their figures, what changed most, and every completion beside the other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from trimtab.observe import charts, figures, page
from trimtab.observe.completions import MOST_ROWS, visible
from trimtab.observe.record import Points
from trimtab.types import Sample

Row = tuple[str, ...]
MOST_SHOWN = 400
"""Prompts on the page; one with more is slow."""
KINDS = {"better": "better", "worse": "worse", "changed": "same", "same": "same"}
"""How a prompt changed -> the class of its row in the style sheet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A prompt with a completion of each model."""

    before: Sample
    after: Sample
    kind: str
    """`better`, `worse`, `changed` (the text alone) or `same`."""
    means: tuple[float, float] | None = None
    """Mean reward over all completions of the prompt, where it has more than one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    title: str
    help: str
    head: Row
    rows: Sequence[Row]


def html(
    *,
    names: tuple[str, str],
    outcome: str,
    headlines: Mapping[str, str],
    facts: Mapping[str, str],
    tables: Sequence[Table],
    curves: Mapping[str, Mapping[str, Points]],
    shown: Sequence[Shown],
    counts: Mapping[str, int],
    locked: Mapping[str, Any],
) -> str:
    """The page, without any reference to the outside.

    Args:
        names: of the model that is compared with and of the one that is compared.
        outcome: the result in a sentence.
        headlines, facts: label -> what it is.
        tables: of figures.
        curves: a chart's title -> label -> (k, value).
        shown: prompts in the order in which they are shown, `MOST_SHOWN` at most.
        counts: how many prompts there are of each kind.
        locked: what both were evaluated with.
    """
    readings: dict[str, Any] = {}
    sections = [(table.title, f"<p>{escape(table.help)}</p>{_table(table)}") for table in tables]
    if curves:
        drawn = _charts(curves, readings)
        said = "Over the number of completions that one may choose from."
        sections.insert(1, ("More tries", f'<p>{said}</p><div class="charts">{drawn}</div>'))
    sections.append(("Completions", _completions(names, shown, counts)))
    inner = escape(json.dumps(locked, indent=1, ensure_ascii=False))
    details = f"<details><summary>Data, sampling, rewards</summary><pre>{inner}</pre></details>"
    sections.append(("What was the same", details))
    body = "".join(f'<section id="s{n}"><h2>{title}</h2>{text}</section>' for n, (title, text) in enumerate(sections))
    links = "".join(f'<a href="#s{n}">{title}</a>' for n, (title, _) in enumerate(sections))
    title = f"{names[1]} against {names[0]}"
    header = (
        f'<header><p class="kind">evaluation · side by side</p><h1>{escape(title)}</h1>'
        f'<p class="outcome">{escape(outcome)}</p>{_list(headlines, "headlines")}{_list(facts, "facts")}</header>'
    )
    return page.whole(
        title=f"{title} · evaluation",
        description=outcome,
        body=f"{header}<nav>{links}</nav><main>{body}</main>",
        readings=readings,
    )


def _list(items: Mapping[str, str], kind: str) -> str:
    inner = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in items.items())
    return f'<dl class="{kind}">{inner}</dl>'


def _table(table: Table) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _charts(curves: Mapping[str, Mapping[str, Points]], readings: dict[str, Any]) -> str:
    found = []
    for title, lines in curves.items():
        traces = [
            charts.Trace(label=label, points=points, colour=n, style="dots", values=points)
            for n, (label, points) in enumerate(lines.items())
        ]
        chart = charts.Chart(title=title, traces=traces, axis="k")
        places = [k for points in lines.values() for k, _ in points]
        identity = f"chart-{len(readings)}"
        readings[identity] = charts.readings(chart)
        found.append(charts.figure(chart, identity, (min(places), max(places))))
    return "".join(found)


def _completions(names: tuple[str, str], shown: Sequence[Shown], counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    said = (
        f"{total:,} prompt{'s' * (total != 1)}: {counts['better']:,} better, {counts['worse']:,} worse, "
        f"{counts['changed']:,} with the same reward and another text, {counts['same']:,} unchanged. The largest change of "
        "reward comes first."
    )
    has_means = any(one.means is not None for one in shown)
    if has_means:
        said += " Of a prompt's completions the one is shown whose reward changed most; the mean is over all of them."
    head = "".join(
        f"<th{style}>{escape(title)}</th>"
        for title, style in (
            ("Prompt", ""),
            ("Answer", ""),
            *([("Mean reward", ' style="width:13%"')] if has_means else []),
            (names[0], ""),
            (names[1], ""),
        )
    )
    first, rest = shown[:MOST_ROWS], shown[MOST_ROWS:]
    table = f'<p>{escape(said)}</p><div class="scroll">{_rows(head, first, names, has_means=has_means)}</div>'
    if not rest:
        return table
    left = total - len(shown)
    more = f"<p>{left:,} more are in completions.jsonl of both.</p>" if left > 0 else ""
    folded = f'<div class="scroll">{_rows(head, rest, names, has_means=has_means)}{more}</div>'
    return f"{table}<details><summary>{len(rest):,} more</summary>{folded}</details>"


def _rows(head: str, shown: Sequence[Shown], names: tuple[str, str], *, has_means: bool) -> str:
    body = "".join(
        f'<tr class="{KINDS[one.kind]}"><td data-label="Prompt">{visible(one.after.prompt)}</td>'
        f'<td data-label="Answer">{"" if one.after.answer is None else visible(one.after.answer)}</td>'
        f"{_means(one) if has_means else ''}"
        f'<td data-label="{escape(names[0], quote=True)}">{_cell(one.before)}</td>'
        f'<td data-label="{escape(names[1], quote=True)}">{_cell(one.after)}</td></tr>'
        for one in shown
    )
    return f'<table class="samples"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _means(one: Shown) -> str:
    said = "" if one.means is None else " → ".join(figures.alike(one.means))
    return f'<td data-label="Mean reward">{said}</td>'


def _cell(sample: Sample) -> str:
    reward = "not scored" if sample.reward is None else figures.typeset(sample.reward)
    cut = '<span class="cut">cut by the length limit</span>' if sample.is_truncated else ""
    return f'<div>{visible(sample.completion)}</div><span class="reward">{reward}</span>{cut}'
