"""An update that is not finite is left out, counted, and has no after-effect."""

import pytest
import torch
from safetensors.torch import load_file

from tests.runs import small
from tests.unit.train import learning
from trimtab.train.optimizer import Optimizer
from trimtab.train.settings import Optim


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_costs_its_step_and_nothing_else(value):
    optim = Optim(learning_rate=1e-3, warmup_steps=8)
    plain, spoilt = learning.learner(optim=optim), learning.learner(optim=optim)
    parameter = spoilt.optimizer.parameters()[0]
    rates = []
    for step in range(1, 6):
        hook = parameter.register_hook(lambda g: torch.full_like(g, value)) if step == 3 else None
        before = spoilt.models.weights_sum()
        report = spoilt.update(learning.batch(step))
        if hook is None:
            plain.update(learning.batch(step))
            rates.append(report.metrics["learning_rate"])
            assert report.metrics["updates/skipped"] == 0
        else:
            hook.remove()
            assert report.weights_sum == before
            assert report.metrics["updates/non_finite"] == report.metrics["updates/skipped"] == 1
            assert "grad_norm/total" not in report.metrics
    assert spoilt.models.weights_sum() == plain.models.weights_sum()
    assert rates == pytest.approx([1e-3 * k / 8 for k in (1, 2, 3, 4)])


def test_a_run_goes_on_behind_a_bad_update_and_saves_finite_weights(tmp_path, monkeypatch, capsys):
    norms, calls = Optimizer.norms, []

    def spoilt(self):
        calls.append(1)
        return {role: float("inf") if len(calls) == 3 else norm for role, norm in norms(self).items()}

    monkeypatch.setattr(Optimizer, "norms", spoilt)
    path = small.write(tmp_path, steps=4)
    words = ["train.minibatches=1", "data.validation=null", "observe.term_norms_every=null"]
    directory = small.train(path, tmp_path / "run", *words)
    steps = small.steps(directory)
    assert [s["metrics"]["updates/non_finite"] for s in steps] == [0, 0, 1, 0]
    assert steps[2]["weights"] == steps[1]["weights"] != steps[3]["weights"]
    for place in directory.checkpoints.iterdir():
        for file in place.rglob("*.safetensors"):
            assert all(bool(t.isfinite().all()) for t in load_file(file).values())
