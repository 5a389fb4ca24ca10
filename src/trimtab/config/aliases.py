"""Flat names of deployment guides (`clip_epsilon`, `batch_size`, ...): each is put where it belongs, once, and said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.config.document import Document, Key
from trimtab.errors import Finding


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
"""Completions a step: prompts times group size."""
DEFAULT_GROUP_SIZE = 8


def names() -> tuple[str, ...]:
    return (*ALIASES, BATCH_SIZE)


def spread(document: Document) -> tuple[list[str], list[Finding]]:
    """Move every alias at the top level to its key.

    Returns:
        A line for each that was moved, and the faults: a key that is set beside its alias, a batch that does not divide.
    """
    said: list[str] = []
    findings: list[Finding] = []
    for name, alias in ALIASES.items():
        if name in document.values:
            _move(document, name, alias.key, document.values[name], alias.note, said, findings)
    if BATCH_SIZE in document.values:
        _spread_batch_size(document, said, findings)
    return said, findings


def _spread_batch_size(document: Document, said: list[str], findings: list[Finding]) -> None:
    sampling = document.values.get("sampling")
    group = sampling.get("group_size", DEFAULT_GROUP_SIZE) if isinstance(sampling, dict) else DEFAULT_GROUP_SIZE
    group = DEFAULT_GROUP_SIZE if group == "auto" else group
    size = document.values[BATCH_SIZE]
    whole = isinstance(size, int) and isinstance(group, int) and not isinstance(size, bool) and group > 0
    if not whole or size % group:
        what = f"batch_size: {size!r} completions are no whole number of groups of sampling.group_size: {group!r}"
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
