"""Writes the files in ops/prometheus that follow from the tables of rules.

    python scripts/ops.py            write rules.yml (alert rules) and rules_test.yml (promtool's unit tests of them)
    python scripts/ops.py --check    say which of them differ, exit code 1 if one does

Whether an alert is expected in a test is worked out by the same conditions that become PromQL; promtool then says
whether Prometheus agrees. tests/unit/test_alerts.py says whether the guard does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.alert_scenarios import Scenario, scenarios
from trimtab.observe.alerts import Alert, alerts, series
from trimtab.observe.conditions import History, Labels, span
from trimtab.rules import RULES, Text
from trimtab.rules.texts import PLACES

FOLDER = Path(__file__).resolve().parent.parent / "ops" / "prometheus"
DOCS = "docs/"
HEAD = "# Made by scripts/ops.py from the tables in src/trimtab/rules; change those, then run it.\n"
WORDS: Mapping[str, Mapping[str, str]] = {
    "en": {"causes": "Likely, in this order: ", "range": "the range that its first steps give", "one": "one of {}",
           "comma": ", ", "semi": "; ", "stop": ". ", "colon": ": ", "roll_back": "The guard goes back to a checkpoint before it",
           "stop_run": "The guard ends the run with exit code 3", "restart": "The role is started again"},
    "zh": {"causes": "可能的原因（按顺序）：", "range": "由起始步得出的范围", "one": "{} 之一",
           "comma": "、", "semi": "；", "stop": "。", "colon": "：", "roll_back": "守护会回到此前的检查点",
           "stop_run": "守护会以退出码 3 结束运行", "restart": "该角色会被重启"},
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------- annotations
@dataclass(frozen=True, slots=True)
class Value:
    """The alert's value, in Python's format."""

    format: str


@dataclass(frozen=True, slots=True)
class Limit:
    """What it is held against, as the run publishes it at the time; of several figures each with its name."""

    format: str
    is_one: bool


@dataclass(frozen=True, slots=True)
class Label:
    names: tuple[str, ...]
    """The first that is there."""


Piece = str | Value | Limit | Label


def annotations(alert: Alert) -> dict[str, list[Piece]]:
    """What goes with an alert, in pieces."""
    found: dict[str, list[Piece]] = {}
    for spoken, suffix in (("en", ""), ("zh", "_zh")):
        words = WORDS[spoken]
        where = Label(("run", "instance") if alert.rule == "unreachable" else ("run",))
        found[f"summary{suffix}"] = [alert.title.general(spoken), words["colon"], where]
        found[f"description{suffix}"] = [
            *_pieces(alert, spoken),
            words["stop"],
            *_follows(alert, words),
            _causes(alert, spoken),
        ]
    found["runbook_url"] = [DOCS + alert.page]
    return found


def _pieces(alert: Alert, spoken: str) -> list[Piece]:
    """What was seen, with places for Prometheus to fill in."""
    text = _in(alert.seen, spoken)
    found: list[Piece] = []
    at = 0
    for place in PLACES.finditer(text):
        found += [text[at : place.start()], _piece(alert, place[1], place[2] or ".4g", WORDS[spoken])]
        at = place.end()
    return [*found, text[at:]]


def _piece(alert: Alert, name: str, form: str, words: Mapping[str, str]) -> Piece:
    if name == "value":
        return Value(form)
    if name == "figure":
        joined = words["comma"].join(alert.figures)
        return joined if len(alert.figures) == 1 else words["one"].format(joined)
    if name == "limit":
        rule = next((rule for rule in RULES if rule.name == alert.rule), None)
        if rule is not None and rule.judged == "range_of_start":
            return words["range"]
        if alert.rule == "role_heartbeat":
            return format(rule.act if rule else 0.0, form)
        return Limit(form, is_one=len(alert.figures) == 1)
    return Label((name,))


def _follows(alert: Alert, words: Mapping[str, str]) -> list[Piece]:
    said = words.get({"stop": "stop_run"}.get(alert.action, alert.action))
    return [said + words["stop"]] if said else []


def _causes(alert: Alert, spoken: str) -> str:
    words = WORDS[spoken]
    told = [
        f"({number}) {cause.text.general(spoken)}{words['colon']}{cause.remedy.general(spoken)}"
        for number, cause in enumerate(alert.causes, 1)
    ]
    return words["causes"] + words["semi"].join(told) + words["stop"].rstrip()


def _in(text: Text, spoken: str) -> str:
    return text.zh if spoken == "zh" else text.en


def template(alert: Alert, pieces: Sequence[Piece]) -> str:
    """As Prometheus fills it in."""
    return "".join(_template(alert, piece) for piece in pieces)


def _template(alert: Alert, piece: Piece) -> str:
    match piece:
        case Value(form):
            return "{{ " + _go("$value", form) + " }}"
        case Label((one,)):
            return "{{ $labels." + one + " }}"
        case Label(names):
            return "{{ or " + " ".join(f"$labels.{name}" for name in names) + " }}"
        case Limit(form, is_one):
            asked = f"trimtab_guard_limit{{run='%s',rule='{alert.rule}',level='{alert.level}'}}"
            query = f'printf "{asked}" $labels.run | query'
            if is_one:
                return "{{ with " + query + " }}{{ " + _go(". | first | value", form) + " }}{{ end }}"
            one = "{{ .Labels.figure }} {{ " + _go(".Value", form) + " }}"
            return (
                "{{ range $i, $s := " + query + ' | sortByLabel "figure" }}{{ if $i }}, {{ end }}' + one + "{{ end }}"
            )
        case _:
            return str(piece)


def _go(what: str, form: str) -> str:
    return f"{what} | humanizePercentage" if form.endswith("%") else f'{what} | printf "%{form}"'


def filled(alert: Alert, pieces: Sequence[Piece], labels: Mapping[str, str], value: float, history: History) -> str:
    """As it reads when it is sent."""

    def said(piece: Piece) -> str:
        match piece:
            case Value(form):
                return _said(value, form)
            case Label(names):
                return next((labels[name] for name in names if labels.get(name)), "")
            case Limit(form, is_one):
                limits = series("guard/limit/*", rule=alert.rule, level=alert.level).value(history)
                by_figure = sorted((dict(found)["figure"], limit) for found, limit in limits.items())
                return ", ".join(
                    _said(limit, form) if is_one else f"{figure} {_said(limit, form)}" for figure, limit in by_figure
                )
            case _:
                return str(piece)

    return "".join(said(piece) for piece in pieces)


def _said(value: float, form: str) -> str:
    return f"{value * 100:.4g}%" if form.endswith("%") else format(value, form)


# ------------------------------------------------------------------------------------------------------------- rules
def labels_of(alert: Alert) -> dict[str, str]:
    return {"severity": alert.severity, "rule": alert.rule, "action": alert.action}


def rule_of(alert: Alert) -> dict[str, Any]:
    """An entry of rules.yml."""
    told = {name: template(alert, pieces) for name, pieces in annotations(alert).items()}
    found: dict[str, Any] = {"alert": alert.name, "expr": alert.condition.promql() + "\n"}
    if alert.for_seconds:
        found["for"] = span(alert.for_seconds)
    if alert.kept_seconds:
        found["keep_firing_for"] = span(alert.kept_seconds)
    return {**found, "labels": labels_of(alert), "annotations": told}


def rules() -> dict[str, Any]:
    """rules.yml: the guard's rules, then those for which there is no step."""
    held = alerts()
    guard = [rule_of(alert) for alert in held if alert.kept_seconds]
    outside = [rule_of(alert) for alert in held if not alert.kept_seconds]
    return {"groups": [{"name": "trimtab-guard", "rules": guard}, {"name": "trimtab-run", "rules": outside}]}


# ------------------------------------------------------------------------------------------------------------- tests
def firing(alert: Alert, scenario: Scenario, minute: int) -> dict[Labels, float]:
    """The alert's entries that have been there for long enough."""
    since = minute - alert.for_seconds // 60
    entries = alert.condition.value(scenario.history(minute))
    for earlier in range(max(since, 0), minute):
        held = alert.condition.value(scenario.history(earlier))
        entries = {labels: value for labels, value in entries.items() if labels in held}
    return entries if since >= 0 else {}


def expectations() -> dict[str, Any]:
    held = alerts()
    return {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [
            _test(scenario, [alert for alert in held if alert.rule == scenario.rule]) for scenario in scenarios(held)
        ],
    }


def _test(scenario: Scenario, held: Sequence[Alert]) -> dict[str, Any]:
    return {
        "name": scenario.name.strip(),
        "interval": "1m",
        "input_series": _inputs(scenario),
        "alert_rule_test": [
            {
                "eval_time": f"{minute}m",
                "alertname": held[0].name,
                "exp_alerts": [
                    _expected(alert, dict(labels), value, scenario.history(minute))
                    for alert in held
                    for labels, value in firing(alert, scenario, minute).items()
                ],
            }
            for minute in scenario.minutes
        ],
    }


def _expected(alert: Alert, labels: Mapping[str, str], value: float, history: History) -> dict[str, Any]:
    told = {name: filled(alert, pieces, labels, value, history) for name, pieces in annotations(alert).items()}
    kept = {name: held for name, held in sorted(labels.items()) if held}
    return {"exp_labels": {**kept, **labels_of(alert)}, "exp_annotations": told}


def _inputs(scenario: Scenario) -> list[dict[str, str]]:
    """Each series with its values; one that is not seen any more is stale."""
    names = {(name, tuple(labels.items())) for found in scenario.seen for name, labels, _ in found}
    lines = []
    for name, labels in sorted(names):
        values = [
            next((v for n, held, v in found if (n, tuple(held.items())) == (name, labels)), None)
            for found in scenario.seen
        ]
        said = ",".join(f'{label}="{held}"' for label, held in labels)
        lines.append({"series": f"{name}{{{said}}}", "values": _notation(values)})
    return lines


def _notation(values: Sequence[float | None]) -> str:
    """In promtool's shorthand.

    >>> _notation([None, 1.0, 1.0, 0.5, None, None])
    '_ 1.0+0x1 0.5+0x0 stale _'
    """
    parts: list[str] = []
    at = 0
    while at < len(values):
        end = at
        while end + 1 < len(values) and values[end + 1] == values[at]:
            end += 1
        if values[at] is None:
            gone = ["stale"] if at else []
            parts += [*gone, *["_"] * (end - at + 1 - len(gone))]
        else:
            parts.append(f"{values[at]!r}+0x{end - at}")
        at = end + 1
    return " ".join(parts)


# ------------------------------------------------------------------------------------------------------------- files
class _Dumper(yaml.SafeDumper):
    """Expressions as they are written, over several lines."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def written(document: Any) -> str:
    return HEAD + yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)


def files() -> dict[Path, str]:
    return {FOLDER / "rules.yml": written(rules()), FOLDER / "rules_test.yml": written(expectations())}


def outdated() -> dict[Path, str]:
    return {path: text for path, text in files().items() if not path.is_file() or path.read_text() != text}


def main(arguments: list[str]) -> int:
    stale = outdated()
    for path, text in stale.items():
        print(path.relative_to(FOLDER.parents[1]))
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
