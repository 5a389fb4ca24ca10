"""A comparison as a page, as Markdown, and as a table in a terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from trimtab.compare.plan import Plan
from trimtab.compare.results import CURVES, ArmResult, Check, ConfigDifference
from trimtab.compare.verdict import Verdict
from trimtab.observe import charts, figures, page
from trimtab.observe.record import Points, describe, running_mean

SMOOTHED = 9
"""Steps of the running mean of a training curve."""
Row = tuple[str, ...]


def markdown(
    plan: Plan,
    arms: Sequence[ArmResult],
    verdict: Verdict,
    checks: Sequence[Check],
    differences: Sequence[ConfigDifference],
) -> str:
    """The verdict, its figures, what it cost and what was the same."""
    head, rows = score_table(arms, verdict)
    costs, cost_rows = cost_table(arms)
    lines = [
        f"# {title(plan)}",
        "",
        f"**{verdict.headline}**",
        "",
        subtitle(plan),
        "",
        *_markdown_table(head, rows),
        "",
        *(f"* {pair.said}" for pair in verdict.pairs),
        *(["", *(f"* {remark}" for remark in verdict.remarks)] if verdict.remarks else []),
        "",
        "## Cost of a run, mean over seeds",
        "",
        *_markdown_table(costs, cost_rows),
        "",
        "## What was the same",
        "",
        *(f"* {'yes' if check.is_same else '**no**'}: {check.said}" for check in checks),
        "",
        "## What differs in the configurations",
        "",
        *_markdown_table(*difference_table(plan, differences)),
        "",
    ]
    return "\n".join(lines)


def title(plan: Plan) -> str:
    return f"{', '.join(plan.varied)}: {' against '.join(arm.label for arm in plan.arms)}"


def subtitle(plan: Plan) -> str:
    """How it was compared, in a sentence."""
    budget = "" if plan.budget is None else f", {plan.budget.amount:,.0f} {plan.budget.kind} a run"
    seeds = "1 seed" if len(plan.seeds) == 1 else f"{len(plan.seeds)} seeds"
    held = plan.locked["evaluation"]
    return f"{plan.source}, {seeds}{budget}; {held['metric']} on {held['validation']} after the last step."


def score_table(arms: Sequence[ArmResult], verdict: Verdict) -> tuple[Row, list[Row]]:
    """Arms by their score, with every seed's."""
    by_label = {arm.arm.label: arm for arm in arms}
    rows: list[Row] = []
    for label, mean in verdict.ranking:
        arm = by_label[label]
        scores = arm.scores
        spread = _deviation(scores)
        own = [f"{s:.3g}" for s in scores]
        rows.append(
            (
                label,
                "none" if mean is None else f"{mean:.4g}",
                "" if spread is None else f"{spread:.2g}",
                " ".join(own),
                f"{arm.diverged} of {len(arm.runs)}" if arm.diverged else "none",
                str(sum(run.rollbacks for run in arm.runs)),
            )
        )
    return ("arm", f"{verdict.metric}, mean", "deviation over seeds", "seed by seed", "diverged", "rollbacks"), rows


def cost_table(arms: Sequence[ArmResult]) -> tuple[Row, list[Row]]:
    head = (
        "arm", "steps", "completions", "tokens", "training", "CPU time", "GPU time", "peak memory", "trained parameters"
    )  # fmt: skip
    rows: list[Row] = []
    for arm in arms:
        if not arm.runs:
            continue
        on_gpu = any(run.on_gpu for run in arm.runs)
        parameters = sum(arm.runs[0].parameters.values())
        rows.append(
            (
                arm.arm.label,
                f"{arm.mean('steps'):,.0f}",
                f"{arm.mean('samples'):,.0f}",
                f"{arm.mean('tokens'):,.0f}",
                figures.duration(arm.mean("seconds")),
                figures.duration(arm.mean("cpu_seconds")),
                figures.duration(arm.mean("seconds")) if on_gpu else "none",
                f"{max(float(run.cost['peak_bytes']) for run in arm.runs) / 2**20:,.0f} MiB",
                f"{parameters:,}",
            )
        )
    return head, rows


def difference_table(plan: Plan, differences: Sequence[ConfigDifference]) -> tuple[Row, list[Row]]:
    head = ("key", *(arm.label for arm in plan.arms), "why")
    return head, [(d.key, *map(_shown, d.values), d.why) for d in differences]


def html(
    plan: Plan,
    arms: Sequence[ArmResult],
    verdict: Verdict,
    checks: Sequence[Check],
    differences: Sequence[ConfigDifference],
) -> str:
    """The comparison as one page that needs nothing but itself."""
    readings: dict[str, Any] = {}
    drawn = _charts(arms, verdict.metric, readings)
    said = "".join(f"<li>{escape(pair.said)}</li>" for pair in verdict.pairs)
    remarks = "".join(f"<li>{escape(remark)}</li>" for remark in verdict.remarks)
    same = "".join(
        f'<tr class="{"" if c.is_same else "alarm"}"><td>{"same" if c.is_same else "not the same"}</td>'
        f"<td>{escape(c.name)}</td><td>{escape(c.said)}</td></tr>"
        for c in checks
    )
    ended = [run for arm in arms for run in arm.runs]
    facts = {
        "runs": f"{len(ended)}",
        "diverged": f"{sum(arm.diverged for arm in arms)}",
        "CPU time of all": figures.duration(sum(float(run.cost["cpu_seconds"]) for run in ended)),
    }
    header = (
        f'<header><p class="kind">comparison</p><h1>{escape(title(plan))}</h1>'
        f'<p class="outcome">{escape(verdict.headline)}</p>'
        f"<p>{escape(subtitle(plan))}</p>"
        f'<dl class="headlines">{"".join(f"<div><dt>{k}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items())}</dl></header>'
    )
    sections = [
        (
            "Verdict",
            f"{_html_table(*score_table(arms, verdict))}<ul>{said}</ul>{f'<ul>{remarks}</ul>' if remarks else ''}",
        ),
        (
            "Learning curves",
            f'<p>Means over seeds; bands from the lowest to the highest seed.</p><div class="charts">{drawn}</div>',
        ),
        ("Cost of a run", _html_table(*cost_table(arms))),
        ("What was the same", f'<div class="scroll"><table class="events"><tbody>{same}</tbody></table></div>'),
        ("What differs in the configurations", _html_table(*difference_table(plan, differences))),
        ("Locked", f"<pre>{escape(json.dumps(dict(plan.locked), indent=1, ensure_ascii=False))}</pre>"),
    ]
    body = "".join(f'<section id="s{n}"><h2>{name}</h2>{inner}</section>' for n, (name, inner) in enumerate(sections))
    links = "".join(f'<a href="#s{n}">{name}</a>' for n, (name, _) in enumerate(sections))
    return page.whole(
        title=f"{title(plan)} · comparison",
        description=verdict.headline,
        body=f"{header}<nav>{links}</nav><main>{body}</main>",
        readings=readings,
    )


def _charts(arms: Sequence[ArmResult], metric: str, readings: dict[str, Any]) -> str:
    """The evaluation, wide, and what training was like."""
    steps = [step for arm in arms for run in arm.runs for points in run.curves.values() for step, _ in points]
    domain = (min(steps), max(steps)) if steps else (0, 1)
    found = []
    for name in (metric, *(c for c in CURVES if c != metric)):
        traces = [trace for n, arm in enumerate(arms) for trace in _traces(arm, name, n, is_smooth=name != metric)]
        if not traces:
            continue
        entry = describe(name)
        note = "" if name == metric else f"running mean over {SMOOTHED} steps"
        chart = charts.thinned(
            charts.Chart(title=name, unit=entry.unit, help=entry.help, note=note, traces=traces, is_wide=name == metric)
        )
        identity = f"chart-{len(readings)}"
        readings[identity] = charts.readings(chart)
        found.append(charts.figure(chart, identity, domain))
    return "".join(found)


def _traces(arm: ArmResult, name: str, colour: int, *, is_smooth: bool) -> list[charts.Trace]:
    curves = [run.curves[name] for run in arm.runs if name in run.curves]
    if is_smooth:
        curves = [running_mean(points, SMOOTHED) for points in curves]
    if not curves:
        return []
    mean, low, high = (_over_seeds(curves, how) for how in (lambda v: sum(v) / len(v), min, max))
    style = "line" if is_smooth else "dots"
    line = charts.Trace(label=arm.arm.label, points=mean, colour=colour % 9, style=style)
    if len(curves) == 1:
        return [line]
    return [charts.Trace(label="", points=high, base=low, colour=colour % 9, style="band", values=[]), line]


def _over_seeds(curves: Sequence[Points], how: Callable[[list[float]], float]) -> Points:
    """One curve of several, at the steps that all of them have."""
    by_step = [dict(points) for points in curves]
    common = sorted(set.intersection(*map(set, by_step)))
    return [(step, how([values[step] for values in by_step])) for step in common]


def _deviation(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def _shown(value: Any) -> str:
    return "not read" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _markdown_table(head: Row, rows: Sequence[Row]) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _html_table(head: Row, rows: Sequence[Row]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
