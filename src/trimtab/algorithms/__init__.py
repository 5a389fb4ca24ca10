"""The table of algorithms: a name here, or an entry point of group `trimtab.algorithms`, may follow `algorithm:`."""

from __future__ import annotations

import contextlib
import importlib
from importlib.metadata import EntryPoint, entry_points

from trimtab.algorithms.base import Algorithm
from trimtab.errors import UserError, nearest

ENTRY_POINT_GROUP = "trimtab.algorithms"

MODULES = {
    "ppo": "trimtab.algorithms.ppo:ALGORITHM",
    "reinforce": "trimtab.algorithms.reinforce:ALGORITHM",
    "reinforce_pp": "trimtab.algorithms.reinforce:REINFORCE_PP",
    "reinforce_pp_baseline": "trimtab.algorithms.reinforce:REINFORCE_PP_BASELINE",
    "rloo": "trimtab.algorithms.rloo:ALGORITHM",
    "grpo": "trimtab.algorithms.grpo:ALGORITHM",
    "dr_grpo": "trimtab.algorithms.grpo:DR_GRPO",
    "dapo": "trimtab.algorithms.grpo:DAPO",
    "gspo": "trimtab.algorithms.gspo:ALGORITHM",
    "gspo_token": "trimtab.algorithms.gspo:GSPO_TOKEN",
    "gspo_segment": "trimtab.algorithms.gspo:GSPO_SEGMENT",
    "cispo": "trimtab.algorithms.cispo:ALGORITHM",
    "gmpo": "trimtab.algorithms.gmpo:ALGORITHM",
    "sapo": "trimtab.algorithms.sapo:ALGORITHM",
    "clip_cov": "trimtab.algorithms.clip_cov:ALGORITHM",
    "kl_cov": "trimtab.algorithms.clip_cov:KL_COV",
    "dpo": "trimtab.algorithms.dpo:ALGORITHM",
    "cdpo": "trimtab.algorithms.dpo:CDPO",
    "robust_dpo": "trimtab.algorithms.dpo:ROBUST_DPO",
    "ipo": "trimtab.algorithms.ipo:ALGORITHM",
    "hinge": "trimtab.algorithms.dpo:HINGE",
    "dpo_norm": "trimtab.algorithms.dpo:DPO_NORM",
    "simpo": "trimtab.algorithms.simpo:ALGORITHM",
    "cpo": "trimtab.algorithms.cpo:ALGORITHM",
    "orpo": "trimtab.algorithms.orpo:ALGORITHM",
    "kto": "trimtab.algorithms.kto:ALGORITHM",
    "reward_model": "trimtab.algorithms.reward_model:ALGORITHM",
    "sft": "trimtab.algorithms.sft:ALGORITHM",
}
"""Every built-in name and where its `Algorithm` stands, written as an entry point."""

ALIASES = {"ppo_like": "ppo"}


def names() -> list[str]:
    """All names that `algorithm:` accepts here, built-in ones first, aliases left out."""
    return [*MODULES, *sorted(point.name for point in _plugins() if point.name not in MODULES)]


def load(name: str) -> Algorithm:
    """The algorithm of that name.

    Raises:
        UserError: there is none; the message names the nearest.
    """
    name = ALIASES.get(name, name)
    if name in MODULES:
        module, record = MODULES[name].split(":")
        return _checked(name, getattr(importlib.import_module(module), record))
    for point in _plugins():
        if point.name == name:
            return _checked(name, _loaded(point))
    near = nearest(name, [*names(), *ALIASES])
    hint = f"did you mean `{near}`?" if near else f"there are: {', '.join(names())}"
    raise UserError(f"algorithm: no algorithm is called `{name}`; {hint}")


def _plugins() -> list[EntryPoint]:
    return list(entry_points(group=ENTRY_POINT_GROUP))


def _loaded(point: EntryPoint) -> object:
    try:
        return point.load()
    except Exception as error:
        origin = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
        what = f"{type(error).__name__}: {error}"
        raise UserError(
            f"algorithm: the plug-in `{point.name}`{origin} ({point.value}) cannot be loaded: {what}"
        ) from error


def loadable() -> dict[str, Algorithm]:
    """Every algorithm that can be loaded; a broken plug-in is left out."""
    found: dict[str, Algorithm] = {}
    for name in names():
        with contextlib.suppress(UserError):
            found[name] = load(name)
    return found


def _checked(name: str, found: object) -> Algorithm:
    if not isinstance(found, Algorithm):
        raise UserError(
            f"algorithm: the entry point `{name}` gives {type(found).__name__}, expected an Algorithm record"
        )
    return found
