"""Golden numbers of a float64 reference implementation: values and gradients, in float64 and float32.

`TRIMTAB_GOLDEN` names another file of the same format. Every case of every family is run.
"""

import json
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from trimtab import algorithms
from trimtab.algorithms import (
    base,
    cispo,
    clip_cov,
    cpo,
    credit,
    dpo,
    gmpo,
    gspo,
    ipo,
    kto,
    math,
    orpo,
    reward_model,
    sapo,
    simpo,
)
from trimtab.algorithms import pairs as paired
from trimtab.algorithms.base import EntropyAndLoss, Kl, Mismatch, Shared, TokenClip
from trimtab.algorithms.grpo import GRPOConfig
from trimtab.algorithms.ppo import PPOConfig, Value
from trimtab.kernels.log_probs import token_log_probs
from trimtab.train import update
from trimtab.train.controller import KlController
from trimtab.types import Advantages, Batch, Frozen, Policy

GOLDEN = json.loads(Path(os.environ.get("TRIMTAB_GOLDEN", Path(__file__).with_name("golden.json"))).read_text())
CASES = GOLDEN["cases"]
MARK = 7
"""The token that ends a segment."""


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

    def segment_ends(self, segment):
        """True where a token is the last of its segment, for the marks and the labels of the reference."""
        if segment["by"] == "marks":
            return torch.tensor(self.raw["segment_end"]) > 0
        labels, ends = torch.tensor(self.raw["segment_id"]), torch.zeros_like(self.mask)
        for row, mask in enumerate(self.mask):
            places = mask.nonzero().flatten().tolist()
            for before, after in pairwise(places):
                ends[row, before] = bool(labels[row, before] != labels[row, after])
        return ends

    def batch(self, segment=None):
        rows, width = self.mask.shape
        tokens = torch.zeros(rows, width + 1, dtype=torch.int64)
        if segment is not None and segment["by"] != "length":
            tokens[:, 1:] = torch.where(self.segment_ends(segment), MARK, 0)
        return Batch(
            tokens=tokens,
            prompt_lengths=torch.ones(rows, dtype=torch.int64),
            completion_lengths=torch.full((rows,), width),
            loss_mask=self.mask,
            group_ids=self.group,
            row_ids=torch.arange(rows),
            prompt_ids=self.group,
            rewards=self["score"],
            is_scored=torch.ones(rows, dtype=torch.bool),
            is_truncated=torch.tensor(self.raw["truncated"]) > 0,
            rollout_log_probs=self["rollout"] if "rollout" in self.raw else None,
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
    return credit.group_advantages(inputs["score"], inputs.group, **{"scale_by": "group", **given})


def run_gae(inputs, p):
    mask, old = inputs.mask, inputs.frozen()
    penalty = p["kl_coef"] * math.kl_estimate(old.old_log_probs, old.ref_log_probs, "k1") * mask
    rewards = credit.terminal_rewards(inputs["score"], mask) - penalty
    values, returns = credit.gae(
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
        "whitened": credit.whiten(values, mask, ddof=p["ddof"]),
        "explained_variance": credit.explained_variance(old.old_values, returns, mask),
    }


def run_group_advantage(inputs, p):
    return {"advantages": group_advantages(inputs, p)}


def run_value(inputs, p):
    mask, values = inputs.mask, leaf(inputs["value"])
    rewards = credit.terminal_rewards(inputs["score"], mask)
    _, returns = credit.gae(rewards, inputs["old_value"], mask, gamma=1.0, lam=0.95)
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
    return {
        "per_token": torch.where(mask, value, 0.0),
        "loss": loss,
        "grad": gradient(loss, log_probs),
        "js": math.masked_mean(math.js_estimate(policy.log_probs.detach(), frozen.ref_log_probs), mask),
    }


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


def policy_section(p):
    """The `policy` section's part of the algorithm that a case is of."""
    kind = p["kind"]
    bounds = {"clip_low": p.get("eps_low"), "clip_high": p.get("eps_high")}
    if kind in ("ppo", "gspo", "gspo_token", "gspo_segment"):
        bounds["dual_clip"] = p.get("dual_clip")
    if kind == "ppo":
        return TokenClip(**bounds)
    if kind in ("gspo", "gspo_token"):
        return gspo.SequenceClip(**bounds)
    if kind == "gspo_segment":
        segment = p["segment"]
        by = {"length": segment["length"]} if segment["by"] == "length" else {"end_marks": (MARK,)}
        return gspo.SegmentClip(**bounds, segment=gspo.Segment(**by))
    if kind == "cispo":
        return cispo.WeightClip(**bounds)
    if kind == "gmpo":
        return gmpo.LogClip(**bounds)
    if kind == "sapo":
        return sapo.Gate(tau_positive=p["tau_pos"], tau_negative=p["tau_neg"])
    if kind == "clip_cov":
        return clip_cov.CovarianceClip(**bounds)
    if kind == "kl_cov":
        return clip_cov.CovariancePenalty(cov_share=p["cov_ratio"], cov_coef=p["cov_coef"])
    return None


def mismatch_section(p):
    weight = p.get("is_weight")
    if weight is None:
        return Mismatch()
    level = weight.get("level", "token")
    mode = "geometric_mask" if level == "geometric" else weight.get("mode", "truncate")
    level = "token" if level == "geometric" else level
    return Mismatch(mode=mode, level=level, low=weight.get("lo"), high=weight.get("hi", 2.0))


def run_policy(inputs, p):
    name = {"ppo": "grpo"}.get(p["kind"], p["kind"])
    algorithm = algorithms.load(name)
    default = algorithm.config()
    aggregation = p.get("agg") or default.shared.policy.aggregation
    kl = Kl(coef=p.get("kl_coef", 0.0), estimator=p.get("kl_kind", "k3"), gradient=p.get("kl_gradient", "direct"))
    clamp = p.get("log_ratio_clamp", 20.0)
    loss_of_all = EntropyAndLoss(aggregation=aggregation, norm_length=p.get("norm_len"), log_ratio_clamp=clamp)
    config = replace(default, shared=Shared(policy=loss_of_all, kl=kl, mismatch=mismatch_section(p)))
    if (section := policy_section(p)) is not None:
        config = replace(config, policy=section)
    batch, frozen, log_probs = inputs.batch(p.get("segment")), inputs.frozen(), leaf(inputs["logp"])
    mask = batch.loss_mask
    values = (
        inputs["adv_token"]
        if p["advantage"] is None
        else math.per_token(group_advantages(inputs, p["advantage"]), mask)
    )
    advantages = Advantages(loss_mask=mask, values=values)
    policy = Policy(loss_mask=mask, log_probs=log_probs)
    if p["kind"] == "clip_cov":  # which tokens are dropped is the case's, since it is random
        frozen = replace(frozen, picked=torch.tensor(p["drop"]) > 0)
    else:
        now = Policy(loss_mask=mask, log_probs=log_probs.detach())
        frozen = update.with_statistics(algorithm, config, batch, frozen, advantages, now)
    weights = update.weigh(algorithm, config, batch, frozen, advantages)
    total, parts, _ = update.loss_of(algorithm, config, batch, frozen, advantages, policy, weights)
    per_token = algorithm.terms(batch, frozen, advantages, policy, config)["policy"].values
    found = {
        "loss": total,
        "per_token": torch.where(mask, per_token, 0.0),
        "grad": gradient(total, log_probs),
        **({"policy": parts["policy"], "kl": parts["kl"]} if "kl" in parts else {}),
        "metrics": policy_metrics(algorithm, config, batch, frozen, advantages, policy, p),
    }
    if "segment" in p:
        found["segment_ids"] = gspo.segments_of(batch, config.policy.segment)
    if "is_weight" in p:
        found["weight"] = base.mismatch_weights(batch, frozen, config.shared)
        found["ess"] = math.effective_sample_size(found["weight"], mask)
    return found


def policy_metrics(algorithm, config, batch, frozen, advantages, policy, p):
    """Shares of clipped tokens, and the ratio's mean and KL at the level of the algorithm's ratio."""
    mask, kind = batch.loss_mask, p["kind"]
    on_ratio = algorithm.ratio is not None and kind != "gmpo"
    ratio = (
        algorithm.ratio(batch, frozen, policy, config) if on_ratio else base.token_ratio(frozen, policy, Shared())
    ).detach()
    values = advantages.values
    if kind == "gspo_segment":
        values = math.segment_mean(values, gspo.segments_of(batch, config.policy.segment))
    if kind in ("ppo", "gspo", "gspo_segment"):
        shares = algorithm.metrics(batch, frozen, advantages, policy, config)
    else:  # the reference gives the shares that a token clip would have had; not all of these have one
        low, high = p.get("eps_low") or 0.2, p.get("eps_high") or 0.2
        shares = math.clip_metrics(ratio, values, mask, low, high, p.get("dual_clip"))
    found = {
        "clip_" + name.split("/")[1]: float(s.total) / max(float(s.count), 1.0)
        for name, s in shares.items()
        if name.startswith("clip_fraction")
    }
    moved = torch.where(mask, ratio.log(), 0.0)
    return {
        **found,
        "clip_any": found["clip_low"] + found["clip_high"],
        "ratio_mean": math.masked_mean(ratio, mask),
        **{
            f"kl_{k}": math.masked_mean(math.kl_estimate(-moved, torch.zeros_like(moved), k), mask)
            for k in ("k1", "k2", "k3")
        },
    }


def run_reinforce_pp(inputs, p):
    algorithm = algorithms.load("reinforce_pp")
    default = algorithm.config()
    kl = Kl(where="reward", coef=p["kl_coef"], estimator="k1")
    config = replace(
        default, advantage=replace(default.advantage, gamma=p["gamma"], ddof=p["ddof"]), shared=Shared(kl=kl)
    )
    plain = replace(config, advantage=replace(config.advantage, whiten=False))
    batch, frozen = inputs.batch(), inputs.frozen()
    return {
        "advantages": algorithm.advantages(batch, frozen, config).values,
        "returns": algorithm.advantages(batch, frozen, plain).values,
    }


def run_reinforce_pp_baseline(inputs, p):
    algorithm = algorithms.load("reinforce_pp_baseline")
    default = algorithm.config()
    config = replace(default, advantage=replace(default.advantage, ddof=p["ddof"]))
    return {"advantages": algorithm.advantages(inputs.batch(), inputs.frozen(), config).values}


def run_dapo_shaping(inputs, p):
    batch = inputs.batch()
    keep = credit.groups_with_spread(batch.rewards, batch.group_ids)
    if p.get("lo") is not None:
        means = torch.stack([batch.rewards[batch.group_ids == g].mean() for g in batch.group_ids])
        keep = keep & (means > p["lo"]) & (means < p["hi"])
    lengths = inputs.mask.sum(1).to(inputs.dtype)
    penalty = credit.overlong_penalty(lengths, p["max_len"], p["buffer_len"], p["factor"])
    return {"penalty": penalty, "keep": keep.long()}


def run_kl_controller(inputs, p):
    found = {}
    for rule, name in (("adaptive", "adaptive"), ("penalty", "ppo_penalty")):
        kl = Kl(coef=p["beta"], controller=rule, controller_target=p["target"], controller_horizon=p["horizon"])
        controller = KlController(GRPOConfig(shared=Shared(kl=kl)))
        found[name] = []
        for observed in p["observed"]:
            controller.advance(observed, samples=p["n_steps"])
            found[name].append(controller.coef)
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
    exact = math.divergences(logits, inputs["ref_logits"])
    return {
        "kl_pq": exact["kl"],
        "kl_qp": exact["reverse_kl"],
        "js": exact["js"],
        "logp": found.reshape(labels.shape),
        "entropy": entropy.reshape(labels.shape),
        "grad_mean_entropy": gradient(entropy.mean(), source).reshape(logits.shape),
    }


def rows_of(masks, **fields):
    """A batch of rows that are read, one block below the other."""
    mask = torch.cat(masks)
    rows, width = mask.shape
    return Batch(
        tokens=torch.zeros(rows, width + 1, dtype=torch.int64),
        prompt_lengths=torch.ones(rows, dtype=torch.int64),
        completion_lengths=torch.full((rows,), width),
        loss_mask=mask,
        row_ids=torch.arange(rows),
        prompt_ids=torch.arange(rows),
        rewards=torch.zeros(rows, dtype=torch.float64),
        is_scored=torch.zeros(rows, dtype=torch.bool),
        is_truncated=torch.zeros(rows, dtype=torch.bool),
        **fields,
    )


def pairs_of(inputs):
    masks = [torch.tensor(inputs.raw[f"{side}_mask"]) > 0 for side in ("chosen", "rejected")]
    ids = torch.arange(len(masks[0]))
    return rows_of(
        masks,
        group_ids=ids.repeat(2),
        pair_ids=ids.repeat(2),
        is_chosen=torch.arange(2 * len(ids)) < len(ids),
        margins=inputs["margin"].repeat(2),
    )


def of_rows(algorithm, config, batch, frozen, policy):
    advantages = algorithm.advantages(batch, frozen, config)
    frozen = update.with_statistics(algorithm, config, batch, frozen, advantages, policy)
    weights = update.weigh(algorithm, config, batch, frozen, advantages)
    total, _, _ = update.loss_of(algorithm, config, batch, frozen, advantages, policy, weights)
    terms = algorithm.terms(batch, frozen, advantages, policy, config)
    shares = algorithm.metrics(batch, frozen, advantages, policy, config)
    means = {name: float(s.total) / float(s.count) if float(s.count) else None for name, s in shares.items()}
    return total, terms, means


def preference_algorithm(p):
    """The algorithm of a case and its config."""
    kind, beta = p["kind"], p["beta"]
    given = {"beta": beta, "nll_coef": p.get("sft_coef", 0.0)}
    if kind not in ("ipo", "ipo_sum", "orpo"):
        given["label_smoothing"] = p.get("label_smoothing", 0.0)
    if kind == "orpo":
        given["nll_coef"] = p.get("sft_coef", 0.0) or 1.0
        return orpo.ALGORITHM, orpo.ORPOConfig(preference=orpo.Preference(**given))
    if kind in ("ipo", "ipo_sum"):
        return ipo.ALGORITHM, ipo.IPOConfig(preference=ipo.Preference(**given, average=kind == "ipo"))
    if kind == "simpo":
        own = simpo.Preference(**given, margin=p.get("gamma", 0.5))
        return simpo.ALGORITHM, simpo.SimPOConfig(preference=own)
    if kind == "cpo":
        return cpo.ALGORITHM, cpo.CPOConfig(preference=cpo.Preference(**given))
    found = {"sigmoid": dpo.ALGORITHM, "robust": dpo.ROBUST_DPO, "hinge": dpo.HINGE, "sigmoid_norm": dpo.DPO_NORM}
    return found[kind], dpo.DPOConfig(preference=dpo.Preference(**given, average=kind == "sigmoid_norm"))


def run_preference(inputs, p):
    algorithm, config = preference_algorithm({"kind": "sigmoid", **p})
    batch = pairs_of(inputs)
    log_probs = leaf(torch.cat([inputs["chosen"], inputs["rejected"]]))
    frozen = Frozen(loss_mask=batch.loss_mask, ref_log_probs=torch.cat([inputs["ref_chosen"], inputs["ref_rejected"]]))
    policy = Policy(loss_mask=batch.loss_mask, log_probs=log_probs)
    total, terms, means = of_rows(algorithm, config, batch, frozen, policy)
    own, half = terms["preference"], len(batch) // 2
    grad = gradient(total, log_probs)
    return {
        "loss": total,
        "per_pair": own.coefficient * torch.where(own.over, own.values, 0.0)[:half],
        "grad_chosen": grad[:half],
        "grad_rejected": grad[half:],
        "accuracy": means["preference/accuracy"],
        "margin": means["preference/margin"],
    }


def run_kto(inputs, p):
    config = kto.KTOConfig(
        preference=kto.Preference(
            beta=p["beta"], desirable_weight=p["w_desirable"], undesirable_weight=p["w_undesirable"]
        )
    )
    mask, other = torch.tensor(inputs.raw["chosen_mask"]) > 0, torch.tensor(inputs.raw["kl_mask"]) > 0
    batch = rows_of([mask], group_ids=torch.arange(len(mask)), is_chosen=torch.tensor(inputs.raw["label"]) > 0)
    moved = torch.where(other, inputs["kl"], 0.0).sum(1) - torch.where(other, inputs["kl_ref"], 0.0).sum(1)
    moved = torch.where(other.any(1), moved, torch.nan)
    frozen = Frozen(loss_mask=mask, ref_log_probs=inputs["ref_chosen"], mismatched_log_ratios=moved)
    log_probs = leaf(inputs["chosen"])
    policy = Policy(loss_mask=mask, log_probs=log_probs)
    total, terms, means = of_rows(kto.ALGORITHM, config, batch, frozen, policy)
    own = terms["preference"]
    return {
        "loss": total,
        "per_example": torch.where(own.over, own.values, 0.0),
        "z0": means["kto/z0"],
        "grad": gradient(total, log_probs),
    }


def run_reward_model(inputs, p):
    margin = None if p["use_margin"] else 0.0
    config = reward_model.RewardModelConfig(
        preference=reward_model.Preference(margin=margin, center=p.get("center", 0.0))
    )
    count = len(inputs.raw["score_chosen"])
    mask, ids = torch.ones(2 * count, 1, dtype=torch.bool), torch.arange(count)
    batch = rows_of(
        [mask],
        group_ids=ids.repeat(2),
        pair_ids=ids.repeat(2),
        is_chosen=torch.arange(2 * count) < count,
        margins=inputs["margin"].repeat(2),
    )
    scores = leaf(torch.cat([inputs["score_chosen"], inputs["score_rejected"]]))
    policy = Policy(loss_mask=mask, scores=scores)
    total, terms, means = of_rows(reward_model.ALGORITHM, config, batch, Frozen(loss_mask=mask), policy)
    grad, chosen, rejected = gradient(total, scores), scores[:count].detach(), scores[count:].detach()
    return {
        "loss": total,
        "per_pair": terms["preference"].values[:count],
        "grad_chosen": grad[:count],
        "grad_rejected": grad[count:],
        "accuracy": means["reward_model/accuracy"],
        "accuracy_strict": float((chosen > rejected).double().mean()),
        "margin": means["preference/margin"],
        "auc": paired.auc(chosen, rejected),
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
    "reinforce_pp": run_reinforce_pp,
    "reinforce_pp_baseline": run_reinforce_pp_baseline,
    "dapo_shaping": run_dapo_shaping,
    "kl_controller": run_kl_controller,
    "preference": run_preference,
    "kto": run_kto,
    "reward_model": run_reward_model,
}


def compare(expected, got, tolerance, where):
    if isinstance(expected, dict):
        for name, value in expected.items():
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


def test_every_family_is_run():
    assert {case["algo"] for case in GOLDEN["cases"]} == {*RUN}
    assert len(CASES) > 340
