"""From a document to a checked configuration, in one pass that finds every fault."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from pydantic import ValidationError

from trimtab import algorithms, catalogue
from trimtab.algorithms.base import Algorithm, Share, Shared
from trimtab.config import aliases, mix, secrets, sections
from trimtab.config.document import Document, Key, copied, unusable_texts
from trimtab.config.faults import BRANCHES, EPOCH, expected, known_path, names_at
from trimtab.config.mix import MixedPart
from trimtab.config.records import SCHEDULE_KEYS, adapter, assembled, fields_of, plain_record, prepared, record_at
from trimtab.config.run_config import RunConfig
from trimtab.config.sections import Owner
from trimtab.data.settings import Mixed
from trimtab.errors import ConfigError, Finding, UserError, nearest, shown
from trimtab.models.settings import ValueModel
from trimtab.observe.settings import is_loopback
from trimtab.rewards import rules
from trimtab.rewards.settings import RewardSpec
from trimtab.types import Need, Schedule


class Resolver:
    def __init__(self, document: Document, overrides: list[tuple[Key, Any, str]]) -> None:
        self.document = document
        self.overrides = overrides
        self.findings: list[Finding] = []
        self.unused: list[str] = []
        self.said: list[str] = []
        self._known: dict[str, set[str]] = {}
        """Every key of every section, once it was asked for."""
        self._written: dict[Key, Key] = {}
        """A key that was filled in for another -> the one that was written."""

    def result(self) -> RunConfig:
        self._lay_overrides()
        self.findings += unusable_texts(self.document)
        requested = copied(self.document.values)
        algorithm = self._algorithm()
        self.findings += secrets.faults(self.document)
        self.said, faults = aliases.spread(self.document, algorithm)
        self.findings += faults
        self._lay_algorithm_overrides(algorithm)
        owners = sections.owners(algorithm)
        self._check_keys(algorithm, owners)
        self._spread_clip_ratio(algorithm)
        records = {owner.name: self._record(owner) for owner in owners}
        rewards = self._rewards()
        parts, faults = mix.parts_of(self.document, _records_of)
        self.findings += faults
        config = self._built(algorithm, owners, records, rewards, tuple(parts), requested)
        self._check_together(config)
        if self.findings:
            raise ConfigError(self.findings)
        return config

    def _lay_overrides(self) -> None:
        """Put the command line's values in their places; a part of a list has none."""
        for key, value, place in self.overrides:
            inner: Any = self.document.values
            for number, part in enumerate(key[:-1]):
                inner = inner.get(part) if isinstance(inner, dict) else None
                if isinstance(inner, list):
                    whole = _dotted(key[: number + 1])
                    what = f"{_dotted(key)}: {whole} is a list, of which no part can be set alone"
                    self.findings.append(Finding(place=place, what=what, hint=f"write it whole: {whole}='[...]'"))
                    break
            else:
                self.document.put(key, value, place)

    # ------------------------------------------------------------------------------------------------ the algorithm
    def _algorithm(self) -> Algorithm:
        name = self.document.values.get("algorithm")
        place = self.document.place(("algorithm",))
        if not isinstance(name, str):
            there = "there is no `algorithm`" if name is None else f"algorithm: {shown(name)}"
            raise ConfigError([Finding(place=place, what=there, hint=f"choose {', '.join(algorithms.names())}")])
        try:
            return algorithms.load(name)
        except UserError as error:
            raise ConfigError([Finding(place=place, what=str(error))]) from error

    def _lay_algorithm_overrides(self, algorithm: Algorithm) -> None:
        """`overrides: {grpo: {...}}` of the chosen algorithm, under what the command line says."""
        every = self.document.values.pop("overrides", None) or {}
        if not isinstance(every, dict):
            self._find(("overrides",), f"overrides: {shown(every)}", "expected algorithms and their sections")
            return
        for chosen, its_sections in every.items():
            key: Key = ("overrides", chosen)
            if chosen not in (*algorithms.names(), *algorithms.ALIASES):
                self._unknown(key, [*algorithms.names(), *algorithms.ALIASES])
            elif not isinstance(its_sections, dict):
                self._find(key, f"{_dotted(key)}: {shown(its_sections)}", "expected sections")
            elif algorithms.ALIASES.get(chosen, chosen) == algorithm.name:
                for section, values in its_sections.items():
                    self._lay((*key, section), (section,), values)

    def _lay(self, source: Key, key: Key, value: Any) -> None:
        """Put an algorithm's own section or key in the place of the general one, unless the command line set it."""
        if isinstance(value, dict) and len(key) == 1:
            self.document.places.setdefault(key, self.document.place(source))
            for name, inner in value.items():
                self._lay((*source, name), (*key, name), inner)
        elif not any(given[: len(key)] == key for given, _, _ in self.overrides):
            self.document.put(key, value, self.document.place(source))

    # ----------------------------------------------------------------------------------------------------- the keys
    def _check_keys(self, algorithm: Algorithm, owners: list[Owner]) -> None:
        need = self._provisional_need(algorithm)
        read = _keys_read(owners, need, has_clip=sections.has_clip(algorithm))
        known = self._known = sections.known_keys()
        for section, keys in read.items():
            known.setdefault(section, set()).update(keys)
        for section, values in list(self.document.values.items()):
            if section in sections.OTHER_KEYS:
                if section == "extends":
                    self._find((section,), f"extends: {shown(values)} counts only in a file", "leave it out")
                if section == "rewards" and not need & Need.ROLLOUTS:
                    self._unused(("rewards",), algorithm)
                continue
            if section not in known:
                self._unknown((section,), [*known, *sections.OTHER_KEYS, *aliases.names()])
            elif not isinstance(values, dict):
                hint = "expected keys and values" + (" under it" if values is None else "")
                self._find((section,), f"{section}: {shown(values)}", hint)
                self.document.values[section] = {}
            else:
                for name in list(values):
                    if name not in known[section]:
                        self._unknown((section, name), known[section])
                        del values[name]
                    elif name not in read.get(section, set()):
                        if not self._contradicts((section, name), values[name], algorithm):
                            self._unused((section, name), algorithm)
                        del values[name]

    def _provisional_need(self, algorithm: Algorithm) -> Need:
        """What the algorithm needs as it is asked for; by its defaults if that cannot be told yet."""
        try:
            probe = Resolver(Document(values=copied(self.document.values)), [])
            probe._spread_clip_ratio(algorithm)
            records = {o.name: probe._record(o) for o in sections.of_algorithm(algorithm)}
            if not probe.findings:
                need = algorithm.needs(assembled(algorithm.config(), records, "algorithm"))
                for part in mix.parts_of(self.document, _records_of)[0]:
                    need |= part.need & Need.REFERENCE
                return need
        except Exception:
            return algorithm.needs(algorithm.config())
        return algorithm.needs(algorithm.config())

    def _unknown(self, key: Key, candidates: Iterable[str]) -> None:
        name, among = str(key[-1]), list(candidates)
        sections_with = [s for s, keys in self._known.items() if name in keys and len(key) < 3]
        near = nearest(name, among)
        if len(key) == 1 and name[:1] == "-":
            hint = "options have two dashes, and settings none"
        elif name.isdigit():
            hint = "is it what stands behind a decimal comma? Write 0.001"
        elif sections_with:
            hint = f"did you mean {' or '.join(f'`{section}.{name}`' for section in sections_with)}?"
        elif near:
            hint = f"did you mean `{near}`?"
        else:
            hint = f"there are {', '.join(sorted(among))}"
        self._find(key, f"unknown key `{_dotted(key)}`", hint)

    def _contradicts(self, key: Key, value: Any, algorithm: Algorithm) -> bool:
        """Whether a key that the algorithm does not read is refused, since it would not be what was meant."""
        why = algorithm.refuses.get(_dotted(key), MEANT.get(_dotted(key)))
        if why is None or value in (None, "auto"):
            return False
        self._find(key, f"{_dotted(key)}: {shown(value)} with algorithm: {algorithm.name}", why)
        return True

    def _unused(self, key: Key, algorithm: Algorithm) -> None:
        if any(given[: len(key)] == key for given, _, _ in self.overrides):
            self._find(key, f"`{_dotted(key)}` is not read by {algorithm.name} in this run", "leave it out")
        else:
            self.unused.append(_dotted(key))

    def _find(self, key: Key, what: str, hint: str = "") -> None:
        finding = Finding(place=self.document.place(key), what=what, hint=hint)
        if finding not in self.findings:
            self.findings.append(finding)

    def _spread_clip_ratio(self, algorithm: Algorithm) -> None:
        policy = self.document.values.get("policy")
        if not isinstance(policy, dict) or sections.CLIP_RATIO not in policy or not sections.has_clip(algorithm):
            return
        beside = [side for side in ("clip_low", "clip_high") if side in policy]
        if beside:
            what = f"policy.clip_ratio beside policy.{' and policy.'.join(beside)}"
            self._find(("policy", sections.CLIP_RATIO), what, "set clip_ratio, or clip_low and clip_high")
            del policy[sections.CLIP_RATIO]
            return
        value, place = policy.pop(sections.CLIP_RATIO), self.document.place(("policy", sections.CLIP_RATIO))
        if value != "auto":
            for side in ("clip_low", "clip_high"):
                self.document.put(("policy", side), value, place)
                self._written[("policy", side)] = ("policy", sections.CLIP_RATIO)

    # --------------------------------------------------------------------------------------------------- the records
    def _record(self, owner: Owner) -> Any:
        """The owner's record with what was asked for over its defaults."""
        values = self.document.values.get(owner.section)
        given = {k: v for k, v in values.items() if k in owner.key_names()} if isinstance(values, dict) else {}
        asked = prepared({k: v for k, v in given.items() if v != "auto"}, owner.record)
        merged = {**fields_of(owner.default), **asked}
        self._refuse_truths((owner.section,), [], asked, owner.record)
        for name, value in asked.items():
            default = getattr(owner.default, name)
            if is_dataclass(default) and isinstance(value, dict) and not isinstance(default, Schedule):
                inner = {k: v for k, v in value.items() if v != "auto"}
                merged[name] = {**fields_of(default), **inner}
        try:
            return adapter(owner.record).validate_python(merged)
        except ValidationError as error:
            for fault in error.errors():
                self._fault((owner.section,), fault, owner.record)
            return owner.default

    def _refuse_truths(self, prefix: Key, inside: list[Any], asked: Any, record: type[Any]) -> None:
        """True and false are no numbers, though pydantic would take them for 1 and 0."""
        for spec in fields(record) if isinstance(asked, dict) else ():
            value, inner, path = asked.get(spec.name), spec.default_factory, [*inside, spec.name]
            if isinstance(value, bool) and _NUMBER.search(str(spec.type)) and "bool" not in str(spec.type):
                key = self._as_written((*prefix, *known_path(path)))
                self._find(key, f"{_dotted(key)}: {shown(value)}", "expected a number")
            elif isinstance(value, dict) and (is_dataclass(inner) or "kind" in value):
                self._refuse_truths(prefix, path, value, inner if isinstance(inner, type) else Schedule)

    def _as_written(self, key: Key) -> Key:
        written = self._written.get(key[:2])
        return key if written is None else (*written, *key[2:])

    def _fault(self, prefix: Key, fault: Any, record: type[Any]) -> None:
        branches = {part for part in fault["loc"] if part in BRANCHES}
        is_schedule = isinstance(fault["input"], dict)
        if (branches - {"Schedule"} and is_schedule) or (fault["loc"][-1:] == ("Schedule",) and not is_schedule):
            return  # the other branch of `number or schedule` says it
        if EPOCH in fault["loc"] and not isinstance(fault["input"], str):
            return  # likewise of `number or epoch`
        inside = [part for part in fault["loc"] if part not in BRANCHES]
        key = self._as_written((*prefix, *known_path(inside)))
        if fault["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            self._unknown(key, SCHEDULE_KEYS if "Schedule" in branches else names_at(record, inside[:-1]))
            return
        is_missing = fault["type"] == "missing"
        what = _dotted(key) + (" is missing" if is_missing else f": {shown(fault['input'])}")
        finding = Finding(place=self.document.place(key), what=what, hint="" if is_missing else expected(fault))
        if finding not in self.findings:
            self.findings.append(finding)

    def _rewards(self) -> tuple[RewardSpec, ...]:
        if "rewards" in self.unused:
            return ()
        given = self.document.values.get("rewards", [])
        if not isinstance(given, list):
            self._find(("rewards",), f"rewards: {shown(given)}", "expected a list, such as [{name: exact_match}]")
            return ()
        found = []
        for number, entry in enumerate(given):
            asked = {"name": entry} if isinstance(entry, str) else entry
            self._refuse_truths(("rewards", number), [], asked, RewardSpec)
            try:
                found.append(adapter(RewardSpec).validate_python(asked))
            except ValidationError as error:
                for fault in error.errors():
                    self._fault(("rewards", number), fault, RewardSpec)
        for number, spec in enumerate(found):
            self._check_reward(("rewards", number), spec)
        return tuple(found)

    def _check_reward(self, key: Key, spec: RewardSpec) -> None:
        """A name is a built-in rule's, whose options fit it, or `module:function`, which takes none."""
        if spec.model is not None:
            if spec.options:
                what = f"reward {spec.model}: options are for built-in rules"
                self._find(key, what, "a reward model has none; leave them out")
            if not re.fullmatch(r"[\w.-]*", spec.name):
                what = f"rewards.name: {shown(spec.name)} beside a model"
                self._find(key, what, "it is only the name in metrics: letters, digits and _ . -")
        elif spec.allow_weak:
            what = f"reward {spec.name}: allow_weak is for reward models"
            self._find(key, what, "leave it out, or name a model: model: RUN")
        elif not spec.name:
            self._find((*key, "name"), f"{_dotted(key)}.name is missing", "or name a reward model: model: RUN")
        elif spec.name in rules.RULES:
            try:
                rules.make(spec.name, spec.options, place=self.document.place(key))
            except ConfigError as error:
                self.findings += error.findings
        elif ":" not in spec.name:
            near = nearest(spec.name, rules.RULES)
            hint = f"did you mean `{near}`?" if near else f"there are {', '.join(rules.RULES)}, or module:function"
            self._find(key, f"no reward is called `{spec.name}`", hint)
        elif spec.options:
            what = f"reward {spec.name}: options are for built-in rules"
            self._find(key, what, "give the function what it needs as a column of the data")

    def _with_room_for_completions(self, sampling: Any) -> tuple[Any, list[str]]:
        """A limit on prompts that was not asked for leaves a completion one token at least; what is said of it."""
        asked = (self.document.values.get("sampling") or {}).get("max_prompt_length", "auto")
        before, room = sampling.max_prompt_length, max(1, sampling.max_length - 1)
        if asked not in (None, "auto") or before <= room:
            return sampling, []
        said = (
            f"sampling.max_prompt_length: {room}, since sampling.max_length is {sampling.max_length} (default {before})"
        )
        return replace(sampling, max_prompt_length=room), [said]

    def _built(
        self,
        algorithm: Algorithm,
        owners: list[Owner],
        records: dict[str, Any],
        rewards: tuple[RewardSpec, ...],
        parts: tuple[MixedPart, ...],
        requested: Mapping[str, Any],
    ) -> RunConfig:
        own = assembled(algorithm.config(), records, "algorithm")
        rooms = {owner.name: records[owner.name] for owner in sections.ROOMS}
        own = self._with_automatic_value_coefficient(own, rooms["value"])
        own = _with_automatic_mismatch(own)
        rooms = _with_presets(rooms, algorithm)
        rooms["sampling"], lowered = self._with_room_for_completions(rooms["sampling"].with_staleness())
        need = algorithm.needs(own)
        for part in parts:
            need |= part.need & Need.REFERENCE
        read = _keys_read(owners, need, has_clip=False)
        resolved: dict[str, Any] = {"algorithm": algorithm.name}
        for owner in owners:
            record = rooms.get(owner.name) or record_at(own, owner.name)
            for name, value in plain_record(record).items():
                if name in read.get(owner.section, set()):
                    resolved.setdefault(owner.section, {})[name] = value
        if need & Need.ROLLOUTS:
            resolved["rewards"] = [plain_record(r) for r in rewards]
        if parts:
            resolved["mix"] = [part.resolved() for part in parts]
        return RunConfig(
            algorithm=algorithm,
            algorithm_config=own,
            rewards=rewards,
            mix=parts,
            requested=requested,
            resolved=resolved,
            unused=tuple(self.unused),
            aliases=tuple(self.said),
            remarks=(*lowered, *_remarks(algorithm, own, rooms["train"])),
            chain=self.document.chain,
            folder=self.document.folder,
            **rooms,
        )

    def _with_automatic_value_coefficient(self, own: Any, value: ValueModel) -> Any:
        """`value.coef: auto` is 0.5 for a head on the policy's trunk, whose gradient reaches the policy."""
        asked = self.document.values.get("value", {}).get("coef", "auto")
        if value.model != "shared" or asked != "auto" or not hasattr(own, "value"):
            return own
        return replace(own, value=replace(own.value, coef=0.5))

    # ------------------------------------------------------------------------------------------------- all together
    def _check_together(self, config: RunConfig) -> None:
        need, name = config.need, config.algorithm.name
        if need & Need.GROUPS and config.sampling.group_size < 2:
            what = f"sampling.group_size: {config.sampling.group_size}, but {name} compares completions of one prompt"
            self._find(("sampling", "group_size"), what, "use 2 or more")
        elif need & Need.ROLLOUTS and config.sampling.dynamic.enabled and config.sampling.group_size < 2:
            what = "sampling.dynamic.enabled: true, but sampling.group_size is 1, and one completion has no spread"
            self._find(("sampling", "dynamic", "enabled"), what, "use a group_size of 2 or more, or enabled: false")
        if need & Need.VALUES and config.value.enabled is False:
            self._find(
                ("value", "enabled"), f"value.enabled: false, but {name} needs a critic", "leave it out, or use grpo"
            )
        if need & Need.ROLLOUTS and self.document.values.get("rewards", []) == []:
            self._find(("rewards",), f"rewards: none, but {name} learns from rewards", "such as [{name: exact_match}]")
        if config.sampling.max_prompt_length >= config.sampling.max_length and "max_prompt_length" in (
            self.document.values.get("sampling") or {}
        ):
            what = (
                f"sampling.max_prompt_length: {config.sampling.max_prompt_length} leaves no room for a completion in "
                f"sampling.max_length: {config.sampling.max_length}"
            )
            self._find(("sampling", "max_prompt_length"), what)
        if (
            isinstance(temperature := config.sampling.temperature, Schedule)
            and min(temperature.start, temperature.end) <= 0
        ):
            what = f"sampling.temperature: from {temperature.start:g} to {temperature.end:g}"
            self._find(("sampling", "temperature"), what, "both ends must be above 0")
        if config.train.minibatches > config.train.prompts_per_step:
            what = (
                f"train.minibatches: {config.train.minibatches}, but a step has train.prompts_per_step: "
                f"{config.train.prompts_per_step}, and a mini-batch has whole prompts"
            )
            self._find(("train", "minibatches"), what)
        if config.train.prompts_per_step < config.cluster.processes:
            what = (
                f"cluster.processes: {config.cluster.processes}, but a step has train.prompts_per_step: "
                f"{config.train.prompts_per_step}, and each process needs one a step"
            )
            self._find(("cluster", "processes"), what, "use more prompts a step, or fewer processes")
        if need & Need.MISMATCHED and config.train.prompts_per_step // config.train.minibatches < 2:
            what = (
                f"train.prompts_per_step: {config.train.prompts_per_step} in train.minibatches: "
                f"{config.train.minibatches} leaves updates of one row, but {name} compares a row with others"
            )
            self._find(("train", "prompts_per_step"), what, "use at least twice as many rows as mini-batches")
        if (metric := config.eval.early_stop.metric) is not None and not _is_evaluated(metric, config):
            hint = "such as eval/reward/mean, eval/reward/<name of a reward>, eval/loss/nll, eval/preference/accuracy"
            self._find(
                ("eval", "early_stop", "metric"), f"eval.early_stop.metric: {shown(metric)} is not evaluated", hint
            )
        address, token = config.export.prometheus_address, config.export.prometheus_token
        if config.export.prometheus_port is not None and token is None and not is_loopback(address):
            what = f"observe.prometheus_address: {shown(address)} can be reached from other computers"
            hint = 'set observe.prometheus_token: "${env:NAME}" too, or leave the address at 127.0.0.1'
            self._find(("observe", "prometheus_address"), what, hint)
        if config.algorithm.validate is not None and (complaint := config.algorithm.validate(config.algorithm_config)):
            self._find(("algorithm",), complaint)


# ---------------------------------------------------------------------------------------------------------- helpers
def _records_of(document: Document, algorithm: Algorithm) -> tuple[dict[str, Any], list[Finding]]:
    """An algorithm's own records from a document of sections, and what is wrong with it."""
    inner = Resolver(document, [])
    owners = sections.of_algorithm(algorithm)
    known = {"algorithm": set[str]()}
    for owner in owners:
        known.setdefault(owner.section, set()).update(owner.key_names())
    if sections.has_clip(algorithm):
        known["policy"].add(sections.CLIP_RATIO)
    for section, values in list(document.values.items()):
        if section not in known:
            inner._unknown((section,), [*known, *(f.name for f in fields(Mixed))])
        elif section != "algorithm":
            for name in values if isinstance(values, dict) else ():
                if name not in known[section]:
                    inner._unknown((section, name), known[section])
    inner._spread_clip_ratio(algorithm)
    return {owner.name: inner._record(owner) for owner in owners}, inner.findings


MEANT = {"policy.segment": "only gspo_segment has a ratio for each segment; choose it, or leave segments out"}
"""Keys that say which algorithm is meant: under another one they are refused, not passed over."""
DECIDED: Mapping[str, Any] = {
    "sampling.dynamic.enabled": False,
    "sampling.overlong.buffer": 0,
    "sampling.overlong.filter": False,
}
"""What `auto` is where the algorithm does not say otherwise."""


def _with_presets(rooms: dict[str, Any], algorithm: Algorithm) -> dict[str, Any]:
    """The rooms' records with what the algorithm means by `auto`."""
    found = dict(rooms)
    for key, value in {**DECIDED, **algorithm.presets}.items():
        if isinstance(value, Share):
            room, name = value.of.split(".")
            value = getattr(found[room], name) // value.divisor
        room, *path = key.split(".")
        found[room] = _filled(found[room], path, value)
    return found


def _filled(record: Any, path: list[str], value: Any) -> Any:
    """The record with a value in the place of None."""
    name, *rest = path
    inner = getattr(record, name)
    if rest:
        return replace(record, **{name: _filled(inner, rest, value)})
    return replace(record, **{name: value}) if inner is None else record


def _with_automatic_mismatch(own: Any) -> Any:
    """`mismatch.mode: auto` is off while the engine is the trainer's own model in its own process."""
    shared = getattr(own, "shared", None)
    if not isinstance(shared, Shared) or shared.mismatch.mode != "auto":
        return own
    return replace(own, shared=replace(shared, mismatch=replace(shared.mismatch, mode="off")))


def _remarks(algorithm: Algorithm, own: Any, train: Any) -> Iterator[str]:
    if algorithm.advise is not None and (remark := algorithm.advise(own)):
        yield remark
    updates = train.epochs_per_batch * train.minibatches
    if not algorithm.corrects_ratio and updates > 1:
        yield (
            f"train.epochs_per_batch x minibatches: {updates} updates a step, but {algorithm.name} takes every row as "
            "sampled by the present weights; only the first update is exact"
        )


def _is_evaluated(metric: str, config: RunConfig) -> bool:
    """Whether an evaluation of this run gives the metric."""
    need = config.algorithm.needs(config.algorithm_config)
    if need & Need.DEMONSTRATIONS:
        return metric in ("eval/loss/nll", "eval/count")
    if not need & Need.ROLLOUTS:
        of_need = (
            ["eval/reward_model/auc"] if need & Need.SCORES else ["eval/preference/js"] * bool(need & Need.REFERENCE)
        )
        reported = {*of_need, "eval/count", *(f"eval/{name}" for name in config.algorithm.reports)}
        return metric in reported or (metric in catalogue.METRICS and "eval/loss/" in metric)
    labels = {f"eval/reward/{spec.label}" for spec in config.rewards}
    return metric in labels or (metric in catalogue.METRICS and metric.startswith("eval/") and "/loss/" not in metric)


_NUMBER = re.compile(r"\b(int|float|Coefficient)\b")
"""In a field's type: it may be a number."""


def _keys_read(owners: list[Owner], need: Need, *, has_clip: bool) -> dict[str, set[str]]:
    """The keys that a run with these needs looks at, by section."""
    read: dict[str, set[str]] = {}
    for owner in owners:
        if owner.is_read(need):
            read.setdefault(owner.section, set()).update(owner.key_names())
    if not need & Need.ROLLOUTS:
        read["sampling"] &= sections.READ_WITHOUT_ROLLOUTS
    if has_clip:
        read["policy"].add(sections.CLIP_RATIO)
    return read


def _dotted(key: Iterable[str | int]) -> str:
    return ".".join(str(part) for part in key)
