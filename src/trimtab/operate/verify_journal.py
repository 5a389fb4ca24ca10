"""The invariants of a run's journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trimtab import algorithms
from trimtab.errors import UserError
from trimtab.operate.verdict import DAMAGE, Verdict, readable, reason
from trimtab.store import journal
from trimtab.store.run_directory import RunDirectory
from trimtab.types import Need


def check_journal(
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
        verdict.fault("journal", directory.journal, f"cannot be read: {reason(error)}")
        return None
    for check in (_pairs, _groups):
        for step in steps:
            with readable(verdict, "journal", directory.journal, f"step {step['step']}: "):
                check(directory.journal, step, resolved, verdict)
    if is_whole and "journal" not in verdict.findings:
        with readable(verdict, "journal", directory.journal):
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
        if is_torn and (after is None or after.get("event") in (*journal.GONE_BACK, "started")):
            verdict.note(f"{path}:{number}", "a crash cut this line; the run went back to a checkpoint, or will")
        else:
            verdict.fault("journal", f"{path}:{number}", "the record is not as it was written (length or CRC differs)")


def _sequence(path: Path, records: list[tuple[int, Mapping[str, Any]]], verdict: Verdict) -> bool:
    """Whether every step follows the one before; a resumed run goes back to its checkpoint's step."""
    before, line_before, is_whole = 0, 0, True
    for line, record in records:
        place = f"{path}:{line}"
        if record["kind"] == "event" and record["event"] in journal.GONE_BACK:
            if record["step"] > before:
                verdict.fault(
                    "journal",
                    place,
                    f"{record['event']} from step {record['step']}, but no step behind {before} is here",
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
    """Completions a prompt; where nothing is sampled 1, and 2 if the rows are pairs."""
    if "group_size" in resolved.get("sampling", {}):
        return int(resolved["sampling"]["group_size"])
    try:
        algorithm = algorithms.load(str(resolved.get("algorithm")))
        return 2 if Need.PAIRS in algorithm.needs(algorithm.config()) else 1
    except UserError:  # a plug-in that is not installed here
        return 1


def _is_dynamic(step: Mapping[str, Any]) -> bool:
    """Whether groups without spread were left out, so that the step may have fewer prompts than it drew."""
    return "sampling/kept" in step["metrics"]


def _groups(path: Path, step: Mapping[str, Any], resolved: Mapping[str, Any], verdict: Verdict) -> None:
    """Each prompt has whole groups of completions, and a step has as many prompts as the configuration says.

    Under dynamic sampling it may have fewer: as many as its own record says were kept, or all if none had a spread.
    """
    if not resolved:
        return
    size, prompts = _group_size(resolved), int(resolved["train"]["prompts_per_step"])
    said = "the configuration says"
    if _is_dynamic(step) and 0 < (kept := int(step["metrics"]["sampling/kept"])) < prompts:
        prompts, said = kept, f"sampling/kept is {kept} groups, that is"
    uneven = [prompt for prompt, count in Counter(step["prompt_ids"]).items() if count % size]
    if uneven:
        verdict.fault(
            "journal", path, f"step {step['step']}: prompt {uneven[0]} has no whole group of {size} completions"
        )
    elif len(step["prompt_ids"]) != prompts * size:
        found, wanted = len(step["prompt_ids"]), prompts * size
        verdict.fault("journal", path, f"step {step['step']}: {found} completions, {said} {wanted}")


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
    size, trained, drawn, counts = _group_size(resolved), 0, 0, Counter[int]()
    for step in steps:
        counts.update({prompt: count // size for prompt, count in Counter(step["prompt_ids"]).items()})
        before, trained = drawn, trained + len(step["prompt_ids"]) // size
        drawn = int(step["metrics"]["data/prompts"]) if _is_dynamic(step) else trained
        if drawn < before or drawn < trained:
            what = f"{drawn} prompts are drawn by then, but {before} were before it, and {trained} were trained on"
            verdict.fault("journal", path, f"step {step['step']}: {what}")
            return
        epoch = -(-drawn // rows)
        often = [prompt for prompt, count in counts.items() if count > epoch]
        if often:
            what = (
                f"prompt {often[0]} is drawn {counts[often[0]]} times in {epoch} pass{'es' * (epoch > 1)} over the data"
            )
            verdict.fault("journal", path, f"step {step['step']}: {what}")
            return


def ends_agree(
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
