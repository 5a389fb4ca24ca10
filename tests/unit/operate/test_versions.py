"""What is installed, and how another run differs."""

import json

import pytest

from trimtab import __version__
from trimtab import config as configs
from trimtab.assemble import Numerics
from trimtab.errors import UserError
from trimtab.operate import versions
from trimtab.store.run_directory import RunDirectory

NUMERICS = Numerics(threads=1, micro_batch_tokens=2048, rollout_rows=64, device="cpu")


@pytest.fixture
def config():
    return configs.from_mapping({"algorithm": "grpo", "rewards": ["exact_match"]})


@pytest.fixture
def run(tmp_path, config):
    directory = RunDirectory(tmp_path / "run")
    directory.create()
    directory.add_config(config.requested, config.resolved, why="started")
    directory.describe(
        versions={"trimtab": __version__, "torch": versions.version("torch")},
        seeds={"train": 0, "data": 0},
        data_fingerprints={"train": "ab"},
        numerics={"threads": 1, "micro_batch_tokens": 2048, "rollout_rows": 64, "device": "cpu"},
    )
    return directory


def differences(directory, config, **prints):
    other = versions.other_run(directory.root)
    found = versions.against(other, config=config, fingerprints=prints or {"train": "ab"}, numerics=NUMERICS)
    return {d.what: (d.theirs, d.ours) for d in found}


def test_every_requirement_is_listed_with_its_range():
    found = {library.name: library for library in versions.libraries()}
    assert found["torch"].wanted == ">=2.9,<2.16"
    assert found["torch"].is_fitting
    assert found["matplotlib"].extra in versions.extras()
    assert not found["torch"].extra


def test_a_run_of_the_same_configuration_here_does_not_differ(run, config):
    assert differences(run, config) == {}


def test_versions_seeds_data_numerics_and_settings_that_differ_are_named(run, config):
    facts = run.facts()
    facts["versions"]["torch"] = "1.0"
    facts["versions"]["gone"] = "3"
    facts["numerics"]["threads"] = 8
    facts["seeds"]["data"] = 7
    run.describe(**facts)
    other = configs.from_mapping(dict(config.requested), ["optim.learning_rate=0.5"])
    assert differences(run, other, train="cd") == {
        "versions.torch": ("1.0", versions.version("torch")),
        "versions.gone": ("3", None),
        "numerics.threads": (8, 1),
        "seeds.data": (7, 0),
        "data_fingerprints.train": ("ab", "cd"),
        "optim.learning_rate": (1e-6, 0.5),
    }


def test_where_there_is_no_run_that_is_said(tmp_path):
    with pytest.raises(UserError, match="no run was started here"):
        versions.other_run(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "\x00", "[" * 99999])
def test_a_damaged_run_is_no_traceback(run, text):
    (run.root / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"--like .*cannot be read.*trimtab verify"):
        versions.other_run(run.root)


def test_a_run_without_a_configuration_is_no_traceback(run):
    run.config_versions()[0].write_text(json.dumps({"resolved": 3}))
    with pytest.raises(UserError, match="trimtab verify"):
        versions.other_run(run.root)
