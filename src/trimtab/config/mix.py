"""The `mix` list: parts that are added to a run's loss, each an algorithm with its own settings and rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from pydantic import ValidationError

from trimtab import algorithms
from trimtab.algorithms.base import Algorithm
from trimtab.config import sections
from trimtab.config.document import Document, Key
from trimtab.config.faults import BRANCHES, expected
from trimtab.config.records import adapter, assembled, plain_record, prepared, record_at
from trimtab.data.settings import Mixed
from trimtab.errors import Finding, UserError, nearest, shown
from trimtab.types import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPart:
    """One entry, checked."""

    spec: Mixed
    algorithm: Algorithm
    config: Any
    """The algorithm's own record."""

    @property
    def need(self) -> Need:
        return self.algorithm.needs(self.config)

    def resolved(self) -> dict[str, Any]:
        """The entry with every key that it reads."""
        found = plain_record(self.spec)
        for owner in sections.of_algorithm(self.algorithm):
            found.setdefault(owner.section, {}).update(plain_record(record_at(self.config, owner.name)))
        return found


Records = Callable[[Document, Algorithm], tuple[dict[str, Any], list[Finding]]]
"""The algorithm's records from a document of sections, and what is wrong with it."""


def parts_of(document: Document, records_of: Records) -> tuple[list[MixedPart], list[Finding]]:
    """The entries of `mix`, and every fault in them."""
    given = document.values.get("mix") or []
    if not isinstance(given, list):
        what = f"mix: {shown(given)}"
        hint = "expected a list, such as [{algorithm: dpo, data: pairs.jsonl, weight: 0.5}]"
        return [], [Finding(place=document.place(("mix",)), what=what, hint=hint)]
    parts: list[MixedPart] = []
    findings: list[Finding] = []
    for number, entry in enumerate(given):
        part, faults = _part(document, number, entry, records_of)
        findings += faults
        if part is not None:
            parts.append(part)
    return parts, findings


def _part(document: Document, number: int, entry: Any, records_of: Records) -> tuple[MixedPart | None, list[Finding]]:
    key: Key = ("mix", number)
    place = document.place(key)
    if not isinstance(entry, dict):
        return None, [Finding(place=place, what=f"mix[{number}]: {shown(entry)}", hint="expected keys and values")]
    own = {f.name for f in fields(Mixed)}
    try:
        asked = prepared({name: value for name, value in entry.items() if name in own}, Mixed)
        spec = adapter(Mixed).validate_python(asked)
        algorithm = algorithms.load(spec.algorithm)
    except ValidationError as error:
        faults = [f for f in error.errors() if f["loc"][-1:] != ("Schedule",) or isinstance(f["input"], dict)]
        lacking = [str(fault["loc"][0]) for fault in faults if fault["type"] == "missing"]
        meant = {near: name for name in entry if name not in own and (near := nearest(name, lacking))}
        return None, [_fault(document, key, fault, meant) for fault in faults]
    except UserError as error:
        return None, [Finding(place=document.place((*key, "algorithm")), what=f"mix[{number}].{error}")]
    its_sections = {name: value for name, value in entry.items() if name not in own}
    inner = Document(
        values={"algorithm": algorithm.name, **its_sections},
        places={(): place, **{k[2:]: p for k, p in document.places.items() if k[:2] == key}},
        chain=document.chain,
        folder=document.folder,
    )
    records, findings = records_of(inner, algorithm)
    if findings:
        return None, findings
    config = assembled(algorithm.config(), records, "algorithm")
    need = algorithm.needs(config)
    if need & (Need.ROLLOUTS | Need.SCORES):
        what = f"mix[{number}].algorithm: {algorithm.name} cannot be mixed in"
        return None, [Finding(place=place, what=what, hint="a part that reads its rows can: dpo, ..., kto, sft")]
    return MixedPart(spec=spec, algorithm=algorithm, config=config), []


def _fault(document: Document, key: Key, fault: Any, meant: Mapping[str, str]) -> Finding:
    """`meant`: a key that is missing -> one that is there and looks like it."""
    inside = [part for part in fault["loc"] if part not in BRANCHES]
    name = f"mix[{key[1]}].{'.'.join(map(str, inside))}"
    if fault["type"] == "missing" and (there := meant.get(str(inside[0]))) is not None:
        what = f"unknown key `mix[{key[1]}].{there}`"
        return Finding(place=document.place((*key, there)), what=what, hint=f"did you mean `{inside[0]}`?")
    if fault["type"] == "missing":
        return Finding(place=document.place(key), what=f"{name} is missing")
    return Finding(place=document.place((*key, *inside)), what=f"{name}: {shown(fault['input'])}", hint=expected(fault))
