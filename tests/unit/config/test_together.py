"""Settings that contradict each other are refused with both values; what is allowed but seldom meant is remarked on."""

import pytest

from tests import online
from trimtab import algorithms, config
from trimtab.errors import ConfigError

SEQUENCE_RATIO = ("gspo", "gspo_token", "gspo_segment", "gmpo")


def load(algorithm, *words, **sections):
    return config.from_mapping({"algorithm": algorithm, "rewards": ["exact_match"], **sections}, words)


def refused(algorithm, *words):
    with pytest.raises(ConfigError) as error:
        load(algorithm, *words)
    return str(error.value)


# ----------------------------------------------------------------------------------------------- of every algorithm
@pytest.mark.parametrize("name", online.NAMES)
@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["kl.coef=0.1", "kl.where=reward", "kl.target=old_policy"], ["kl.where: reward", "kl.target: old_policy"]),
        (
            [
                "kl.coef={schedule: linear, from: 1, to: 0, steps: 5}",
                "kl.controller=adaptive",
                "kl.controller_target=1",
            ],
            ["kl.controller: adaptive", "schedule in kl.coef"],
        ),
        (["kl.controller=penalty", "kl.controller_target=1"], ["kl.controller: penalty", "kl.coef: 0"]),
        (["kl.coef=0.1", "kl.controller=adaptive"], ["kl.controller: adaptive", "kl.controller_target"]),
        (["mismatch.low=3.0"], ["mismatch.low: 3.0", "mismatch.high: 2.0"]),
        (
            ["mismatch.low=3.0", "kl.coef=0.1", "kl.controller=adaptive", "kl.controller_target=1"],
            ["mismatch.low: 3.0", "mismatch.high: 2.0"],
        ),
    ],
    ids=["reward-old", "controller-schedule", "controller-zero", "no-target", "bounds", "bounds-with-controller"],
)
def test_settings_of_the_shared_sections_that_contradict_each_other_are_refused(name, words, values):
    said = refused(name, *words)
    assert all(value in said for value in values), said


@pytest.mark.parametrize("name", online.NAMES)
def test_a_controller_with_all_that_it_needs_is_read(name):
    kl = load(name, "kl.coef=0.1", "kl.controller=adaptive", "kl.controller_target=6.0").algorithm_config.shared.kl
    assert (kl.coef, kl.controller, kl.controller_target, kl.controller_horizon) == (0.1, "adaptive", 6.0, 10000)


@pytest.mark.parametrize("name", online.NAMES)
def test_the_ratio_weighted_gradient_is_refused_where_the_ratio_is_not_a_token_s(name):
    words = ["kl.coef=0.1", "kl.where=loss", "kl.gradient=weighted"]
    if name in SEQUENCE_RATIO:
        said = refused(name, *words)
        assert "kl.gradient: weighted" in said
        assert "use kl.gradient: k2" in said
    else:
        assert load(name, *words).algorithm_config.shared.kl.gradient == "weighted"


@pytest.mark.parametrize("name", online.NAMES)
def test_a_group_of_one_is_refused_where_completions_are_compared(name):
    if name in online.GROUPED:
        said = refused(name, "sampling.group_size=1")
        assert f"sampling.group_size: 1, but {name} compares completions of one prompt; use 2 or more" in said
        if "advantage.baseline" in keys(name):
            free = ["advantage.baseline=none", "advantage.scale_by=none", "sampling.dynamic.enabled=false"]
            assert load(name, "sampling.group_size=1", *free).sampling.group_size == 1
    else:
        assert load(name, "sampling.group_size=1").sampling.group_size == 1


def keys(name):
    from trimtab.config import sections

    return {
        f"{owner.section}.{key}" for owner in sections.of_algorithm(algorithms.load(name)) for key in owner.key_names()
    }


@pytest.mark.parametrize("name", online.NAMES)
def test_the_engine_s_correction_is_off_while_engine_and_trainer_are_one_model_and_as_asked_otherwise(name):
    assert load(name).resolved["mismatch"]["mode"] == "off"
    assert load(name, "mismatch.mode=mask").resolved["mismatch"]["mode"] == "mask"


# ------------------------------------------------------------------------------------------------- of some of them
@pytest.mark.parametrize("name", ["cispo", "gmpo", "sapo"])
@pytest.mark.parametrize(("words", "policy"), [(["policy.dual_clip=3.0"], {}), ([], {"dual_clip": 3.0})])
def test_a_dual_clip_is_refused_where_weights_are_bounded_already(name, words, policy):
    with pytest.raises(ConfigError) as error:
        load(name, *words, policy=policy)
    assert f"policy.dual_clip: 3.0 with algorithm: {name}" in str(error.value)
    assert "bounded" in str(error.value) or "bounds" in str(error.value)


@pytest.mark.parametrize("name", ["cispo", "gmpo", "sapo"])
def test_a_dual_clip_of_null_says_nothing(name):
    assert load(name, policy={"dual_clip": None}).unused == ("policy.dual_clip",)


@pytest.mark.parametrize("name", [name for name in online.NAMES if name != "gspo_segment"])
def test_segments_are_refused_under_every_other_algorithm(name):
    with pytest.raises(ConfigError) as error:
        load(name, policy={"segment": {"length": 8}})
    assert f"policy.segment: {{'length': 8}} with algorithm: {name}; only gspo_segment" in str(error.value)


def test_a_segment_ends_by_a_length_or_by_marks():
    said = refused("gspo_segment", "policy.segment={length: 8, end_marks: [13]}")
    assert "policy.segment.length: 8 beside policy.segment.end_marks: [13]" in said
    assert load("gspo_segment", "policy.segment.length=8").algorithm_config.policy.segment.length == 8
    assert load("gspo_segment", "policy.segment.end_marks=[13]").algorithm_config.policy.segment.end_marks == (13,)


def test_bounds_of_the_covariance_between_which_no_token_lies_are_refused():
    said = refused("clip_cov", "policy.cov_low=5.0")
    assert "policy.cov_low: 5.0 is not below policy.cov_high: 5.0" in said


# ------------------------------------------------------------------------------------------------ presets, remarks
def test_dapo_samples_again_and_punishes_length_and_others_do_not():
    dapo, grpo = load("dapo", "sampling.max_length=1000"), load("grpo", "sampling.max_length=1000")
    assert dapo.resolved["sampling"]["dynamic"]["enabled"] is True
    assert dapo.resolved["sampling"]["overlong"] == {"buffer": 200, "factor": 1.0, "filter": False}
    assert (dapo.algorithm_config.policy.clip_low, dapo.algorithm_config.policy.clip_high) == (0.2, 0.28)
    assert grpo.resolved["sampling"]["dynamic"]["enabled"] is False
    assert grpo.resolved["sampling"]["overlong"]["buffer"] == 0
    asked = load("dapo", "sampling.dynamic.enabled=false", "sampling.overlong.buffer=7")
    assert asked.resolved["sampling"]["dynamic"]["enabled"] is False
    assert asked.resolved["sampling"]["overlong"]["buffer"] == 7


@pytest.mark.parametrize("name", online.NAMES)
def test_a_clip_as_wide_as_ppo_s_is_remarked_on_where_the_ratio_is_a_mean_and_the_values_to_use_are_named(name):
    remarks = load(name, policy={"clip_ratio": 0.2}).remarks
    if name.startswith("gspo"):
        (remark,) = remarks
        assert "0.2" in remark
        assert ("3e-3 and 4e-3" if name == "gspo_segment" else "3e-4 and 4e-4") in remark
    elif name == "cispo":
        (remark,) = remarks
        assert remark == "policy.clip_high: 0.2 caps the weights at 1.2; the papers cap them at 4 to 8"
    else:
        assert remarks == ()


@pytest.mark.parametrize("name", online.NAMES)
def test_the_defaults_of_no_algorithm_are_remarked_on(name):
    assert load(name).remarks == ()


@pytest.mark.parametrize(
    ("length", "meant"), [(4, "every token has nearly a ratio of its own"), (2000, "nearly a whole completion")]
)
def test_segments_that_are_nearly_tokens_or_nearly_completions_are_remarked_on(length, meant):
    (remark,) = load("gspo_segment", f"policy.segment.length={length}").remarks
    assert f"policy.segment.length: {length}" in remark
    assert meant in remark


@pytest.mark.parametrize("name", online.NAMES)
def test_several_updates_a_step_are_remarked_on_where_nothing_accounts_for_them(name):
    (*_, last) = load(name, "train.epochs_per_batch=2", "train.minibatches=3").remarks or ("",)
    assert ("6 updates a step" in last) is (name in ("reinforce", "rloo"))
