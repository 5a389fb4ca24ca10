"""The guides' figures beside a configuration, and the estimate of a run's time."""

from dataclasses import replace

import pytest

from trimtab import config as configs
from trimtab.assemble import Numerics
from trimtab.models import memory
from trimtab.operate import advice

NUMERICS = Numerics(threads=1, micro_batch_tokens=16384, rollout_rows=1024, device="cpu")
SPEED = advice.Speed(train_flops=1e10, read_flops=2e10, decode_flops=5e9, call_seconds=1e-4, copied_bytes=1e10)


def config_of(algorithm="grpo", *words):
    rewards = [] if algorithm == "sft" else ["exact_match"]
    return configs.from_mapping({"algorithm": algorithm, **({"rewards": rewards} if rewards else {})}, words)


def rows_of(algorithm="grpo", *words):
    return {row.setting: row for row in advice.advice(config_of(algorithm, *words))}


@pytest.mark.parametrize(("size", "has_note"), [(4, True), (8, False), (16, False), (32, True)])
def test_a_group_of_grpo_should_have_8_to_16_completions(size, has_note):
    row = rows_of("grpo", f"sampling.group_size={size}")["sampling.group_size"]
    assert (row.guides, bool(row.note)) == ("8 to 16", has_note)


@pytest.mark.parametrize(("size", "has_note"), [(8, True), (16, False), (32, False), (64, True)])
def test_ppo_should_have_16_to_32_candidates(size, has_note):
    row = rows_of("ppo", f"sampling.group_size={size}")["sampling.group_size"]
    assert (row.guides, bool(row.note)) == ("16 to 32", has_note)


def test_a_small_batch_is_told_how_many_prompts_give_the_guides_figure():
    assert "train.prompts_per_step=64" in rows_of("grpo", "train.prompts_per_step=32")["completions a step"].note
    assert not rows_of("grpo", "train.prompts_per_step=64")["completions a step"].note


@pytest.mark.parametrize(
    ("gamma", "length", "has_note"), [(0.99, 500, False), (0.99, 501, True), (1.0, 9999, False), (0.999, 4096, False)]
)
def test_a_discount_that_eats_the_reward_of_long_completions_is_noted(gamma, length, has_note):
    row = rows_of("ppo", f"advantage.gamma={gamma}", f"sampling.max_length={length}")["advantage.gamma"]
    assert bool(row.note) == has_note


@pytest.mark.parametrize(("coefficient", "word"), [(0.0, "no reference"), (0.001, "weak"), (0.01, ""), (0.5, "strong")])
def test_the_kl_coefficient_is_held_against_the_guides_bounds(coefficient, word):
    row = rows_of("grpo", f"kl.coef={coefficient}")["kl.coef"]
    assert word in row.note
    assert bool(row.note) == bool(word)


def test_a_schedule_of_the_kl_coefficient_is_no_number_to_compare():
    word = "kl.coef={schedule: linear, from: 0.02, to: 0.0, steps: 50}"
    assert rows_of("grpo", word)["kl.coef"].yours == "a schedule"


def test_a_run_that_reads_is_not_advised_on_sampling():
    assert not {"sampling.group_size", "completions a step", "kl.coef", "advantage.gamma"} & set(rows_of("sft"))


# --------------------------------------------------------------------------------------------------------------- time
def time_of(config, length=20.0):
    models = {"policy": memory.sizes("builtin:tiny")}
    demand = advice.demand_of(config, models, NUMERICS, longest=64)
    return advice.time_of(config, demand, SPEED, prompt_length=6.0, completion_length=length, every=config.eval.every)


def test_an_update_is_six_operations_a_parameter_and_token():
    config = config_of("sft", "train.prompts_per_step=100", "sampling.max_length=64")
    phases, _ = time_of(config)
    model = memory.sizes("builtin:tiny")
    operations = 6 * (model["matrix_parameters"] * 100 * 26 + model["vocabulary"] * 128 * 100 * 20)
    started = 3 * model["layers"] * SPEED.call_seconds
    assert phases["update"] == pytest.approx(operations / SPEED.train_flops + started)


def test_twice_the_prompts_or_longer_completions_take_longer_and_so_do_more_steps():
    small, all_steps = time_of(config_of("grpo", "train.max_steps=10"))
    assert (
        time_of(config_of("grpo", "train.max_steps=10", "train.prompts_per_step=64"))[0]["rollout"] > small["rollout"]
    )
    assert sum(time_of(config_of("grpo"), 40.0)[0].values()) > sum(small.values())
    assert all_steps == pytest.approx(10 * sum(small.values()))
    assert time_of(config_of("grpo", "train.max_steps=10", "data.validation=builtin:addition"))[1] > all_steps


def test_an_own_critic_is_run_and_trained_as_well():
    config, tiny = config_of("ppo"), memory.sizes("builtin:tiny")
    demand = advice.demand_of(config, {"policy": tiny}, NUMERICS, longest=64)
    without, _ = advice.time_of(config, demand, SPEED, prompt_length=6, completion_length=20, every=50)
    both, _ = advice.time_of(
        config, replace(demand, critic=tiny), SPEED, prompt_length=6, completion_length=20, every=50
    )
    assert both["update"] > 1.5 * without["update"]
    assert both["freeze"] > without["freeze"]
    assert both["rollout"] == without["rollout"]


def test_the_speed_of_this_machine_is_measured_in_two_seconds():
    import time

    started = time.perf_counter()
    speed = advice.measure(memory.sizes("builtin:tiny"), tokens=2048, width=16, rows=64)
    assert time.perf_counter() - started < 5  # two, with room for a machine that does other things
    assert min(speed.train_flops, speed.read_flops, speed.decode_flops, speed.copied_bytes) > 1e6
    assert speed.call_seconds > 0


def test_no_more_checkpoints_are_counted_than_a_run_keeps():
    assert advice.checkpoints_kept(config_of("grpo", "train.max_steps=1")) == (2, 0)
    many = config_of("grpo", "train.max_steps=100000", "data.validation=builtin:addition")
    assert advice.checkpoints_kept(many) == (1 + 5 + 3 + 1, 0)
    some = config_of("grpo", "train.max_steps=100", "checkpoint.weights_every=30")
    assert advice.checkpoints_kept(some) == (1 + 3, 3)


def test_pairs_are_held_against_the_figures_of_the_guides():
    config = configs.from_mapping({"algorithm": "dpo", "preference": {"beta": 0.5}, "data": {"validation": "v.jsonl"}})
    found = {row.setting: row for row in advice.advice(config, rows=500)}
    assert (found["pairs"].yours, found["pairs"].guides) == ("500", "100,000 or more")
    assert found["preference.beta"].note.startswith("strong hold")
    assert found["eval/preference/accuracy"].guides == "more than 0.85"
    assert found["eval/preference/js"].guides == "less than 0.05"
    assert not any("validation" in row.note for row in found.values() if row.setting.startswith("eval/"))
