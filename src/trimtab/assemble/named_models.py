"""The models that a configuration names, looked at before any is loaded."""

from __future__ import annotations

from pathlib import Path

from trimtab.assemble.given import MARK
from trimtab.assemble.judges import key_of
from trimtab.config import RunConfig
from trimtab.errors import ModelError
from trimtab.types import Need


def named(config: RunConfig) -> dict[str, str]:
    """Key of the configuration -> the model that a new run loads there; objects that Python gave are none."""
    found = {"policy.model": config.policy.model}
    if config.need & Need.VALUES and config.value.model not in (None, "shared"):
        found["value.model"] = str(config.value.model)
    if config.need & Need.REFERENCE and config.reference.model is not None:
        found["reference.model"] = config.reference.model
    if config.need & Need.ROLLOUTS:
        found |= {key_of(place): s.model for place, s in enumerate(config.rewards) if s.model is not None}
    return {key: name for key, name in found.items() if not name.startswith(MARK)}


def refuse_spoilt(config: RunConfig) -> None:
    """
    Raises:
        ModelError: with everything that is wrong with any of them, as far as headers and small files tell.
    """
    problems = []
    for key, name in named(config).items():
        try:
            _refuse(name, key)
        except ModelError as error:
            problems.append(str(error))
    if problems:
        raise ModelError("\n".join(problems))


def _refuse(name: str, key: str) -> None:
    """A model; of an adapter, the one that it belongs to as well."""
    from trimtab.models import adapters, headers, loading

    place = loading.checked_name(name, key)
    headers.refuse(place, key)
    above: tuple[str, ...] = ()
    while adapters.is_adapter(place):
        base = adapters.base_of(Path(place), key, above)
        above = (*above, place)
        place = loading.checked_name(base, key)
        headers.refuse(place, key)
