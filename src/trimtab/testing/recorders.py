"""What every recorder must do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trimtab.ports import Recorder
from trimtab.types import Sample, StepReport

SAMPLE = Sample(
    prompt_id=3,
    prompt="47+35=\n<script>",
    completion="28 [red]\x1b[0m 数学",
    reward=1.0,
    reward_parts={"exact_match": 1.0, "length": None},
    is_truncated=False,
    answer="28",
)


def it_takes_steps_evaluations_and_events(make: Callable[[], Recorder]) -> None:
    recorder = make()
    recorder.event("started", step=0)
    recorder.record(StepReport(step=0, phase="eval", metrics={"eval/reward/mean": 0.4}, samples=(SAMPLE,)))
    recorder.record(
        StepReport(
            step=10,
            metrics={"reward/mean": 0.5, "loss/policy": -1e-9, "loss/total": 0.0, "kl/update": 1e-12},
            prompt_ids=(3, 3),
            completion_hashes=("00ff", "01ff"),
            weights_sum="0123456789abcdef",
            samples=(SAMPLE,),
        )
    )
    recorder.event("saved", step=10, seconds=0.1)
    recorder.close()


def it_takes_a_step_without_any_metric(make: Callable[[], Recorder]) -> None:
    recorder = make()
    recorder.record(StepReport(step=1, metrics={}))
    recorder.close()


def it_can_be_closed_twice_and_at_once(make: Callable[[], Recorder]) -> None:
    recorder = make()
    recorder.close()
    recorder.close()


def it_takes_events_that_it_does_not_know(make: Callable[[], Recorder]) -> None:
    recorder = make()
    recorder.event("an event of a later version", step=3, reason="[bold]")
    recorder.close()


CHECKS: tuple[Callable[[Any], None], ...] = (
    it_takes_steps_evaluations_and_events,
    it_takes_a_step_without_any_metric,
    it_can_be_closed_twice_and_at_once,
    it_takes_events_that_it_does_not_know,
)
