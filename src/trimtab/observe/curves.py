"""Which charts a run's report has: one function a section, from all curves of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trimtab.observe import figures
from trimtab.observe.charts import Chart, Trace
from trimtab.observe.record import MOST_POINTS, Points, bucket_means, describe, running_mean

Curves = Mapping[str, Points]

NOISY = 120
"""From so many points on, a curve is drawn faintly under its running mean."""

TIMES = ("rollout", "reward", "freeze", "forward", "backward", "optimizer", "probe", "communication", "evaluation")
GREY = 8
"""The palette's colour for what is left over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    charts: list[Chart]
    is_folded: bool = False


def sections(curves: Curves) -> list[Section]:
    """The sections that have something to show; every metric is in one of them."""
    found = [
        Section(title="Reward", charts=_reward(curves)),
        Section(title="Preference", charts=_preference(curves)),
        Section(title="Loss", charts=_loss(curves)),
        Section(title="Divergence and entropy", charts=_each(curves, [*_starting(curves, "kl/"), "entropy"])),
        Section(title="Length", charts=_length(curves)),
        Section(title="Updates", charts=_updates(curves)),
        Section(title="Time", charts=_time(curves)),
    ]
    titles = {chart.title for section in found for chart in section.charts}
    shown = {"reward/std", "reward/min", "reward/max", "time/step", "length/mean", *(f"time/{part}" for part in TIMES)}
    shown |= {name for name in curves if name.startswith(("coefficient/", "length/", "eval/loss/", "ratio/", "clip_"))}
    shown = (
        titles | {f"eval/{title}" for title in titles} | shown | {f"eval/{name}" for name in shown if name in curves}
    )
    rest = [name for name in curves if name not in shown]
    found.append(Section(title="Other metrics", charts=_each(curves, rest), is_folded=True))
    return [section for section in found if section.charts]


def metric_chart(curves: Curves, name: str, *, note: str = "") -> Chart:
    """The chart of one metric, with the same metric of the evaluations as dots if there is one."""
    metric = describe(name)
    traces = _lines(
        "each step" if f"eval/{name}" not in curves else "training",
        curves.get(name, []),
        colour=1 if name.startswith("eval/") else 0,
    )
    if (measured := f"eval/{name}") in curves:
        traces.append(Trace(label="evaluation", points=curves[measured], colour=1, style="dots"))
    return Chart(title=name, unit=metric.unit, help=metric.help, note=note, traces=traces)


def _reward(curves: Curves) -> list[Chart]:
    own = [n for n in _starting(curves, "reward/") if n.split("/")[1] not in ("mean", "std", "min", "max")]
    measured = [n for n in _starting(curves, "eval/reward/") if n.removeprefix("eval/") not in (*own, "reward/mean")]
    charts = _each(curves, own + measured)
    if "reward/mean" in curves or "eval/reward/mean" in curves:
        charts.insert(0, _reward_mean(curves))
    return charts


def _preference(curves: Curves) -> list[Chart]:
    """How pairs and labels are told apart, in training and in evaluation."""
    found = [name for family in ("preference/", "reward_model/", "kto/") for name in _starting(curves, family)]
    measured = [
        name
        for family in ("eval/preference/", "eval/reward_model/", "eval/kto/")
        for name in _starting(curves, family)
        if name.removeprefix("eval/") not in found
    ]
    return _each(curves, found + measured)


def _reward_mean(curves: Curves) -> Chart:
    training = curves.get("reward/mean", [])
    traces = [*reward_band(curves), *_lines("training", training, colour=0)]
    help_text = describe("reward/mean").help if training else describe("eval/reward/mean").help
    if points := curves.get("eval/reward/mean"):
        traces.append(Trace(label="evaluation", points=points, colour=1, style="dots"))
        help_text = f"training: {describe('reward/mean').help}; evaluation: {describe('eval/reward/mean').help}"
    return Chart(title="reward/mean", unit="reward", help=help_text, traces=traces, is_wide=True)


def reward_band(curves: Curves) -> list[Trace]:
    """One standard deviation about the mean, within what was seen; from least to largest where there is none."""
    mean, spread = dict(curves.get("reward/mean", [])), dict(curves.get("reward/std", []))
    low, high = dict(curves.get("reward/min", [])), dict(curves.get("reward/max", []))
    if steps := [step for step in mean if step in spread]:
        label = "one standard deviation"
        base = [(s, max(mean[s] - spread[s], low.get(s, float("-inf")))) for s in steps]
        top = [(s, min(mean[s] + spread[s], high.get(s, float("inf")))) for s in steps]
    elif steps := [step for step in low if step in high]:
        label = "smallest to largest"
        base, top = [(s, low[s]) for s in steps], [(s, high[s]) for s in steps]
    else:
        return []
    if len(steps) >= NOISY:
        base, top = running_mean(base, window(base)), running_mean(top, window(top))
    return [Trace(label=label, points=top, base=base, colour=0, style="band")]


def _loss(curves: Curves) -> list[Chart]:
    """Each term on its own scale, with its coefficient: in the caption if constant, as a chart if not."""
    charts = []
    order = ["loss/total", *(n for n in _starting(curves, "loss/") if n != "loss/total")]
    measured = [n for n in _starting(curves, "eval/loss/") if n.removeprefix("eval/") not in order]
    for name in _present(curves, order + measured):
        factor = f"coefficient/{name.rpartition('/')[2]}"
        values = {value for _, value in curves.get(factor, [])}
        note = f"coefficient {figures.typeset(values.copy().pop())}" if len(values) == 1 else ""
        charts.append(metric_chart(curves, name, note=note))
        if len(values) > 1:
            charts.append(metric_chart(curves, factor))
    terms = {name.removeprefix("loss/") for name in order}
    lonely = [n for n in _starting(curves, "coefficient/") if n.partition("/")[2] not in terms]
    return charts + _each(curves, lonely)


def _length(curves: Curves) -> list[Chart]:
    charts = []
    fan = {key: curves[f"length/{key}"] for key in ("mean", "p50", "p95", "max") if f"length/{key}" in curves}
    labels = {"p50": "median", "p95": "95th percentile", "max": "longest"}
    if fan:
        traces = [
            Trace(label="", points=fan[high], base=fan[low], colour=colour, style="band")
            for low, high, colour in (("p95", "max", 4), ("p50", "p95", 0))
            if low in fan and high in fan
        ]
        colours = {"max": 4, "p95": 2, "p50": 3}
        traces += [
            Trace(label=labels[k], points=fan[k], colour=c, style="thin") for k, c in colours.items() if k in fan
        ]
        traces += [Trace(label="mean", points=fan[k], colour=0) for k in ("mean",) if k in fan]
        if points := curves.get("eval/length/mean"):
            traces.append(Trace(label="mean in evaluation", points=points, colour=1, style="dots"))
        help_text = "generated tokens of a completion: mean, median, 95th percentile and longest"
        charts.append(Chart(title="Length of completions", unit="tokens", help=help_text, traces=traces))
    rest = [n for n in _starting(curves, "length/") if n.partition("/")[2] not in fan]
    return charts + _each(curves, rest)


def _updates(curves: Curves) -> list[Chart]:
    charts = []
    if "ratio/mean" in curves:
        traces = [Trace(label=key, points=curves[n], colour=c, style=style)
                  for key, c, style in (("max", 3, "thin"), ("min", 4, "thin"), ("mean", 0, "line"))
                  if (n := f"ratio/{key}") in curves]  # fmt: skip
        if "ratio/min" in curves and "ratio/max" in curves:
            band = Trace(label="", points=curves["ratio/max"], base=curves["ratio/min"], style="band")
            traces.insert(0, band)
        charts.append(Chart(title="Probability ratio", unit="ratio", help=describe("ratio/mean").help, traces=traces))
    else:
        charts += _each(curves, _starting(curves, "ratio/"))
    if clipped := _starting(curves, "clip_fraction/"):
        traces = [Trace(label=n.partition("/")[2], points=curves[n], colour=i) for i, n in enumerate(clipped)]
        help_text = "; ".join(f"{n.partition('/')[2]}: {describe(n).help}" for n in clipped)
        charts.append(Chart(title="Clipped tokens", unit="ratio", help=help_text, traces=traces))
    names = ["update/ratio_max", *_starting(curves, "grad_norm/"), "learning_rate", "explained_variance"]
    return charts + _each(curves, names)


def _time(curves: Curves) -> list[Chart]:
    charts = [_breakdown(curves)] if any(f"time/{part}" in curves for part in TIMES) else []
    names = _starting(curves, "throughput/")
    return charts + _each(curves, names if charts else ["time/step", *names])


def _breakdown(curves: Curves) -> Chart:
    """The parts of a step stacked, and what no part accounts for on top."""
    parts = {part: dict(curves[f"time/{part}"]) for part in TIMES if f"time/{part}" in curves}
    whole = dict(curves.get("time/step", []))
    steps = sorted(set(whole).union(*parts.values()))
    known = {step: sum(values.get(step, 0.0) for values in parts.values()) for step in steps}
    parts["other"] = {step: max(0.0, whole.get(step, known[step]) - known[step]) for step in steps}
    base = bucket_means([(step, 0.0) for step in steps], MOST_POINTS // 2)
    traces = []
    for i, (part, values) in enumerate(parts.items()):
        own = bucket_means([(step, values.get(step, 0.0)) for step in steps], MOST_POINTS // 2)
        top = [(step, low + value) for (step, low), (_, value) in zip(base, own, strict=True)]
        colour = GREY if part == "other" else i % GREY
        traces.append(Trace(label=part, points=top, base=base, values=own, colour=colour, style="area"))
        base = top
    note = f"each point is the mean of up to {-(-len(steps) // len(base))} steps" if len(steps) > len(base) else ""
    help_text = "where the time of a step goes; other is what no part accounts for"
    return Chart(title="Time of a step", unit="seconds", help=help_text, note=note, traces=traces)


def _lines(label: str, points: Points, *, colour: int) -> list[Trace]:
    if not points:
        return []
    if len(points) < NOISY:
        return [Trace(label=label, points=points, colour=colour)]
    width = window(points)
    mean = Trace(label=f"mean over {width} steps", points=running_mean(points, width), colour=colour)
    return [Trace(label=label, points=points, colour=colour, style="faint"), mean]


def window(points: Points) -> int:
    """How many points the running mean of a noisy curve takes in: a fortieth, odd."""
    return len(points) // 40 | 1


def _starting(curves: Curves, prefix: str) -> list[str]:
    return [name for name in curves if name.startswith(prefix)]


def _present(curves: Curves, names: Iterable[str]) -> list[str]:
    return [name for name in names if name in curves]


def _each(curves: Curves, names: Iterable[str]) -> list[Chart]:
    return [metric_chart(curves, name) for name in _present(curves, names)]
