"""The page of `trimtab data check --html`: figures and histograms; nothing in it refers to another place."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.data.quality import Quality

BARS = 40
WIDTH, HEIGHT = 640, 180

STYLE = """
.histogram { margin: 0 0 2.2rem; }
.histogram svg { display: block; width: 100%; max-width: 44rem; height: auto; }
.histogram rect { fill: var(--c0); }
.histogram line { stroke: var(--rule); }
.histogram text { fill: var(--quiet); font: 12px var(--sans); }
table.quality { border-collapse: collapse; font: .92rem/1.5 var(--sans); }
table.quality td, table.quality th { padding: .25rem 1.6rem .25rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--rule); }
table.quality td.number { text-align: right; font-variant-numeric: tabular-nums; }
table.quality small { color: var(--quiet); display: block; overflow-wrap: anywhere; }
"""


def page(record: dict[str, Any], found: Quality) -> str:
    """The whole page, as HTML.

    Args:
        record: what `--json` prints.
        found: the lengths of every row.
    """
    from trimtab.cli.data_check import _lines
    from trimtab.data import formats
    from trimtab.observe import page as looks

    title = escape(str(record["file"]))
    outcome = f"{record['rows']:,} rows of {record['kind']}, no faults; about {record['estimated_tokens']:,} tokens"
    lines = "".join(f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>" for label, text in _lines(record))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title><style>{looks.STYLE}{STYLE}</style></head><body>
<p class="kind">data check</p><h1>{title}</h1><p class="outcome">{escape(outcome)}</p>
<p>{escape(formats.counted(record["formats"]))}; {record["distinct_prompts"]:,} different prompts</p>
<section><h2>Findings</h2><table class="quality">{_findings(record)}</table></section>
<section><h2>Figures</h2><table class="quality">{lines}</table></section>
<section><h2>Lengths</h2>{"".join(_histogram(name, values) for name, values in _series(found))}</section>
</body></html>
"""


def _findings(record: dict[str, Any]) -> str:
    rows = []
    for name, met in record["findings"].items():
        examples = "".join(f"<small>{escape(example)}</small>" for example in met["examples"])
        share = f"{100 * met['share']:.3g} %" if met["rows"] else ""
        cells = f'<td class="number">{met["rows"]:,}</td><td class="number">{share}</td><td>{examples}</td>'
        rows.append(f"<tr><th>{escape(name)}</th>{cells}</tr>")
    return "".join(rows)


def _series(found: Quality) -> list[tuple[str, Sequence[int]]]:
    series: list[tuple[str, Sequence[int]]] = [(f"{name}, characters", v) for name, v in found.lengths.items()]
    if found.kind == "pairs":
        sides = zip(found.lengths["chosen"], found.lengths["rejected"], strict=True)
        series.append(("chosen minus rejected, characters", [chosen - rejected for chosen, rejected in sides]))
    return series


def _histogram(name: str, values: Sequence[int]) -> str:
    """Bars between the 0.5th and the 99.5th percentile; what lies outside is in the first and the last bar."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 200], ordered[len(ordered) - 1 - len(ordered) // 200]
    width = max(1, -(-(high - low + 1) // BARS))
    bars = [0] * (1 + (high - low) // width)
    for value in values:
        bars[min(max(value - low, 0) // width, len(bars) - 1)] += 1
    most, step = max(bars), WIDTH / len(bars)
    shapes = "".join(
        f'<rect x="{place * step:.1f}" y="{HEIGHT * (1 - bar / most):.1f}" width="{max(step - 1, 0.5):.1f}" '
        f'height="{HEIGHT * bar / most:.1f}"><title>{low + place * width:,} to {low + (place + 1) * width - 1:,}: '
        f"{bar:,} rows</title></rect>"
        for place, bar in enumerate(bars)
    )
    label = f"{escape(name)}: {len(values):,} rows, from {ordered[0]:,} to {ordered[-1]:,}"
    return (
        f'<figure class="histogram"><figcaption><strong>{escape(name)}</strong></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 20}" role="img" aria-label="{label}">{shapes}'
        f'<line x1="0" x2="{WIDTH}" y1="{HEIGHT}" y2="{HEIGHT}"/><text x="0" y="{HEIGHT + 15}">{low:,}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT + 15}" text-anchor="end">{high:,}</text></svg></figure>'
    )
