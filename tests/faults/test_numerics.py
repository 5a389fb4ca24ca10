"""A number that is no number changes nothing where no token counts, and where one counts its update is not applied.

`CELLS` is the table: for every place that such a number can come from, where it is put in and what it is counted as.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests import online, table_model
from tests.contracts import rank_pool
from tests.runs import small
from tests.unit.train import learning
from trimtab import algorithms
from trimtab.errors import NumericalError
from trimtab.testing import cases
from trimtab.train import batches, finite
from trimtab.train.optimizer import Optimizer
from trimtab.train.settings import Optim
from trimtab.types import Need, Policy

BAD = (float("nan"), float("inf"), float("-inf"))
NAMED = ("ppo", "grpo", "gspo", "dpo", "sft")
OTHERS = [
    name
    for name in algorithms.MODULES
    if name not in NAMED and Need.SCORES not in algorithms.load(name).needs(table_model.config_of(name))
]
COUNTED, DEAD, UNSCORED = 0, 1, 6
"""Rows of `cases.make`: with a hole at place 2, with no token, and one that is left without a reward."""
HOLE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A kind of number, and how one of them is spoilt."""

    at: str
    """`batch`, `freeze`, `forward` or `advantages`: what gives it."""
    per_token: bool = True
    masked: tuple[int, int] = (COUNTED, HOLE)
    """Row and place of one that does not count."""


CELLS = {
    "rewards": Cell(at="batch", per_token=False, masked=(UNSCORED, 0)),
    "token_rewards": Cell(at="batch"),
    "margins": Cell(at="batch", per_token=False, masked=(DEAD, 0)),
    "rollout_log_probs": Cell(at="batch"),
    "old_log_probs": Cell(at="freeze"),
    "ref_log_probs": Cell(at="freeze"),
    "old_values": Cell(at="freeze"),
    "bootstrap_values": Cell(at="freeze", per_token=False, masked=(DEAD, 0)),
    "advantages": Cell(at="advantages"),
    "returns": Cell(at="advantages"),
    "log_probs": Cell(at="forward"),
    "entropy": Cell(at="forward"),
    "values": Cell(at="forward"),
}


def batch_of(name, seed=3):
    need = algorithms.load(name).needs(table_model.config_of(name))
    batch = cases.make(seed, need=need).batch
    if need & Need.ROLLOUTS:
        is_scored = torch.arange(len(batch)) != UNSCORED
        rewards = torch.where(is_scored, batch.rewards, 0.0)
        mask = batch.loss_mask
        batch = replace(batch, is_scored=is_scored, rewards=rewards, token_rewards=mask * 0.1)
    return batch


def learner_of(name, **more):
    """With a KL controller that would move if it were asked to, and a warm-up that would go on."""
    steered = [("kl", "controller", "adaptive"), ("kl", "controller_target", 1e-3), ("kl", "controller_horizon", 10)]
    return table_model.learner(
        name, table_model.config_of(name, *steered), optim=Optim(learning_rate=1e-3, warmup_steps=5), **more
    )


def put(value, row, place, junk):
    """The tensor with `junk` added at one place, so that a gradient would carry it on."""
    spoilt = torch.zeros_like(value)
    spoilt[(row, place) if value.ndim == 2 else row] = junk
    return value + spoilt


def spoil(learner, batch, field, row_id, place, junk):
    """Spoil what the learner is given or computes in its next step; the batch for it, or None without that field."""
    cell, name = CELLS[field], "values" if field == "advantages" else field
    seen = []

    def changed(record, row_ids):
        value = getattr(record, name)
        rows = (row_ids == row_id).nonzero().flatten()
        if value is None or not len(rows):
            return record
        seen.append(field)
        return replace(record, **{name: put(value, int(rows[0]), place, junk)})

    if cell.at == "batch":
        batch = changed(batch, batch.row_ids)
    elif cell.at == "advantages":
        whole = learner.main

        def spoilt(given, frozen, config):
            learner.main = whole
            return changed(whole.algorithm.advantages(given, frozen, config), given.row_ids)

        learner.main = replace(whole, algorithm=replace(whole.algorithm, advantages=spoilt))
    else:
        plain = getattr(learner.models, cell.at)

        def spoilt(rows, need):
            found = plain(rows, need)
            return changed(found, rows.row_ids) if cell.at == "freeze" or torch.is_grad_enabled() else found

        setattr(learner.models, cell.at, spoilt)
    return batch, seen


def healed(learner):
    """Without what `spoil` has put between the learner and its models."""
    for name in ("freeze", "forward"):
        learner.models.__dict__.pop(name, None)
    return learner


def has(name, field):
    """Whether runs of the algorithm have such numbers."""
    need, is_online = algorithms.load(name).needs(table_model.config_of(name)), name in online.NAMES
    return {
        "rewards": is_online,
        "token_rewards": is_online,
        "rollout_log_probs": is_online,
        "margins": Need.PAIRS in need,
        "ref_log_probs": Need.REFERENCE in need,
        "old_log_probs": Need.OLD_LOG_PROBS in need,
        "entropy": Need.ENTROPY in need,
        "advantages": is_online,
    }.get(field, Need.VALUES in need if field != "log_probs" else True)


def losses(report):
    return {name: value for name, value in report.metrics.items() if name.startswith(("loss/", "grad_norm/"))}


def check_unmasked(name, field, junk):
    learner, batch = learner_of(name), batch_of(name)
    before, state = learner.models.weights_sum(), learner.values()
    bad, seen = spoil(learner, batch, field, int(batch.row_ids[COUNTED]), 0, junk)
    report = learner.update(bad)
    assert seen, f"{name} never reads {field}"
    figures = report.metrics
    assert report.weights_sum == before == learner.models.weights_sum()
    assert (figures["updates/count"], figures["updates/skipped"], figures["updates/non_finite"]) == (0, 1, 1)
    assert figures[f"non_finite/{field}"] >= 1
    assert learner.values() == {**state, "step": 1}, "the optimiser, the schedule or the KL controller has moved"
    # what comes after it is what would have come without it
    other, good = learner_of(name), batch_of(name, seed=4)
    other.step = 1
    wanted, found = other.update(good), healed(learner).update(good)
    assert found.weights_sum == wanted.weights_sum != before
    assert losses(found) == losses(wanted)
    assert found.metrics["updates/non_finite"] == 0
    assert learner.values() == other.values()


def check_masked(name, field, junk):
    clean, learner, batch = learner_of(name), learner_of(name), batch_of(name)
    row, place = CELLS[field].masked
    bad, seen = spoil(learner, batch, field, int(batch.row_ids[row]), place, junk)
    wanted, found = clean.update(batch), learner.update(bad)
    assert seen, f"{name} never reads {field}"
    assert found.weights_sum == wanted.weights_sum
    assert losses(found) == losses(wanted)
    assert found.metrics["updates/count"] == 1
    assert not any(metric.startswith("non_finite/") for metric in found.metrics)


@pytest.mark.parametrize("name", [*NAMED, *OTHERS])
@pytest.mark.parametrize("check", [check_unmasked, check_masked])
def test_every_cell_of_the_table(name, check):
    for field in CELLS:
        if has(name, field):
            for junk in BAD if name in NAMED else BAD[:1]:
                check(name, field, junk)


def test_the_table_has_every_number_that_the_records_of_a_step_have():
    from dataclasses import fields

    from trimtab.types import Advantages, Batch, Frozen

    found = set()
    for record in (Batch, Frozen, Policy, Advantages):
        for spec in fields(record):
            if spec.metadata.get("per_token") or spec.name in finite.PER_ROW:
                found.add("advantages" if record is Advantages and spec.name == "values" else spec.name)
    not_floating = {"policy_versions", "picked"}
    assert found - not_floating == {*CELLS, "scores"} == {*finite.NAMES}


class Scores(table_model.TableModels):
    """A reward model of one table: a row's score is the worth of its last token."""

    def forward(self, batch, need):
        last = (batch.prompt_lengths + batch.completion_lengths - 1).clamp_min(0)
        return Policy(loss_mask=batch.loss_mask, scores=self.worth[batch.tokens.gather(1, last[:, None]).squeeze(1)])


@pytest.mark.parametrize("junk", BAD)
def test_a_score_that_is_no_number_is_not_applied(junk):
    learner = table_model.learner("sft")
    models = Scores(has_critic=True)
    models.logits.requires_grad_(False)
    models.parameters = lambda: {"policy": [models.worth]}
    from trimtab.train.learner import Learner

    learner = Learner(
        models=models, algorithm=algorithms.load("reward_model"), config=table_model.config_of("reward_model"),
        optim=Optim(learning_rate=1e-2), train=learner.train, micro_batch_tokens=1000,
    )  # fmt: skip
    batch = cases.make(3, need=Need.PAIRS).batch
    before, forward = models.weights_sum(), models.forward
    models.forward = lambda rows, need: replace(p := forward(rows, need), scores=put(p.scores, 0, 0, junk))
    report = learner.update(batch)
    assert report.weights_sum == before
    assert report.metrics["non_finite/scores"] == report.metrics["updates/non_finite"] == 1
    models.forward = forward
    assert learner.update(batch).metrics["updates/count"] == 1


# ------------------------------------------------------------------------------------------- in a transformer's passes
def real(name):
    learner = learning.learner(name, config=table_model.config_of(name))
    return learner, cases.make(3, need=learner.main.need).batch


@pytest.mark.parametrize("junk", BAD)
@pytest.mark.parametrize("name", NAMED)
def test_logits_of_one_token_that_are_no_numbers_are_not_applied(name, junk):
    learner, batch = real(name)
    before = learner.models.weights_sum()

    def spoilt(_, __, logits):
        return put(logits, 0, slice(None), junk) if torch.is_grad_enabled() else logits

    hook = learner.models.model.get_output_embeddings().register_forward_hook(spoilt)
    report = learner.update(batch)
    assert report.weights_sum == before
    assert report.metrics["non_finite/log_probs"] >= 1
    assert report.metrics["updates/count"] == 0
    hook.remove()
    assert learner.update(batch).metrics["updates/count"] == 1


@pytest.mark.parametrize("name", NAMED)
def test_a_masked_place_whose_hidden_states_are_no_numbers_changes_no_bit(name):
    found = []
    for junk in (0.0, *BAD):
        learner, batch = real(name)
        row = batch.row_ids[COUNTED]
        place = int(batch.prompt_lengths[COUNTED]) + HOLE - 1
        forward = learner.models.forward
        rows_of = []

        def remember(rows, need, forward=forward, rows_of=rows_of):
            rows_of.append(rows.row_ids)
            return forward(rows, need)

        def spoilt(_, __, out, row=row, place=place, junk=junk, rows_of=rows_of):
            if rows_of and bool((rows_of[-1] == row).any()) and torch.is_grad_enabled():
                at = int((rows_of[-1] == row).nonzero())
                junked = torch.zeros_like(out.last_hidden_state)
                junked[at, place] = junk
                out.last_hidden_state = out.last_hidden_state + junked
            return out

        learner.models.forward = remember
        learner.models.model.model.register_forward_hook(spoilt)
        report = learner.update(batch)
        found.append((report.weights_sum, losses(report), report.metrics["updates/count"]))
    assert found[1:] == found[:1] * 3
    assert found[0][2] == 1


@pytest.mark.parametrize("junk", BAD)
@pytest.mark.parametrize("name", NAMED)
def test_a_gradient_of_one_weight_that_is_no_number_is_not_applied(name, junk):
    learner, batch = real(name)
    before, state = learner.models.weights_sum(), learner.values()
    hook = learner.optimizer.parameters()[1].register_hook(lambda g: torch.full_like(g, junk))
    report = learner.update(batch)
    hook.remove()
    assert report.weights_sum == before
    assert report.metrics["non_finite/gradient"] == report.metrics["updates/non_finite"] == 1
    assert learner.values() == {**state, "step": 1}
    other, _ = real(name)
    other.step = 1
    assert learner.update(batch).weights_sum == other.update(batch).weights_sum != before


# ------------------------------------------------------------------------------------------------- in a part of a step
@pytest.mark.parametrize(
    ("name", "field"), [("ppo", "log_probs"), ("ppo", "ref_log_probs"), ("grpo", "rewards"), ("dpo", "ref_log_probs")]
)
def test_one_bad_micro_batch_of_several_spoils_its_update_and_no_other_one(name, field):
    batch = batch_of(name)
    clean = learner_of(name, micro_batch_tokens=20, minibatches=2)
    first = clean.update(batch)
    assert first.metrics["updates/count"] == 2
    learner = learner_of(name, micro_batch_tokens=20, minibatches=2)
    applied, take = [], learner.optimizer.step
    learner.optimizer.step = lambda *given: applied.append(1) or take(*given)
    bad, _ = spoil(learner, batch, field, int(batch.row_ids[COUNTED]), 0, BAD[0])
    # a reward is compared within its group, and no group is in two updates
    report = learner.update(bad)
    assert (report.metrics["updates/count"], report.metrics["updates/non_finite"]) == (1, 1)
    assert len(applied) == 1
    for figure in ("loss/total", "grad_norm/total", "entropy", *(("ratio/mean", "kl/update") * (name != "dpo"))):
        assert figure in report.metrics, f"{figure} is lost with the update that was left out"
    assert report.weights_sum not in (first.weights_sum, table_model.learner(name).models.weights_sum())


def test_no_figure_of_an_update_that_is_left_out_is_in_those_of_the_step():
    """Whether it is left out before anything was seen of it or after all of it."""
    batch, found = batch_of("ppo"), []
    for field in ("ref_log_probs", "gradient"):
        learner = learner_of("ppo", minibatches=2, micro_batch_tokens=20)
        calls, bad = [], batch
        if field == "gradient":

            def once(gradient, calls=calls):
                calls.append(1)
                return torch.full_like(gradient, float("nan")) if len(calls) == 1 else gradient

            learner.optimizer.parameters()[0].register_hook(once)
        else:
            first = batch_rows_of_the_first_update(learner, batch)
            row = next(r for r in first if bool(batch.loss_mask[r, 0]))
            bad, _ = spoil(learner, batch, field, int(batch.row_ids[row]), 0, BAD[0])
        metrics = learner.update(bad).metrics
        assert (metrics["updates/count"], metrics["updates/non_finite"]) == (1, 1)
        kept = ("entropy", "ratio/", "kl/", "loss/", "grad_norm/total", "clip_fraction/", "coefficient/")
        found.append({n: v for n, v in metrics.items() if n.startswith(kept)})
    assert found[0] == found[1]
    assert "entropy" in found[0]


def batch_rows_of_the_first_update(learner, batch):
    return batches.minibatches(batch.group_ids, 2, seed=learner.train.seed, step=1, epoch=0)[0].tolist()


def test_figures_of_an_update_that_is_left_out_do_not_reach_the_kl_controller():
    """The reference is spoilt in one of two updates: the controller goes by the other one alone."""
    name, batch = "grpo", batch_of("grpo")
    learner = learner_of(name, minibatches=2)
    before = learner.controller.coef
    bad, _ = spoil(learner, batch, "ref_log_probs", int(batch.row_ids[COUNTED]), 0, BAD[1])
    report = learner.update(bad)
    assert report.metrics["updates/count"] == 1
    assert torch.tensor(learner.controller.coef).isfinite()
    assert report.metrics["kl/controlled"] < 1
    assert learner.controller.coef != before


def on_two_ranks(job, rank, size):
    """Of two ranks the second one's own numbers are spoilt; then a healthy step. Run by `rank_pool`."""
    from trimtab.train.ranks import Ranks
    from trimtab.train.scaler import LossScaler

    name, field = job.split(" ")
    batch, good = batch_of(name), batch_of(name, seed=4)
    half = [rows.rows(torch.arange(4) + 4 * rank) for rows in (batch, good)]
    scaler = LossScaler(is_enabled=True) if field == "overflow" else None
    learner = learner_of(name, ranks=Ranks(), settings={"scaler": scaler})
    before, state = learner.models.weights_sum(), learner.values()
    hook, bad = None, half[0]
    if rank == 1 and field in ("gradient", "overflow"):
        hook = learner.optimizer.parameters()[0].register_hook(lambda g: torch.full_like(g, float("inf")))
    elif rank == 1:
        bad, _ = spoil(learner, half[0], field, int(half[0].row_ids[0]), 0, float("nan"))
    first = learner.update(bad)
    after = learner.values()
    if hook is not None:
        hook.remove()
    second = healed(learner).update(half[1])
    keep = ("updates/", "non_finite/", "loss", "kl/", "learning_rate")
    return {
        "moved": first.weights_sum != before,
        "state": ({**state, "step": 1}, after),
        "first": {n: v for n, v in first.metrics.items() if n.startswith(keep)},
        "second": {n: v for n, v in second.metrics.items() if n.startswith(keep)},
        "weights": second.weights_sum,
        "scaler": learner.scaler.state(),
    }


JOBS = [f"{name} {field}" for name in ("ppo", "grpo", "gspo", "dpo", "sft") for field in CELLS if has(name, field)]
JOBS += ["grpo gradient", "ppo overflow"]


def test_what_one_of_two_ranks_has_wrong_is_left_out_on_both(tmp_path):
    pool = rank_pool.Pool(2)
    try:
        found = pool.run(2, JOBS, tmp_path / "meeting", work=on_two_ranks)
    finally:
        pool.close()
    for job in JOBS:
        field = job.split(" ")[1]
        for rank in found[job]:
            assert not rank["moved"], job
            kind = "overflow" if field == "overflow" else "non_finite"
            assert rank["first"][f"updates/{kind}"] == rank["first"]["updates/skipped"] == 1, job
            assert rank["second"]["updates/count"] == 1, job
            before, after = rank["state"]
            if field == "overflow":
                assert before.pop("scaler") == {"loss_scale": 65536.0, "good_updates": 0}
                assert after.pop("scaler") == {"loss_scale": 32768.0, "good_updates": 0}
                assert rank["scaler"] == {"loss_scale": 32768.0, "good_updates": 1}
            else:
                assert rank["first"][f"non_finite/{field}"] >= 1, job
            assert before == after, job
        one, other = found[job]
        assert one["first"] == other["first"], job
        assert one["second"] == other["second"], job
        assert one["weights"] == other["weights"], job


# ---------------------------------------------------------------------------------------------- what is never written
@pytest.mark.parametrize("junk", BAD)
@pytest.mark.parametrize("kind", ["weight", "first_moment", "second_moment"])
def test_a_state_that_is_not_finite_is_refused_by_name(kind, junk):
    learner = table_model.learner("ppo")
    learner.update(batch_of("ppo"))
    assert learner.tensors()
    with torch.no_grad():
        if kind == "weight":
            learner.models.logits[5, 7] = junk
        else:
            state = learner.optimizer.adam.state[learner.models.logits]
            state["exp_avg" if kind == "first_moment" else "exp_avg_sq"][5, 7] = junk
    name = "policy.0" if kind == "weight" else f"{kind}.policy.0"
    with pytest.raises(NumericalError, match=rf"step 1 is not saved: 1 of 9,216 values of {name} are not finite"):
        learner.tensors()


def test_a_run_whose_weights_are_no_numbers_ends_without_saving_them(tmp_path, monkeypatch):
    take, calls = Optimizer.step, []

    def spoilt(self, norms, factor):
        take(self, norms, factor)
        calls.append(1)
        if len(calls) == 3:
            with torch.no_grad():
                self.parameters()[0].view(-1)[0] = float("nan")

    monkeypatch.setattr(Optimizer, "step", spoilt)
    words = ["train.minibatches=1", "data.validation=null", "observe.term_norms_every=null", "guard.max_rollbacks=0"]
    with pytest.raises(NumericalError, match="1 numbers are not finite"):
        small.train(small.write(tmp_path, "sft", steps=8), tmp_path / "run", *words)
    run = tmp_path / "run"
    assert small.failure(small.RunDirectory(run))["code"] == 3
    files = [f for f in (run / "checkpoints").rglob("*.safetensors") if not f.parent.name.startswith(".")]
    assert {f.relative_to(run / "checkpoints").parts[0] for f in files} >= {"0", "1", "2"}
    for file in files:
        assert all(bool(t.isfinite().all()) for t in load_file(file).values()), file


def test_weights_that_are_no_numbers_after_a_step_are_told_at_once():
    learner, batch = table_model.learner("grpo"), batch_of("grpo")
    take = learner.optimizer.step

    def spoilt(norms, factor):
        take(norms, factor)
        with torch.no_grad():
            learner.models.logits.fill_(float("nan"))

    learner.optimizer.step = spoilt
    figures = learner.update(batch).metrics
    assert figures["non_finite/weights"] == 1
    assert figures["non_finite/probe"] == 1
    assert "kl/update" not in figures


# ------------------------------------------------------------------------------------------------------- empty steps
@pytest.mark.parametrize("name", [*NAMED, "kto", "clip_cov"])
@pytest.mark.parametrize("minibatches", [1, 3])
def test_a_step_without_a_row_is_skipped_and_counted(name, minibatches):
    learner = learner_of(name, minibatches=minibatches, settings={"term_norms_every": 1})
    before, state = learner.models.weights_sum(), learner.values()
    report = learner.update(batch_of(name).rows(torch.zeros(0, dtype=torch.int64)))
    assert report.weights_sum == before
    assert (report.metrics["updates/skipped"], report.metrics["updates/count"]) == (1, 0)
    assert report.prompt_ids == report.completion_hashes == ()
    assert learner.values() == {**state, "step": 1}
    assert learner.update(batch_of(name)).metrics["updates/count"] >= 1


def test_a_part_that_is_mixed_in_trains_though_the_step_itself_has_no_row():
    from trimtab.train.step import Objective

    sft = algorithms.load("sft")
    learner = table_model.learner(
        "grpo", settings={"mixed": [Objective(algorithm=sft, config=sft.config(), weight=0.5)], "term_norms_every": 1}
    )
    before = learner.models.weights_sum()
    nothing = batch_of("grpo").rows(torch.zeros(0, dtype=torch.int64))
    report = learner.update(nothing, [batch_of("sft")])
    assert report.metrics["updates/count"] == 1
    assert "loss/mix/sft/nll" in report.metrics
    assert report.weights_sum != before


def test_the_page_on_numerics_has_every_cell():
    page = (Path(__file__).parents[2] / "docs" / "numerics.md").read_text()
    for field in [*CELLS, "scores", "loss", "gradient", "weights", "probe"]:
        assert f"`{field}`" in page, field
