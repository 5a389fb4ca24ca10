"""What an alarm is made of, and how it is said: what was seen, the likely causes, what to do about each."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Judged = Literal[
    "above", "below", "times_median", "under_median", "share_of_start", "range_of_start", "fall", "improvement"
]
Then = Literal["warn", "roll_back", "stop", "finish", "restart"]


@dataclass(frozen=True, slots=True)
class Text:
    """The same in both languages. `{figure}`, `{key}` or `{figure:.0%}` is filled in from what was seen."""

    en: str
    zh: str

    def said(self, facts: Mapping[str, Any], language: str = "en") -> str | None:
        """The text with its figures; None if one of them was not seen.

        >>> Text("{kl/update:.3f} nats from {optim.learning_rate}", "").said({"kl/update": 0.0712, "optim.learning_rate": 1e-3})
        '0.071 nats from 0.001'
        """
        text = self.zh if language == "zh" else self.en
        if any(facts.get(name) is None for name, _ in PLACES.findall(text)):
            return None
        return PLACES.sub(lambda found: _formatted(facts[found[1]], found[2]), text)

    def general(self, language: str = "en") -> str:
        """The text for a page, where nothing was seen: without the values, figures by their names.

        >>> Text("lower optim.learning_rate from {optim.learning_rate} (largest {reward/max:.4g})", "").general()
        'lower optim.learning_rate'
        """
        text = VALUES.sub("", self.zh if language == "zh" else self.en).replace("`", "")
        return PLACES.sub(lambda found: f"`{found[1]}`", text)


PLACES = re.compile(r"\{([^{}:]+)(?::([^{}]*))?\}")
VALUES = re.compile(r" from \{[^{}]*\}| ?从 \{[^{}]*\}| ?[(（][^()（）]*\{[^{}]*\}[^()（）]*[)）]")
"""Parts of a text that only say what a value is."""


def _formatted(value: Any, spec: str | None) -> str:
    if spec:
        return format(value, spec)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Something that may be behind an alarm, and what to do about it."""

    text: Text
    remedy: Text
    evidence: tuple[str, Literal["above", "below"], float] | None = None
    """A figure that speaks for it: then it is named before the others."""

    def support(self, facts: Mapping[str, Any]) -> int:
        """1 if its figure speaks for it, -1 if it speaks against it, 0 if there is none."""
        if self.evidence is None:
            return 0
        name, side, limit = self.evidence
        value = facts.get(name)
        if not isinstance(value, int | float):
            return 0
        return 1 if (value > limit if side == "above" else value < limit) else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An alarm."""

    name: str
    figures: tuple[str, ...]
    """Of a step's report; the one furthest over its limit counts. A rule whose figures a run does not have is silent."""
    judged: Judged
    warn: float | None = None
    act: float | None = None
    steps: int = 1
    """In a row (for `fall` and `improvement`: evaluations)."""
    seconds: float | None = None
    """In the place of `steps`: so long without a break."""
    then: Then = "warn"
    """What follows at `act`."""
    acts_over_median: float | None = None
    """The action needs a figure that is also over so many times its running median."""
    unless: tuple[str, Literal["above", "below"], float] | None = None
    """A figure that says that all is well nevertheless."""
    title: Text
    seen: Text
    """`{value}` is the figure and `{limit}` what it is held against."""
    causes: tuple[Cause, ...]


def language(asked: str = "auto") -> str:
    """`en` or `zh`: what was asked for, else TRIMTAB_LANG, else the locale's."""
    if asked in ("en", "zh"):
        return asked
    found = next((v for name in ("TRIMTAB_LANG", "LC_ALL", "LC_MESSAGES", "LANG") if (v := os.environ.get(name))), "")
    return "zh" if found.lower().startswith("zh") else "en"


def diagnosis(rule: Rule, facts: Mapping[str, Any], spoken: str = "en") -> str:
    """What was seen, the likely causes, and what to do about each.

    Causes that a figure speaks for come first, those that one speaks against are left out.
    """
    seen = rule.seen.said(facts, spoken) or rule.title.said({}, spoken) or rule.name
    causes = sorted((c for c in rule.causes if c.support(facts) >= 0), key=lambda cause: -cause.support(facts))
    said = [
        f"{text}: {remedy}"
        for cause in causes
        if (text := cause.text.said(facts, spoken)) and (remedy := cause.remedy.said(facts, spoken))
    ]
    if spoken == "zh":
        return f"{seen}。可能的原因：{'；'.join(said)}" if said else seen
    return f"{seen}. Likely: {'; '.join(said)}" if said else seen
