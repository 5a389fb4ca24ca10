"""What plug-ins are written against: its names and fields, as they were when `PLUGIN_API` got its number."""

from dataclasses import MISSING, fields

import pytest

from trimtab.algorithms import base

PLUGIN_API = 1
NAMES = {
    "PLUGIN_API", "STRICT", "Advantages", "Aggregation", "Algorithm", "Batch", "Coefficient", "EntropyAndLoss", "Frozen",
    "Group", "Kl", "KlLimit", "Mismatch", "Need", "Policy", "Share", "Shared", "Sums", "Term", "Terms", "TokenClip",
    "chosen_nll", "clip_shares", "discount_remark", "group_advantages", "group_relative", "kl_target",
    "no_advantages", "number", "policy_term",
    "require", "reward_kl", "shared_terms", "term", "token_ratio", "token_rewards", "torch",
}  # fmt: skip
REQUIRED = {
    "Algorithm": {"name", "config", "needs", "advantages", "terms"},
    "Batch": {
        "tokens", "prompt_lengths", "completion_lengths", "loss_mask", "group_ids", "row_ids", "prompt_ids", "rewards",
        "is_scored", "is_truncated",
    },
    "Frozen": {"loss_mask"},
    "Policy": {"loss_mask"},
    "Advantages": {"loss_mask", "values"},
    "Term": {"values", "aggregation"},
    "Sums": {"total", "count"},
}  # fmt: skip
OPTIONAL = {
    "Algorithm": {
        "statistics", "ratio", "metrics", "reports", "validate", "advise", "refuses", "presets", "corrects_ratio",
        "unread", "summary", "formula", "source",
    },
    "Batch": {
        "reward_parts", "reward_weights", "token_rewards", "pair_ids", "is_chosen", "margins", "rollout_log_probs",
        "policy_versions",
    },
    "Frozen": {
        "old_log_probs", "ref_log_probs", "old_values", "bootstrap_values", "mismatched_log_ratios", "shift", "picked",
    },
    "Policy": {"log_probs", "entropy", "values", "scores"},
    "Advantages": {"returns"},
    "Term": {"over", "coefficient", "norm_length", "count_dead_rows"},
    "Sums": set(),
}  # fmt: skip
NEEDS = {
    "NONE", "ROLLOUTS", "GROUPS", "DEMONSTRATIONS", "OLD_LOG_PROBS", "REFERENCE", "VALUES", "ENTROPY", "PAIRS", "LABELS",
    "MISMATCHED", "SCORES",
}  # fmt: skip
BREAKS = (
    "plug-ins that were right may no longer be: raise PLUGIN_API in algorithms/base.py and in this file, and say why in "
    "CHANGELOG.md"
)
GREW = "new: write it down in this file and in docs/plugins.md; PLUGIN_API stays"


def test_the_number_is_the_one_that_these_names_belong_to():
    assert base.PLUGIN_API == PLUGIN_API


def test_the_names_of_base():
    now = set(base.__all__)
    assert not NAMES - now, f"{sorted(NAMES - now)} gone from algorithms/base.py; {BREAKS}"
    assert not now - NAMES, f"{sorted(now - NAMES)} {GREW}"
    assert all(hasattr(base, name) for name in NAMES)


@pytest.mark.parametrize("name", REQUIRED)
def test_the_fields_of_the_records(name):
    found = fields(getattr(base, name))
    required = {f.name for f in found if f.default is MISSING and f.default_factory is MISSING}
    now, before = {f.name for f in found}, REQUIRED[name] | OPTIONAL[name]
    assert not before - now, f"{name}: {sorted(before - now)} gone; {BREAKS}"
    assert not required - REQUIRED[name], f"{name}: {sorted(required - REQUIRED[name])} must now be given; {BREAKS}"
    assert not now - before, f"{name}: {sorted(now - before)} {GREW}"
    assert required == REQUIRED[name], f"{name}: {sorted(REQUIRED[name] - required)} may now be left out; {GREW}"


def test_the_needs_that_can_be_declared():
    now = set(base.Need.__members__)
    assert not NEEDS - now, f"Need: {sorted(NEEDS - now)} gone; {BREAKS}"
    assert not now - NEEDS, f"Need: {sorted(now - NEEDS)} {GREW}"


def test_the_sections_that_plug_ins_build_on_keep_their_keys():
    """A key that is renamed breaks the configurations of a plug-in that has the section."""
    kept = {
        base.EntropyAndLoss: {"entropy_coef", "aggregation", "norm_length", "log_ratio_clamp"},
        base.TokenClip: {"clip_low", "clip_high", "dual_clip"},
        base.Group: {"baseline", "scale_by", "ddof", "singleton", "combine"},
        base.Mismatch: {"mode", "level", "low", "high"},
        base.Shared: {"policy", "kl", "mismatch"},
        base.Kl: {
            "coef", "target", "estimator", "gradient", "where", "controller", "controller_target", "controller_horizon",
            "unit", "limit", "stop_epochs",
        },
    }  # fmt: skip
    for section, keys in kept.items():
        gone = keys - {f.name for f in fields(section)}
        assert not gone, f"{section.__name__}: {sorted(gone)} gone; {BREAKS}"
