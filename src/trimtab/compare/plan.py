"""What is compared: arms, seeds, budget, and everything that all arms have in common, locked in one file."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from trimtab import __version__, assemble
from trimtab import config as configs
from trimtab.assemble import fingerprints
from trimtab.config import RunConfig
from trimtab.config import document as documents
from trimtab.config.document import Key, copied
from trimtab.errors import ConfigError, Finding, UserError
from trimtab.store import writer
from trimtab.types import Need

FORMAT = 1
CLIP_KEYS: tuple[Key, ...] = tuple(("policy", name) for name in ("clip_ratio", "clip_low", "clip_high"))
"""What means another thing under another algorithm; left to each one's own values where the algorithm is varied."""
FLAT_CLIP: Key = ("clip_epsilon",)
SEEDED: tuple[Key, ...] = (("train", "seed"), ("data", "seed"))
"""What a seed of a comparison sets, unless it is varied: weights and samples, and the order of the prompts."""
NAME = re.compile(r"[^A-Za-z0-9._=-]+")
Kind = Literal["steps", "samples", "tokens", "seconds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What each run of an arm may spend; it ends with the step in which that is spent, or the one behind it."""

    kind: Kind
    amount: float

    @classmethod
    def read(cls, text: str) -> Budget:
        """
        >>> Budget.read("samples=20000")
        Budget(kind='samples', amount=20000.0)

        Raises:
            UserError: it is none.
        """
        kind, _, amount = text.partition("=")
        try:
            value = float(amount.replace("_", ""))
        except ValueError:
            value = 0.0
        if kind not in ("steps", "samples", "tokens", "seconds") or not 0 < value < 1e15:
            raise UserError(
                f"--budget: {text!r}, expected steps=N, samples=N, tokens=N or seconds=N with N above 0, such as samples=20000"
            )
        return cls(kind=kind, amount=value)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One of the things that are compared."""

    label: str
    folder: str
    """Its directory's name."""
    changes: Mapping[str, Any]
    """The varied keys, dotted, at this arm's values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A comparison before anything of it has run."""

    source: str
    folder: str
    """Where relative paths are looked for, besides the working directory."""
    values: Mapping[str, Any]
    """The configuration that all arms begin with."""
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    budget: Budget | None = None
    locked: Mapping[str, Any] = field(default_factory=dict)
    """Fingerprints and settings that must be the same whenever the comparison is gone on with."""

    @property
    def varied(self) -> tuple[str, ...]:
        """Dotted keys."""
        return tuple(self.arms[0].changes)

    def arm(self, folder: str) -> Arm:
        return next(arm for arm in self.arms if arm.folder == folder)

    def values_of(self, arm: Arm, seed: int) -> dict[str, Any]:
        """What a run of an arm asks for."""
        values: dict[str, Any] = copied(self.values)
        if "algorithm" in self.varied:
            for key in (*CLIP_KEYS, FLAT_CLIP):
                _drop(values, key)
        for key in SEEDED:
            if ".".join(map(str, key)) not in self.varied:
                _put(values, key, seed)
        for name, value in arm.changes.items():
            key = tuple(name.split("."))
            if key in CLIP_KEYS[1:]:
                _drop(values, CLIP_KEYS[0])
            _put(values, key, value)
        return values

    def config_of(self, arm: Arm, seed: int) -> RunConfig:
        """
        Raises:
            ConfigError: the arm's configuration, with its label.
        """
        words = []
        if self.budget is not None and self.budget.kind == "steps":
            words = [f"train.max_steps={int(self.budget.amount)}"]
        try:
            return configs.from_mapping(self.values_of(arm, seed), words, folder=Path(self.folder))
        except ConfigError as error:
            marked = [Finding(place=f"{f.place} ({arm.label})", what=f.what, hint=f.hint) for f in error.findings]
            raise ConfigError(marked) from error

    def write(self, path: Path) -> None:
        writer.replace_text(path, json.dumps({"format": FORMAT, **asdict(self)}, indent=1, ensure_ascii=False) + "\n")


def read(path: Path) -> Plan:
    """
    Raises:
        UserError: it is not there, or not a plan of this version.
    """
    try:
        found = json.loads(path.read_bytes())
        if found.pop("format") != FORMAT:
            raise UserError(f"{path}: written by another version; compare into another directory with --to")
        arms = tuple(Arm(**arm) for arm in found.pop("arms"))
        budget = found.pop("budget")
        return Plan(
            arms=arms,
            seeds=tuple(found.pop("seeds")),
            budget=None if budget is None else Budget(**budget),
            **found,
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: is no comparison ({type(error).__name__}: {error})") from error


def make(
    path: Path, words: Sequence[str], vary: Sequence[str], *, seeds: int, budget: Budget | None = None
) -> tuple[Plan, list[RunConfig]]:
    """A plan, and the first seed's configuration of each arm.

    Args:
        path: the configuration that all arms begin with.
        words: `KEY=VALUE` over it, for all arms.
        vary: `KEY=A,B,C` each; several are crossed.
        seeds: how many.

    Raises:
        ConfigError: of any arm, with every fault of all.
        UserError: there is nothing to compare, or nothing to compare by.
        DataError: the rows.
    """
    if seeds < 1:
        raise UserError(f"--seeds: {seeds}, expected 1 or more; 3 or more to say anything about an algorithm")
    document = documents.read(path)
    for key, value, place in documents.parse_overrides(words):
        document.put(key, value, place)
    base = int((document.values.get("train") or {}).get("seed", 0) or 0)
    plan = Plan(
        source=str(path),
        folder=str(document.folder.absolute()),
        values=document.values,
        arms=tuple(_arms(vary)),
        seeds=tuple(range(base, base + seeds)),
        budget=budget,
    )
    checked = _checked(plan)
    _refuse_incomparable(plan, checked)
    return _locked(plan, checked), checked


def _checked(plan: Plan) -> list[RunConfig]:
    found, findings = [], []
    for arm in plan.arms:
        try:
            found.append(plan.config_of(arm, plan.seeds[0]))
        except ConfigError as error:
            findings += error.findings
    if findings:
        raise ConfigError(findings)
    return found


def _arms(vary: Sequence[str]) -> Iterable[Arm]:
    choices = [_choices(text) for text in vary]
    if not choices:
        raise UserError("--vary: nothing is varied; such as --vary algorithm=ppo,grpo")
    names = [name for name, _ in choices]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"--vary: {doubled} stands twice; give all its values in one list")
    folders: set[str] = set()
    seen: list[dict[str, Any]] = []
    combinations = list(itertools.product(*(values for _, values in choices)))
    if len(combinations) < 2:
        raise UserError(f"--vary: {vary[0]} has one value; two or more are needed to compare")
    for values in combinations:
        changes = dict(zip(names, (value for value, _ in values), strict=True))
        said = [text if len(names) == 1 else f"{name}={text}" for name, (_, text) in zip(names, values, strict=True)]
        label = ", ".join(said)
        folder = NAME.sub("-", label).strip("-.")[:60] or "arm"
        if folder in folders:
            folder = f"{folder}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
        if changes in seen:
            raise UserError(f"--vary: {label} stands twice")
        seen.append(changes)
        folders.add(folder)
        yield Arm(label=label, folder=folder, changes=changes)


def _choices(text: str) -> tuple[str, list[tuple[Any, str]]]:
    """A key, and each of its values as it is and as it was written."""
    name, mark, listed = text.partition("=")
    words = [word.strip() for word in split(listed)]
    if not mark or not name or not all(words):
        raise UserError(f"--vary: {text!r}, expected KEY=A,B,C, such as algorithm=ppo,grpo")
    return name, [(documents.parse_overrides([f"{name}={word}"])[0][1], word) for word in words]


def split(text: str) -> list[str]:
    """At commas that are in no bracket and no quotes.

    >>> split("0.1,0.2"), split("{a: 1, b: 2},[x, y],'p,q'")
    (['0.1', '0.2'], ['{a: 1, b: 2}', '[x, y]', "'p,q'"])
    """
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        depth += (letter in "[{(") - (letter in ")}]") if not quote else 0
        if letter == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _refuse_incomparable(plan: Plan, checked: Sequence[RunConfig]) -> None:
    without = [arm.label for arm, config in zip(plan.arms, checked, strict=True) if config.data.validation is None]
    if without:
        raise UserError(f"data.validation is not set ({', '.join(without)}): there is nothing to compare by")
    metrics = {assemble.evaluation_metric(config) for config in checked}
    if len(metrics) > 1:
        said = ", ".join(
            f"{arm.label}: {assemble.evaluation_metric(config)}" for arm, config in zip(plan.arms, checked, strict=True)
        )
        raise UserError(f"the arms are judged by different figures ({said}); set eval.early_stop.metric to one of all")
    if plan.budget is not None and plan.budget.kind == "samples":
        reading = [a.label for a, c in zip(plan.arms, checked, strict=True) if not c.need & Need.ROLLOUTS]
        if reading:
            raise UserError(f"--budget samples: {', '.join(reading)} samples nothing; use steps, tokens or seconds")


def _locked(plan: Plan, checked: Sequence[RunConfig]) -> Plan:
    """The plan with what must not change while it is carried out."""
    first = checked[0]
    data = [assemble.read_rows(config).fingerprints for config in checked]
    for arm, found in zip(plan.arms, data, strict=True):
        if found != data[0] and not any(name.startswith("data.") for name in plan.varied):
            raise UserError(f"{arm.label} would read other rows than {plan.arms[0].label}: {found} and {data[0]}")
    locked = {
        "data": data[0],
        "rewards": reward_prints(first),
        "evaluation": {
            "metric": assemble.evaluation_metric(first),
            "validation": first.data.validation,
            "prompts": first.eval.prompts,
        },
        "trimtab": __version__,
    }
    return Plan(**{**{name: getattr(plan, name) for name in plan.__slots__}, "locked": locked})


def reward_prints(config: RunConfig) -> list[dict[str, Any]]:
    """Each reward with its settings, and of a function of the user's the SHA-256 of its module's file."""
    found = []
    for spec in config.rewards:
        said: dict[str, Any] = {"name": spec.name, "model": spec.model, "weight": spec.weight}
        said["options"] = dict(spec.options)
        if ":" in spec.name:
            said["source"] = fingerprints.module_print(spec.name, [config.folder, Path.cwd()])
        found.append(said)
    return found


def _put(values: dict[str, Any], key: Key, value: Any) -> None:
    for part in key[:-1]:
        if not isinstance(values.get(str(part)), dict):
            values[str(part)] = {}
        values = values[str(part)]
    values[str(key[-1])] = value


def _drop(values: dict[str, Any], key: Key) -> None:
    inner: Any = values
    for part in key[:-1]:
        inner = inner.get(part) if isinstance(inner, dict) else None
    if isinstance(inner, dict):
        inner.pop(key[-1], None)
