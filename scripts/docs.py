"""Writes the parts of docs/ that follow from the code: settings, the table of algorithms, the metrics.

    make docs-text                    write them
    python scripts/docs.py --check    say which pages differ, exit code 1 if one does

A page has the place and the code has the words. The text between a marker and `<!-- end -->` is replaced:

    <!-- settings:grpo -->               the algorithm's own keys, and those of `kl` and `mismatch` whose default it changes
    <!-- settings:dapo unlike grpo -->   only where it differs from another
    <!-- settings:shared -->             the `kl` and `mismatch` sections
    <!-- algorithms -->                  every name with its page, the one that has the name's settings
    <!-- metrics -->                     the catalogue
    <!-- alarms:en -->                   every alarm with its limits, causes and remedies; or alarms:zh
    <!-- alerts:en -->                   every alert rule for Prometheus, and those that only it judges; or alerts:zh
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from trimtab import algorithms, catalogue, rules
from trimtab.algorithms.base import Algorithm, Kl, Mismatch, Need, Share
from trimtab.config import sections
from trimtab.observe.alerts import Alert, alerts

DOCS = Path(__file__).parents[1] / "docs"
MARKER = re.compile(
    r"(<!-- (settings:[^>]*?|algorithms|metrics|al(?:arm|ert)s:(?:en|zh)) -->\n).*?(<!-- end -->)", re.DOTALL
)
SHARED = {"kl": Kl, "mismatch": Mismatch}
"""Sections that are shown once, in the index."""
SECTIONS = ("policy", "value", "advantage", "preference", "kl", "mismatch")
Row = tuple[str, str, str, str]
"""Key, default, allowed values, help."""


def records() -> dict[str, Algorithm]:
    """Every built-in algorithm: those that have a name in the table, then those that only stand in a module."""
    found = {name: algorithms.load(name) for name in algorithms.MODULES}
    for module in pkgutil.iter_modules(algorithms.__path__):
        held = vars(importlib.import_module(f"{algorithms.__name__}.{module.name}")).values()
        found.update({a.name: a for a in held if isinstance(a, Algorithm) and a.name not in found})
    return found


# --------------------------------------------------------------------------------------------------------- settings
def settings(algorithm: Algorithm) -> list[Row]:
    """Every key that the algorithm declares, by section, then what it sets in sections of others."""
    rows: list[Row] = []
    for owner in sections.of_algorithm(algorithm):
        wanted = owner.key_names()
        rows += [row for row in _rows(owner.default, owner.section) if row[0].split(".")[1] in wanted]
    return sorted(rows, key=lambda row: SECTIONS.index(row[0].split(".")[0])) + _presets(algorithm)


def _rows(record: Any, prefix: str) -> Iterator[Row]:
    schema = TypeAdapter(type(record)).json_schema()
    for spec in fields(record):
        value, found = getattr(record, spec.name), schema["properties"][spec.name]
        if is_dataclass(value):
            yield from _rows(value, f"{prefix}.{spec.name}")
        else:
            text = " ".join(str(found.get("description", "")).split())
            yield f"{prefix}.{spec.name}", shown(value), allowed(found), text


def _presets(algorithm: Algorithm) -> list[Row]:
    return [(key, _preset(value), "", "what `auto` means here") for key, value in algorithm.presets.items()]


def _preset(value: Any) -> str:
    return f"`{value.of}` / {value.divisor}" if isinstance(value, Share) else shown(value)


def shown(value: Any) -> str:
    """A default as it is written in a configuration.

    >>> shown(0.0003), shown(None), shown(True), shown("mean")
    ('0.0003', 'null', 'true', '`mean`')
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else f"`{value}`" if isinstance(value, str) else str(value)


def allowed(schema: dict[str, Any]) -> str:
    """What a key may be, in words.

    >>> allowed({"anyOf": [{"type": "number", "exclusiveMinimum": 1}, {"type": "null"}]})
    'above 1, null'
    """
    if "anyOf" in schema:
        return ", ".join(allowed(part) for part in schema["anyOf"])
    if len(schema.get("enum", ())) > 5:
        return "see [index](index.md)"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "$ref" in schema:
        return "a schedule"
    if schema.get("type") == "array":
        return f"a list of {allowed(schema.get('items', {}))}"
    if schema.get("type") in ("number", "integer"):
        return _interval(schema)
    return {"boolean": "true, false", "null": "null", "string": "text"}.get(str(schema.get("type")), "")


def _interval(schema: dict[str, Any]) -> str:
    whole = "whole, " if schema["type"] == "integer" else ""
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    lower = f"from {low:g}" if low is not None else f"above {above:g}" if above is not None else ""
    upper = f"up to {high:g}" if high is not None else f"below {below:g}" if below is not None else ""
    return whole + (" ".join(filter(None, (lower, upper))) or "any number")


def settings_table(what: str) -> str:
    """The table for the words after `settings:`."""
    found = records()
    if what == "shared":
        return _table(row for name, record in SHARED.items() for row in _rows(record(), name))
    name, _, other = what.partition(" unlike ")
    rows = settings(found[name])
    common = {row for section, record in SHARED.items() for row in _rows(record(), section)}
    if other:
        common = set(settings(found[other]))
    return _table(row for row in rows if row not in common) or "None of its own.\n"


def _table(rows: Iterator[Row] | Any) -> str:
    lines = [f"| `{key}` | {default} | {values} | {_cell(text)} |" for key, default, values, text in rows]
    head = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *lines]) + "\n" if lines else ""


# ---------------------------------------------------------------------------------------------------- what there is
def pages() -> dict[str, Path]:
    """The page of every name that has one."""
    found: dict[str, Path] = {}
    for path in sorted((DOCS / "algorithms").glob("*.md")):
        names = re.findall(r"<!-- settings:(\w+)(?: unlike \w+)? -->", path.read_text())
        found.update({name: path for name in names if name != "shared"})
    return found


def algorithms_table() -> str:
    """One line a name; families in the order in which a reader meets them."""
    lines = ["| `algorithm:` | what it does | data | models beside the policy | page |", "|---|---|---|---|---|"]
    where = pages()
    for name, algorithm in sorted(records().items(), key=lambda item: _family(item[1])):
        also = [f"`{alias}`" for alias, real in algorithms.ALIASES.items() if real == name]
        called = f"`{name}`" + (f" (also {', '.join(also)})" if also else "")
        link = f"[{where[name].stem}]({where[name].name})" if name in where else ""
        lines.append(f"| {called} | {algorithm.summary} | {_data(algorithm)} | {_models(algorithm)} | {link} |")
    waiting = [f"`{name}`" for name in records() if name not in algorithms.MODULES]
    if waiting:
        lines += ["", f"Written, but not yet names that `algorithm:` accepts: {', '.join(sorted(waiting))}."]
    return "\n".join(lines) + "\n"


def _family(algorithm: Algorithm) -> int:
    need = algorithm.needs(algorithm.config())
    order = (Need.ROLLOUTS, Need.PAIRS, Need.LABELS, Need.DEMONSTRATIONS)
    return next(i for i, part in enumerate(order) if part & need) + (Need.SCORES in need)


def _data(algorithm: Algorithm) -> str:
    need = algorithm.needs(algorithm.config())
    if Need.ROLLOUTS in need:
        return "prompts and a reward" + (", groups" if Need.GROUPS in need else "")
    names = {Need.PAIRS: "pairs", Need.LABELS: "judged completions", Need.DEMONSTRATIONS: "demonstrations"}
    return next(text for part, text in names.items() if part & need)


def _models(algorithm: Algorithm) -> str:
    need = algorithm.needs(algorithm.config())
    found = ["critic"] if Need.VALUES in need else []
    if Need.REFERENCE in need:
        found.append("reference")
    elif Need.ROLLOUTS in need:
        found.append("reference if `kl.coef` > 0")
    return ", ".join(found) or ("score instead of policy" if Need.SCORES in need else "none")


def metrics_table() -> str:
    """The catalogue, a table for each word before the first slash."""
    families: dict[str, list[catalogue.Metric]] = {}
    for metric in catalogue.METRICS.values():
        families.setdefault(metric.name.split("/")[0], []).append(metric)
    parts = []
    for family, held in families.items():
        lines = [f"| `{m.name}` | {m.unit} | {_cell(m.help)} |" for m in held]
        parts.append("\n".join([f"## {family}", "", "| metric | unit | meaning |", "|---|---|---|", *lines, ""]))
    return "\n".join(parts)


# ---------------------------------------------------------------------------------------------------------- alarms
WORDS: dict[str, dict[str, str]] = {
    "en": {
        "head": "| alarm | figure | warns | acts | then |", "causes": "Likely causes, and what to do:",
        "above": "over {}", "below": "under {}", "times_median": "over {} times its running median",
        "under_median": "under {:.0%} of its running median", "share_of_start": "under {:.0%} of its start",
        "range_of_start": "outside 1/{0} to {0} times its start", "fall": "{:.0%} under the evaluations before",
        "improvement": "", "steps": "{} in a row", "seconds": "for {:.0f} minutes", "median": "and {} times its median",
        "warn": "only a warning", "roll_back": "back to the checkpoint before it", "stop": "exit code 3",
        "finish": "a completed run", "restart": "the role is started again", "unless": "Not while {0} is {1} {2}.",
        "best": "the mean reward, on the way from the lowest to the best seen,",
        "over": "over", "under": "under", "stop_sign": ".", "key": "Other limits: `guard.rules.{0}`.",
    },
    "zh": {
        "head": "| 告警 | 指标 | 警告 | 动作条件 | 之后 |", "causes": "可能的原因与处理办法：",
        "above": "高于 {}", "below": "低于 {}", "times_median": "高于滑动中位数的 {} 倍",
        "under_median": "低于滑动中位数的 {:.0%}", "share_of_start": "低于起始值的 {:.0%}",
        "range_of_start": "超出起始值的 1/{0} 到 {0} 倍", "fall": "比之前的评估低 {:.0%}",
        "improvement": "", "steps": "连续 {} 次", "seconds": "持续 {:.0f} 分钟", "median": "且高于中位数的 {} 倍",
        "warn": "仅警告", "roll_back": "回到此前的检查点", "stop": "退出码 3",
        "finish": "视为完成", "restart": "重启该角色", "unless": "当 {0} {1} {2} 时不算。",
        "best": "平均奖励（在最低到最高之间的位置）",
        "over": "高于", "under": "低于", "stop_sign": "。", "key": "其他阈值：`guard.rules.{0}`。",
    },
}  # fmt: skip


def alarms_tables(spoken: str) -> str:
    """A table of all alarms, then a part for each: when, why, what to do."""
    words = WORDS[spoken]
    lines = [words["head"], "|---|---|---|---|---|"]
    lines += [_alarm_row(rule, words) for rule in rules.RULES]
    return "\n".join([*lines, "", *(_alarm_part(rule, words, spoken) for rule in rules.RULES)]) + "\n"


def _shown(name: str) -> str:
    return name.replace("final/", "eval/").replace("sampling_without_spread", "sampling/kept = 0")


def _alarm_row(rule: rules.Rule, words: dict[str, str]) -> str:
    often = words["seconds"].format(rule.seconds / 60) if rule.seconds else words["steps"].format(rule.steps)
    often = f", {often}" if rule.seconds or rule.steps > 1 else ""
    warn = "" if rule.warn is None else words[rule.judged].format(rule.warn) + (often if rule.act is None else "")
    act = "" if rule.act is None else words[rule.judged].format(rule.act) + often
    if rule.judged == "improvement":
        act = often.removeprefix(", ")
    if rule.acts_over_median is not None:
        act += f" {words['median'].format(rule.acts_over_median)}"
    figures = ", ".join(f"`{_shown(name)}`" for name in rule.figures) or "`eval.early_stop.metric`"
    return f"| [`{rule.name}`](#{rule.name}) | {figures} | {warn} | {act} | {words[rule.then]} |"


def _alarm_part(rule: rules.Rule, words: dict[str, str], spoken: str) -> str:
    said = [f"### {rule.name}", "", f"**{rule.title.general(spoken)}.**".replace(".**", f"{words['stop_sign']}**"), ""]
    if rule.unless is not None:
        name, side, limit = rule.unless
        name = name.replace("reward_share_of_best", words["best"])
        said += [words["unless"].format(name, words["over" if side == "above" else "under"], f"{limit:g}"), ""]
    said += [words["causes"], ""]
    said += [f"- {c.text.general(spoken)}: {c.remedy.general(spoken)}{words['stop_sign']}" for c in rule.causes]
    if rule.judged != "improvement":
        said += ["", words["key"].format(rule.name)]
    return "\n".join([*said, ""])


ALERT_WORDS: dict[str, dict[str, str]] = {
    "en": {"head": "| alert | what is wrong | severity | waits | page |", "minutes": "{:.0f} min",
           "page": "troubleshooting.md"},
    "zh": {"head": "| 告警 | 问题 | 级别 | 等待 | 页面 |", "minutes": "{:.0f} 分钟",
           "page": "troubleshooting.zh.md"},
}  # fmt: skip


def alerts_tables(spoken: str) -> str:
    """A table of all alerts, then a part for each that the guard does not judge."""
    held: dict[str, list[Alert]] = {}
    for alert in alerts():
        held.setdefault(alert.name, []).append(alert)
    lines = [ALERT_WORDS[spoken]["head"], "|---|---|---|---|---|"]
    lines += [_alert_row(name, found, spoken) for name, found in held.items()]
    own = [found[0] for found in held.values() if found[0].page.startswith("monitoring.md")]
    return "\n".join([*lines, "", *(_alert_part(alert, spoken) for alert in own)]) + "\n"


def _alert_row(name: str, found: list[Alert], spoken: str) -> str:
    words = ALERT_WORDS[spoken]
    page, _, anchor = found[0].page.partition("#")
    place = f"#{anchor}" if page == "monitoring.md" else f"{words['page']}#{anchor}"
    waits = words["minutes"].format(found[0].for_seconds / 60) if found[0].for_seconds else ""
    severities = ", ".join(alert.severity for alert in found)
    return f"| `{name}` | {found[0].title.general(spoken)} | {severities} | {waits} | [{anchor}]({place}) |"


def _alert_part(alert: Alert, spoken: str) -> str:
    words = WORDS[spoken]
    end = words["stop_sign"]
    text = alert.seen.zh if spoken == "zh" else alert.seen.en
    seen = rules.Text(*[text.replace("{value:.0f}", "N")] * 2).general()
    said = [f"### {alert.rule}", "", f"**{alert.title.general(spoken)}{end}** {seen[0].upper()}{seen[1:]}{end}", ""]
    said += [
        words["causes"],
        "",
        *(f"- {c.text.general(spoken)}: {c.remedy.general(spoken)}{end}" for c in alert.causes),
    ]
    return "\n".join([*said, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# ------------------------------------------------------------------------------------------------------------ pages
def updated(text: str) -> str:
    """A page with every marked place written anew."""

    def fill(match: re.Match[str]) -> str:
        what = match[2]
        if what == "algorithms":
            return f"{match[1]}{algorithms_table()}{match[3]}"
        if what == "metrics":
            return f"{match[1]}{metrics_table()}{match[3]}"
        if what.startswith("alarms:"):
            return f"{match[1]}{alarms_tables(what.removeprefix('alarms:'))}{match[3]}"
        if what.startswith("alerts:"):
            return f"{match[1]}{alerts_tables(what.removeprefix('alerts:'))}{match[3]}"
        return f"{match[1]}{settings_table(what.removeprefix('settings:'))}{match[3]}"

    return MARKER.sub(fill, text)


def outdated() -> dict[Path, str]:
    """Pages that differ from what the code says, with what they should be."""
    found = {path: path.read_text() for path in sorted(DOCS.rglob("*.md"))}
    return {path: new for path, text in found.items() if (new := updated(text)) != text}


def main(arguments: list[str]) -> int:
    stale = outdated()
    for path, text in stale.items():
        print(path.relative_to(DOCS.parent))
        if "--check" not in arguments:
            path.write_text(text)
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
