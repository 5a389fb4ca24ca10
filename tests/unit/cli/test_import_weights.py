"""`trimtab import-weights`: weights out of a pickle, in another process, and nothing else out of it."""

import os

import pytest
import torch
import transformers
from typer.testing import CliRunner

from trimtab.cli import app
from trimtab.models import builtin, pickled
from trimtab.operate import import_weights as operate

IDS = torch.arange(4, 20).unsqueeze(0)


@pytest.fixture(scope="module")
def like(tmp_path_factory):
    folder = tmp_path_factory.mktemp("like")
    builtin.model(0).save_pretrained(folder)
    builtin.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def in_this_process(monkeypatch):
    """Spares the start of a process where what is read is harmless."""

    def read(file, out):
        told = pickled.main(str(file), str(out))
        if "error" in told:
            raise operate.ModelError(f"{file} {told['error']}")
        return told

    monkeypatch.setattr(operate, "_read_elsewhere", read)


def import_weights(file, like, to):
    return CliRunner().invoke(app, ["import-weights", str(file), "--like", str(like), "--to", str(to)])


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def of(model, prefix=""):
    return {prefix + name: tensor for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    ("wrap", "said"),
    [
        (lambda m: of(m), []),
        (lambda m: of(m, "module."), ["prefix removed   module."]),
        (
            lambda m: {"state_dict": of(m, "model.module."), "epoch": 3, "optimizer": {"lr": 0.1}},
            ["taken from       state_dict", "prefix removed   model.module.", "left out         epoch, optimizer"],
        ),
        (lambda m: {"model": {"model_state_dict": of(m)}}, ["taken from       model.model_state_dict"]),
        (
            lambda m: {"model_state_dict": of(m, "_orig_mod.")},
            ["taken from       model_state_dict", "prefix removed   _orig_mod."],
        ),
    ],
)
def test_the_weights_are_those_of_the_file_whatever_they_are_wrapped_in(in_this_process, like, tmp_path, wrap, said):
    model = builtin.model(5)
    torch.save(wrap(model), tmp_path / "weights.pt")
    result = import_weights(tmp_path / "weights.pt", like, tmp_path / "out")
    assert result.exit_code == 0, result.exception
    made = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", use_safetensors=True)
    assert torch.equal(logits(made), logits(model))
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("47").input_ids == [8, 11]
    lines = result.output.splitlines()
    assert lines[0] == f"{tmp_path / 'out'}: LlamaForCausalLM, 39 weights, float32"
    assert [line.strip() for line in lines[1:]] == said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "weights.pt"]


def test_the_precision_of_the_file_is_kept(like, tmp_path):
    torch.save(of(builtin.model(5).bfloat16()), tmp_path / "weights.bin")
    result = import_weights(tmp_path / "weights.bin", like, tmp_path / "out")
    assert "39 weights, bfloat16" in result.output, result.exception
    made = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert made.dtype == torch.bfloat16


class Bomb:
    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.system, (f"touch {self.canary}",)


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_file_that_would_run_code_is_refused_and_does_not_run_it(like, tmp_path, is_zip):
    canary = tmp_path / "canary"
    weights = {**of(builtin.model(5)), "more": Bomb(canary)}
    if is_zip:
        torch.save(weights, tmp_path / "weights.pt")
    else:
        torch.save(weights, tmp_path / "weights.pt", _use_new_zipfile_serialization=False)
    result = import_weights(tmp_path / "weights.pt", like, tmp_path / "out")
    assert result.exception.exit_code == 2
    assert "is refused: reading it would call posix.system" in str(result.exception)
    assert not canary.exists()
    assert not (tmp_path / "out").exists()
    with (tmp_path / "weights.pt").open("rb") as file:
        torch.load(file, weights_only=False)
    assert canary.exists(), "the bomb is none: nothing was tested"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("lm_head.weight"), "it lacks lm_head.weight"),
        (lambda w: w.update(extra=torch.ones(2)), "it has weights that the model has no place for: extra"),
        (
            lambda w: w.update({"lm_head.weight": torch.ones(3, 128)}),
            r"it has other shapes: lm_head.weight (3, 128), expected (100, 128)",
        ),
    ],
)
def test_weights_that_are_not_those_of_the_model_are_refused_by_name(in_this_process, like, tmp_path, change, message):
    weights = of(builtin.model(5))
    change(weights)
    torch.save(weights, tmp_path / "weights.pt")
    result = import_weights(tmp_path / "weights.pt", like, tmp_path / "out")
    assert result.exception.exit_code == 2
    assert f"does not fit LlamaForCausalLM of --like: {message}" in str(result.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"no pickle at all", "weights.pt"),
        ([1, 2], "holds a list, expected weights by name"),
        ({"lr": 0.1}, "has no weights by name in it"),
    ],
)
def test_what_holds_no_weights_is_refused_in_one_line(in_this_process, like, tmp_path, content, message):
    if isinstance(content, bytes):
        (tmp_path / "weights.pt").write_bytes(content)
    else:
        torch.save(content, tmp_path / "weights.pt")
    result = import_weights(tmp_path / "weights.pt", like, tmp_path / "out")
    assert result.exception.exit_code == 2, result.exception
    assert message in str(result.exception)
    assert len(str(result.exception).splitlines()) == 1


def test_a_directory_with_something_in_it_is_left_alone(like, tmp_path):
    torch.save(of(builtin.model(5)), tmp_path / "weights.pt")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    result = import_weights(tmp_path / "weights.pt", like, tmp_path / "out")
    assert result.exception.exit_code == 2
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine"]


def test_a_file_that_is_safe_already_needs_no_conversion(like, tmp_path):
    result = import_weights(like / "model.safetensors", like, tmp_path / "out")
    assert result.exception.exit_code == 2
    assert "safe to read as it is" in str(result.exception)


def test_a_model_with_tied_weights_needs_its_output_layer_once(in_this_process, tmp_path):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=101, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path / "like")
    builtin.tokenizer().save_pretrained(tmp_path / "like")
    weights = of(transformers.GPT2LMHeadModel(config))
    weights.pop("lm_head.weight")
    torch.save(weights, tmp_path / "weights.pt")
    assert import_weights(tmp_path / "weights.pt", tmp_path / "like", tmp_path / "out").exit_code == 0
    made = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(made.lm_head.weight, weights["transformer.wte.weight"])
