"""Golden numbers of a float64 reference implementation: values and gradients, in float64 and float32.

`TRIMTAB_GOLDEN` names another file of the same format. Every case of a family that exists here is run; families that
are not built yet are listed in PENDING, and a case that is neither fails.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trimtab import algorithms
from trimtab.algorithms import math
from trimtab.algorithms.base import EntropyAndLoss, Kl, Shared, TokenClip
from trimtab.algorithms.grpo import GRPOConfig
from trimtab.algorithms.ppo import PPOConfig, Value
from trimtab.kernels.log_probs import token_log_probs
from trimtab.train import update
from trimtab.types import Advantages, Batch, Frozen, Policy

GOLDEN = json.loads(Path(os.environ.get("TRIMTAB_GOLDEN", Path(__file__).with_name("golden.json"))).read_text())
PENDING = {
    "reinforce_pp",
    "reinforce_pp_baseline",
    "dapo_shaping",
    "kl_controller",
    "preference",
    "kto",
    "reward_model",
}
PENDING_KINDS = {"reinforce", "gspo", "gspo_token", "gspo_segment", "cispo", "gmpo", "sapo", "clip_cov", "kl_cov"}


def is_pending(case):
    kind = case["params"].get("kind")
    return case["algo"] in PENDING or kind in PENDING_KINDS or "is_weight" in case["params"]


CASES = [case for case in GOLDEN["cases"] if not is_pending(case)]


class Inputs:
    """The arrays of a golden batch as tensors of one dtype."""

    def __init__(self, case, dtype):
        self.dtype = dtype
        self.raw = GOLDEN["batches"][case["batch"]]
        self.mask = torch.tensor(self.raw["mask"]) > 0 if "mask" in self.raw else None

    def __getitem__(self, name):
        return torch.tensor(self.raw[name], dtype=self.dtype)

    @property
    def group(self):
        return torch.tensor(self.raw["group"])

    def batch(self):
        rows, width = self.mask.shape
        return Batch(
            tokens=torch.zeros(rows, width + 1, dtype=torch.int64),
            prompt_lengths=torch.ones(rows, dtype=torch.int64),
            completion_lengths=torch.full((rows,), width),
            loss_mask=self.mask,
            group_ids=self.group,
            row_ids=torch.arange(rows),
            prompt_ids=self.group,
            rewards=self["score"],
            is_scored=torch.ones(rows, dtype=torch.bool),
            is_truncated=torch.tensor(self.raw["truncated"]) > 0,
        )

    def frozen(self):
        return Frozen(
            loss_mask=self.mask,
            old_log_probs=self["old"],
            ref_log_probs=self["ref"],
            old_values=self["old_value"],
            bootstrap_values=self["bootstrap"],
        )


def leaf(values):
    return values.clone().requires_grad_(True)


def gradient(loss, of):
    return torch.autograd.grad(loss, of, allow_unused=True)[0] if loss.requires_grad else torch.zeros_like(of)


def group_advantages(inputs, params):
    names = {"baseline": "baseline", "scale": "scale_by", "ddof": "ddof", "singleton": "singleton", "eps": "epsilon"}
    given = {names[k]: v for k, v in params.items()}
    return math.group_advantages(inputs["score"], inputs.group, **{"scale_by": "group", **given})


def run_gae(inputs, p):
    mask, old = inputs.mask, inputs.frozen()
    penalty = p["kl_coef"] * math.kl_estimate(old.old_log_probs, old.ref_log_probs, "k1") * mask
    rewards = math.terminal_rewards(inputs["score"], mask) - penalty
    values, returns = math.gae(
        rewards,
        old.old_values,
        mask,
        gamma=p["gamma"],
        lam=p["lam"],
        bootstrap_values=old.bootstrap_values if p["bootstrap"] else None,
    )
    return {
        "token_rewards": rewards,
        "advantages": values,
        "returns": returns,
        "whitened": math.whiten(values, mask, ddof=p["ddof"]),
        "explained_variance": math.explained_variance(old.old_values, returns, mask),
    }


def run_group_advantage(inputs, p):
    return {"advantages": group_advantages(inputs, p)}


def run_value(inputs, p):
    mask, values = inputs.mask, leaf(inputs["value"])
    rewards = math.terminal_rewards(inputs["score"], mask)
    _, returns = math.gae(rewards, inputs["old_value"], mask, gamma=1.0, lam=0.95)
    policy = Policy(loss_mask=mask, values=values)
    error = math.clipped_value_loss(policy.values, inputs.frozen().old_values, returns, p["clip_range"])
    weights = math.row_weights(mask, p["agg"], group_ids=inputs.group, norm_length=p.get("norm_len"))
    loss = (torch.where(mask, error, 0.0) * weights.to(inputs.dtype)[:, None]).sum()
    return {
        "returns": returns,
        "loss": loss,
        "per_token": torch.where(mask, error, 0.0),
        "grad": gradient(loss, values),
    }


def run_kl(inputs, p):
    mask, log_probs = inputs.mask, leaf(inputs["logp"])
    policy, frozen = Policy(loss_mask=mask, log_probs=log_probs), inputs.frozen()
    value = math.kl_loss(
        policy.log_probs,
        frozen.ref_log_probs,
        estimator=p["kind"],
        gradient=p["gradient"],
        old_log_probs=frozen.old_log_probs,
    )
    weights = math.row_weights(mask, p["agg"], group_ids=inputs.group, norm_length=p.get("norm_len"))
    loss = (torch.where(mask, value, 0.0) * weights.to(inputs.dtype)[:, None]).sum()
    return {"per_token": torch.where(mask, value, 0.0), "loss": loss, "grad": gradient(loss, log_probs)}


def run_aggregate(inputs, p):
    mask = inputs.mask
    values = torch.where(mask, inputs["adv_token"], 0.0)
    weights = math.row_weights(mask, p["agg"], group_ids=inputs.group, norm_length=p["norm_len"]).to(inputs.dtype)
    rows = (values * weights[:, None]).sum(1)
    ranks = p["ranks"]
    micro = [
        [float(rows[cut].sum()) * len(ranks) * (len(cuts) if p["engine_divides"] else 1) for cut in cuts]
        for cuts in ranks
    ]
    shares = [sum(m) / (len(m) if p["engine_divides"] else 1) for m in micro]
    return {"full": rows.sum(), "sharded": sum(shares) / len(ranks), "micro": micro}


def run_policy(inputs, p):
    algorithm = algorithms.load("grpo")
    loss_of_all = EntropyAndLoss(aggregation=p["agg"], norm_length=p.get("norm_len"))
    kl = Kl(coef=p.get("kl_coef", 0.0), estimator=p.get("kl_kind", "k3"), gradient=p.get("kl_gradient", "direct"))
    clip = TokenClip(clip_low=p["eps_low"], clip_high=p["eps_high"], dual_clip=p.get("dual_clip"))
    config = GRPOConfig(policy=clip, shared=Shared(policy=loss_of_all, kl=kl))
    batch, frozen, log_probs = inputs.batch(), inputs.frozen(), leaf(inputs["logp"])
    mask = batch.loss_mask
    values = (
        inputs["adv_token"]
        if p["advantage"] is None
        else math.per_token(group_advantages(inputs, p["advantage"]), mask)
    )
    advantages = Advantages(loss_mask=mask, values=values)
    policy = Policy(loss_mask=mask, log_probs=log_probs)
    weights = update.weigh(algorithm, config, batch, frozen, advantages)
    total, parts, _ = update.loss_of(algorithm, config, batch, frozen, advantages, policy, weights)
    per_token = algorithm.terms(batch, frozen, advantages, policy, config)["policy"].values
    found = {
        "loss": total,
        "per_token": torch.where(mask, per_token, 0.0),
        "grad": gradient(total, log_probs),
        **({"policy": parts["policy"], "kl": parts["kl"]} if "kl" in parts else {}),
    }
    shares = algorithm.metrics(batch, frozen, advantages, policy, config)
    golden = {"clip_fraction/low": "clip_low", "clip_fraction/high": "clip_high", "clip_fraction/dual": "clip_dual"}
    found["metrics"] = {golden[n]: float(s.total) / max(float(s.count), 1.0) for n, s in shares.items()}
    return found


def run_ppo_total(inputs, p):
    algorithm = algorithms.load("ppo")
    config = PPOConfig(
        policy=TokenClip(clip_low=p["eps_low"], clip_high=p["eps_high"], dual_clip=p["dual_clip"]),
        value=Value(coef=p["c_v"], clip_ratio=p["value_clip"]),
        shared=Shared(
            policy=EntropyAndLoss(entropy_coef=p["c_e"], aggregation=p["agg"]),
            kl=Kl(coef=p["beta"], estimator="k3", gradient="direct"),
        ),
    )
    config = replace(config, advantage=replace(config.advantage, ddof=0, bootstrap_truncated=False))
    batch, frozen = inputs.batch(), inputs.frozen()
    leaves = {"log_probs": leaf(inputs["logp"]), "values": leaf(inputs["value"]), "entropy": leaf(inputs["entropy"])}
    advantages = algorithm.advantages(batch, frozen, config)
    policy = Policy(loss_mask=batch.loss_mask, **leaves)
    weights = update.weigh(algorithm, config, batch, frozen, advantages)
    total, parts, _ = update.loss_of(algorithm, config, batch, frozen, advantages, policy, weights)
    grads = torch.autograd.grad(total, list(leaves.values()))
    return {
        **{name: parts[name] for name in ("policy", "value", "entropy", "kl")},
        "loss": total,
        **dict(zip(("grad_logp", "grad_value", "grad_entropy"), grads, strict=True)),
    }


def run_logits(inputs, p):
    logits, labels = inputs["logits"], torch.tensor(inputs.raw["label_ids"])
    flat, targets = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    found, _ = token_log_probs(flat, lambda x: x, targets, vocabulary=flat.shape[-1], temperature=p["temperature"])
    source = leaf(flat)
    _, entropy = token_log_probs(
        source, lambda x: x, targets, vocabulary=flat.shape[-1], temperature=1.0, entropy_with_gradient=True
    )
    return {
        "logp": found.reshape(labels.shape),
        "entropy": entropy.reshape(labels.shape),
        "grad_mean_entropy": gradient(entropy.mean(), source).reshape(logits.shape),
    }


RUN = {
    "gae": run_gae,
    "group_advantage": run_group_advantage,
    "value": run_value,
    "kl": run_kl,
    "aggregate": run_aggregate,
    "policy": run_policy,
    "ppo_total": run_ppo_total,
    "logits": run_logits,
}
NOT_PRODUCED = {"js", "kl_pq", "kl_qp", "clip_any", "ratio_mean", "kl_k1", "kl_k2", "kl_k3"}
"""Metrics of the reference that the public layer has no function for yet."""


def compare(expected, got, tolerance, where):
    if isinstance(expected, dict):
        for name, value in expected.items():
            if name in NOT_PRODUCED:
                continue
            assert name in got, f"{where}: no {name}"
            compare(value, got[name], tolerance, f"{where}.{name}")
        return
    if expected is None:
        assert got is None, f"{where}: expected none, got {got}"
        return
    if isinstance(expected, list) and expected and isinstance(expected[0], list) and len({*map(len, expected)}) > 1:
        for number, (a, b) in enumerate(zip(expected, got, strict=True)):
            compare(a, b, tolerance, f"{where}[{number}]")
        return
    wanted = torch.tensor(expected, dtype=torch.float64)
    found = got.detach().double() if isinstance(got, torch.Tensor) else torch.tensor(got, dtype=torch.float64)
    worst = float(((found - wanted).abs() / wanted.abs().clamp_min(1)).max()) if wanted.numel() else 0.0
    assert found.shape == wanted.shape
    assert worst <= tolerance, f"{where}: differs by {worst:g}"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case, dtype):
    got = RUN[case["algo"]](Inputs(case, dtype), case["params"])
    compare(case["expect"], got, GOLDEN["tolerance"][str(dtype).removeprefix("torch.")], case["id"])


def test_every_family_is_run_or_pending():
    assert {case["algo"] for case in GOLDEN["cases"]} <= {*RUN, *PENDING}
    assert len(CASES) > 100
