"""Who declares which keys: every section is the union of the fields that rooms and the algorithm declare for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from trimtab import algorithms
from trimtab.algorithms.base import Algorithm, Need, Shared
from trimtab.config.records import key_of
from trimtab.data.settings import Data, Imitation
from trimtab.errors import UserError
from trimtab.models.settings import PolicyModel, ReferenceModel, ValueModel
from trimtab.observe import settings as observing
from trimtab.rollout.settings import Sampling
from trimtab.store.settings import Checkpoint, Observe
from trimtab.train import settings as training

CLIP_RATIO = "clip_ratio"
"""In `policy`: both sides of the clip at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A record that declares keys of a section."""

    name: str
    """Its name in `RunConfig`; `algorithm.…` for the algorithm's own."""
    section: str
    record: type[Any]
    default: Any
    is_read: Callable[[Need], bool]
    unread: tuple[str, ...] = ()
    """Keys of the record, dotted, that the algorithm does not look at."""

    def key_names(self) -> list[str]:
        names = [key_of(f.name) for f in fields(self.record)]
        return [name for name in names if f"{self.section}.{name}" not in self.unread]


def _always(_: Need) -> bool:
    return True


def _when(need: Need) -> Callable[[Need], bool]:
    return lambda needed: bool(needed & need)


def _room(name: str, section: str, record: type[Any], is_read: Callable[[Need], bool] = _always) -> Owner:
    return Owner(name=name, section=section, record=record, default=record(), is_read=is_read)


ROOMS = (
    _room("policy", "policy", PolicyModel),
    _room("value", "value", ValueModel, _when(Need.VALUES)),
    _room("critic", "value", training.Critic, _when(Need.VALUES)),
    _room("reference", "reference", ReferenceModel, _when(Need.REFERENCE)),
    _room("sampling", "sampling", Sampling),
    _room("data", "data", Data),
    _room("imitation", "data", Imitation, _when(Need.DEMONSTRATIONS)),
    _room("optim", "optim", training.Optim),
    _room("train", "train", training.Train),
    _room("eval", "eval", training.Eval),
    _room("checkpoint", "checkpoint", Checkpoint),
    _room("guard", "guard", training.Guard),
    _room("cluster", "cluster", training.Cluster),
    _room("probe", "guard", training.Probe, _when(Need.OLD_LOG_PROBS)),
    _room("observe", "observe", Observe),
    _room("diagnostics", "observe", training.Diagnostics),
    _room("alarms", "observe", training.Alarms),
    _room("telling", "observe", observing.Telling),
    _room("export", "observe", observing.Export),
)
READ_WITHOUT_ROLLOUTS = {"max_length", "max_prompt_length", "long_prompts"}
"""Keys of `sampling` that a run which only reads looks at too."""
OTHER_KEYS = ("algorithm", "rewards", "mix", "overrides", "extends")


def of_algorithm(algorithm: Algorithm) -> list[Owner]:
    """The algorithm's own records, one a section; those of `Shared` with them.

    Raises:
        UserError: the config is not made of dataclasses with defaults.
    """
    return list(_records(algorithm.config(), "algorithm", algorithm.unread))


def _records(config: Any, name: str, unread: tuple[str, ...]) -> Iterator[Owner]:
    for spec in fields(config):
        value = getattr(config, spec.name)
        if not is_dataclass(value):
            raise UserError(f"{name}.{spec.name} is no dataclass; an algorithm's config is a record of sections")
        if isinstance(value, Shared):
            yield from _records(value, f"{name}.{spec.name}", unread)
        else:
            yield Owner(
                name=f"{name}.{spec.name}",
                section=spec.name,
                record=type(value),
                default=value,
                is_read=_always,
                unread=unread,
            )


def owners(algorithm: Algorithm) -> list[Owner]:
    """Everybody who declares keys in a run with this algorithm.

    Raises:
        UserError: two of them declare the same key.
    """
    found = [*ROOMS, *of_algorithm(algorithm)]
    seen: dict[tuple[str, str], str] = {}
    for owner in found:
        for key in owner.key_names():
            other = seen.setdefault((owner.section, key), owner.name)
            if other != owner.name:
                what = f"{owner.section}.{key} is declared by {other} and by {owner.name}"
                raise UserError(f"algorithm {algorithm.name}: {what}; a key has one owner")
    return found


def has_clip(algorithm: Algorithm) -> bool:
    """Whether `policy.clip_ratio` means something."""
    keys = {key for owner in of_algorithm(algorithm) if owner.section == "policy" for key in owner.key_names()}
    return {"clip_low", "clip_high"} <= keys


def known_keys() -> dict[str, set[str]]:
    """Every key of every section that a room or an algorithm declares, plug-ins included."""
    found: dict[str, set[str]] = {}
    for owner in ROOMS:
        found.setdefault(owner.section, set()).update(owner.key_names())
    for algorithm in algorithms.loadable().values():
        for owner in of_algorithm(algorithm):
            found.setdefault(owner.section, set()).update(owner.key_names())
    found["policy"].add(CLIP_RATIO)
    return found
