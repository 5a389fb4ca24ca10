"""One pass from a file and the command line to a checked configuration."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import online
from trimtab import algorithms, config
from trimtab.config import document, sections
from trimtab.errors import ConfigError
from trimtab.types import Schedule

GRPO = "algorithm: grpo\nrewards: [exact_match]\n"
PPO = "algorithm: ppo\nrewards: [exact_match]\n"
EXAMPLES = [
    path
    for path in sorted(Path(__file__).parents[3].glob("examples/**/*.yaml"))
    if "algorithm" in document.read(path).values
]
"""The whole ones; the others are bases to extend."""
GUIDE = """\
algorithm: ppo_like

policy:
  clip_ratio: 0.2
  entropy_coef: 0.01

value:
  enabled: true
  coef: 0.5

kl:
  coef: 0.02
  target: reference_model

sampling:
  group_size: 8
  temperature: 1.0
  max_length: 4096
rewards: [exact_match]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("config")


@pytest.fixture(scope="module")
def load(folder):
    def load(text, *words):
        (folder / "a.yaml").write_text(text)
        return config.load(folder / "a.yaml", words)

    return load


@pytest.fixture(scope="module")
def faults(load, folder):
    def faults(text, *words):
        with pytest.raises(ConfigError) as error:
            load(text, *words)
        return str(error.value).replace(f"{folder}/", "").splitlines()

    return faults


# ------------------------------------------------------------------------------------------------------ unknown keys
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("polcy: {clip_ratio: 0.2}\n", "a.yaml:3: unknown key `polcy`; did you mean `policy`?"),
        ("policy:\n  clip_ratoi: 0.2\n", "a.yaml:4: unknown key `policy.clip_ratoi`; did you mean `clip_ratio`?"),
        (
            "eval:\n  early_stop:\n    patince: 2\n",
            "a.yaml:5: unknown key `eval.early_stop.patince`; did you mean `patience`?",
        ),
        ("observe: {samples: {evry: 3}}\n", "a.yaml:3: unknown key `observe.samples.evry`; did you mean `every`?"),
        (
            "kl:\n  coef: {schedule: linear, from: 0.1, to: 0.0, stps: 5, steps: 5}\n",
            "a.yaml:4: unknown key `kl.coef.stps`; did you mean `steps`?",
        ),
        ("overrides: {grop: {kl: {coef: 1}}}\n", "a.yaml:3: unknown key `overrides.grop`; did you mean `grpo`?"),
        (
            "overrides:\n  grpo:\n    polcy: {clip_ratio: 0.1}\n",
            "a.yaml:5: unknown key `polcy`; did you mean `policy`?",
        ),
        (
            "overrides:\n  grpo:\n    kl: {ceof: 0.1}\n",
            "a.yaml:5: unknown key `kl.ceof`; did you mean `coef`?",
        ),
        (
            "reference: {zzz: 1}\n",
            "a.yaml:3: unknown key `reference.zzz`; there are cache, dtype, model, offload",
        ),
    ],
)
def test_an_unknown_key_is_refused_at_its_line_with_the_nearest_known_one(faults, text, message):
    assert faults(GRPO + text) == [message]


def test_an_unknown_key_of_a_reward_is_refused_at_its_line(faults):
    assert faults("algorithm: grpo\nrewards:\n- exact_match\n- name: numeric\n  wieght: 2\n") == [
        "a.yaml:5: unknown key `rewards.1.wieght`; did you mean `weight`?"
    ]


def test_an_unknown_key_of_the_command_line_is_refused(faults):
    assert faults(GRPO, "policy.clip_ratoi=0.1") == [
        "command line: unknown key `policy.clip_ratoi`; did you mean `clip_ratio`?"
    ]


def test_an_unknown_algorithm_is_refused_with_the_nearest_one(faults):
    assert faults("algorithm: grop\n") == ["a.yaml:1: algorithm: no algorithm is called `grop`; did you mean `grpo`?"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policy: {}\n", "a.yaml:1: there is no `algorithm`; choose "),
        ("algorithm: 3\n", "a.yaml:1: algorithm: 3; choose "),
        ("algorithm: {name: grpo}\n", "a.yaml:1: algorithm: {'name': 'grpo'}; choose "),
    ],
)
def test_a_file_without_an_algorithm_is_told_which_there_are(faults, text, message):
    assert faults(text) == [message + ", ".join(algorithms.names())]


def test_everything_wrong_is_reported_in_one_pass(faults):
    text = """\
algorithm: grpo
policy: {modle: x, entropy_coef: -1}
train:
  max_steps: many
  seed: 1
smpling: {group_size: 2}
optim: {learning_rate: fast, betas: [0.9, 2]}
sampling: {temperature: 0}
rewards:
- {name: numeric, on_error: explode}
"""
    found = faults(text, "data.shuffle=perhaps")
    assert set(found) == {
        "a.yaml:2: unknown key `policy.modle`; did you mean `model`?",
        "a.yaml:2: policy.entropy_coef: -1; expected at least 0",
        "a.yaml:4: train.max_steps: 'many'; expected a whole number",
        "a.yaml:6: unknown key `smpling`; did you mean `sampling`?",
        "a.yaml:7: optim.learning_rate: 'fast'; expected a number",
        "a.yaml:7: optim.betas.1: 2; expected less than 1",
        "a.yaml:8: sampling.temperature: 0; expected more than 0",
        "a.yaml:10: rewards.0.on_error: 'explode'; expected 'stop', 'skip' or 'penalty'",
        "command line: data.shuffle: 'perhaps'; expected true or false",
    }
    assert len(found) == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kl: {coef: abc}\n", "a.yaml:3: kl.coef: 'abc'; expected a number"),
        ("kl: {coef: .nan}\n", "a.yaml:3: kl.coef: nan; expected a finite number"),
        ("optim: {learning_rate: .nan}\n", "a.yaml:3: optim.learning_rate: nan; expected a finite number"),
        ("train: {max_steps: 1.5}\n", "a.yaml:3: train.max_steps: 1.5; expected a whole number"),
        ("kl: {target: nobody}\n", "a.yaml:3: kl.target: 'nobody'; expected 'reference_model' or 'old_policy'"),
        ("policy: 3\n", "a.yaml:3: policy: 3; expected keys and values"),
        ("policy:\n", "a.yaml:3: policy: null; expected keys and values under it"),
        ("eval: {early_stop: 3}\n", "a.yaml:3: eval.early_stop: 3; expected keys and values"),
        ("data: {columns: {prompt: 3}}\n", "a.yaml:3: data.columns.prompt: 3; expected text"),
        ("data: {columns: [a]}\n", "a.yaml:3: data.columns: ['a']; expected keys and values"),
        ("overrides: [1]\n", "a.yaml:3: overrides: [1]; expected algorithms and their sections"),
        ("overrides: {grpo: 1}\n", "a.yaml:3: overrides.grpo: 1; expected sections"),
        ("kl: {coef: {schedule: linear, from: 1, to: 0}}\n", "a.yaml:3: kl.coef.steps is missing"),
        (
            "kl: {coef: {schedule: cubic, from: 1, to: 0, steps: 3}}\n",
            "a.yaml:3: kl.coef.schedule: 'cubic'; expected 'linear', 'cosine' or 'constant'",
        ),
        (
            "kl: {coef: {schedule: linear, from: x, to: 0, steps: 3}}\n",
            "a.yaml:3: kl.coef.from: 'x'; expected a number",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(faults, text, message):
    assert faults(GRPO + text) == [message]


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ("exact_match", "a.yaml:2: rewards: 'exact_match'; expected a list, such as [{name: exact_match}]"),
        ("[3]", "a.yaml:2: rewards.0: 3; expected keys and values"),
        ("[{weight: 2}]", "a.yaml:2: rewards.0.name is missing; or name a reward model: model: RUN"),
        (
            "[{model: RM, options: {a: 1}}]",
            "a.yaml:2: reward RM: options are for built-in rules; a reward model has none; leave them out",
        ),
        (
            "[{model: RM, name: a/b}]",
            "a.yaml:2: rewards.name: 'a/b' beside a model; it is only the name in metrics: letters, digits and _ . -",
        ),
        (
            "[{name: exact_match, allow_weak: true}]",
            "a.yaml:2: reward exact_match: allow_weak is for reward models; leave it out, or name a model: model: RUN",
        ),
        ("[]", "a.yaml:2: rewards: none, but grpo learns from rewards; such as [{name: exact_match}]"),
    ],
)
def test_rewards_that_are_no_list_of_rewards_are_refused(faults, rewards, message):
    assert faults(f"algorithm: grpo\nrewards: {rewards}\n") == [message]


def test_a_misspelt_schedule_names_only_what_is_wrong(faults):
    assert faults(GRPO + "kl: {coef: {schedul: linear, from: 0.1, to: 0.0, steps: 5}}\n") == [
        "a.yaml:3: kl.coef.schedule is missing",
        "a.yaml:3: unknown key `kl.coef.schedul`; did you mean `schedule`?",
    ]


# ------------------------------------------------------------------------------------------------- layers of a config
def test_a_fault_of_a_base_is_reported_at_the_line_of_the_base(faults, folder):
    (folder / "base.yaml").write_text("algorithm: grpo\n\ntrain: {max_stps: 3}\n")
    assert faults("extends: base.yaml\nrewards: [exact_match]\n") == [
        "base.yaml:3: unknown key `train.max_stps`; did you mean `max_steps`?"
    ]


def test_the_chain_names_the_file_and_its_bases(load, folder):
    (folder / "base.yaml").write_text(GRPO)
    found = load("extends: base.yaml\n")
    assert [Path(path).name for path in found.chain] == ["a.yaml", "base.yaml"]
    assert found.folder == folder


@pytest.mark.parametrize("words", [["train.max_steps=7"], ["--train.max_steps", "7"], ["--train.max_steps=7"]])
def test_the_command_line_wins_over_the_file(load, words):
    assert load(GRPO + "train: {max_steps: 3}\n", *words).train.max_steps == 7


def test_extends_counts_only_in_a_file(faults):
    assert faults(GRPO, "extends=b.yaml") == ["command line: extends: 'b.yaml' counts only in a file; leave it out"]


OVERRIDES = """\
algorithm: grpo
rewards: [exact_match]
kl: {coef: 0.1, where: loss}
overrides:
  grpo: {kl: {coef: 0.2}}
  ppo_like: {kl: {coef: 0.3}, rewards: [numeric], eval: {early_stop: {patience: 9}}}
"""


@pytest.mark.parametrize(
    ("words", "coef"),
    [([], 0.2), (["algorithm=ppo"], 0.3), (["kl.coef=0.4"], 0.4), (["algorithm=ppo_like", "kl.coef=0.5"], 0.5)],
)
def test_what_overrides_says_of_the_chosen_algorithm_stands_between_file_and_command_line(load, words, coef):
    assert load(OVERRIDES, *words).resolved["kl"]["coef"] == coef


def test_overrides_may_hold_lists_and_nested_sections(load):
    found = load(OVERRIDES, "algorithm=ppo")
    assert [r.name for r in found.rewards] == ["numeric"]
    assert found.eval.early_stop.patience == 9
    assert [r.name for r in load(OVERRIDES).rewards] == ["exact_match"]


def test_a_dict_is_read_like_a_file_and_left_as_it_was():
    values = {"algorithm": "grpo", "rewards": ["exact_match"], "policy": {"clip_ratio": 0.3}, "value": {"coef": 1}}
    found = config.from_mapping(values, ["train.max_steps=3"])
    assert found.algorithm_config.policy.clip_high == 0.3
    assert found.train.max_steps == 3
    assert values == {
        "algorithm": "grpo",
        "rewards": ["exact_match"],
        "policy": {"clip_ratio": 0.3},
        "value": {"coef": 1},
    }


# -------------------------------------------------------------------------------------- keys that a run does not read
def test_a_key_that_the_algorithm_does_not_read_is_listed_and_left_out(load):
    found = load(GRPO + "value: {coef: 0.5, enabled: true}\nreference: {model: x}\n")
    assert found.unused == ("value.coef", "value.enabled", "reference.model")
    assert "value" not in found.resolved
    assert "reference" not in found.resolved
    assert found.requested["value"] == {"coef": 0.5, "enabled": True}


def test_a_reference_is_read_as_soon_as_a_term_needs_it(load):
    found = load(GRPO + "reference: {model: x}\nkl: {coef: 0.1}\n")
    assert found.unused == ()
    assert found.resolved["reference"]["model"] == "x"


@pytest.mark.parametrize("key", ["value.coef=0.5", "reference.model=x", "advantage.lam=0.9", "guard=1"])
def test_on_the_command_line_such_a_key_is_refused(faults, key):
    name = key.split("=")[0]
    if name == "guard":
        assert faults("algorithm: sft\n", "guard.probe_tokens=1") == [
            "command line: `guard.probe_tokens` is not read by sft in this run; leave it out"
        ]
    else:
        assert faults(GRPO, key) == [f"command line: `{name}` is not read by grpo in this run; leave it out"]


def test_a_run_that_only_reads_does_not_look_at_rewards_and_sampling(load):
    found = load("algorithm: sft\nrewards: [exact_match]\nsampling: {temperature: 0.5, max_length: 9}\n")
    assert set(found.unused) == {"rewards", "sampling.temperature"}
    assert found.resolved["sampling"]["max_length"] == 9
    assert "rewards" not in found.resolved


# --------------------------------------------------------------------------------------------------- what values mean
def test_one_clip_ratio_sets_both_sides(load):
    found = load(GRPO + "policy: {clip_ratio: 0.3}\n")
    assert (found.algorithm_config.policy.clip_low, found.algorithm_config.policy.clip_high) == (0.3, 0.3)
    assert "clip_ratio" not in found.resolved["policy"]


def test_one_clip_ratio_is_refused_beside_one_side(faults):
    assert faults(GRPO + "policy:\n  clip_low: 0.1\n  clip_ratio: 0.3\n") == [
        "a.yaml:5: policy.clip_ratio beside policy.clip_low; set clip_ratio, or clip_low and clip_high"
    ]


def test_a_wrong_clip_ratio_is_refused_at_its_own_line(faults):
    found = faults(GRPO + "policy:\n  model: x\n  clip_ratio: wide\n")
    assert found == ["a.yaml:5: policy.clip_ratio: 'wide'; expected a number"]


def every_key(algorithm):
    """Every key of an algorithm and the rooms, nested ones too."""
    found = []
    for owner in sections.owners(algorithms.load(algorithm)):
        if owner.name != "imitation":  # read by runs that sample nothing
            found += [f"{owner.section}.{key}" for key in owner.key_names()]
    return [*found, "kl.limit.warn", "eval.early_stop.metric", "eval.early_stop.patience", "observe.samples.every"]


def test_auto_is_the_default_of_every_key():
    plain = config.from_mapping({"algorithm": "ppo", "rewards": ["exact_match"], "kl": {"coef": 0.1}})
    for key in every_key("ppo"):
        if key == "kl.coef":
            continue
        found = config.from_mapping(
            {"algorithm": "ppo", "rewards": ["exact_match"], "kl": {"coef": 0.1}}, [f"{key}=auto"]
        )
        assert found.resolved == plain.resolved, key


@pytest.mark.parametrize("algorithm", online.NAMES)
def test_auto_is_the_default_of_every_key_of_an_algorithm(algorithm):
    values = {"algorithm": algorithm, "rewards": ["exact_match"]}
    owners = sections.of_algorithm(algorithms.load(algorithm))
    words = [f"{owner.section}.{key}=auto" for owner in owners for key in owner.key_names()]
    plain, found = config.from_mapping(values), config.from_mapping(values, words)
    assert config.differences(plain.resolved, found.resolved) == []
    assert found.algorithm_config == plain.algorithm_config


def test_a_group_of_one_is_refused_where_groups_are_compared(faults, load):
    assert faults(GRPO, "sampling.group_size=1") == [
        "command line: sampling.group_size: 1, but grpo compares completions of one prompt; use 2 or more"
    ]
    assert load(PPO, "sampling.group_size=1").sampling.group_size == 1
    words = ("sampling.group_size=1", "advantage.baseline=none")
    assert faults(GRPO, *words) == faults(GRPO, "sampling.group_size=1"), "dividing by a group's deviation compares too"
    assert load(GRPO, *words, "advantage.scale_by=none").sampling.group_size == 1


def test_an_algorithm_with_a_critic_cannot_have_it_switched_off(faults, load):
    assert faults(PPO + "value:\n  enabled: false\n") == [
        "a.yaml:4: value.enabled: false, but ppo needs a critic; leave it out, or use grpo"
    ]
    assert load(GRPO + "value: {enabled: false}\n").unused == ("value.enabled",)


@pytest.mark.parametrize(("model", "asked", "coef"), [
    (None, "auto", 1.0), ("shared", "auto", 0.5), ("some/dir", "auto", 1.0), ("shared", 1.0, 1.0), (None, 0.25, 0.25)
])  # fmt: skip
def test_the_weight_of_the_value_term_depends_on_whether_the_trunk_is_shared(model, asked, coef):
    found = config.from_mapping(
        {"algorithm": "ppo", "rewards": ["exact_match"], "value": {"model": model, "coef": asked}}
    )
    assert found.algorithm_config.value.coef == coef
    assert found.resolved["value"]["coef"] == coef


def test_a_coefficient_may_be_a_schedule(load):
    found = load(GRPO + "kl: {coef: {schedule: linear, from: 0.02, to: 0.0, steps: 500}}\n")
    assert found.algorithm_config.shared.kl.coef == Schedule(kind="linear", start=0.02, end=0.0, steps=500)
    assert found.resolved["kl"]["coef"] == {"schedule": "linear", "from": 0.02, "to": 0.0, "steps": 500}
    assert found.resolved["reference"]["model"] is None, "a scheduled KL needs the reference"


def test_a_column_may_be_called_like_a_key_of_a_schedule():
    columns = {"prompt": "p", "schedule": "s", "from": "f"}
    found = config.from_mapping({"algorithm": "grpo", "rewards": ["exact_match"], "data": {"columns": columns}})
    assert found.data.columns == columns


def test_more_mini_batches_than_prompts_are_refused(faults):
    assert faults(GRPO, "train.minibatches=5", "train.prompts_per_step=4") == [
        "command line: train.minibatches: 5, but a step has train.prompts_per_step: 4, and a mini-batch has whole prompts"
    ]


def test_a_prompt_limit_that_leaves_no_room_is_refused(faults, load):
    assert faults(GRPO, "sampling.max_prompt_length=16", "sampling.max_length=16") == [
        "command line: sampling.max_prompt_length: 16 leaves no room for a completion in sampling.max_length: 16"
    ]
    assert load(GRPO, "sampling.max_length=16").sampling.max_length == 16


def test_settings_that_do_not_go_together_are_refused(faults):
    (found,) = faults(GRPO, "kl.coef=0.1", "kl.where=reward", "kl.target=old_policy")
    assert found.startswith("a.yaml:1: kl.where: reward with kl.target: old_policy is always 0")


@pytest.mark.parametrize(("algorithm", "unused"), [
    ("ppo_like", ()), ("ppo", ()),
    *((name, ("value.enabled", "value.coef", *(() if sections.has_clip(algorithms.load(name)) else ("policy.clip_ratio",))))
      for name in online.NAMES if name != "ppo"),
    ("sft", ("policy.clip_ratio", "policy.entropy_coef", "value.enabled", "value.coef", "kl.coef", "kl.target",
             "sampling.group_size", "sampling.temperature", "rewards")),
])  # fmt: skip
def test_the_guide_s_example_is_valid_under_every_algorithm(load, algorithm, unused):
    found = load(GUIDE, f"algorithm={algorithm}")
    assert set(found.unused) == set(unused)
    assert found.sampling.max_length == 4096
    if algorithm != "sft":
        if "policy.clip_ratio" not in unused:
            assert found.resolved["policy"]["clip_low"] == found.resolved["policy"]["clip_high"] == 0.2
        assert found.resolved["policy"]["entropy_coef"] == 0.01
        assert found.resolved["kl"]["coef"] == 0.02
        assert (found.sampling.group_size, found.sampling.temperature) == (8, 1.0)


# ----------------------------------------------------------------------------------------------------------- resolved
@pytest.mark.parametrize("coef", ["0.02", "{schedule: cosine, from: 0.1, to: 0.0, steps: 5}"])
@pytest.mark.parametrize("algorithm", list(algorithms.MODULES))
def test_the_resolved_configuration_survives_a_round_trip_through_yaml(load, folder, algorithm, coef):
    first = load(GUIDE.replace("0.02", coef), f"algorithm={algorithm}")
    (folder / "again.yaml").write_text(yaml.safe_dump(dict(first.resolved), sort_keys=False))
    second = config.load(folder / "again.yaml")
    assert second.resolved == first.resolved
    assert second.algorithm_config == first.algorithm_config
    assert second.unused == ()


CLIPS = st.floats(0, 1, exclude_min=True)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@settings(max_examples=40, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "policy": st.fixed_dictionaries({}, optional={"clip_ratio": CLIPS, "entropy_coef": st.floats(0, 9)}),
            "kl": st.fixed_dictionaries({}, optional={"coef": st.floats(0, 1), "where": st.sampled_from(["loss", "reward"])}),
            "sampling": st.fixed_dictionaries({}, optional={"group_size": st.integers(2, 64), "stop": st.lists(st.text())}),
            "optim": st.fixed_dictionaries({}, optional={"learning_rate": st.floats(0, 1), "max_grad_norm": st.none()}),
            "data": st.fixed_dictionaries({}, optional={"columns": st.dictionaries(NAMES.filter(bool), NAMES)}),
        },
    ),
    st.sampled_from(online.NAMES),
)  # fmt: skip
def test_what_was_resolved_resolves_to_itself(values, algorithm):
    first = config.from_mapping({"algorithm": algorithm, "rewards": ["exact_match"], **values})
    second = config.from_mapping(yaml.safe_load(yaml.safe_dump(dict(first.resolved))))
    assert second.resolved == first.resolved
    assert not config.differences(first.resolved, second.resolved)


def test_differences_are_dotted_and_say_both_values():
    before, after = {"a": {"b": 1, "c": {}}, "d": [1]}, {"a": {"b": 2, "c": {}}, "e": None, "d": [1, 2]}
    assert config.differences(before, after) == [("a.b", 1, 2), ("d", [1], [1, 2])]
    assert config.differences(before, before) == []


@pytest.mark.parametrize(("key", "allowed"), [
    ("train.max_steps", True), ("eval.every", True), ("eval", True), ("checkpoint.keep", True),
    ("guard.probe_tokens", True), ("observe.samples.every", True),
    ("train.micro_batch_tokens", True), ("policy.gradient_checkpointing", True),
    ("train.seed", False), ("train.max_steps_", False), ("evaluation", False), ("algorithm", False),
])  # fmt: skip
def test_a_continued_run_may_change_only_its_limits(key, allowed):
    assert config.may_change(key) is allowed


# --------------------------------------------------------------------------------------------------- shipped examples
def leaves(values, prefix=()):
    for name, value in values.items():
        yield (*prefix, name)
        if isinstance(value, dict):
            yield from leaves(value, (*prefix, name))


def misspelt(word):
    """The last two letters changed about; in a short word, or one that would stay the same, a letter twice."""
    return word + word[-1] if len(word) < 4 or word[-1] == word[-2] else word[:-2] + word[-1] + word[-2]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_shipped_configuration_is_valid_and_reads_all_of_its_keys(path):
    assert config.load(path).unused == ()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_any_key_of_a_shipped_configuration_misspelt_once_is_refused_with_the_right_one(path):
    whole = document.read(path).values
    for key in leaves(whole):
        if key == ("algorithm",) or key[:-1] == ("data", "columns"):  # names of columns are the user's
            continue
        values = document.copied(whole)
        inner = values
        for part in key[:-1]:
            inner = inner[part]
        wrong = misspelt(key[-1])
        inner[wrong] = inner.pop(key[-1])
        with pytest.raises(ConfigError) as error:
            config.from_mapping(values)
        dotted = ".".join((*key[:-1], wrong))
        assert f"unknown key `{dotted}`; did you mean `{key[-1]}`?" in str(error.value)
