"""A temperature that changes over the steps, in sampling and in the loss alike; and a careful start."""

import pytest

from tests.runs import small

FALLING = "sampling.temperature={schedule: linear, from: 1.5, to: 0.5, steps: 4}"


@pytest.fixture(scope="module")
def falling(tmp_path_factory):
    folder = tmp_path_factory.mktemp("falling")
    return small.train(small.write(folder), folder / "run", FALLING)


def test_engine_and_trainer_have_the_temperature_of_the_step(falling):
    mismatches = [s["metrics"]["rollout/trainer_mismatch"] for s in small.steps(falling)]
    assert max(mismatches) < 1e-5


def test_the_last_step_is_sampled_at_the_end_of_the_schedule(falling, tmp_path):
    path = small.write(tmp_path, steps=1)
    first = small.train(path, tmp_path / "first", "sampling.temperature=1.5")
    assert small.evidence(falling)[0] == small.evidence(first)[0]
    entropies = [s["metrics"]["entropy"] for s in small.steps(falling)]
    assert entropies[-1] < entropies[0] - 0.3


def test_a_resumed_run_goes_on_at_the_temperature_of_its_step(falling, tmp_path, monkeypatch):
    path = small.write(tmp_path)
    with monkeypatch.context() as patch:
        small.interrupt_after(patch, 2)
        with pytest.raises(small.Interrupted):
            small.train(path, tmp_path / "run", FALLING)
    assert small.evidence(small.train(path, tmp_path / "run", FALLING)) == small.evidence(falling)


def test_an_end_of_the_schedule_at_zero_is_refused(tmp_path):
    wrong = "sampling.temperature={schedule: linear, from: 1.0, to: 0.0, steps: 4}"
    with pytest.raises(small.configs.ConfigError, match=r"both ends must be above 0"):
        small.configs.load(small.write(tmp_path), [wrong])


def test_a_careful_start_ramps_up_and_goes_on_after_a_restart(tmp_path, monkeypatch):
    words = [
        "train.cautious={steps: 3}",
        "guard.rules={kl_update: {then: off}, ratio_max: {then: off}, truncated: {then: off}}",
    ]
    whole = small.train(small.write(tmp_path), tmp_path / "whole", *words)
    rates = [s["metrics"]["learning_rate"] for s in small.steps(whole)]
    assert rates == pytest.approx([1e-4, 4e-4, 7e-4, 1e-3])
    with monkeypatch.context() as patch:
        small.interrupt_after(patch, 2)
        with pytest.raises(small.Interrupted):
            small.train(small.write(tmp_path), tmp_path / "run", *words)
    assert small.evidence(small.train(small.write(tmp_path), tmp_path / "run", *words)) == small.evidence(whole)
