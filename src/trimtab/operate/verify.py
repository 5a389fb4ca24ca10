"""Whether a run's files are as they were written, and agree with each other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimtab.errors import Finding, UserError
from trimtab.store import journal
from trimtab.store.checkpoints import MANIFEST, CheckpointStore, sha256
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Checkpoint

DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)
"""What reading files sets off that are not as they were written."""


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What was looked at, and what is wrong."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    """(part, what was found to be good)."""
    notes: list[Finding] = field(default_factory=list)
    """Worth knowing, and no fault."""
    findings: dict[str, list[Finding]] = field(default_factory=dict)
    """Faults, by part."""
    is_storage_damaged: bool = False
    """A checkpoint is damaged, or none is there to go on from."""
    newest_good: int | None = None
    """The step that the run would go on from."""

    @property
    def exit_code(self) -> int:
        return 4 if self.is_storage_damaged else 1 if self.findings else 0

    @property
    def advice(self) -> str:
        """What the findings mean for who wants to go on."""
        if self.newest_good is None:
            return "the run cannot go on: start over with --fresh, which keeps it under another name"
        return f"the same `trimtab train` would go on from checkpoint {self.newest_good}"

    def fault(self, part: str, place: object, what: str, hint: str = "") -> None:
        self.findings.setdefault(part, []).append(Finding(place=str(place), what=what, hint=hint))

    def note(self, place: object, what: str, hint: str = "") -> None:
        self.notes.append(Finding(place=str(place), what=what, hint=hint))

    def good(self, part: str, text: str) -> None:
        self.lines.append((part, text))


def verify(root: Path) -> Verdict:
    """Look at every file of a run.

    Raises:
        UserError: there is no run.
    """
    directory = RunDirectory(root)
    if not directory.exists:
        raise UserError(f"{root}: no run was started here (there is no run.json)")
    verdict = Verdict()
    if directory.is_locked():
        verdict.note(root, "a process trains here now, so what it is writing may look unfinished")
    facts = _facts(directory, verdict)
    resolved = _configs(directory, verdict)
    good = _checkpoints(directory, verdict)
    steps = _journal(directory, facts, resolved, verdict)
    if steps is not None:
        with _readable(verdict, "journal", directory.journal):
            _ends_agree(directory, facts, resolved, steps, good, verdict)
        with _readable(verdict, "weights", directory.journal):
            _weights(directory, steps, good, verdict)
    with _readable(verdict, "final", directory.final):
        _final(directory, facts, good, verdict)
    return verdict


@contextmanager
def _readable(verdict: Verdict, part: str, place: object, prefix: str = "") -> Iterator[None]:
    """What is read within may be anything; what cannot be made sense of is a finding."""
    try:
        yield
    except DAMAGE as error:
        verdict.fault(part, place, f"{prefix}not as Trimtab writes it ({type(error).__name__}: {_reason(error)})")


def _reason(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


# ----------------------------------------------------------------------------------------------- run.json and config/
def _facts(directory: RunDirectory, verdict: Verdict) -> Mapping[str, Any]:
    place = directory.root / "run.json"
    try:
        facts = json.loads(place.read_bytes())
    except DAMAGE as error:
        verdict.fault("run.json", place, f"cannot be read: {_reason(error)}")
        return {}
    if not isinstance(facts, dict):
        verdict.fault("run.json", place, "is no JSON object")
        return {}
    return facts


def _configs(directory: RunDirectory, verdict: Verdict) -> Mapping[str, Any]:
    """The newest configuration, resolved; empty if there is none that can be read."""
    import yaml

    newest: Mapping[str, Any] = {}
    versions = directory.config_versions()
    for number, path in enumerate(versions, 1):
        if int(path.stem) != number:
            verdict.fault("config", directory.config / f"{number:04}.yaml", "is missing")
            break
    for path in versions:
        try:
            document = yaml.safe_load(path.read_bytes())
            parts = document["requested"], document["resolved"]
        except (*DAMAGE, yaml.YAMLError) as error:
            verdict.fault("config", path, f"cannot be read: {_reason(error)}")
            continue
        if all(isinstance(part, dict) for part in parts):
            newest = parts[1]
        else:
            verdict.fault("config", path, "has no `requested` and `resolved` configuration")
    if not versions:
        verdict.fault("config", directory.config, "holds no configuration", "the run cannot be continued")
    elif "config" not in verdict.findings:
        verdict.good("config", f"{len(versions)} version{'s' * (len(versions) > 1)}")
    return newest


# --------------------------------------------------------------------------------------------------------- checkpoints
def _checkpoints(directory: RunDirectory, verdict: Verdict) -> list[int]:
    """The steps whose checkpoints are as they were written."""
    store = CheckpointStore(directory.checkpoints, Checkpoint(), max_steps=1)
    try:
        steps = store.steps()
    except DAMAGE as error:
        verdict.fault("checkpoints", directory.checkpoints, f"cannot be looked through: {_reason(error)}")
        verdict.is_storage_damaged = True
        return []
    good, files, size = [], 0, 0
    for step in steps:
        fault = _fault(store, step)
        if fault is not None:
            place, _, what = fault.partition(" ")
            verdict.fault("checkpoints", place, what, "this checkpoint will not be used")
            verdict.is_storage_damaged = True
            continue
        good.append(step)
        with _readable(verdict, "checkpoints", directory.checkpoints / str(step)):
            named = _manifest(directory, step)["files"]
            files, size = files + len(named) + 1, size + sum(entry["bytes"] for entry in named.values())
            for extra in _unnamed(directory.checkpoints / str(step), named):
                verdict.fault(
                    "checkpoints", extra, "is not in the manifest", "remove it; it did not come from this run"
                )
    if not good:
        what = f"none of {len(steps)} checkpoints is good" if steps else "there is no checkpoint"
        verdict.fault("checkpoints", directory.checkpoints, what)
        verdict.is_storage_damaged = True
    verdict.newest_good = max(good, default=None)
    if "checkpoints" not in verdict.findings:
        text = f"{_listed(good)}: {files} files, {size / 2**20:,.1f} MiB, every SHA-256 as written"
        verdict.good("checkpoints", text)
    return good


def _fault(store: CheckpointStore, step: int) -> str | None:
    try:
        return store.fault(step)
    except DAMAGE as error:
        return f"{store.directory / str(step)} cannot be checked: {_reason(error)}"


def _manifest(directory: RunDirectory, step: int) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((directory.checkpoints / str(step) / MANIFEST).read_bytes())
    return found


def _unnamed(place: Path, named: Mapping[str, Any]) -> list[Path]:
    known = {MANIFEST, *named}
    return [p for p in sorted(place.rglob("*")) if not p.is_dir() and str(p.relative_to(place)) not in known]


def _listed(steps: list[int]) -> str:
    """
    >>> _listed([0, 15]), _listed(list(range(9)))
    ('0, 15', '0, 1, 2, ... 8')
    """
    shown = steps if len(steps) <= 6 else [*steps[:3], "...", steps[-1]]
    return ", ".join(map(str, shown)).replace("..., ", "... ")


# ------------------------------------------------------------------------------------------------------------- journal
def _journal(
    directory: RunDirectory, facts: Mapping[str, Any], resolved: Mapping[str, Any], verdict: Verdict
) -> list[Mapping[str, Any]] | None:
    """The newest record of each step; None if the journal cannot be read."""
    try:
        reading = journal.read(directory.journal)
        records = list(zip(_line_numbers(directory.journal, reading), reading.records, strict=True))
        _damaged_lines(directory, reading, records, verdict)
        is_whole = _sequence(directory.journal, records, verdict)
        steps = reading.steps()
    except DAMAGE as error:
        verdict.fault("journal", directory.journal, f"cannot be read: {_reason(error)}")
        return None
    for check in (_pairs, _groups):
        for step in steps:
            with _readable(verdict, "journal", directory.journal, f"step {step['step']}: "):
                check(directory.journal, step, resolved, verdict)
    if is_whole and "journal" not in verdict.findings:
        with _readable(verdict, "journal", directory.journal):
            _epochs(directory.journal, steps, facts, resolved, verdict)
    if "journal" not in verdict.findings:
        range_ = f"steps {steps[0]['step']} to {steps[-1]['step']}" if steps else "no step yet"
        verdict.good("journal", f"{len(records)} records, {range_}, every CRC as written")
    return steps


def _line_numbers(path: Path, reading: journal.Reading) -> Iterator[int]:
    """On which line each good record stands."""
    damaged = set(reading.damaged_lines)
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    yield from (number for number, line in enumerate(lines, 1) if line.strip() and number not in damaged)


def _damaged_lines(
    directory: RunDirectory, reading: journal.Reading, records: list[tuple[int, Mapping[str, Any]]], verdict: Verdict
) -> None:
    """A line that a crash has cut, and that the next start has gone back over, is no fault."""
    path = directory.journal
    if not path.exists():
        verdict.fault("journal", path, "is missing")
        return
    lines = path.read_bytes().split(b"\n")
    for number in reading.damaged_lines:
        after = next((record for line, record in records if line > number), None)
        is_torn = not lines[number - 1].endswith(b"}")
        if is_torn and (after is None or after.get("event") in ("resumed", "started")):
            verdict.note(f"{path}:{number}", "a crash cut this line; the run went back to a checkpoint, or will")
        else:
            verdict.fault("journal", f"{path}:{number}", "the record is not as it was written (length or CRC differs)")


def _sequence(path: Path, records: list[tuple[int, Mapping[str, Any]]], verdict: Verdict) -> bool:
    """Whether every step follows the one before; a resumed run goes back to its checkpoint's step."""
    before, line_before, is_whole = 0, 0, True
    for line, record in records:
        place = f"{path}:{line}"
        if record["kind"] == "event" and record["event"] == "resumed":
            if record["step"] > before:
                verdict.fault(
                    "journal", place, f"resumed from step {record['step']}, but no step behind {before} is here"
                )
                is_whole = False
            before = record["step"]
        elif record["kind"] == "step":
            step = record["step"]
            if step <= before:
                what = f"step {step} stands here again, after step {before} on line {line_before}"
                verdict.fault("journal", place, f"{what}, and the run was not resumed in between")
                is_whole = False
            elif step > before + 1:
                missing = str(before + 1) if step == before + 2 else f"{before + 1} to {step - 1}"
                verdict.fault("journal", place, f"step {step} follows step {before}; missing: step {missing}")
                is_whole = False
            before, line_before = step, line
    return is_whole


def _pairs(path: Path, step: Mapping[str, Any], _: Mapping[str, Any], verdict: Verdict) -> None:
    prompts, completions = len(step["prompt_ids"]), len(step["completions"])
    if prompts != completions:
        verdict.fault("journal", path, f"step {step['step']}: {prompts} prompt ids, but {completions} completions")


def _group_size(resolved: Mapping[str, Any]) -> int:
    """Completions a prompt; 1 where nothing is sampled."""
    return int(resolved.get("sampling", {}).get("group_size", 1))


def _groups(path: Path, step: Mapping[str, Any], resolved: Mapping[str, Any], verdict: Verdict) -> None:
    """Each prompt has whole groups of completions, and a step has as many prompts as the configuration says."""
    if not resolved:
        return
    size, prompts = _group_size(resolved), int(resolved["train"]["prompts_per_step"])
    uneven = [prompt for prompt, count in Counter(step["prompt_ids"]).items() if count % size]
    if uneven:
        verdict.fault(
            "journal", path, f"step {step['step']}: prompt {uneven[0]} has no whole group of {size} completions"
        )
    elif len(step["prompt_ids"]) != prompts * size:
        found, wanted = len(step["prompt_ids"]), prompts * size
        verdict.fault("journal", path, f"step {step['step']}: {found} completions, the configuration says {wanted}")


def _epochs(
    path: Path,
    steps: list[Mapping[str, Any]],
    facts: Mapping[str, Any],
    resolved: Mapping[str, Any],
    verdict: Verdict,
) -> None:
    """No prompt is drawn for the n-th time before every prompt could be drawn n - 1 times."""
    rows = facts.get("data", {}).get("rows", {}).get("train")
    if not rows or not resolved:
        return
    size, drawn, counts = _group_size(resolved), 0, Counter[int]()
    for step in steps:
        counts.update({prompt: count // size for prompt, count in Counter(step["prompt_ids"]).items()})
        drawn += len(step["prompt_ids"]) // size
        epoch = -(-drawn // rows)
        often = [prompt for prompt, count in counts.items() if count > epoch]
        if often:
            what = (
                f"prompt {often[0]} is drawn {counts[often[0]]} times in {epoch} pass{'es' * (epoch > 1)} over the data"
            )
            verdict.fault("journal", path, f"step {step['step']}: {what}")
            return


# ------------------------------------------------------------------------------------------ what must agree with what
def _ends_agree(
    directory: RunDirectory,
    facts: Mapping[str, Any],
    resolved: Mapping[str, Any],
    steps: list[Mapping[str, Any]],
    good: list[int],
    verdict: Verdict,
) -> None:
    """A checkpoint has its step in the journal; a run that has done all steps has them there."""
    there = {step["step"] for step in steps}
    for step in good:
        if step > 0 and step not in there:
            verdict.fault("journal", directory.journal, f"step {step} has a checkpoint, but no record")
    if facts.get("ended") and facts.get("outcome") == "all steps done" and resolved:
        wanted = resolved.get("train", {}).get("max_steps")
        if max(there, default=0) != wanted:
            what = f"ends at step {max(there, default=0)}, but run.json says that all {wanted} steps are done"
            verdict.fault("journal", directory.journal, what)


def _weights(directory: RunDirectory, steps: list[Mapping[str, Any]], good: list[int], verdict: Verdict) -> None:
    """The sum of the weights in each good checkpoint is the one in the journal."""
    from safetensors import SafetensorError

    written = {step["step"]: step.get("weights") for step in steps}
    equal = []
    for step in good:
        if not written.get(step):
            continue
        place = directory.checkpoints / str(step)
        try:
            found = weights_sum(place, _manifest(directory, step)["files"])
        except (*DAMAGE, SafetensorError) as error:
            verdict.fault("weights", place, f"the weights cannot be summed: {_reason(error)}")
            continue
        if found is None:
            verdict.note(place, "the sum of the weights cannot be told from its files, so it is not compared")
        elif found != written[step]:
            what = f"the weights sum to {found}, the journal says {written[step]}"
            verdict.fault("weights", place, what, "checkpoint and journal are not of the same run")
        else:
            equal.append(step)
    if equal and "weights" not in verdict.findings:
        verdict.good("weights", f"{_listed(equal)}: the sums of the weights are those in the journal")


def weights_sum(checkpoint: Path, names: Iterable[str]) -> str | None:
    """The order-free 64-bit sum over the bits of all trained weights in the named files, as the learner reports it.

    Which are trained, the moments tell: the optimiser's state names every trained parameter once, weights that are
    tied to it not again. None if a trained weight is not in the files under its own name, or is not float32.
    """
    from safetensors import safe_open

    trained = _trained(checkpoint)
    total, met = 0, set()
    for file in sorted(name for name in names if name.endswith(".safetensors") and "/" in name):
        role = file.split("/")[0]
        with safe_open(str(checkpoint / file), framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no dict
                full = f"{role}.{name}"
                if full not in trained:
                    continue
                values = tensors.get_tensor(name)
                if values.dtype != "float32":
                    return None
                total += int(values.view("int32").sum(dtype="int64"))
                met.add(full)
    return f"{total & ((1 << 64) - 1):016x}" if trained and met == trained else None


def _trained(checkpoint: Path) -> set[str]:
    from safetensors import safe_open

    with safe_open(str(checkpoint / "optimizer.safetensors"), framework="np") as moments:
        names = [name for name in moments.keys() if name.startswith("first_moment.")]  # noqa: SIM118 - it is no dict
    return {name.removeprefix("first_moment.") for name in names}


def _final(directory: RunDirectory, facts: Mapping[str, Any], good: list[int], verdict: Verdict) -> None:
    """`final/` is the policy of the checkpoint that run.json names."""
    step = facts.get("final_step")
    if step is None:
        if directory.final.exists():
            verdict.fault("final", directory.final, "is there, but run.json does not say of which step")
        return
    if not directory.final.is_dir():
        verdict.fault("final", directory.final, f"is missing; it is the policy of step {step}")
        return
    if step not in good:
        verdict.note(directory.final, f"cannot be compared, since there is no good checkpoint of step {step}")
        return
    _compared(directory, step, verdict)
    if "final" not in verdict.findings:
        verdict.good("final", f"the policy of checkpoint {step}, byte by byte")


def _compared(directory: RunDirectory, step: int, verdict: Verdict) -> None:
    wanted = {
        name.removeprefix("policy/"): entry["sha256"]
        for name, entry in _manifest(directory, step)["files"].items()
        if name.startswith("policy/")
    }
    for name, expected in wanted.items():
        file = directory.final / name
        try:
            found = sha256(file) if file.is_file() else None
        except OSError as error:
            verdict.fault("final", file, f"cannot be read: {_reason(error)}")
            continue
        if found is None:
            verdict.fault("final", file, f"is missing; checkpoint {step} has it")
        elif found != expected:
            verdict.fault("final", file, f"is not that of checkpoint {step}, which run.json names")
    for file in sorted(p for p in directory.final.rglob("*") if p.is_file()):
        name = str(file.relative_to(directory.final))
        if name not in wanted and name != "README.md":
            verdict.fault("final", file, f"is not in checkpoint {step}, which run.json names")
