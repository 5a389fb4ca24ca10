"""The picture of a run: six panels in a PNG, for a README or a message."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.errors import MissingExtraError
from trimtab.observe import completions, figures
from trimtab.observe.curves import NOISY, Curves, reward_band, window
from trimtab.observe.record import (
    MOST_POINTS,
    Points,
    RunRecord,
    downsample,
    every_curve,
    headline_metric,
    running_mean,
    seconds,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT, DOTS_PER_INCH = 16.0, 9.0, 100
"""Inches, inches, pixels per inch."""

INK, QUIET, RULE = "#202225", "#666a70", "#dedbd3"
BLUE, ORANGE, GREEN, PURPLE, PALE = "#2a5d8f", "#c45c12", "#3b7d55", "#7b4f96", "#7fa6c9"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#b4862a", "#2b8c8c")


def png(record: RunRecord, path: Path) -> None:
    """Draw the run as a PNG of 1600 x 900 pixels; equal records give equal bytes.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError('pictures need matplotlib; install it by: pip install "trimtab[plots]"') from error
    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DOTS_PER_INCH, facecolor="white")
    FigureCanvasAgg(figure)
    curves = every_curve(record)
    _title(figure, record, curves)
    grid = figure.add_gridspec(2, 3, left=0.05, right=0.978, top=0.82, bottom=0.075, hspace=0.38, wspace=0.2)
    _reward(figure.add_subplot(grid[0, 0]), curves)
    losses = [name for name in curves if name.startswith("loss/")]
    losses = [name for name in losses if name != "loss/total"] or losses
    _strips(figure, grid[0, 1], "Loss terms", losses, curves)
    _strips(
        figure, grid[0, 2], "KL divergence, nats", [n for n in ("kl/reference", "kl/update") if n in curves], curves
    )
    entropy = {"": curves["entropy"]} if "entropy" in curves else {}
    _lines(figure.add_subplot(grid[1, 0]), "Entropy, nats a token", entropy, curves, colours=(GREEN,))
    _lengths(figure.add_subplot(grid[1, 1]), curves)
    last = figure.add_subplot(grid[1, 2])
    if pairs := completions.pairs(record.before, record.after):
        _examples(last, pairs)
    else:
        _throughput(last, curves)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(path, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})


def _title(figure: Figure, record: RunRecord, curves: Curves) -> None:
    plain: dict[str, Any] = {"parse_math": False, "va": "baseline"}
    figure.text(0.05, 0.93, _one_line(record.name, 60), fontsize=22, fontweight="bold", color=INK, **plain)
    parts = [record.algorithm]
    if record.steps:
        count = max(int(r["step"]) for r in record.steps)
        parts.append(f"{count:,} step{'s' * (count != 1)}")
    if spent := record.facts.get("duration") or figures.duration(seconds(record) or 0):
        parts.append(spent)
    parts += [str(record.facts[key]) for key in ("model", "data") if key in record.facts]
    figure.text(0.05, 0.892, _one_line("  ·  ".join(parts), 110), fontsize=12.5, color=QUIET, **plain)
    if (name := headline_metric(curves)) and len(curves[name]) > 1:
        first, last = figures.alike([curves[name][i][1] for i in (0, -1)])
        label = {"eval/reward/mean": "evaluation reward", "reward/mean": "training reward"}.get(name, name)
        figure.text(0.978, 0.927, f"{first} → {last}", fontsize=26, color=ORANGE, ha="right", **plain)
        figure.text(0.978, 0.892, label, fontsize=12.5, color=QUIET, ha="right", **plain)


def _axes(axes: Any, curves: Curves, values: Sequence[float], *, most: int = 5) -> str:
    """Set the axes up for values over the steps of the run; the power of ten of the labels ('' for 1)."""
    axes.tick_params(colors=QUIET, labelsize=10.5, length=0)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(QUIET)
    ends = [step for points in curves.values() for step in (points[0][0], points[-1][0])] or [0, 1]
    first, last = min(ends), max(ends)
    margin = 0.012 * (last - first) or 0.5
    places = figures.ticks(first, last, whole=True)
    axes.set(xlim=(first - margin, last + margin), ylim=figures.limits(values))
    axes.set_xticks(places, [f"{place:,.0f}" for place in places])
    axes.set_xlabel("step", fontsize=10.5, color=QUIET, labelpad=2)
    places = figures.ticks(*figures.limits(values), most=most)
    labels, power = figures.tick_labels(places)
    axes.set_yticks(places, labels)
    return power


def _heading(axes: Any, text: str, power: str = "") -> None:
    text = f"{text}, {power}" if power else text
    axes.set_title(text, loc="left", y=1.0, pad=10, fontsize=13, fontweight="bold", color=INK, parse_math=False)


def _curve(axes: Any, points: Points, colour: str, label: str = "") -> None:
    """A line; faint under its running mean if it has many points."""
    if len(points) >= NOISY:
        axes.plot(*_columns(points), color=colour, linewidth=0.7, alpha=0.3)
        points = running_mean(points, window(points))
    marker = "o" if len(points) == 1 else None
    axes.plot(*_columns(points), color=colour, linewidth=2, label=label or None, marker=marker, solid_capstyle="round")


def _columns(points: Points) -> tuple[list[int], list[float]]:
    thinned = downsample(points)
    return [step for step, _ in thinned], [value for _, value in thinned]


def _legend(axes: Any) -> None:
    """Above the axes, right of the title, where it hides nothing."""
    if entries := axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=10.5, labelcolor=INK, handlelength=1.1, handletextpad=0.5, columnspacing=1.1,
                    borderaxespad=0, ncols=len(entries), loc="lower right", bbox_to_anchor=(1.0, 1.015))  # fmt: skip


def _nothing(axes: Any, title: str) -> None:
    _heading(axes, title)
    axes.axis("off")
    axes.text(0.5, 0.5, "not measured in this run", ha="center", va="center", color=QUIET, transform=axes.transAxes)


def _reward(axes: Any, curves: Curves) -> None:
    training, measured = curves.get("reward/mean", []), curves.get("eval/reward/mean", [])
    if not training and not measured:
        _nothing(axes, "Reward")
        return
    band = reward_band(curves)
    edges = [points for trace in band for points in (trace.points, trace.base)]
    _heading(axes, "Reward", _axes(axes, curves, [v for points in (training, measured, *edges) for _, v in points]))
    for trace in band:
        _fill(axes, trace.base, trace.points, BLUE, "1 sd" if "reward/std" in curves else "min to max")
    if training:
        _curve(axes, training, BLUE, "training")
    if measured:
        axes.plot(*_columns(measured), color=ORANGE, linewidth=1.2, marker="o", markersize=6, label="evaluation")
    _legend(axes)


def _fill(axes: Any, base: Points, top: Points, colour: str, label: str) -> None:
    """The area between two curves with the same steps."""
    skip = max(1, len(base) // MOST_POINTS)
    steps, low, high = ([p[i] for p in points[::skip]] for points, i in ((base, 0), (base, 1), (top, 1)))
    axes.fill_between(steps, low, high, color=colour, alpha=0.17, linewidth=0, label=label)


def _strips(figure: Figure, place: Any, title: str, names: Sequence[str], curves: Curves) -> None:
    """One strip a metric, at most four, each on its own scale: they differ by orders of magnitude."""
    if not names:
        _nothing(figure.add_subplot(place), title)
        return
    count = min(4, len(names))
    strips = place.subgridspec(count, 1, hspace=0.5 if count > 2 else 0.3)
    for i, (name, strip) in enumerate(zip(names, strips, strict=False)):
        axes, colour = figure.add_subplot(strip), COLOURS[i]
        power = _axes(axes, curves, [value for _, value in curves[name]], most=4 if count < 3 else 2)
        _curve(axes, curves[name], colour)
        if i == 0:
            _heading(axes, title)
        if i < count - 1:
            axes.tick_params(labelbottom=False)
            axes.set_xlabel("")
        label = name.partition("/")[2] + (f"  {power}" if power else "")
        axes.text(0.995, 1.04, label, color=colour, fontsize=11, ha="right", va="bottom", fontweight="bold",
                  transform=axes.transAxes, parse_math=False)  # fmt: skip


def _lines(
    axes: Any, title: str, lines: dict[str, Points], curves: Curves, *, colours: Sequence[str] = (BLUE, ORANGE)
) -> None:
    if not lines:
        _nothing(axes, title)
        return
    _heading(axes, title, _axes(axes, curves, [value for points in lines.values() for _, value in points]))
    for (label, points), colour in zip(lines.items(), colours, strict=False):
        _curve(axes, points, colour, label)
    _legend(axes)


def _lengths(axes: Any, curves: Curves) -> None:
    fan = {key: curves[f"length/{key}"] for key in ("p50", "p95", "max", "mean") if f"length/{key}" in curves}
    if not fan:
        _nothing(axes, "Length, tokens")
        return
    _heading(axes, "Length, tokens", _axes(axes, curves, [value for points in fan.values() for _, value in points]))
    for low, high, colour, label in (("p95", "max", PALE, "to max"), ("p50", "p95", BLUE, "p50–p95")):
        if low in fan and high in fan:
            below, above = dict(fan[low]), dict(fan[high])
            steps = [step for step in below if step in above]
            _fill(axes, [(s, below[s]) for s in steps], [(s, above[s]) for s in steps], colour, label)
    if "mean" in fan:
        _curve(axes, fan["mean"], ORANGE, "mean")
    _legend(axes)


def _throughput(axes: Any, curves: Curves) -> None:
    names = {"sampling": "throughput/rollout_tokens_per_second", "training": "throughput/train_tokens_per_second"}
    lines = {label: curves[name] for label, name in names.items() if name in curves}
    _lines(axes, "Throughput, tokens/s", lines, curves)


def _examples(axes: Any, pairs: Sequence[completions.Pair]) -> None:
    """Prompts with both completions; green where the reward rose, red where it fell."""
    axes.axis("off")
    _heading(axes, "The same prompts before and after")
    chosen, _ = completions.split(pairs, 7)
    better, worse = (sum(sign * completions.gain(pair) > 0 for pair in pairs) for sign in (1, -1))
    said = f"of {len(pairs):,}: {better:,} better, {worse:,} worse, {len(pairs) - better - worse:,} the same"
    axes.text(0, -0.035, said, fontsize=10.5, color=QUIET, va="top", transform=axes.transAxes)
    places = (0.0, 0.42, 0.71)
    for x, title in zip(places, ("prompt", "before", "after"), strict=True):
        axes.text(x, 0.97, title, fontsize=10.5, color=QUIET, va="top", transform=axes.transAxes)
    axes.plot([0, 1], [0.9, 0.9], color=QUIET, linewidth=0.8, transform=axes.transAxes)
    for row, (before, after) in enumerate(chosen):
        change = completions.gain((before, after))
        tone = GREEN if change > 0 else "#a8323e" if change < 0 else INK
        texts = (before.prompt, 22), (before.completion, 15), (after.completion, 15)
        for x, (text, most), colour in zip(places, texts, (INK, QUIET, tone), strict=True):
            shown = _one_line(text, most) if text.strip() else "(blank)"
            axes.text(x, 0.84 - 0.122 * row, shown, fontsize=12, color=colour, va="top", family="monospace",
                      transform=axes.transAxes, parse_math=False)  # fmt: skip


def _one_line(text: str, most: int) -> str:
    """The text's start on one line, without characters that cannot be drawn."""
    flat = "".join(c if c.isprintable() else "↵" if c == "\n" else " " for c in text)
    return flat if len(flat) <= most else flat[: most - 1] + "…"
