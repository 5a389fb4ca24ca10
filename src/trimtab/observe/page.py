"""The look of a report: its skeleton, style sheet and script. Nothing here refers to anything outside the page."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from typing import Any

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" \
content="default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script_hash}'">
<meta name="description" content="{description}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
<script type="application/json" id="readings">{data}</script>
<script>{script}</script>
</body>
</html>
"""

STYLE = """
:root {
  --paper: #fdfcfa; --ink: #202225; --quiet: #666a70; --rule: #e3e0d9; --wash: #f5f3ee; --good: #2c6e49; --bad: #a8323e;
  --c0: #2a5d8f; --c1: #c45c12; --c2: #3b7d55; --c3: #7b4f96; --c4: #7fa6c9; --c5: #b4862a; --c6: #2b8c8c; --c7: #b3485e;
  --c8: #a5a49f;
  --serif: "Iowan Old Style", "Palatino Linotype", Palatino, "URW Palladio L", "Source Serif 4", Georgia, "Noto Serif",
    "Liberation Serif", serif;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "Liberation Sans", Arial, sans-serif;
  --mono: ui-monospace, "SF Mono", SFMono-Regular, Menlo, Consolas, "Liberation Mono", "DejaVu Sans Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16181b; --ink: #e4e2dd; --quiet: #9b9ea3; --rule: #303439; --wash: #1e2125; --good: #7cc59a; --bad: #f08a93;
    --c0: #7fb2e5; --c1: #f0954e; --c2: #7dc397; --c3: #bd95d8; --c4: #4f7ba3; --c5: #dcb45c; --c6: #63c5c5; --c7: #ea8ba0;
    --c8: #72757a;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 3.5rem 1.5rem 5rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  font: 1.0625rem/1.55 var(--serif); font-variant-numeric: lining-nums; }
h1, h2, p, dl, dd, figure, ul, ol { margin: 0; padding: 0; }
h1 { font-size: clamp(1.9rem, 5vw, 2.75rem); line-height: 1.12; font-weight: 600; letter-spacing: -.012em;
  overflow-wrap: anywhere; }
h2 { margin: 0 0 1.1rem; padding-top: .8rem; border-top: 1px solid var(--ink); font-size: 1.35rem; line-height: 1.25;
  font-weight: 600; }
section { margin-top: 3.2rem; scroll-margin-top: 1rem; }
section > p { max-width: 44rem; margin-bottom: .9rem; }
.kind { margin-bottom: .5rem; font: 600 .78rem/1.4 var(--sans); letter-spacing: .07em; text-transform: uppercase;
  color: var(--quiet); }
.outcome { max-width: 44rem; margin-top: .7rem; font-size: 1.2rem; line-height: 1.45; }
dt { font: .8rem/1.35 var(--sans); color: var(--quiet); }
.headlines { display: flex; flex-wrap: wrap; gap: 1.2rem 3rem; margin: 1.9rem 0 0; }
.headlines dd { font-size: 1.75rem; line-height: 1.25; white-space: nowrap; }
.headlines div { display: flex; flex-direction: column-reverse; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)); gap: .7rem 2rem;
  margin-top: 1.9rem; padding-top: 1.1rem; border-top: 1px solid var(--rule); }
.facts dd { font: .92rem/1.4 var(--sans); overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; margin-top: 1.9rem; padding: .7rem 0;
  border: solid var(--rule); border-width: 1px 0; font: .88rem/1.5 var(--sans); }
a { color: var(--c0); text-decoration: none; }
a:hover { text-decoration: underline; }
.formula { max-width: none; margin: 0 0 1.6rem; font-size: 1.15rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.formula sub { font-size: .72em; line-height: 0; }

.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); gap: 0 2.4rem;
  margin-bottom: -1.6rem; }
.chart { display: grid; grid-row: span 3; grid-template-rows: auto auto auto; grid-template-rows: subgrid; min-width: 0;
  padding-bottom: 2.2rem; font: .8rem/1.4 var(--sans); break-inside: avoid; }
.chart.wide { grid-column: 1 / -1; }
figcaption strong { font-size: .95rem; font-weight: 600; overflow-wrap: anywhere; }
figcaption small { display: block; font-size: .8rem; line-height: 1.4; color: var(--quiet); }
.unit { color: var(--quiet); margin-left: .25em; }
.legend { display: flex; flex-wrap: wrap; align-content: flex-end; gap: .05rem .95rem; margin: .5rem 0 1.35rem; list-style: none;
  color: var(--quiet); font-variant-numeric: tabular-nums; }
.legend li::before { content: ""; display: inline-block; width: 1rem; margin-right: .4rem; border-top: 2.5px solid var(--c);
  vertical-align: .28em; }
.legend li:not([class])::before, .legend .alone::before { display: none; }
.legend .thin::before { border-top-width: 1px; }
.legend .faint::before { opacity: .45; border-top-width: 1px; }
.legend .dots::before { width: .5rem; height: .5rem; border: 0; border-radius: 50%; background: var(--c);
  vertical-align: 0; }
.legend .fill::before { width: .7rem; height: .7rem; border: 0; background: var(--c); opacity: .85; vertical-align: -.1em; }
.legend .fill.soft::before { opacity: .3; }
.legend b { font-weight: 600; color: var(--ink); }
.legend em, .legend u { font-style: normal; text-decoration: none; }
.plot { display: grid; grid-template: 11rem 1.5rem / 3.1rem minmax(0, 1fr); }
.wide .plot { grid-template-rows: 17rem 1.5rem; }
.y, .x, .corner { position: relative; font-size: .75rem; color: var(--quiet); font-variant-numeric: tabular-nums; }
.y span { position: absolute; right: .5rem; transform: translateY(50%); line-height: 1; white-space: nowrap; }
.x span { position: absolute; top: .35rem; transform: translateX(-50%); line-height: 1; white-space: nowrap; }
.corner { padding: .35rem .5rem 0 0; line-height: 1; text-align: right; }
.area { position: relative; border: solid var(--quiet); border-width: 0 0 1px 1px; touch-action: pan-y; }
.area svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.power { position: absolute; bottom: 100%; left: -2px; padding-bottom: .2rem; font-size: .75rem; font-weight: 400; line-height: 1;
  color: var(--quiet); }
.cursor { display: none; position: absolute; top: 0; bottom: 0; width: 0; border-left: 1px solid var(--ink); opacity: .5;
  pointer-events: none; }
svg path { fill: none; vector-effect: non-scaling-stroke; stroke-linejoin: round; stroke: var(--c); }
svg .grid { stroke: var(--rule); stroke-width: 1px; }
svg .zero { stroke: var(--quiet); stroke-width: 1px; stroke-dasharray: 2 3; }
svg .line { stroke-width: 1.9px; }
svg .thin { stroke-width: 1px; opacity: .85; }
svg .faint { stroke-width: 1px; opacity: .32; }
svg .dots { stroke-width: 1px; opacity: .6; }
svg .dot { stroke-width: 6.5px; stroke-linecap: round; }
svg .band { stroke: none; fill: var(--c); opacity: .17; }
svg .area { stroke: var(--paper); stroke-width: .6px; fill: var(--c); opacity: .85; }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); } .c4 { --c: var(--c4); }
.c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); } .c8 { --c: var(--c8); }

.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font: .88rem/1.45 var(--sans); }
th { padding: .4rem 1.2rem .4rem 0; border-bottom: 1px solid var(--ink); font-weight: 600; text-align: left; }
td { padding: .5rem 1.2rem .5rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
.samples { table-layout: fixed; }
.samples th:nth-child(2) { width: 14%; }
.samples td { font: .85rem/1.5 var(--mono); white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: plaintext; }
.samples div { display: inline; margin-right: .9em; unicode-bidi: isolate; }
.reward, .cut { font: .78rem/1.4 var(--sans); color: var(--quiet); white-space: nowrap; }
.reward::before { content: "reward "; }
.cut::before { content: " · "; }
.better td:last-child .reward { color: var(--good); font-weight: 600; }
.better td:last-child .reward::after { content: " ▲"; }
.worse td:last-child .reward { color: var(--bad); font-weight: 600; }
.worse td:last-child .reward::after { content: " ▼"; }
.w { color: var(--quiet); opacity: .75; }
.events td:first-child { width: 6rem; color: var(--quiet); font-variant-numeric: tabular-nums; white-space: nowrap; }
.events td:nth-child(2) { width: 10rem; font-weight: 600; }
.events td:last-child { overflow-wrap: anywhere; }
.events td span { color: var(--quiet); }
.events .alarm td:nth-child(2) { color: var(--bad); }
details { margin-top: 1.1rem; }
summary { cursor: pointer; font: .92rem/1.5 var(--sans); color: var(--c0); }
details[open] > summary { margin-bottom: 1rem; }
pre { margin: 0; padding: 1rem 1.2rem; overflow-x: auto; background: var(--wash); font: .84rem/1.55 var(--mono); }
code { padding: .1em .3em; background: var(--wash); font: .86em var(--mono); overflow-wrap: anywhere; }
ol, section > ul { max-width: 44rem; padding-left: 1.3rem; }
section > ul { margin-top: 1.1rem; }
li + li { margin-top: .35rem; }
.legend li + li { margin-top: 0; }
@media (max-width: 40rem) {
  body { padding: 2rem 1rem 3rem; font-size: 1rem; }
  .headlines { gap: .9rem 2rem; }
  .headlines dd { font-size: 1.4rem; }
  .facts { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: .7rem 1.2rem; }
  .wide .plot { grid-template-rows: 12rem 1.5rem; }
  .samples thead { display: none; }
  .samples, .samples tbody, .samples tr { display: block; }
  .samples tr { padding: .6rem 0; border-bottom: 1px solid var(--rule); }
  .samples td { display: block; padding: .15rem 0 .15rem 6.5rem; border: 0; }
  .samples td::before { content: attr(data-label); float: left; width: 6.5rem; margin-left: -6.5rem; font-family: var(--sans);
    color: var(--quiet); }
  .events td:nth-child(2) { width: auto; }
}
@media print { body { max-width: none; padding: 0; } nav { display: none; } }
"""

SCRIPT = """
(() => {
  const readings = JSON.parse(document.getElementById("readings").textContent);
  const powers = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const written = (value) => {
    const size = Math.abs(value);
    let text;
    if (size !== 0 && (size < 1e-4 || size >= 1e9)) {
      const [mantissa, exponent] = value.toExponential(2).split("e");
      const raised = String(Math.abs(+exponent)).replace(/\\d/g, (digit) => powers[digit]);
      text = +mantissa + "×10" + (exponent[0] === "-" ? "⁻" : "") + raised;
    } else if (size >= 1000) {
      text = Math.round(value).toLocaleString("en-US");
    } else {
      text = String(+value.toPrecision(3));
    }
    return text.replace("-", "−");
  };
  const nearest = (steps, step) => {
    let low = 0, high = steps.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle; else high = middle;
    }
    return step - steps[low] <= steps[high] - step ? low : high;
  };
  for (const area of document.querySelectorAll(".area[data-first]")) {
    const figure = area.closest("figure"), traces = readings[figure.id], cursor = figure.querySelector(".cursor");
    const first = +area.dataset.first, last = +area.dataset.last;
    if (!traces || !traces.length) continue;
    const head = figure.querySelector(".legend em"), values = [...figure.querySelectorAll(".legend b")];
    const own = values.map((value) => value.parentElement.querySelector("u"));
    const texts = [head, ...values, ...own].filter(Boolean).map((element) => [element, element.textContent]);
    area.addEventListener("pointermove", (event) => {
      const box = area.getBoundingClientRect();
      const wanted = first + (last - first) * (event.clientX - box.left) / box.width;
      const places = traces.map((trace) => nearest(trace.at, wanted));
      const steps = traces.map((trace, i) => trace.at[places[i]]);
      const step = steps.reduce((best, next) => Math.abs(next - wanted) < Math.abs(best - wanted) ? next : best);
      head.textContent = step.toLocaleString("en-US");
      traces.forEach((trace, i) => {
        values[i].textContent = written(trace.is[places[i]]);
        if (own[i]) own[i].textContent = steps[i].toLocaleString("en-US");
      });
      cursor.style.display = "block";
      cursor.style.left = 100 * (step - first) / (last - first) + "%";
    });
    area.addEventListener("pointerleave", () => {
      for (const [element, text] of texts) element.textContent = text;
      cursor.style.display = "none";
    });
  }
})();
"""


def whole(*, title: str, description: str, body: str, readings: Mapping[str, Any]) -> str:
    """A page of HTML without any reference to the outside; a content security policy lets no script run but its own.

    Args:
        title, description: plain text.
        body: HTML, escaped where it is not ours.
        readings: what `charts.readings` gives, by the identity of the figure.
    """
    text = PAGE.format(
        title=escape(title),
        description=escape(description, quote=True),
        script_hash=base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode(),
        style=STYLE,
        body=body,
        data=json.dumps(readings, separators=(",", ":")).replace("<", "\\u003c"),
        script=SCRIPT,
    )
    return text.encode("utf-8", "replace").decode()
