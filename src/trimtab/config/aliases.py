"""Flat names of deployment guides (`clip_epsilon`, `batch_size`, ...): each is put where it belongs, once, and said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.algorithms.base import Algorithm
from trimtab.config.document import Document, Key
from trimtab.errors import Finding, shown
from trimtab.types import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    key: Key
    note: str = ""
    """What a reader may not expect."""


ALIASES: Mapping[str, Alias] = {
    "clip_epsilon": Alias(key=("policy", "clip_ratio")),
    "epoch_num": Alias(key=("train", "epochs_per_batch"), note="passes over each batch, not over the data"),
    "kl_coef": Alias(
        key=("kl", "coef"), note="KL to the reference model, as a term of the loss; see kl.target, kl.where"
    ),
    "gamma": Alias(key=("advantage", "gamma"), note="a discount per token: below 1 a final reward shrinks with length"),
    "gae_lambda": Alias(key=("advantage", "lam")),
    "ref_model_path": Alias(key=("reference", "model")),
    "policy_model_path": Alias(key=("policy", "model")),
}
BATCH_SIZE = "batch_size"
"""Completions a step: prompts times group size; of an algorithm that reads its rows, rows (pairs are one)."""
DEFAULT_GROUP_SIZE = 8
TEMPERATURE = "temperature"
"""Of a preference algorithm: beta."""
HIGHEST_BETA = 0.5
"""A `sampling.temperature` above it is one of sampling, left from another algorithm, and no beta."""
DPO_WEIGHT = "dpo_loss_weight"


def names() -> tuple[str, ...]:
    return (*ALIASES, BATCH_SIZE, TEMPERATURE, DPO_WEIGHT)


def spread(document: Document, algorithm: Algorithm) -> tuple[list[str], list[Finding]]:
    """Move every alias at the top level to its key.

    Args:
        document: changed.
        algorithm: that was chosen: some names mean what it makes of them.
    Returns:
        A line for each that was moved, and the faults: a key that is set beside its alias, a batch that does not divide.
    """
    said: list[str] = []
    findings: list[Finding] = []
    for name, alias in ALIASES.items():
        if name in document.values:
            _move(document, name, alias.key, document.values[name], alias.note, said, findings)
    if BATCH_SIZE in document.values:
        samples = bool(algorithm.needs(algorithm.config()) & Need.ROLLOUTS)
        _spread_batch_size(document, samples, said, findings)
    has_beta = hasattr(getattr(algorithm.config(), "preference", None), "beta")
    _spread_temperature(document, algorithm.name, has_beta, said, findings)
    if DPO_WEIGHT in document.values:
        _spread_dpo_weight(document, has_beta, said, findings)
    return said, findings


def _spread_temperature(
    document: Document, algorithm: str, has_beta: bool, said: list[str], findings: list[Finding]
) -> None:
    """`temperature` at the top level, or under `sampling` where nothing is sampled."""
    key: Key = ("preference", "beta")
    if TEMPERATURE in document.values:
        value = document.values[TEMPERATURE]
        if has_beta:
            _move(document, TEMPERATURE, key, value, f"what {algorithm} divides by", said, findings)
            return
        place = document.place((TEMPERATURE,))
        del document.values[TEMPERATURE]
        what = f"temperature: {shown(value)} outside of a section is preference.beta, which {algorithm} does not have"
        findings.append(Finding(place=place, what=what, hint="set sampling.temperature"))
        return
    sampling, preference = document.values.get("sampling"), document.values.get("preference")
    value = sampling.get(TEMPERATURE) if isinstance(sampling, dict) else None
    is_set = isinstance(preference, dict) and preference.get("beta", "auto") != "auto"
    if not has_beta or is_set or not isinstance(value, int | float) or isinstance(value, bool):
        return
    if isinstance(sampling, dict) and 0 < value <= HIGHEST_BETA:
        place = document.place(("sampling", TEMPERATURE))
        del sampling[TEMPERATURE]
        document.put(key, value, place)
        said.append(f"sampling.temperature -> preference.beta: {value} ({algorithm} samples nothing)")


def _spread_dpo_weight(document: Document, is_preference: bool, said: list[str], findings: list[Finding]) -> None:
    """The weight of a preference term beside others; alone it changes nothing but the numbers that are shown."""
    value, place = document.values.pop(DPO_WEIGHT), document.place((DPO_WEIGHT,))
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        findings.append(
            Finding(place=place, what=f"{DPO_WEIGHT}: {shown(value)}", hint="expected a number of more than 0")
        )
        return
    mix = document.values.get("mix") or []
    if is_preference and not mix:
        said.append(
            f"{DPO_WEIGHT}: {value} has no effect: the preference term is the only one, and Adam divides a common factor "
            "out; mix names other parts"
        )
        return
    entries = (
        [entry for entry in mix if isinstance(entry, dict) and "weight" not in entry] if isinstance(mix, list) else []
    )
    if len(entries) == 1 and not is_preference:
        number = mix.index(entries[0])
        entries[0]["weight"] = value
        said.append(f"{DPO_WEIGHT} -> mix[{number}].weight: {value}")
        return
    findings.append(
        Finding(
            place=place,
            what=f"{DPO_WEIGHT}: {value}, but it is not clear which part it weighs",
            hint="set the weight of an entry of mix, such as mix: [{algorithm: dpo, data: pairs.jsonl, weight: 0.5}]",
        )
    )


def _spread_batch_size(document: Document, samples: bool, said: list[str], findings: list[Finding]) -> None:
    if not samples:
        key: Key = ("train", "prompts_per_step")
        _move(document, BATCH_SIZE, key, document.values[BATCH_SIZE], "rows of the data; a pair is one", said, findings)
        return
    sampling = document.values.get("sampling")
    group = sampling.get("group_size", DEFAULT_GROUP_SIZE) if isinstance(sampling, dict) else DEFAULT_GROUP_SIZE
    group = DEFAULT_GROUP_SIZE if group == "auto" else group
    size = document.values[BATCH_SIZE]
    whole = isinstance(size, int) and isinstance(group, int) and not isinstance(size, bool) and group > 0
    if not whole or size % group:
        what = f"batch_size: {shown(size)} completions are no whole number of groups of sampling.group_size: {shown(group)}"
        findings.append(Finding(place=document.place((BATCH_SIZE,)), what=what, hint="make it a multiple"))
        del document.values[BATCH_SIZE]
        return
    note = f"{size} completions = {size // group} prompts x group_size {group}"
    _move(document, BATCH_SIZE, ("train", "prompts_per_step"), size // group, note, said, findings)


def _move(
    document: Document, name: str, key: Key, value: object, note: str, said: list[str], findings: list[Finding]
) -> None:
    place = document.place((name,))
    del document.values[name]
    section = document.values.get(str(key[0]))
    dotted = ".".join(map(str, key))
    if isinstance(section, dict) and key[1] in section:
        findings.append(
            Finding(place=place, what=f"{name} beside {dotted}", hint="they are the same setting; keep one")
        )
        return
    document.put(key, value, place)
    said.append(f"{name} -> {dotted}: {value}" + (f" ({note})" if note else ""))
