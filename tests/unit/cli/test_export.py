"""`trimtab export`: a directory that others can read, or a refusal that leaves nothing behind."""

import json
import shutil
import stat

import pytest
import torch
import transformers
from typer.testing import CliRunner

from tests.runs import small
from tests.unit.models.test_loading import an_adapter
from trimtab.cli import app
from trimtab.models import builtin

IDS = torch.arange(4, 20).unsqueeze(0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of two steps."""
    folder = tmp_path_factory.mktemp("export")
    return small.train(small.write(folder, steps=2), folder / "run").root


def export(*words):
    return CliRunner().invoke(app, ["export", *map(str, words)])


def logits(folder):
    with torch.no_grad():
        return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()(input_ids=IDS).logits


def test_what_is_exported_is_read_by_transformers_and_is_the_final_model(run, tmp_path):
    result = export(run, "--to", tmp_path / "deep" / "out")
    assert result.exit_code == 0, result.output
    out = tmp_path / "deep" / "out"
    assert torch.equal(logits(out), logits(run / "final"))
    assert transformers.AutoTokenizer.from_pretrained(out)("47").input_ids == builtin.tokenizer()("47").input_ids
    assert "library_name: transformers" in (out / "README.md").read_text()
    assert result.output.startswith(f"{out}: model of {run / 'final'}, float32, ")
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_the_files_have_the_mode_of_the_umask(run, tmp_path):
    export(run, "--to", tmp_path / "plain")
    export(run, "--to", tmp_path / "half", "--dtype", "bfloat16")
    (tmp_path / "probe").write_text("")
    expected = stat.S_IMODE((tmp_path / "probe").stat().st_mode)
    found = {stat.S_IMODE(p.stat().st_mode) for d in ("plain", "half") for p in (tmp_path / d).iterdir()}
    assert found == {expected}


def test_a_checkpoint_is_exported_by_its_step(run, tmp_path):
    assert export(run, "--to", tmp_path / "0", "--checkpoint", 0).exit_code == 0
    assert torch.equal(logits(tmp_path / "0"), logits(run / "checkpoints" / "0" / "policy"))
    assert not torch.equal(logits(tmp_path / "0"), logits(run / "checkpoints" / "2" / "policy"))
    assert "weights of step 0" in (tmp_path / "0" / "README.md").read_text()


def test_another_precision_rounds_the_weights_and_says_so_in_the_configuration(run, tmp_path):
    assert export(run, "--to", tmp_path / "out", "--dtype", "bfloat16").exit_code == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    full = transformers.AutoModelForCausalLM.from_pretrained(run / "final").state_dict()
    half = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").state_dict()
    for name, weight in full.items():
        assert torch.equal(half[name], weight.bfloat16()), name


def test_nothing_is_written_into_a_directory_that_has_something_in_it(run, tmp_path):
    (tmp_path / "out").mkdir()
    assert export(run, "--to", tmp_path / "out").exit_code == 0
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()}
    result = export(run, "--to", tmp_path / "out")
    assert "nothing is overwritten" in str(result.exception)
    assert result.exception.exit_code == 2
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--checkpoint", 7), 2, "has no checkpoint of step 7; there are: 0, 1, 2"),
        (("--adapter",), 2, "are merged; take the adapter of a step with --checkpoint STEP"),
        (("--checkpoint", 1, "--adapter"), 2, "holds all weights, not an adapter"),
    ],
)
def test_what_cannot_be_exported_is_refused_and_leaves_nothing(run, tmp_path, words, code, message):
    result = export(run, "--to", tmp_path / "out", *words)
    assert (result.exception.exit_code, message in str(result.exception)) == (code, True), result.exception
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_not_exported(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    file = tmp_path / "run" / "checkpoints" / "1" / "policy" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    result = export(tmp_path / "run", "--to", tmp_path / "out", "--checkpoint", 1)
    assert result.exception.exit_code == 4
    assert "step 1 is damaged" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_an_unfinished_run_is_exported_by_a_checkpoint_only(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "final")
    result = export(tmp_path / "run", "--to", tmp_path / "out")
    assert "has not finished" in str(result.exception)
    assert "there are: 0, 1, 2" in str(result.exception)
    assert export(tmp_path / "run", "--to", tmp_path / "out", "--checkpoint", 2).exit_code == 0


@pytest.fixture(scope="module")
def lora_run(tmp_path_factory):
    """A finished run that trained an adapter."""
    folder = tmp_path_factory.mktemp("lora")
    words = ("policy.lora={rank: 4}", "optim.learning_rate=0.05", "train.seed=3")
    return small.train(small.write(folder, steps=2), folder / "run", *words).root


def test_an_adapter_is_merged_or_written_as_it_was_trained(lora_run, tmp_path):
    trained = lora_run / "checkpoints" / "2" / "policy"
    assert (trained / "adapter_config.json").is_file()
    assert export(lora_run, "--to", tmp_path / "merged", "--checkpoint", 2).exit_code == 0
    assert export(lora_run, "--to", tmp_path / "adapter", "--checkpoint", 2, "--adapter").exit_code == 0
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    same = {p.name: p.read_bytes() for p in trained.iterdir()}
    assert {p.name: p.read_bytes() for p in (tmp_path / "adapter").iterdir() if p.name != "README.md"} == same
    assert export(lora_run, "--to", tmp_path / "start", "--checkpoint", 0).exit_code == 0
    moved = float((logits(tmp_path / "merged") - logits(tmp_path / "start")).abs().max())
    assert moved > 0.01, "the adapter was left out"
    result = export(lora_run, "--to", tmp_path / "half", "--checkpoint", 2, "--adapter", "--dtype", "float16")
    assert result.exception.exit_code == 2
    assert "--dtype is of merged weights" in str(result.exception)


def test_an_adapter_whose_base_is_gone_is_exported_as_adapter_only(tmp_path, run):
    """A checkpoint that names a base that nobody has any more."""
    from trimtab.operate import export as operate

    an_adapter(tmp_path / "adapter", builtin.NAME)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "/nowhere/at/all"
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(operate.ModelError, match="which does not exist"):
        operate._write_weights(tmp_path / "adapter", tmp_path / "out", None)
