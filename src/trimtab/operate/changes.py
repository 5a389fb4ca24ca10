"""Another configuration for a run that goes on: what may be changed, and what it becomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab import config as configs
from trimtab.config import RunConfig, aliases, document, sections
from trimtab.config.document import Key
from trimtab.errors import ConfigError, Finding
from trimtab.types import Need

SAME_RUN = (
    "data",
    "rewards",
    "policy.model",
    "policy.dtype",
    "policy.autocast",
    "policy.lora",
    "reference.model",
    "train.seed",
    "extends",
    "overrides",
)
"""Keys that make a run the run that it is."""
AT_START = (
    *(f"observe.prometheus_{name}" for name in ("port", "address", "token", "textfile")),
    "observe.trackers",
    "observe.webhook",
    "cluster",
)
"""Keys of what listens to a run from its start on, and of the processes that train it."""
KINDS: Mapping[Need, str] = {
    Need.ROLLOUTS: "samples completions and learns from rewards",
    Need.PAIRS: "reads pairs",
    Need.LABELS: "reads labelled completions",
    Need.DEMONSTRATIONS: "reads demonstrations",
    Need.SCORES: "trains a reward model",
}
"""What an algorithm learns from: a run's source gives one of them."""


def in_force(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """The configuration that a run was started with, and what was changed since.

    Keys of an earlier algorithm that the present one does not read are listed as unused, not refused.
    """
    if not changes:
        return config
    found = configs.resolve(_document(config, changes), [])
    return replace(found, requested=config.requested, chain=config.chain)


def started_with(version: Mapping[str, Any]) -> RunConfig:
    """The configuration that a version's run was started with."""
    return configs.from_mapping(dict(version["requested"]), folder=Path(version["folder"]))


def changed(
    start: RunConfig, before: Mapping[str, Any], asked: Mapping[str, Any], *, place: str = "command line"
) -> tuple[RunConfig, dict[str, Any]]:
    """The configuration of a run with more changes, and all changes together.

    Another algorithm begins with its own settings: what was changed of the settings that belonged to the one before is
    left out, while learning rates, coefficients of KL and all that is not the algorithm's stays.

    Args:
        start: what the run was started with.
        before: changes that are in force.
        asked: changes to add, by dotted key.
        place: who asks, for messages.
    Raises:
        ConfigError: a key is unknown, does not fit, is not read, or makes another run of this one.
    """
    old = in_force(start, before)
    _refuse_another_run(asked, place)
    kept = dict(before)
    if "algorithm" in asked:
        own = {f"{o.section}.{key}" for o in sections.of_algorithm(old.algorithm) for key in o.key_names()}
        own |= {f"policy.{sections.CLIP_RATIO}"}
        kept = {key: v for key, v in before.items() if key not in own or key.startswith(("kl.", "policy.entropy"))}
    words: list[tuple[Key, Any, str]] = [(tuple(key.split(".")), value, place) for key, value in asked.items()]
    new = configs.resolve(_document(start, kept, over=asked), words)
    _refuse_other_needs(old, new, place)
    new = replace(new, requested=start.requested, chain=start.chain)
    return new, {**kept, **asked}


def _document(config: RunConfig, changes: Mapping[str, Any], *, over: Iterable[str] = ()) -> document.Document:
    """What a run was started with under what was changed; of the two ways to say a clip, the later one counts."""
    found = document.from_mapping(document.copied(dict(config.requested)), folder=config.folder)
    aliases.spread(found, config.algorithm)  # a change names the key, and the two may not stand beside each other
    for key, value in changes.items():
        _take_other_clip(found, [key])
        found.put(tuple(key.split(".")), value, "changed while it ran")
    _take_other_clip(found, over)
    return found


def _take_other_clip(found: document.Document, asked: Iterable[str]) -> None:
    both, sides = f"policy.{sections.CLIP_RATIO}", {"policy.clip_low", "policy.clip_high"}
    policy = found.values.get("policy")
    if isinstance(policy, dict):
        gone = {sections.CLIP_RATIO} if sides & set(asked) else {"clip_low", "clip_high"} if both in asked else set()
        for name in gone & set(policy):
            del policy[name]


def _refuse_another_run(asked: Mapping[str, Any], place: str) -> None:
    findings = [
        Finding(place=place, what=f"{key}: it makes the run the one that it is", hint="start another run with it")
        for key in asked
        if any(key == name or key.startswith(f"{name}.") for name in SAME_RUN)
    ] + [
        Finding(place=place, what=f"{key}: it is read when a run starts", hint="stop the run, and go on with it set")
        for key in asked
        if any(key == name or key.startswith(f"{name}.") for name in AT_START)
    ]
    if findings:
        raise ConfigError(findings)


def _refuse_other_needs(old: RunConfig, new: RunConfig, place: str) -> None:
    """A run's source gives completions with rewards, or pairs, or ...; an algorithm that needs another is another run."""
    before, after = kind_of(old), kind_of(new)
    if before != after:
        what = f"algorithm: {new.algorithm.name} {KINDS[after]}, but this run {KINDS[before]}"
        hint = "start another run with it"
        if after in (Need.PAIRS, Need.LABELS) and before == Need.ROLLOUTS:
            hint = f"add it beside: mix='[{{algorithm: {new.algorithm.name}, data: FILE, weight: 0.5}}]'; or start another run"
        raise ConfigError([Finding(place=place, what=what, hint=hint)])
    same = {"value.model": (old.value.model, new.value.model)} if old.need & new.need & Need.VALUES else {}
    for key, (was, is_now) in same.items():
        if was != is_now:
            what = f"{key}: {is_now!r}, but the run has a critic already, made of {was!r}"
            raise ConfigError([Finding(place=place, what=what, hint="start another run with it")])


def kind_of(config: RunConfig) -> Need:
    """What a run learns from."""
    need = config.algorithm.needs(config.algorithm_config)
    return next(kind for kind in (Need.SCORES, *KINDS) if need & kind)


def said(changes: Mapping[str, Any]) -> str:
    """Changes in one line.

    >>> said({"algorithm": "gspo", "optim.learning_rate": 5e-07})
    'algorithm=gspo, optim.learning_rate=5e-07'
    """
    return ", ".join(f"{key}={value}" for key, value in changes.items())


def gentler(config: RunConfig, controller: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """What the guard sets after a rollback, and what must be said about it.

    Args:
        config: in force at the checkpoint.
        controller: the state of `kl.coef`'s controller there.
    """
    guard = config.guard
    found: dict[str, Any] = {"optim.learning_rate": config.optim.learning_rate * guard.learning_rate_factor}
    if config.need & Need.VALUES and config.critic.learning_rate is not None:
        found["value.learning_rate"] = config.critic.learning_rate * guard.learning_rate_factor
    coef = config.resolved.get("kl", {}).get("coef")
    if isinstance(coef, dict):
        found["kl.coef"] = {**coef, **{end: coef[end] * guard.kl_factor for end in ("from", "to")}}
    elif "coef" in controller:
        found["kl.coef"] = float.fromhex(controller["coef"]) * guard.kl_factor
    elif coef:
        found["kl.coef"] = coef * guard.kl_factor
    remark = "" if "kl.coef" in found else "; kl.coef is 0, so only the learning rate is changed"
    return found, remark
