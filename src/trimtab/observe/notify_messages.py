"""What is said of a run's events to people who are not there, in the run's language."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trimtab.observe.figures import short
from trimtab.rules import RULES
from trimtab.secrets import redact

LONGEST = 4000
"""Characters of the text of a notification."""
OF_ONE_PROCESS = ("started", "resumed", "preempted")
"""Said of each process that trains a run, at whatever step it is."""
HEADLINES = ("reward/mean", "eval/reward/mean", "loss/total", "kl/reference", "kl/update", "entropy")
"""Figures that stand below a notification, as far as the run has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The run that is spoken of."""

    name: str
    run_id: str
    algorithm: str
    max_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One thing that is told of a run."""

    key: str
    """Equal whenever the same thing is told again; for receivers that must not count it twice."""
    kind: str
    """A name of `settings.Kind`, or `test`."""
    severity: str
    """`critical`, `warning`, `good` or `info`."""
    title: str
    text: str
    run: str
    run_id: str
    algorithm: str
    step: int
    max_steps: int
    config_version: int
    time: str
    """When it happened, ISO 8601 with the offset."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Of the event, for programs: rule, figure, value, limit, exit code and so on."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Of the newest step."""

    def as_document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Notification:
        """
        Raises:
            TypeError: it is none; KeyError: likewise.
        """
        return cls(**document)

    @property
    def footer(self) -> str:
        """Run, step and the newest figures, on one line."""
        figures = "  ".join(f"{name} {short(value)}" for name, value in self.figures.items())
        return f"{self.run}  {self.algorithm}  step {self.step}/{self.max_steps}  {figures}".strip()


_WORDS: Mapping[str, tuple[str, str]] = {
    "alarm": ("Alarm: {title}", "警报：{title}"),
    "warning": ("Warning: {title}", "警告：{title}"),
    "cleared": ("Over: {title}", "警报解除：{title}"),
    "cleared text": ("The alarm of the rule {rule} is over.", "规则 {rule} 的警报已解除。"),
    "roll_back": ("The run goes back to an earlier checkpoint.", "训练将回退到更早的检查点。"),
    "end": ("The run is stopped.", "训练将被停止。"),
    "warn": ("Training goes on.", "训练继续。"),
    "rollback": ("Rolled back to step {step}", "已回退到第 {step} 步"),
    "rollback text": (
        "From step {was}: {reason}. Configuration {version} is in force; what came after step {step} is kept as {branch}.",
        "自第 {was} 步回退：{reason}。当前配置版本 {version}；第 {step} 步之后的内容保留在 {branch}。",
    ),
    "swap": ("Configuration {version} is in force", "配置版本 {version} 已生效"),
    "swap text": ("From step {step} on, asked for by {who}: {changes}", "自第 {step} 步起，由 {who} 提出：{changes}"),
    "refused": ("A change was refused", "配置变更被拒绝"),
    "refused text": ("{asked}: {reason}", "{asked}：{reason}"),
    "save_failed": ("A save failed", "保存失败"),
    "save_failed text": (
        "Step {step}: {reason}. Training goes on; this is said again only after a save has worked.",
        "第 {step} 步：{reason}。训练继续；在下一次保存成功之前不再重复通知。",
    ),
    "stop": ("The guard stopped the run", "训练被守护停止"),
    "failed": ("The run failed with exit code {code}", "训练失败，退出码 {code}"),
    "failed text": ("{cause}. What to do: {what_to_do}.", "{cause}。处理办法：{what_to_do}。"),
    "preempted": ("The run was interrupted and is saved", "训练被中断，状态已保存"),
    "preempted text": (
        "{signal} at step {step}. The same command goes on from there.",
        "第 {step} 步收到 {signal}。用同一命令即可继续。",
    ),
    "finished": ("The run is finished", "训练完成"),
    "finished text": ("{outcome}", "{outcome}"),
    "started": ("The run has started", "训练开始"),
    "resumed": ("The run goes on from step {step}", "训练从第 {step} 步继续"),
    "test": ("A test message", "测试消息"),
    "test text": (
        "This webhook works. It is told of: {on}.",
        "Webhook 工作正常。通知内容：{on}。",
    ),
}
_SEVERITY = {
    "alarm": "critical",
    "stop": "critical",
    "failed": "critical",
    "save_failed": "critical",
    "warning": "warning",
    "rollback": "warning",
    "preempted": "warning",
    "cleared": "good",
    "finished": "good",
}


class Editor:
    """Makes notifications of a run's events, and leaves out what nobody has to be told."""

    def __init__(self, subject: Subject, *, language: str = "en", process: str = "") -> None:
        """
        Args:
            language: `en` or `zh`.
            process: tells this process from others that train the same run.
        """
        self.subject = subject
        self.language = language
        self.process = process
        self.step = 0
        self.figures: dict[str, float] = {}
        self._saves_fail = False

    def see(self, step: int, metrics: Mapping[str, float]) -> None:
        """The newest figures of the run."""
        self.step = step
        self.figures |= {name: metrics[name] for name in HEADLINES if name in metrics}

    def notification(self, event: str, facts: Mapping[str, Any], *, version: int) -> Notification | None:
        """What to tell of an event; None: nothing.

        Args:
            event: as recorders are told, or `stop`, `failed`, `finished`, `test`.
            version: of the configuration in force.
        """
        self.step = int(facts.get("step", self.step))
        seen = {**facts, "step": self.step}
        if event in ("saved", "save failed"):
            is_new, self._saves_fail = event == "save failed" and not self._saves_fail, event == "save failed"
            return self._made("save_failed", seen, version) if is_new else None
        if event == "alarm":
            return self._alarm(seen, version)
        if event == "alarm over":
            return self._made("cleared", {**seen, "title": self._rule_title(str(facts["rule"]))}, version)
        known = {
            "rolled back": ("rollback", "rollback"),
            "swapped": ("swap", "swap"),
            "refused": ("swap", "refused"),
            "samples failed": ("save_failed", "save_failed"),
        }
        kind, words = known.get(event, (event, event))
        return self._made(kind, seen, version, words=words) if words in _WORDS else None

    def _alarm(self, seen: Mapping[str, Any], version: int) -> Notification:
        follows = {"roll_back": "roll_back", "stop": "end"}.get(str(seen.get("then")), "warn")
        kind = "alarm" if seen.get("level") == "act" else "warning"
        text = f"{seen['text']}\n{self._said(follows, seen)}"
        return self._made(kind, {**seen, "title": self._rule_title(str(seen["rule"]))}, version, text=text)

    def _made(
        self, kind: str, seen: Mapping[str, Any], version: int, *, words: str = "", text: str | None = None
    ) -> Notification:
        words = words or kind
        if text is None:
            text = self._said(f"{words} text", seen) if f"{words} text" in _WORDS else str(seen.get("reason", ""))
        subject, step = self.subject, int(seen["step"])
        facts = {k: _plain(v) for k, v in seen.items() if k not in ("text", "title", "step", "time")}
        return Notification(
            key=self._key(words, seen, version),
            kind=kind,
            severity=_SEVERITY.get(kind, "info"),
            title=redact(self._said(words, seen)),
            text=_cut(redact(text)),
            run=subject.name,
            run_id=subject.run_id,
            algorithm=subject.algorithm,
            step=step,
            max_steps=subject.max_steps,
            config_version=version,
            time=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            facts=facts,
            figures=dict(self.figures),
        )

    def _key(self, words: str, seen: Mapping[str, Any], version: int) -> str:
        """Of run, event, rule, step and configuration; of a failure its cause too, of a process's life the process."""
        parts = [self.subject.run_id, words, seen.get("rule") or "", seen.get("level") or "", seen["step"], version]
        if words in ("failed", "stop", "refused"):
            parts.append(redact(str(seen.get("cause") or seen.get("reason") or "")))
        if words in OF_ONE_PROCESS or words == "test":
            parts.append(self.process)
        return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:32]

    def _rule_title(self, name: str) -> str:
        rule = next((rule for rule in RULES if rule.name == name), None)
        return name if rule is None else rule.title.said({}, self.language) or name

    def _said(self, words: str, seen: Mapping[str, Any]) -> str:
        english, chinese = _WORDS[words]
        text = chinese if self.language == "zh" else english
        return text.format_map(_Missing(seen))


class _Missing(dict[str, str]):
    """Names that an event does not have stand as `?`."""

    def __init__(self, seen: Mapping[str, Any]) -> None:
        super().__init__({name: _shown(value) for name, value in seen.items()})

    def __missing__(self, name: str) -> str:
        return "?"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={_shown(v)}" for k, v in value.items())
    return short(value) if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return _cut(redact(value))
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, int | float | None) else _cut(redact(str(value)))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
