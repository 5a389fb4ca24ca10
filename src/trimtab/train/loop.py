"""The one loop. Which algorithm, where the rows come from and how many processes there are, it does not know."""

from __future__ import annotations

import time
from dataclasses import asdict, replace

from trimtab.errors import GuardError, Preempted
from trimtab.train.run import Run
from trimtab.types import StepReport, Verdict


def train(run: Run) -> Run:
    """Train up to `max_steps`, from the newest good checkpoint if there is one.

    Raises:
        GuardError: the guard ended the run.
        Preempted: SIGTERM or SIGINT; the state is saved.
        StorageError: there are checkpoints but none is good, or a save failed.
    """
    run = resume(run)
    while run.step < run.max_steps and not run.is_finished:
        run = run.control.apply(run)
        if run.step >= run.max_steps:  # what was asked for ends the run here
            break
        started = time.perf_counter()
        batch = run.source.next_batch()
        report = run.learner.update(batch, [source.next_batch() for source in run.mixed])
        synced = time.perf_counter()
        run.source.refresh(version=report.step)
        synced = time.perf_counter() - synced
        report = replace(report | run.source.figures(), samples=run.source.samples())
        is_last = report.step == run.max_steps
        report = _evaluate(run, report, last=is_last)
        seconds = {"time/step": time.perf_counter() - started, "time/weight_sync": synced, **run.machine()}
        verdict = run.guard.judge(report | seconds)
        run.recorder.record(replace(report | seconds | run.figures(), standings=verdict.standings))
        _tell(run, verdict)
        if verdict.rolls_back:
            run = run.control.roll_back(run, verdict)
            continue
        run.learner.caution.advance(is_calm=run.guard.is_calm)
        run.step = report.step
        run.is_finished = verdict.finishes
        stops_for = run.control.should_stop()
        _save(run, report, last=verdict.ends or is_last or stops_for is not None)
        if verdict.stops:
            raise GuardError(f"step {report.step}: {verdict.reason}")
        if verdict.finishes:
            run.recorder.event("finished early", step=report.step, reason=verdict.reason)
        elif stops_for is not None and not is_last:
            run.recorder.event("preempted", step=report.step, signal=stops_for)
            raise Preempted(f"{stops_for}: saved at step {report.step}; the same command goes on from there")
    return run


def resume(run: Run) -> Run:
    """The run with the state of its newest good checkpoint; a fresh one is evaluated and saved as step 0."""
    step = run.checkpoints.restore(run)
    run.source.refresh(version=run.step)
    if step is not None:
        run.recorder.event("resumed", step=step)
        return run
    run.recorder.event("started", step=0)
    before = _evaluate(run, StepReport(step=0, metrics={}), last=False)
    run.guard.judge(before)
    _save(run, before, last=True)
    return run


def _tell(run: Run, verdict: Verdict) -> None:
    """Record the alarms that a step has raised or cleared."""
    for alarm in verdict.raised:
        run.recorder.event("alarm", then=verdict.action if alarm == verdict.cause else "warn", **asdict(alarm))
    for name in verdict.cleared:
        run.recorder.event("alarm over", rule=name)


def _evaluate(run: Run, report: StepReport, *, last: bool) -> StepReport:
    """The report with the evaluation's metrics, if one is due."""
    started = time.perf_counter()
    evaluation = run.evaluator.evaluate_if_due(report.step, last=last)
    if evaluation is None:
        return report
    run.recorder.record(evaluation)
    return report | evaluation.metrics | {"time/evaluation": time.perf_counter() - started}


def _save(run: Run, report: StepReport, *, last: bool) -> None:
    try:
        run.checkpoints.save_if_due(report.step, run, report.metrics, last=last)
    finally:
        run.record_saves()
