"""What a finished run proposes: commands for files that are there."""

import pytest

from trimtab import config as configs
from trimtab.operate.start import next_steps
from trimtab.store.run_directory import RunDirectory


@pytest.mark.parametrize(
    ("algorithm", "behind", "why"),
    [
        ("sft", "policy.model=RUN", "reinforcement learning from here"),
        ("reward_model", "rewards='[{model: RUN}]'", "a policy that is paid by it"),
    ],
)
def test_an_example_is_named_only_where_it_is(tmp_path, monkeypatch, algorithm, behind, why):
    monkeypatch.chdir(tmp_path)
    config = configs.from_mapping({"algorithm": algorithm})
    directory = RunDirectory(tmp_path / "RUN")
    (line, *_) = next_steps(config, directory)
    assert f"train CONFIG {behind}" in line
    assert line.endswith(f"# {why}; CONFIG: a file with `algorithm: grpo`, data and rewards")
    (tmp_path / "examples" / "demo").mkdir(parents=True)
    (tmp_path / "examples" / "demo" / "grpo.yaml").write_text("")
    (line, *_) = next_steps(config, directory)
    assert f"train examples/demo/grpo.yaml {behind}" in line
    assert line.endswith(f"# {why}")
