"""A configuration is values: no tag, alias, name or text in it runs code, reads a file or takes the machine."""

import json
import re
import resource
import time

import pytest

from tests.runs import small
from trimtab import algorithms
from trimtab import config as configs
from trimtab.errors import ConfigError, RewardError, UserError
from trimtab.operate.start import train_in
from trimtab.store.run_directory import RunDirectory

GOOD = "algorithm: grpo\nrewards: [exact_match]\n"


def load(folder, text, *words):
    (folder / "a.yaml").write_text(text)
    return configs.load(folder / "a.yaml", [word.replace("CANARY", str(folder / "canary")) for word in words])


TAGS = [
    "!!python/object/apply:os.system ['touch CANARY']",
    "!!python/object/apply:builtins.open [CANARY, w]",
    "!!python/object/apply:builtins.eval [\"open('CANARY', 'w')\"]",
    "!!python/object/apply:subprocess.Popen [[touch, CANARY]]",
    "!!python/object/new:pathlib.PosixPath [CANARY]",
    "!!python/object:pathlib.PosixPath {}",
    "!!python/name:os.system ''",
    "!!python/module:antigravity ''",
    "!!python/tuple [1, 2]",
    "!!python/bytes 'YQ=='",
    "!!python/complex 1+2j",
    "!!map/of:os.system {a: 1}",
    "!include CANARY",
    "!env HOME",
    "!<tag:yaml.org,2002:python/object/apply:os.system> ['touch CANARY']",
]


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("where", ["a value", "a list", "the whole file", "the command line"])
def test_no_tag_makes_an_object(tmp_path, tag, where):
    tag = tag.replace("CANARY", str(tmp_path / "canary"))
    text, words = {
        "a value": (f"{GOOD}policy:\n  model: {tag}\n", ()),
        "a list": (f"{GOOD}data:\n  allow:\n    - {tag}\n", ()),
        "the whole file": (f"--- {tag}\n{GOOD}", ()),
        "the command line": (GOOD, (f"policy.model={tag}",)),
    }[where]
    try:
        model = load(tmp_path, text, *words).policy.model
    except ConfigError as error:
        is_refused_or_text = re.search(r"a\.yaml:\d|command line: ", str(error))
    else:
        is_refused_or_text = isinstance(model, str) and where == "the command line"
    assert is_refused_or_text
    assert not (tmp_path / "canary").exists()


BOMBS = {
    "aliases": "a: &a [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]" for n in range(9)
    ),
    "merges": "k0: &k0 {x: 1}\n"
    + "\n".join(f"k{n}: &k{n} {{<<: *k{n - 1}, y{n}: *k{n - 1}}}" for n in range(1, 20)),
    "an alias of itself": "a: &a [*a]",
    "deep lists": "a: " + "[" * 20_000 + "]" * 20_000,
    "deep mappings": "\n".join(" " * n + "a:" for n in range(3_000)),
    "a long line": "a: " + "x" * 10_000_000,
    "many keys": "\n".join(f"k{n}: 1" for n in range(150_000)),
    "a number of half a million digits": "a: " + "9" * 500_000,
    "a base of sixty": "a: " + ":".join(["59"] * 10_000),
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_no_file_takes_more_than_a_little_time_and_memory(tmp_path, bomb):
    began, memory = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, GOOD + BOMBS[bomb] + "\n")
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) << 10 < 500 << 20
    assert time.process_time() - began < 20  # what has no bound takes for ever
    assert len(str(caught.value)) < 100_000


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "os:system",
        "../../evil",
        "/etc/passwd",
        "grpo; touch CANARY",
        "__import__",
        "trimtab.algorithms.grpo",
    ],
)
def test_an_algorithm_is_a_registered_name_and_nothing_else(tmp_path, name):
    with pytest.raises(UserError):
        algorithms.load(name)
    with pytest.raises(ConfigError, match=r"a\.yaml:1: "):
        load(tmp_path, f"algorithm: '{name}'\nrewards: [exact_match]\n")


CALLED = [
    "os:system",
    "posix:system",
    "builtins:exec",
    "builtins:eval",
    "builtins:open",
    "subprocess:getoutput",
    "os:remove",
]
WORDS = [
    "a.b.c:d",
    "../evil:run",
    "/tmp/evil:run",
    "evil;touch CANARY:run",
    "evil:run()",
    "evil:__class__.__mro__",
    ":",
    "x:",
]


@pytest.mark.parametrize("name", [*CALLED, *WORDS])
def test_a_reward_that_is_no_function_of_rewards_is_refused_and_does_nothing(tmp_path, name):
    """`module:function` is code by design: what it names is imported and called, with prompts and completions alone."""
    canary = tmp_path / "canary"
    words = [json.dumps([{"name": name.replace("CANARY", str(canary))}]).join(["rewards=", ""])]
    with pytest.raises((RewardError, ConfigError)):
        train_in(configs.load(small.write(tmp_path, "grpo", steps=1), words), RunDirectory(tmp_path / "run"))
    assert not canary.exists()
    assert (tmp_path / "grpo.yaml").exists()


def test_no_text_of_a_configuration_reaches_a_shell(tmp_path):
    """Names with all that a shell would act on are names of files that are not there."""
    for text in (
        "$(touch CANARY)",
        "`touch CANARY`",
        "; touch CANARY",
        "| touch CANARY",
        "> CANARY",
        "a && touch CANARY",
    ):
        name = text.replace("CANARY", str(tmp_path / "canary"))
        config = load(tmp_path, GOOD, f"data.train={json.dumps(name)}", f"policy.model={json.dumps('./' + name)}")
        with pytest.raises(UserError):
            train_in(config, RunDirectory(tmp_path / "run"))
        assert not (tmp_path / "canary").exists()
