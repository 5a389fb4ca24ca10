"""A recovery drill: restore a run's checkpoint in another place, train on, and compare with what the journal says.

The run is only read, so it may be training meanwhile. Only `drill.json`, which the run does not use, and lines of the
audit log are written into it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab import assemble
from trimtab.errors import GuardError, StorageError, TrimtabError, UserError
from trimtab.operate import audited, continuing, start
from trimtab.operate import changes as changing
from trimtab.operate.verify import weights_sum
from trimtab.store import checkpoints, encryption, journal, writer
from trimtab.store.checkpoints import MANIFEST, CheckpointStore
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Checkpoint
from trimtab.types import StepReport

if TYPE_CHECKING:
    from trimtab.ports import RunState, Saved

RELATIVE, ABSOLUTE = 1e-2, 1e-3
"""How far a loss term may be off where equal numbers are not promised."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a drill found."""

    run: str
    checkpoint: int
    """The step that it went on from."""
    newest: int
    """The newest checkpoint."""
    restore_seconds: float = 0.0
    """From nothing to a run that is ready for its next step: copied, checked, built, restored."""
    steps: list[int] = field(default_factory=list)
    """That were trained again and compared."""
    is_exact: bool = True
    """Whether the numbers had to be equal to the last bit."""
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def has_passed(self) -> bool:
        return not self.findings


class _Witness:
    """A recorder that keeps the reports, and the moment at which the run was restored."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []
        self.restored = 0.0

    def record(self, report: StepReport) -> None:
        self.reports.append(report)

    def event(self, kind: str, **facts: Any) -> None:
        if kind == "resumed":
            self.restored = time.perf_counter()

    def close(self) -> None:
        """Nothing is held open."""


class _NoEvaluation:
    """An evaluation changes nothing in a run, and takes its time."""

    def evaluate_if_due(self, step: int, *, last: bool = False) -> StepReport | None:
        return None


class _OnlyRestoring:
    """The copied checkpoints; none is added."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.rejected = 0

    def save_if_due(
        self, step: int, state: RunState, metrics: Mapping[str, float], *, last: bool = False
    ) -> float | None:
        return None

    def saves(self) -> Sequence[Saved]:
        return ()

    def wait(self) -> None:
        """Nothing is under way."""

    def figures(self) -> Mapping[str, float]:
        return {}

    def restore(self, state: RunState) -> int | None:
        found: int | None = self.store.restore(state)
        return found

    def newest_good(self, *, before: int | None = None) -> int | None:
        found: int | None = self.store.newest_good(before=before)
        return found

    def values(self, step: int) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.store.values(step)
        return found

    def metrics(self, step: int) -> Mapping[str, float]:
        found: Mapping[str, float] = self.store.metrics(step)
        return found

    def best(self) -> int | None:
        found: int | None = self.store.best()
        return found


def drill(root: Path, *, steps: int) -> Outcome:
    """Prove that a run can be recovered; the outcome also stands in its `drill.json`.

    Args:
        steps: at most so many are trained again.
    Raises:
        UserError: there is no run, it cannot be rebuilt from its files, or there is no step to compare with.
        StorageError: it has no good checkpoint, or `drill.json` cannot be written.
    """
    directory = RunDirectory.existing(root)
    if objects := directory.facts().get("objects"):
        names = ", ".join(sorted(objects))
        raise UserError(
            f"{root}: was started from Python with objects ({names}), which no file holds; no drill is possible"
        )
    written = {record["step"]: record for record in journal.read(directory.journal).steps()}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="trimtab-drill-") as folder:
        scratch = RunDirectory(Path(folder) / directory.root.resolve().name)
        outcome = _copied(directory, scratch, written)
        last = min(outcome.checkpoint + steps, max(written))
        try:
            _train_again(directory, scratch, outcome, written, last, began)
        except TrimtabError as error:
            outcome.findings.append(f"the run cannot go on from checkpoint {outcome.checkpoint}: {error}")
    _write(directory, outcome)
    return outcome


# ------------------------------------------------------------------------------------------------------- before it
def _copied(directory: RunDirectory, scratch: RunDirectory, written: Mapping[int, Mapping[str, Any]]) -> Outcome:
    """Copy what is needed. A run that trains may remove a checkpoint meanwhile; then there is a newer one to take."""
    for attempt in range(3):
        outcome = _chosen(directory, written)
        try:
            scratch.create()
            shutil.copy(directory.root / "run.json", scratch.root)
            for step in {0, outcome.checkpoint}:  # a reference may be the policy at step 0
                source = directory.checkpoints / str(step)
                if source.is_dir():
                    shutil.copytree(source, scratch.checkpoints / str(step))
        except (FileNotFoundError, shutil.Error) as error:
            if attempt == 2:
                raise StorageError(
                    f"{directory.checkpoints}: checkpoints vanish while they are copied: {error}"
                ) from error
            shutil.rmtree(scratch.root)
        else:
            return outcome
    raise AssertionError


def _chosen(directory: RunDirectory, written: Mapping[int, Mapping[str, Any]]) -> Outcome:
    """The newest good checkpoint that has a step behind it in the journal, to compare with."""
    store = CheckpointStore(directory.checkpoints, Checkpoint(), max_steps=1, is_writer=False)
    faults, good, resumable = [], [], checkpoints.resumable(directory.checkpoints)
    for step in (step for step in reversed(store.steps()) if resumable.get(step)):
        fault = store.fault(step)
        if fault is not None:
            faults.append(f"checkpoint {step} is damaged: {fault}")
            continue
        good.append(step)
        if any(later > step for later in written):
            break
    if not good:
        raise StorageError(f"{directory.checkpoints}: no checkpoint is good{''.join(f'; {f}' for f in faults)}")
    if not any(later > good[-1] for later in written):
        what = f"{directory.root}: the journal has no step behind checkpoint {good[-1]}, so there is nothing to compare with"
        raise UserError(f"{what}; try again after the next step")
    outcome = Outcome(run=str(directory.root), checkpoint=good[-1], newest=good[0], findings=faults)
    for step in dict.fromkeys((good[0], good[-1])):
        place = directory.checkpoints / str(step)
        wanted = written.get(step, {}).get("weights")
        found = None
        if wanted:
            with _plain(directory, place) as plain:
                found = weights_sum(plain, json.loads((place / MANIFEST).read_bytes())["files"])
        if found is not None and found != wanted:
            outcome.findings.append(f"checkpoint {step}: its weights sum to {found}, the journal says {wanted}")
    return outcome


# --------------------------------------------------------------------------------------------------------- the drill
def _train_again(
    directory: RunDirectory,
    scratch: RunDirectory,
    outcome: Outcome,
    written: Mapping[int, Mapping[str, Any]],
    last: int,
    began: float,
) -> None:
    from trimtab.train import loop
    from trimtab.train.control import NoControl

    version, last = _in_force(directory, written, outcome, last)
    config = changing.in_force(changing.started_with(version), version.get("changes") or {})
    told: list[assemble.Admission] = []
    try:
        rows = assemble.read_rows(config, tell=told.append)
    finally:
        for found in told:
            details = {"key": found.key, "place": found.place, "allowed": found.is_allowed}
            audited.note_if_possible(directory, "drill", **details)
    continuing.compare_inputs(rows.fingerprints, assemble.NOTHING, directory, start.COMMAND)
    built = assemble.build(config, scratch, NoControl(), row_sets=rows)
    run, witness = built.run, _Witness()
    run.recorder, run.evaluator, run.checkpoints = witness, _NoEvaluation(), _OnlyRestoring(run.checkpoints)
    run.max_steps = last
    changed = assemble.what_differs(directory.facts(), built.facts)
    outcome.is_exact = not changed and built.facts["numerics"]["device"] == "cpu"
    if changed:
        outcome.notes.append(f"equal numbers are not promised here: {', '.join(changed)}")
    try:
        with suppress(GuardError):  # it ended the run at this step then, too; the step is recorded
            loop.train(run)
    finally:
        built.close()
    outcome.restore_seconds = witness.restored - began
    for report in witness.reports:
        outcome.steps.append(report.step)
        outcome.findings += _compared(report, written.get(report.step), outcome)
    if run.step < last:
        outcome.findings.append(f"the run ended at step {run.step}; the journal goes on to step {max(written)}")
    if outcome.is_exact and run.step == outcome.newest:
        _compare_moments(run, directory, directory.checkpoints / str(outcome.newest), outcome)


def _in_force(
    directory: RunDirectory, written: Mapping[int, Mapping[str, Any]], outcome: Outcome, last: int
) -> tuple[Mapping[str, Any], int]:
    """The configuration that the steps behind the checkpoint were trained with, and the last of them that was."""
    numbers = {step: record["metrics"].get("config/version") for step, record in written.items()}
    number = numbers.get(outcome.checkpoint + 1)
    if number is None:
        return directory.newest_config(), last
    while numbers.get(last) != number:
        last -= 1
    return directory.config_of(int(number)), last


def _compared(report: StepReport, wanted: Mapping[str, Any] | None, outcome: Outcome) -> list[str]:
    """In what a step differs from its record."""
    place = f"step {report.step}"
    if wanted is None:
        return [f"{place}: the journal has no record of it"]
    if sorted(report.prompt_ids) != sorted(wanted["prompt_ids"]):
        return [f"{place}: trained on prompts {_few(report.prompt_ids)}, the journal says {_few(wanted['prompt_ids'])}"]
    pairs = list(zip(report.completion_hashes, wanted["completions"], strict=False))
    others = sum(a != b for a, b in pairs) + abs(len(report.completion_hashes) - len(wanted["completions"]))
    losses = {name for name in {*report.metrics, *wanted["metrics"]} if name.startswith("loss/")}
    found = [(name, report.metrics.get(name), wanted["metrics"].get(name)) for name in sorted(losses)]
    if not outcome.is_exact:
        if others:
            outcome.notes.append(f"{place}: {others} of {len(pairs)} completions differ, so its loss is not compared")
            return []
        return [_said(place, *f) for f in found if not _is_near(*f[1:])]
    differences = []
    if list(report.prompt_ids) != list(wanted["prompt_ids"]):
        differences.append(f"{place}: the prompts are those of the journal, in another order")
    if others:
        differences.append(f"{place}: {others} of {len(pairs)} completions are not those of the journal")
    differences += [_said(place, *f) for f in found if f[1] != f[2]]
    if report.weights_sum != wanted["weights"]:
        differences.append(f"{place}: the weights sum to {report.weights_sum}, the journal says {wanted['weights']}")
    return differences


def _is_near(found: float | None, wanted: float | None) -> bool:
    return found is not None and wanted is not None and isclose(found, wanted, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _said(place: str, name: str, found: float | None, wanted: float | None) -> str:
    return f"{place}: {name} is {found}, the journal says {wanted}"


def _few(ids: Any) -> str:
    shown = ", ".join(map(str, list(dict.fromkeys(ids))[:4]))
    return f"{shown}, ..." if len(set(ids)) > 4 else shown


def _plain(directory: RunDirectory, place: Path, names: Sequence[str] = ()) -> AbstractContextManager[Path]:
    """The files of a checkpoint, decrypted if need be."""
    vault = encryption.vault_of_run(directory) if encryption.is_encrypted(place) else None
    return encryption.opened(place, vault, names)


def _compare_moments(run: Any, directory: RunDirectory, checkpoint: Path, outcome: Outcome) -> None:
    """The run has come to the newest checkpoint: the optimiser's state must be the one in it."""
    import torch
    from safetensors.torch import load_file

    try:
        with _plain(directory, checkpoint, ("optimizer.safetensors",)) as plain:
            wanted = load_file(str(plain / "optimizer.safetensors"))
    except OSError:  # removed meanwhile by the run, which goes on
        return
    found = run.tensors()
    different = [
        n
        for n in sorted({*found, *wanted})
        if n not in found or n not in wanted or not torch.equal(found[n].cpu(), wanted[n])
    ]
    if different:
        more = f" and {len(different) - 1} more" if len(different) > 1 else ""
        outcome.findings.append(
            f"checkpoint {outcome.newest}: {different[0]}{more} in its optimiser is not what training gives"
        )


# -------------------------------------------------------------------------------------------------------- after it
def _write(directory: RunDirectory, outcome: Outcome) -> None:
    before, now = directory.last_drill() or {}, time.time()
    success = now if outcome.has_passed else before.get("drill/last_success")
    document = {"drill/last_success": success, "time": now, "passed": outcome.has_passed, **asdict(outcome)}
    try:
        writer.replace_text(directory.drill, json.dumps(document, indent=1))
    except OSError as error:
        raise StorageError(f"cannot write to {directory.drill}: {error.strerror or error}") from error
