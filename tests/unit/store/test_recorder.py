"""Reports become journal records and sample files."""

import pytest

from trimtab.store import journal
from trimtab.store.recorder import RunRecorder, read_samples, write_samples
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Samples
from trimtab.types import Sample, StepReport


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path / "a")
    run.create()
    return run


def sample(text="1", **more):
    facts = {"prompt_id": 3, "prompt": "p", "completion": text, "reward": 0.5, "reward_parts": {"f": 0.5, "g": None}}
    return Sample(**{**facts, "is_truncated": False, "answer": "2", **more})


def report(step, *samples, **more):
    return StepReport(step=step, metrics={"reward/mean": 0.5}, samples=samples, **more)


def test_samples_are_read_back_as_they_were(tmp_path):
    texts = ["a", "", "two\nlines\r\n", "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg", "你好 🎲", '"quoted"', "\0"]
    made = [sample(text) for text in texts] + [sample(reward=None, answer=None, is_truncated=True)]
    write_samples(tmp_path / "s.jsonl", made)
    assert read_samples(tmp_path / "s.jsonl") == made
    assert len((tmp_path / "s.jsonl").read_bytes().split(b"\n")) == len(made) + 1


def test_no_samples_make_no_file(tmp_path):
    write_samples(tmp_path / "s.jsonl", [])
    assert not (tmp_path / "s.jsonl").exists()
    assert read_samples(tmp_path / "s.jsonl") == []


def test_a_step_s_record_says_what_it_was_made_of(run):
    recorder = RunRecorder(run, Samples())
    recorder.record(report(1, prompt_ids=(4, 5), completion_hashes=("aa", "bb"), weights_sum="0f"))
    (found,) = journal.read(run.journal).steps()
    assert (found["prompt_ids"], found["completions"], found["weights"]) == ([4, 5], ["aa", "bb"], "0f")
    assert found["metrics"] == {"reward/mean": 0.5, "samples/failed": 0.0}


def test_samples_are_kept_by_the_rule_and_those_of_evaluations_stay(run):
    recorder = RunRecorder(run, Samples(every=2, keep=2))
    recorder.record(report(0, sample(), phase="eval"))
    for step in range(1, 9):
        recorder.record(report(step, sample(str(step))))
    recorder.record(report(10))
    recorder.record(report(12, sample(), phase="eval"))
    names = sorted(p.name for p in run.samples.iterdir())
    assert names == ["eval-0000000.jsonl", "eval-0000012.jsonl", "step-0000006.jsonl", "step-0000008.jsonl"]
    assert read_samples(run.samples / "step-0000008.jsonl") == [sample("8")]


def test_evaluations_and_events_stand_in_the_journal(run):
    recorder = RunRecorder(run, Samples())
    recorder.record(report(4, phase="eval"))
    recorder.event("saved", step=4, seconds=0.5)
    reading = journal.read(run.journal)
    assert (reading.evaluations()[0]["step"], reading.steps()) == (4, [])
    (event,) = reading.events("saved")
    assert (event["step"], event["seconds"]) == (4, 0.5)
