"""Writes ops/grafana/dashboards/*.json from the catalogue of metrics, the guard's rules and the layout.

    make dashboards                         write them
    python -m scripts.dashboards --check    say which files differ, exit code 1 if one does

Where panels stand and what they ask: `scripts/dashboard_layout.py`. Names in Prometheus, units and descriptions follow
from `src/trimtab/catalogue.py`; colours of single figures from the limits in `src/trimtab/rules`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from scripts.dashboard_layout import DASHBOARDS, Dashboard, Panel, Query, Row
from trimtab import catalogue, rules
from trimtab.catalogue import Metric

WHERE = Path(__file__).parents[1] / "ops" / "grafana" / "dashboards"
SCHEMA = 39
"""Of the dashboard's JSON: that of Grafana 10.3 to 11.2; newer ones convert it when they load it."""
Json = dict[str, Any]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
CHOSEN = 'environment=~"$environment", algorithm=~"$algorithm", run=~"$run"'
PLACE = re.compile(r"<([a-z][a-z0-9_/]*(?:/\*)?)(?:\|([^>]*))?>")
"""A metric in an expression of the layout, with matchers."""
TYPES = {
    "series": "timeseries", "trend": "trend", "stat": "stat", "gauge": "gauge", "bars": "bargauge",
    "states": "state-timeline", "table": "table", "text": "text",
}  # fmt: skip
UNITS = {
    "seconds": "s", "bytes": "bytes", "ratio": "percentunit", "tokens/s": "suffix: tokens/s", "nats": "suffix: nats",
    "tokens": "short", "timestamp": "dateTimeFromNow", "1": "none", "loss": "none", "reward": "none",
}  # fmt: skip
"""Grafana's names; what is counted is `short`."""
GREEN, ORANGE, RED = "green", "orange", "red"
LIMIT = "Limit"
"""refId of the query for the guard's limits."""


# ---------------------------------------------------------------------------------------------------------- queries
def metrics_of(expr: str) -> list[Metric]:
    """The metrics that an expression of the layout names."""
    return [catalogue.METRICS[name] for name, _ in PLACE.findall(expr)]


def promql(expr: str) -> str:
    """An expression of the layout as PromQL.

    >>> promql('rate(<io/disk_bytes>[5m]) > <role/up/*|role="trainer">').replace(CHOSEN, "...")
    'rate(trimtab_io_disk_bytes_total{...}[5m]) > trimtab_role_up{..., role="trainer"}'
    """

    def series(match: re.Match[str]) -> str:
        matchers = f"{CHOSEN}, {match[2]}" if match[2] else CHOSEN
        return f"{catalogue.METRICS[match[1]].prometheus_name}{{{matchers}}}"

    return PLACE.sub(series, expr)


def unit_of(metric: Metric) -> str:
    """Grafana's name of a metric's unit; a ratio of probabilities is no share.

    >>> unit_of(catalogue.find("length/truncated")), unit_of(catalogue.find("ratio/max"))
    ('percentunit', 'none')
    """
    return "none" if metric.name.startswith(("ratio/", "update/ratio")) else UNITS.get(metric.unit, "short")


def queries_of(panel: Panel) -> list[Query]:
    """The panel's queries with legend and unit."""
    found = [Query(expr=f"<{entry}>") if isinstance(entry, str) else entry for entry in panel.queries]
    return [
        Query(
            expr=query.expr,
            legend=query.legend or _legend(query, panel, is_alone=len(found) == 1),
            unit=query.unit or next((unit_of(metric) for metric in metrics_of(query.expr)), "none"),
            is_dashed=query.is_dashed,
        )
        for query in found
    ]


def _legend(query: Query, panel: Panel, *, is_alone: bool) -> str:
    if not (named := metrics_of(query.expr)):
        return ""
    labels = " ".join(f"{{{{{label}}}}}" for label in named[0].labels)
    stem = named[0].name.removesuffix("/*")
    what = labels if is_alone else f"{stem} {labels}".strip()
    return " ".join(filter(None, ("" if panel.is_per_run else "{{run}}", what)))


def _target(query: Query, ref: str, panel: Panel) -> Json:
    is_table = panel.kind in ("table", "trend")
    is_instant = is_table or panel.is_now or panel.kind == "bars"
    return {
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": promql(query.expr),
        "format": "table" if is_table else "time_series",
        "instant": is_instant,
        "legendFormat": query.legend or "__auto",
        "range": not is_instant,
        "refId": ref,
    }


# ----------------------------------------------------------------------------------------------------------- panels
def description(panel: Panel) -> str:
    """Chinese title, the help of every metric, the layout's note."""
    seen = dict.fromkeys(metric for query in queries_of(panel) for metric in metrics_of(query.expr))
    lines = [f"- `{metric.name}` ({metric.unit}): {metric.help}" for metric in seen]
    if panel.limits:
        lines.append("- dashed: the limits of the guard's rules")
    return "\n\n".join(filter(None, (panel.zh, "\n".join(lines), panel.note)))


def simple_limits(metric: Metric) -> list[tuple[float | None, str]]:
    """Colours of a figure by the rule that holds it against fixed limits; green where there is none.

    >>> simple_limits(catalogue.find("kl/update")), simple_limits(catalogue.find("rollout/distinct_share"))
    ([(None, 'green'), (0.03, 'orange'), (0.05, 'red')], [(None, 'orange'), (0.2, 'green')])
    >>> simple_limits(catalogue.find("updates/non_finite"))  # over 0 is 1
    [(None, 'green'), (1, 'red')]
    """
    whole = 0 if unit_of(metric) in ("percentunit", "none", "suffix: nats", "s") else 1
    for rule in rules.RULES:
        if metric.name.removesuffix("/*") not in rule.figures or rule.judged not in ("above", "below"):
            continue
        if rule.judged == "below":
            limit = rule.warn if rule.warn is not None else rule.act
            return [(None, ORANGE if rule.warn is not None else RED), (limit, GREEN)]
        steps = {limit + whole: colour for limit, colour in ((rule.warn, ORANGE), (rule.act, RED)) if limit is not None}
        return [(None, GREEN), *sorted(steps.items())]
    return [(None, GREEN)]


def _thresholds(steps: list[tuple[float | None, str]]) -> Json:
    return {"mode": "absolute", "steps": [{"color": colour, "value": value} for value, colour in steps]}


def _override(ref: str, **properties: Any) -> Json:
    return {
        "matcher": {"id": "byFrameRefID", "options": ref},
        "properties": [{"id": name.replace("__", "."), "value": value} for name, value in properties.items()],
    }


def _dashed(ref: str) -> Json:
    return _override(ref, custom__lineStyle={"fill": "dash", "dash": [8, 8]}, custom__fillOpacity=0)


def _mapping(texts: dict[str, tuple[str, str]]) -> list[Json]:
    options = {v: {"text": text, "color": colour, "index": i} for i, (v, (text, colour)) in enumerate(texts.items())}
    return [{"type": "value", "options": options}]


UP = _mapping({"0": ("down", RED), "1": ("up", GREEN)})
LEVELS = _mapping({"0": ("well", GREEN), "1": ("warning", ORANGE), "2": ("acting", RED)})
STATES = {"training": GREEN, "finished": "blue", "failed": RED, "stopped": ORANGE, "preempted": ORANGE}


def _curves(panel: Panel) -> Json:
    """How lines are drawn."""
    scale = {"type": "log", "log": 10} if panel.is_logarithmic else {"type": "linear"}
    return {
        "axisPlacement": "auto",
        "drawStyle": "line",
        "fillOpacity": 30 if panel.is_stacked else 0,
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "pointSize": 4,
        "scaleDistribution": scale,
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "normal" if panel.is_stacked else "none"},
    }


def field_config(panel: Panel) -> Json:
    """Units, colours and lines: those of the first query are the default, others override them."""
    queries = queries_of(panel)
    first = next((metric for query in queries for metric in metrics_of(query.expr)), None)
    steps = simple_limits(first) if first and panel.kind == "stat" else [(None, GREEN)]
    if panel.kind == "bars":
        steps = [(None, GREEN), (0.5, ORANGE), (1, RED)]
    lines = panel.kind in ("series", "trend")
    defaults: Json = {
        "color": {"mode": "palette-classic" if lines else "thresholds"},
        "mappings": {"role": UP, "alarm": LEVELS}.get(panel.colours, []),
        "noValue": "not reporting" if panel.is_now and panel.kind == "stat" else "-",
        "thresholds": _thresholds(steps),
        "unit": queries[0].unit if queries else "none",
    }
    if lines:
        defaults["custom"] = _curves(panel)
    if panel.kind in ("gauge", "bars"):
        defaults |= {"min": 0, "max": 1}
    return {"defaults": defaults, "overrides": list(_overrides(panel, queries))}


def _overrides(panel: Panel, queries: list[Query]) -> Iterator[Json]:
    refs = ascii_uppercase
    if panel.kind == "table":
        yield from _columns(panel, queries)
        return
    for ref, query in zip(refs, queries, strict=False):
        if query.unit != queries[0].unit:
            yield _override(ref, unit=query.unit)
        if panel.kind == "stat" and query is not queries[0]:
            named = metrics_of(query.expr)
            yield _override(ref, mappings=[], thresholds=_thresholds(simple_limits(named[0])))
        if query.is_dashed:
            yield _dashed(ref)
    if panel.limits:
        yield _dashed(LIMIT)
        yield _override(LIMIT, color={"mode": "fixed", "fixedColor": RED}, custom__lineWidth=1)
    if panel.has_band:
        edge = {"custom__lineWidth": 0, "color": {"mode": "fixed", "fixedColor": "super-light-blue"}}
        yield _override("A", custom__fillBelowTo=queries[1].legend, custom__fillOpacity=20, **edge)
        yield _override("B", **edge)
    if panel.colours == "state":
        for state, colour in STATES.items():
            yield {
                "matcher": {"id": "byRegexp", "options": f"/: {state}$/"},
                "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
            }


def _columns(panel: Panel, queries: list[Query]) -> Iterator[Json]:
    for query in queries:
        properties = [{"id": "unit", "value": query.unit}]
        if panel.colours == "alarm":
            properties = [
                {"id": "custom.cellOptions", "value": {"type": "color-background", "mode": "basic"}},
                {"id": "mappings", "value": LEVELS},
            ]
        yield {"matcher": {"id": "byName", "options": query.legend}, "properties": properties}


def options(panel: Panel) -> Json:
    """What a panel of its type needs said."""
    legend = {"calcs": ["lastNotNull"], "displayMode": "list", "placement": "bottom", "showLegend": True}
    tooltip = {"mode": "multi", "sort": "desc"}
    reduced = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "orientation": "auto"}
    is_state = panel.colours == "state"
    return {
        "series": {"legend": legend, "tooltip": tooltip},
        "trend": {"legend": legend, "tooltip": tooltip, "xField": r"step\line"},
        "stat": {
            **reduced,
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "textMode": "name" if is_state else "value_and_name",
        },
        "gauge": {**reduced, "showThresholdLabels": False, "showThresholdMarkers": False},
        "bars": {
            **reduced,
            "orientation": "horizontal",
            "displayMode": "basic",
            "namePlacement": "left",
            "showUnfilled": True,
            "valueMode": "color",
        },
        "states": {
            "alignValue": "left",
            "legend": legend | {"calcs": []},
            "mergeValues": True,
            "rowHeight": 0.9,
            "showValue": "never",
            "tooltip": {"mode": "single", "sort": "none"},
        },
        "table": {"cellHeight": "sm", "showHeader": True},
        "text": {"mode": "markdown", "content": panel.text},
    }[panel.kind]


def _transformations(panel: Panel) -> list[Json]:
    if panel.kind == "trend":  # a row a step, a column a run
        matrix = {"rowField": "step", "columnField": "line", "valueField": "Value", "emptyValue": "null"}
        number = {"conversions": [{"targetField": r"step\line", "destinationType": "number"}], "fields": {}}
        return [
            {"id": "groupingToMatrix", "options": matrix},
            {"id": "convertFieldType", "options": number},
            {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": r"step\line", "desc": False}]}},
        ]
    if panel.kind != "table":
        return []
    queries = queries_of(panel)
    values = {f"Value #{ref}": query.legend for ref, query in zip(ascii_uppercase, queries, strict=False)}
    named = values if len(queries) > 1 else {"Value": queries[0].legend}
    hidden = {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": named}
    return [{"id": "merge", "options": {}}, {"id": "organize", "options": hidden}]


def panel_json(panel: Panel, number: int, place: Json) -> Json:
    """A panel of the layout as Grafana has it."""
    found: Json = {
        "id": number,
        "type": TYPES[panel.kind],
        "title": panel.title,
        "description": description(panel),
        "gridPos": place,
        "fieldConfig": {"defaults": {}, "overrides": []} if panel.kind == "text" else field_config(panel),
        "options": options(panel),
    }
    if panel.kind != "text":
        targets = [_target(q, ref, panel) for ref, q in zip(ascii_uppercase, queries_of(panel), strict=False)]
        if panel.limits:
            figures = "|".join(panel.limits)
            limit = Query(
                expr=f'<guard/limit/*|figure=~"{figures}">', legend="{{run}} {{rule}} {{level}}: limit of {{figure}}"
            )
            targets.append(_target(limit, LIMIT, panel))
        found |= {"datasource": SOURCE, "targets": targets, "transformations": _transformations(panel)}
    if panel.kind == "trend":
        found |= {"interval": "15s", "maxDataPoints": 2000}
    if panel.is_per_run:
        found |= {"repeat": "run", "repeatDirection": "h", "maxPerRow": 3}
    if panel.link:
        url = f"/d/trimtab-{panel.link}?${{__url_time_range}}&${{__all_variables}}"
        found["links"] = [{"title": "More", "url": url, "targetBlank": False}]
        found["transparent"] = True
    return found


# ------------------------------------------------------------------------------------------------------- dashboards
def places(row: Row, top: int) -> Iterator[tuple[Panel, Json]]:
    """Where the panels of a row stand, under its title at `top`."""
    if row.columns:
        left = 0
        for column in row.columns:
            below = top + 1
            for panel in column:
                yield panel, {"x": left, "y": below, "w": panel.width, "h": panel.height}
                below += panel.height
            left += column[0].width
        return
    shelf = [top + 1] * 24  # how far down each of the 24 units is taken
    for panel in row.panels:  # in the highest place where it fits, the leftmost of these
        width = panel.width
        below, left = min((max(shelf[x : x + width]), x) for x in range(25 - width))
        shelf[left : left + width] = [below + panel.height] * width
        yield panel, {"x": left, "y": below, "w": width, "h": panel.height}


def dashboard_json(dashboard: Dashboard) -> Json:
    """A dashboard of the layout as Grafana has it."""
    panels: list[Json] = []
    top = 0
    for row in dashboard.rows:
        at = {"x": 0, "y": top, "w": 24, "h": 1}
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": row.title, "collapsed": False, "gridPos": at, "panels": []}
        )
        for panel, place in places(row, top):
            panels.append(panel_json(panel, len(panels) + 1, place))
            top = max(top, place["y"] + place["h"])
    return {
        "uid": f"trimtab-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["trimtab"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "links": [_links()],
        "annotations": {"list": _annotations()},
        "templating": {"list": _variables(dashboard)},
        "panels": panels,
    }


def _links() -> Json:
    return {
        "type": "dashboards",
        "tags": ["trimtab"],
        "title": "Trimtab",
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }


def _annotations() -> list[Json]:
    marks = (
        ("Alarms", "max by (run, rule) (<alarm/*>) > 0", ORANGE, "{{run}}: alarm {{rule}}", False),
        ("Rollbacks", "changes(<guard/rollbacks>[1m]) > 0", RED, "{{run}}: rolled back", True),
        ("Configurations", "changes(<config/version>[1m]) > 0", "blue", "{{run}}: another configuration", True),
    )
    return [
        {
            "datasource": SOURCE,
            "enable": on,
            "expr": promql(expr),
            "iconColor": colour,
            "name": name,
            "titleFormat": title,
        }
        for name, expr, colour, title, on in marks
    ]


def _variables(dashboard: Dashboard) -> list[Json]:
    matchers = ("environment", "algorithm", "run")
    found: list[Json] = [
        {
            "type": "datasource",
            "name": "datasource",
            "label": "Prometheus",
            "query": "prometheus",
            "hide": 0,
            "refresh": 1,
        }
    ]
    info = "trimtab_run_info"
    for index, name in enumerate(matchers):
        before = ", ".join(f'{other}=~"${other}"' for other in matchers[:index])
        query = f"label_values({info}{{{before}}}, {name})" if before else f"label_values({info}, {name})"
        found.append(
            {
                "type": "query",
                "name": name,
                "label": name.capitalize(),
                "datasource": SOURCE,
                "definition": query,
                "query": {"query": query, "refId": f"Variable{name}"},
                "refresh": 2,
                "sort": 1,
                "multi": True,
                "includeAll": True,
                # An empty environment is a missing label, which only a pattern that matches nothing finds.
                "allValue": ".*",
                "current": {"text": ["All"], "value": ["$__all"]},
                "hide": 0,
            }
        )
    if dashboard.has_bucket:
        choices = ("1", "10", "100", "1000")
        found.append(
            {
                "type": "custom",
                "name": "bucket",
                "label": "Steps per point",
                "query": ",".join(choices),
                "options": [{"text": c, "value": c, "selected": c == "10"} for c in choices],
                "current": {"text": "10", "value": "10"},
                "multi": False,
                "includeAll": False,
                "hide": 0,
            }
        )
    return found


def files() -> dict[Path, str]:
    """Every file, as it should be."""
    return {
        WHERE / f"{dashboard.name}.json": json.dumps(dashboard_json(dashboard), indent=1, ensure_ascii=False) + "\n"
        for dashboard in DASHBOARDS
    }


def outdated() -> dict[Path, str]:
    """Files that differ from what they should be; those that there should not be, as empty texts."""
    wanted = files() | {path: "" for path in WHERE.glob("*.json") if path not in files()}
    return {path: text for path, text in wanted.items() if not path.exists() or path.read_text() != text}


def main(arguments: list[str]) -> int:
    stale = outdated()
    for path, text in stale.items():
        print(path.relative_to(WHERE.parents[2]))
        if "--check" in arguments:
            continue
        if text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        else:
            path.unlink()
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
