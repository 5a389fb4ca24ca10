"""What every algorithm must do. `trimtab algorithms NAME --test` runs it on a plug-in.

Each check takes the algorithm and a seed, and raises AssertionError with what it saw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm
from trimtab.errors import UnmetNeedError
from trimtab.testing import cases
from trimtab.train import update
from trimtab.types import Need

TOLERANCE = 1e-6
"""Relative to max(1, |expected|), float32."""
CUTS: tuple[list[list[int]], ...] = (
    [[0, 1, 2, 3], [4, 5, 6, 7]],
    [[0, 4], [1, 5], [2, 6], [3, 7]],
    [[7], [6, 5], [], [4, 0], [1, 2, 3]],
    [[row] for row in range(8)],
)
"""Rows of the micro-batches that an update is cut into."""
PAIR_CUTS: tuple[list[list[int]], ...] = (
    [[0, 1, 2, 3], [4, 5, 6, 7]],
    [[7, 6], [], [5, 0, 4, 1], [3, 2]],
    [[row, row + 1] for row in range(0, 8, 2)],
)
"""The rows of a pair stay together."""


def _case(algorithm: Algorithm, seed: int) -> cases.Case:
    """Rows of the kind that the algorithm learns from."""
    return cases.make(seed, need=algorithm.needs(rich_config(algorithm)))


def gradient_does_not_depend_on_the_micro_batches(algorithm: Algorithm, seed: int = 0) -> None:
    case, config = _case(algorithm, seed), rich_config(algorithm)
    whole = cases.evaluate(algorithm, config, case)
    for cuts in PAIR_CUTS if Need.PAIRS in algorithm.needs(config) else CUTS:
        _same(whole, cases.evaluate(algorithm, config, case, cuts), f"cut into {cuts}")


def gradient_does_not_depend_on_padding(algorithm: Algorithm, seed: int = 0) -> None:
    case, config = _case(algorithm, seed), rich_config(algorithm)
    whole, wide = cases.evaluate(algorithm, config, case), cases.evaluate(algorithm, config, cases.padded(case, 5))
    cut = {n: g[:, : case.batch.loss_mask.shape[1]] if g.ndim == 2 else g for n, g in wide.gradients.items()}
    _same(whole, replace(wide, gradients=cut), "padded by 5")


def gradient_does_not_depend_on_the_order_of_rows(algorithm: Algorithm, seed: int = 0) -> None:
    case, config = _case(algorithm, seed), rich_config(algorithm)
    order = torch.randperm(len(case.batch), generator=torch.Generator().manual_seed(seed + 1)).tolist()
    moved = cases.evaluate(algorithm, config, cases.reordered(case, order))
    back = torch.argsort(torch.tensor(order))
    _same(
        cases.evaluate(algorithm, config, case),
        replace(moved, gradients={n: g[back] for n, g in moved.gradients.items()}),
        f"rows in the order {order}",
    )


def gradient_does_not_depend_on_the_names_of_groups(algorithm: Algorithm, seed: int = 0) -> None:
    case, config = _case(algorithm, seed), rich_config(algorithm)
    pairs = case.batch.pair_ids
    renamed = replace(
        case.batch, group_ids=1000 - 7 * case.batch.group_ids, pair_ids=None if pairs is None else 1000 - 7 * pairs
    )
    _same(
        cases.evaluate(algorithm, config, case),
        cases.evaluate(algorithm, config, replace(case, batch=renamed)),
        "groups of other names",
    )


def gradient_does_not_depend_on_the_type_of_the_rewards(algorithm: Algorithm, seed: int = 0) -> None:
    """Right or wrong, as a number of any type or as a truth value: statistics are never made in two bytes."""
    config = rich_config(algorithm)
    if Need.ROLLOUTS not in algorithm.needs(config):
        return
    case = cases.make(seed)
    is_right = case.batch.rewards > 0
    found = {
        dtype: cases.evaluate(algorithm, config, replace(case, batch=replace(case.batch, rewards=is_right.to(dtype))))
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool)
    }
    for dtype, result in found.items():
        _same(found[torch.float64], result, f"rewards of type {dtype}")


def a_constant_added_to_all_rewards_moves_all_advantages_alike(algorithm: Algorithm, seed: int = 0) -> None:
    """Not at all where completions are compared with each other, or with a critic that has learned the constant."""
    config, constant = plain_config(algorithm), 1.0
    if Need.ROLLOUTS not in algorithm.needs(config):
        return
    case = cases.make(seed)
    batch, parts, values = case.batch, case.batch.reward_parts, case.frozen.old_values
    assert parts is not None
    assert values is not None
    higher = torch.cat([parts[:, :1] + constant, parts[:, 1:]], 1)
    raised = replace(
        case,
        batch=replace(batch, rewards=batch.rewards.double() + constant, reward_parts=higher),
        frozen=replace(case.frozen, old_values=values + constant),
    )
    before, after = (cases.advantages_of(algorithm, config, c).values.double() for c in (case, raised))
    moved = (after - before)[batch.loss_mask]
    tolerance = 10 * TOLERANCE * max(1.0, float(before.abs().max()))
    spread = float(moved.max() - moved.min())
    assert spread <= tolerance, f"rewards {constant:g} higher moved some advantages by {spread:g} more than others"
    if algorithm.needs(config) & (Need.GROUPS | Need.VALUES):
        worst = float(moved.abs().max())
        assert worst <= tolerance, f"rewards {constant:g} higher moved advantages by {worst:g}"


def junk_in_masked_places_changes_no_bit(algorithm: Algorithm, seed: int = 0) -> None:
    case, config = _case(algorithm, seed), rich_config(algorithm)
    clean, dirty = cases.evaluate(algorithm, config, case), cases.evaluate(algorithm, config, cases.padded(case, 0))
    assert clean.loss == dirty.loss, f"loss {clean.loss} became {dirty.loss}"
    for name, gradient in clean.gradients.items():
        assert torch.equal(gradient, dirty.gradients[name]), f"the gradient of {name} changed"


def a_masked_token_gets_no_gradient(algorithm: Algorithm, seed: int = 0) -> None:
    case, config = _case(algorithm, seed), rich_config(algorithm)
    off = ~case.batch.loss_mask
    for name, gradient in cases.evaluate(algorithm, config, case).gradients.items():
        if gradient.ndim == 2:
            assert not bool(gradient[off].any()), f"{name} has a gradient where loss_mask is False"


def equal_rewards_give_a_finite_loss(algorithm: Algorithm, seed: int = 0) -> None:
    result = cases.evaluate(algorithm, plain_config(algorithm), cases.equal_rewards(_case(algorithm, seed)))
    _finite(result)


def a_group_without_spread_gets_exactly_zero(algorithm: Algorithm, seed: int = 0) -> None:
    config = plain_config(algorithm)
    if Need.GROUPS not in algorithm.needs(config):
        return
    case = cases.equal_rewards(cases.make(seed), 0.1)
    values = cases.advantages_of(algorithm, config, case).values
    assert not bool(values.any()), f"equal rewards gave advantages up to {float(values.abs().max()):g}"


def nothing_to_learn_from_is_no_fault(algorithm: Algorithm, seed: int = 0) -> None:
    case, config = _case(algorithm, seed), rich_config(algorithm)
    nothing = torch.zeros_like(case.batch.loss_mask)
    empty = cases.Case(
        batch=replace(case.batch, loss_mask=nothing),
        frozen=replace(case.frozen, loss_mask=nothing),
        policy=replace(case.policy, loss_mask=nothing),
    )
    result = cases.evaluate(algorithm, config, empty)
    _finite(result)
    assert result.loss == 0.0, f"a loss of {result.loss} from no token"


def at_ratio_one_the_gradient_is_the_plain_policy_gradient(algorithm: Algorithm, seed: int = 0) -> None:
    config = plain_config(algorithm)
    if Need.ROLLOUTS not in algorithm.needs(config):
        return
    case = cases.make(seed, ratio_one=True)
    advantages = cases.advantages_of(algorithm, config, case).values
    gradient = cases.evaluate(algorithm, config, case).gradients["log_probs"]
    scale = gradient / torch.where(advantages == 0, torch.ones(()), -advantages)
    counted = case.batch.loss_mask & (advantages != 0) & ~_left_out(algorithm, config, case)
    for row in range(len(case.batch)):
        along = scale[row][counted[row]]
        if len(along):
            assert bool((along > 0).all()), f"row {row}: a token's gradient does not point along -advantage"
            spread = float(along.max() - along.min())
            assert spread <= TOLERANCE, f"row {row}: tokens of equal advantage get unequal weight ({spread:g})"


def _left_out(algorithm: Algorithm, config: Any, case: cases.Case) -> Tensor:
    """[B, T] bool, tokens that the algorithm has picked over the whole update to have no loss."""
    advantages = cases.advantages_of(algorithm, config, case)
    frozen = update.with_statistics(algorithm, config, case.batch, case.frozen, advantages, case.policy)
    gradient = cases.evaluate(algorithm, config, case).gradients["log_probs"]
    nowhere = torch.zeros_like(case.batch.loss_mask)
    return nowhere if frozen.picked is None else frozen.picked & (gradient == 0)


def a_coefficient_of_zero_removes_its_term_and_need(algorithm: Algorithm, seed: int = 0) -> None:
    case = _case(algorithm, seed)
    default = plain_config(algorithm)
    default = with_value(default, "kl", "where", "loss") or default
    for section, key, term, need in (
        ("kl", "coef", "kl", Need.REFERENCE),
        ("policy", "entropy_coef", "entropy", Need.ENTROPY),
        ("preference", "nll_coef", "nll", Need.NONE),
        ("preference", "center", "center", Need.NONE),
    ):
        on = with_value(default, section, key, 0.3)
        if on is None:
            continue
        off = with_value(on, section, key, 0.0)
        assert need in algorithm.needs(on), f"{section}.{key} 0.3 does not need {need.name}"
        assert not need & algorithm.needs(off), f"{section}.{key} 0 still needs {need.name}"
        assert term in cases.evaluate(algorithm, on, case).terms, f"{section}.{key} 0.3 adds no term `{term}`"
        assert term not in cases.evaluate(algorithm, off, case).terms, f"{section}.{key} 0 keeps the term `{term}`"


def kl_in_the_reward_changes_the_advantages_and_adds_no_term(algorithm: Algorithm, seed: int = 0) -> None:
    case = cases.make(seed)
    on = with_value(plain_config(algorithm), "kl", "coef", 0.3)
    on = None if on is None else with_value(on, "kl", "where", "reward")
    if on is None or (algorithm.validate is not None and algorithm.validate(on)):
        return
    off = with_value(on, "kl", "coef", 0.0)
    assert Need.REFERENCE in algorithm.needs(on), "kl.where: reward does not need the reference model"
    before, after = cases.advantages_of(algorithm, off, case).values, cases.advantages_of(algorithm, on, case).values
    assert not torch.equal(before, after), "kl.where: reward leaves the advantages as they are"
    assert "kl" not in cases.evaluate(algorithm, on, case).terms, "kl.where: reward adds a term as well"


def it_reports_what_it_names(algorithm: Algorithm, seed: int = 0) -> None:
    if algorithm.metrics is None:
        assert not algorithm.reports, f"it has no `metrics` but names {algorithm.reports}"
        return
    case, config = _case(algorithm, seed), rich_config(algorithm)
    advantages = cases.advantages_of(algorithm, config, case)
    frozen = update.with_statistics(algorithm, config, case.batch, case.frozen, advantages, case.policy)
    found = algorithm.metrics(case.batch, frozen, advantages, case.policy, config)
    assert set(found) <= {*algorithm.reports}, f"`metrics` gives {sorted(found)}, `reports` names {algorithm.reports}"
    for name, sums in found.items():
        assert float(sums.count) >= 0, f"{name}: counts {float(sums.count)}"
        assert bool(torch.as_tensor(sums.total).isfinite()), f"{name}: sums to {float(sums.total)}"


def it_runs_with_exactly_the_parts_it_needs(algorithm: Algorithm, seed: int = 0) -> None:
    for config in (plain_config(algorithm), rich_config(algorithm)):
        _finite(cases.evaluate(algorithm, config, _case(algorithm, seed), needs_only=True))


def without_a_part_it_says_so(algorithm: Algorithm, seed: int = 0) -> None:
    config, case = rich_config(algorithm), _case(algorithm, seed)
    need = algorithm.needs(config)
    withheld: dict[Need, Callable[[cases.Case], cases.Case]] = {
        Need.OLD_LOG_PROBS: lambda c: replace(c, frozen=replace(c.frozen, old_log_probs=None)),
        Need.REFERENCE: lambda c: replace(c, frozen=replace(c.frozen, ref_log_probs=None)),
        Need.VALUES: lambda c: replace(c, frozen=replace(c.frozen, old_values=None)),
        Need.MISMATCHED: lambda c: replace(c, frozen=replace(c.frozen, mismatched_log_ratios=None)),
        Need.SCORES: lambda c: replace(c, policy=replace(c.policy, scores=None)),
    }
    for part, without in withheld.items():
        if part not in need:
            continue
        try:
            cases.evaluate(algorithm, config, without(case))
        except UnmetNeedError:
            continue
        # old log-probs may be declared for the figures alone: the learner forms ratios and kl/update of them
        assert part is Need.OLD_LOG_PROBS, f"it declares {part.name} in `needs` and ran without it"


def what_counts_does_not_depend_on_the_policy(algorithm: Algorithm, seed: int = 0) -> None:
    case, config = _case(algorithm, seed), rich_config(algorithm)
    advantages = cases.advantages_of(algorithm, config, case)
    found = []
    for policy in (case.policy, _case(algorithm, seed + 1).policy):
        given = replace(policy, loss_mask=case.batch.loss_mask)
        frozen = update.with_statistics(algorithm, config, case.batch, case.frozen, advantages, given)
        terms = algorithm.terms(case.batch, frozen, advantages, given, config)
        found.append({name: term.over for name, term in terms.items()})
    assert found[0].keys() == found[1].keys(), f"terms {sorted(found[0])} became {sorted(found[1])}"
    for name, over in found[0].items():
        other = found[1][name]
        same = (over is None) == (other is None) and (over is None or other is None or torch.equal(over, other))
        assert same, f"which tokens of `{name}` count depends on the policy"


def its_config_survives_a_round_trip(algorithm: Algorithm, seed: int = 0) -> None:
    import yaml

    from trimtab.config import sections
    from trimtab.config.records import plain_record, record_from

    for owner in sections.of_algorithm(algorithm):
        text = yaml.safe_dump(plain_record(owner.default))
        back = record_from(owner.record, yaml.safe_load(text))
        assert back == owner.default, f"{owner.section}: {owner.default} came back as {back}"


CHECKS: tuple[Callable[..., None], ...] = (
    gradient_does_not_depend_on_the_micro_batches,
    gradient_does_not_depend_on_padding,
    gradient_does_not_depend_on_the_order_of_rows,
    gradient_does_not_depend_on_the_names_of_groups,
    gradient_does_not_depend_on_the_type_of_the_rewards,
    a_constant_added_to_all_rewards_moves_all_advantages_alike,
    junk_in_masked_places_changes_no_bit,
    a_masked_token_gets_no_gradient,
    equal_rewards_give_a_finite_loss,
    a_group_without_spread_gets_exactly_zero,
    nothing_to_learn_from_is_no_fault,
    at_ratio_one_the_gradient_is_the_plain_policy_gradient,
    a_coefficient_of_zero_removes_its_term_and_need,
    kl_in_the_reward_changes_the_advantages_and_adds_no_term,
    it_reports_what_it_names,
    it_runs_with_exactly_the_parts_it_needs,
    without_a_part_it_says_so,
    what_counts_does_not_depend_on_the_policy,
    its_config_survives_a_round_trip,
)


def plain_config(algorithm: Algorithm) -> Any:
    """The algorithm's defaults, with a length to normalise by where a run would take its own limit."""
    config = algorithm.config()
    return with_value(config, "policy", "norm_length", 12) or config


def rich_config(algorithm: Algorithm) -> Any:
    """The same with every shared term switched on, and the correction for an engine's mismatch."""
    config = plain_config(algorithm)
    switched_on = (
        ("kl", "coef", 0.1),
        ("policy", "entropy_coef", 0.05),
        ("preference", "nll_coef", 0.2),
        ("preference", "label_smoothing", 0.1),
        ("preference", "center", 0.01),
        ("mismatch", "mode", "truncate"),
        ("mismatch", "high", 1.005),
    )
    for section, key, value in switched_on:
        config = with_value(config, section, key, value) or config
    return config


def with_value(config: Any, section: str, key: str, value: Any) -> Any | None:
    """The config with one key set, in its own sections or in `shared`; None if it has no such key."""
    for spec in fields(config):
        inner = getattr(config, spec.name)
        if spec.name == section and any(f.name == key for f in fields(inner)):
            return replace(config, **{spec.name: replace(inner, **{key: value})})
        if spec.name == "shared":
            changed = with_value(inner, section, key, value)
            if changed is not None:
                return replace(config, shared=changed)
    return None


def _same(expected: cases.Result, got: cases.Result, when: str) -> None:
    _close(torch.tensor(expected.loss), torch.tensor(got.loss), f"the loss, {when}")
    for name, value in expected.terms.items():
        _close(torch.tensor(value), torch.tensor(got.terms[name]), f"term `{name}`, {when}")
    for name, gradient in expected.gradients.items():
        _close(gradient, got.gradients[name], f"the gradient of {name}, {when}")


def _close(expected: Tensor, got: Tensor, what: str) -> None:
    worst = float(((got - expected).abs() / expected.abs().clamp_min(1)).max()) if expected.numel() else 0.0
    assert worst <= TOLERANCE, f"{what}: differs by {worst:g}"


def _finite(result: cases.Result) -> None:
    assert torch.tensor(result.loss).isfinite(), f"the loss is {result.loss}"
    for name, gradient in result.gradients.items():
        assert bool(gradient.isfinite().all()), f"the gradient of {name} is not finite"
