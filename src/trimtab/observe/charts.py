"""Charts as inline SVG: the shapes stretch with the page, the labels beside them keep their size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from trimtab.observe import figures
from trimtab.observe.record import Points, downsample

SIZE = 1000
"""Width and height of the coordinates of a plot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One line, row of dots or filled shape."""

    label: str
    """Without one, the trace has no entry in the legend."""
    points: Points
    colour: int = 0
    """Of the page's palette, from 0."""
    style: str = "line"
    """`line`, `thin`, `faint`, `dots` (joined by a thin line), `band` or `area` (filled between `base` and `points`)."""
    base: Points = field(default_factory=list)
    """Lower edge of a filled shape."""
    values: Points | None = None
    """What the read-out says; None for the points, [] for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure with its caption."""

    title: str
    unit: str = ""
    help: str = ""
    note: str = ""
    """A second line of the caption."""
    traces: Sequence[Trace] = ()
    is_wide: bool = False
    axis: str = "step"
    """What the horizontal axis is."""


def thinned(chart: Chart) -> Chart:
    """The chart with at most `record.MOST_POINTS` points a curve, the extremes among them."""
    traces = [
        replace(
            trace,
            points=downsample(trace.points),
            base=downsample(trace.base),
            values=None if trace.values is None else downsample(trace.values),
        )
        for trace in chart.traces
    ]
    return replace(chart, traces=traces)


def figure(chart: Chart, identity: str, domain: tuple[int, int]) -> str:
    """The chart as an HTML `<figure>`; `domain` is the first and last step of the axis."""
    heights = [value for trace in chart.traces for _, value in (*trace.points, *trace.base)]
    low, high = figures.limits(heights)
    first, last = (domain[0] - 0.5, domain[1] + 0.5) if domain[0] == domain[1] else domain
    frame = (first, last, low, high)
    rows, columns = figures.ticks(low, high), figures.ticks(*domain, whole=True)
    row_labels, power = figures.tick_labels(rows)
    column_labels, _ = figures.tick_labels(columns) if domain[1] < 1e5 else ([f"{c:,.0f}" for c in columns], "")
    grid = "".join(
        f'<path class="{"zero" if row == 0 and low < 0 < high else "grid"}" d="M0,{_y(row, frame)}H{SIZE}"/>'
        for row in rows
    )
    shapes = "".join(
        _shape(trace, frame) for trace in sorted(chart.traces, key=lambda t: t.style not in ("band", "area"))
    )
    y_axis = "".join(
        f'<span style="bottom:{_percent(row, low, high)}%">{label}</span>'
        for row, label in zip(rows, row_labels, strict=True)
    )
    x_axis = "".join(
        f'<span style="left:{_percent(column, first, last)}%">{label}</span>'
        for column, label in zip(columns, column_labels, strict=True)
    )
    return (
        f'<figure class="chart{" wide" if chart.is_wide else ""}" id="{identity}">{_caption(chart)}'
        f'<div class="plot"><div class="y" aria-hidden="true">{y_axis}</div>'
        f'<div class="area" data-first="{first:g}" data-last="{last:g}">'
        f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" role="img" aria-label="{_spoken(chart)}">'
        f"{grid}{shapes}</svg>"
        f'{f"<b class=power>{power}</b>" if power else ""}<i class="cursor"></i></div>'
        f'<div class="corner" aria-hidden="true">{escape(chart.axis)}</div>'
        f'<div class="x" aria-hidden="true">{x_axis}</div></div></figure>'
    )


def readings(chart: Chart) -> list[dict[str, Any]]:
    """What the legend says while somebody points at the chart: JSON values, one entry a legend's number."""
    return [{"at": [p[0] for p in points], "is": [_rounded(p[1]) for p in points]} for _, points in _read(chart)]


def _read(chart: Chart) -> list[tuple[Trace, Points]]:
    """The traces whose numbers the legend shows, with these numbers."""
    pairs = []
    for trace in chart.traces:
        values = trace.values if trace.values is not None else [] if trace.style == "band" else trace.points
        if values:
            pairs.append((trace, values))
    return pairs


def _caption(chart: Chart) -> str:
    unit = f' <span class="unit">{escape(chart.unit)}</span>' if chart.unit not in ("", "1") else ""
    lines = "".join(f"<small>{escape(line)}</small>" for line in (chart.help, chart.note) if line)
    return f"<figcaption><strong>{escape(chart.title)}</strong>{unit}{lines}</figcaption>{_legend(chart)}"


def _legend(chart: Chart) -> str:
    """What each trace is, with its last value; the script puts those under the pointer in their place."""
    numbers = {id(trace): points[-1] for trace, points in _read(chart)}
    is_single = len([trace for trace in chart.traces if trace.label]) == 1
    items = []
    for trace in chart.traces:
        if not trace.label:
            continue
        key = "alone" if is_single else {"band": "fill soft", "area": "fill"}.get(trace.style, trace.style)
        label = "" if is_single else escape(trace.label)
        if id(trace) in numbers:
            step, value = numbers[id(trace)]
            at = f" at <u>{step:,}</u>" if trace.style == "dots" else ""
            label += f"{at} <b>{figures.typeset(value)}</b>"
        items.append(f'<li class="{key} c{trace.colour}">{label}</li>')
    newest = f"<li>{escape(chart.axis)} <em>{max(step for step, _ in numbers.values()):,}</em></li>" if numbers else ""
    return f'<ul class="legend">{newest}{"".join(items)}</ul>'


def _shape(trace: Trace, frame: tuple[float, float, float, float]) -> str:
    points = trace.points
    if trace.style in ("band", "area"):
        edge = [*points, *reversed(trace.base)]
        return f'<path class="{trace.style} c{trace.colour}" d="{_path(edge, frame)}Z"/>'
    line = f'<path class="{trace.style} c{trace.colour}" d="{_path(points, frame)}"/>'
    if trace.style == "dots" or len(points) == 1:
        dots = "".join(f"M{_x(step, frame)},{_y(value, frame)}h.01" for step, value in points)
        return f'{line}<path class="dot c{trace.colour}" d="{dots}"/>'
    return line


def _path(points: Points, frame: tuple[float, float, float, float]) -> str:
    return "M" + "L".join(f"{_x(step, frame)},{_y(value, frame)}" for step, value in points)


def _x(step: float, frame: tuple[float, float, float, float]) -> str:
    return f"{SIZE * (step - frame[0]) / (frame[1] - frame[0]):.1f}"


def _y(value: float, frame: tuple[float, float, float, float]) -> str:
    return f"{SIZE * (frame[3] - value) / (frame[3] - frame[2]):.1f}"


def _percent(value: float, low: float, high: float) -> str:
    return f"{100 * (value - low) / (high - low):.2f}"


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _spoken(chart: Chart) -> str:
    """The chart in a sentence, for those who do not see it."""
    said = [
        f"{trace.label} from {figures.short(points[0][1])} at {chart.axis} {points[0][0]} "
        f"to {figures.short(points[-1][1])} at {chart.axis} {points[-1][0]}"
        for trace, points in _read(chart)
    ]
    return escape(f"{chart.title}: {'; '.join(said)}", quote=True)
