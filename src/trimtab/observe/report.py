"""The report of a run: one HTML page that needs nothing but itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from trimtab.observe import charts, completions, figures, page
from trimtab.observe.curves import Curves, Section, sections
from trimtab.observe.picture import png
from trimtab.observe.record import RunRecord, every_curve, headline_metric, seconds

__all__ = ["RunRecord", "html", "png"]

MOST_EVENTS = 12
"""Shown at once; alarms always are."""

_ALARMING = re.compile(r"alarm|alert|fail|error|stop|roll|damag|lost|non_finite|abort")
_MONOSPACED = re.compile(r"`([^`]+)`")
_SYMBOL = re.compile(r"\b([A-Za-z])(?:_([A-Za-z0-9]+))?\b")


def html(record: RunRecord) -> str:
    """The report as one page of HTML, without any reference to the outside.

    Everything from the run is escaped; a content security policy lets no script run but the page's own. Curves of
    more than `record.MOST_POINTS` steps are thinned, keeping their extremes.
    """
    curves = every_curve(record)
    found = sections(curves)
    readings: dict[str, Any] = {}
    domain = _domain(curves)
    middle = "".join(_charts(section, domain, readings, record) for section in found)
    blocks = [
        ("Completions", _completions(record)),
        ("Events", _events(record)),
        (
            "Configuration",
            f"<details><summary>Resolved configuration</summary><pre>{escape(record.config)}</pre></details>",
        )
        if record.config
        else ("", ""),
        ("What to try next", _next_steps(record)),
    ]
    tail = "".join(_section(title, body) for title, body in blocks if body)
    contents = [s.title for s in found] + [title for title, body in blocks if body]
    links = "".join(f'<a href="#{_anchor(title)}">{title}</a>' for title in contents)
    body = f"{_header(record, curves)}<nav>{links}</nav><main>{middle}{tail}</main>"
    return page.whole(
        title=f"{record.name} · {record.algorithm} · run report",
        description=_description(record, curves),
        body=body,
        readings=readings,
    )


def _domain(curves: Curves) -> tuple[int, int]:
    ends = [step for points in curves.values() for step in (points[0][0], points[-1][0])]
    return (min(ends), max(ends)) if ends else (0, 1)


def _header(record: RunRecord, curves: Curves) -> str:
    items = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in _headlines(record, curves))
    facts = "".join(
        f"<div><dt>{escape(k)}</dt><dd>{escape(str(v))}</dd></div>" for k, v in record.facts.items() if k != "duration"
    )
    return (
        f'<header><p class="kind">{escape(record.algorithm)} · run report</p><h1>{escape(record.name)}</h1>'
        f'<p class="outcome">{escape(record.outcome)}</p><dl class="headlines">{items}</dl>'
        f"{f'<dl class=facts>{facts}</dl>' if facts else ''}</header>"
    )


def _headlines(record: RunRecord, curves: Curves) -> list[tuple[str, str]]:
    """The few figures that a reader wants first: what they are, and their values."""
    found = []
    if change := _change(curves):
        found.append(change)
    if record.steps:
        last = max(int(r["step"]) for r in record.steps)
        found.append(("step" if last == 1 else "steps", f"{last:,}"))
    duration = record.facts.get("duration") or ((spent := seconds(record)) is not None and figures.duration(spent))
    if duration:
        found.append(("duration", str(duration)))
    for name, label in (("rollout", "sampled tokens/s"), ("train", "trained tokens/s")):
        if points := curves.get(f"throughput/{name}_tokens_per_second"):
            middle = sorted(value for _, value in points)[len(points) // 2]
            found.append((f"{label}, median", figures.typeset(middle)))
    return found


def _change(curves: Curves) -> tuple[str, str] | None:
    name = headline_metric(curves)
    if name is None:
        return None
    values = figures.alike([curves[name][i][1] for i in (0, -1)])
    label = {"eval/reward/mean": "evaluation reward", "reward/mean": "training reward"}.get(name, name)
    if len(curves[name]) == 1:
        return label, values[0]
    return f"{label}, first and last", f"{values[0]} → {values[-1]}"


def _description(record: RunRecord, curves: Curves) -> str:
    said = "; ".join(f"{label}: {value}" for label, value in _headlines(record, curves))
    return f"Trimtab run {record.name} ({record.algorithm}). {record.outcome} {said}".strip()


def _charts(section: Section, domain: tuple[int, int], readings: dict[str, Any], record: RunRecord) -> str:
    """The section's figures; what their read-outs need is added to `readings`."""
    drawn = []
    for chart in map(charts.thinned, section.charts):
        identity = f"chart-{len(readings)}"
        readings[identity] = charts.readings(chart)
        drawn.append(charts.figure(chart, identity, domain))
    grid = f'<div class="charts">{"".join(drawn)}</div>'
    if section.title == "Loss" and record.formula:
        grid = f'<p class="formula">{_formula(record.formula)}</p>{grid}'
    if section.is_folded:
        grid = f"<details><summary>{len(drawn)} more</summary>{grid}</details>"
    return _section(section.title, grid)


def _section(title: str, body: str) -> str:
    return f'<section id="{_anchor(title)}"><h2>{title}</h2>{body}</section>'


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _formula(formula: str) -> str:
    """Single letters in italics, `L_policy` with a subscript."""
    return _SYMBOL.sub(lambda m: f"<i>{m[1]}</i>" + (f"<sub>{m[2]}</sub>" if m[2] else ""), escape(formula))


def _completions(record: RunRecord) -> str:
    table = completions.comparison(record.before, record.after)
    if not record.samples:
        return table
    late = f"{len(record.samples):,} completion{'s' * (len(record.samples) != 1)} of late training"
    return f"{table}<details><summary>{late}</summary>{completions.listing(record.samples)}</details>"


def _events(record: RunRecord) -> str:
    if not record.events:
        return ""
    alarms = [event for event in record.events if is_alarming(event)]
    said = f"<p>{len(alarms)} of {len(record.events)} ask for attention.</p>" if alarms else "<p>No alarms.</p>"
    if len(record.events) <= MOST_EVENTS:
        return said + _event_table(record.events, record)
    shown = _event_table(alarms, record) if alarms else ""
    every = _event_table(record.events, record)
    return f"{said}{shown}<details><summary>All {len(record.events):,} events</summary>{every}</details>"


def is_alarming(event: Mapping[str, Any]) -> bool:
    """Whether an event is bad news, by its name; an early stop by a `finished` event is not, nor an alarm's end."""
    return event.get("event") != "alarm over" and bool(_ALARMING.search(str(event.get("event", "")).lower()))


def _event_table(events: Sequence[Mapping[str, Any]], record: RunRecord) -> str:
    times = [float(r["time"]) for r in (*record.events, *record.evaluations, *record.steps) if "time" in r]
    start = min(times, default=0.0)
    rows = "".join(
        f'<tr class="{"alarm" if is_alarming(event) else ""}">'
        f"<td>{'+' + figures.duration(float(event['time']) - start) if 'time' in event else ''}</td>"
        f"<td>{escape(str(event.get('event', '')))}</td><td>{_event_facts(event)}</td></tr>"
        for event in events
    )
    return f'<div class="scroll"><table class="events"><tbody>{rows}</tbody></table></div>'


def _event_facts(event: Mapping[str, Any]) -> str:
    facts = ((key, value) for key, value in event.items() if key not in ("event", "time", "kind"))
    return ", ".join(f"<span>{escape(key)}</span> {escape(_fact(value))}" for key, value in facts)


def _fact(value: Any) -> str:
    if isinstance(value, float):
        return figures.typeset(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _next_steps(record: RunRecord) -> str:
    items = "".join("<li>" + _MONOSPACED.sub(r"<code>\1</code>", escape(step)) + "</li>" for step in record.next_steps)
    return f"<ol>{items}</ol>" if items else ""
