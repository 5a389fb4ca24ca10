"""Model directories and checkpoints that mean harm: refused with one message, no code run, memory and time bounded."""

import re
import resource
import shutil
import time

import pytest
import torch

from tests.security import hostile
from trimtab import untrusted
from trimtab.data.messages import MessageError
from trimtab.data.prompts import prompt_of
from trimtab.data.rows import Row
from trimtab.errors import ModelError, StorageError
from trimtab.models import builtin, loading
from trimtab.store.checkpoints import CheckpointStore
from trimtab.store.settings import Checkpoint

MAX_BYTES = 500 << 20
SECONDS = 5


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A model directory and, beside it, a run's checkpoint of two steps."""
    folder = tmp_path_factory.mktemp("good")
    builtin.model(0).save_pretrained(folder / "model")
    builtin.tokenizer().save_pretrained(folder / "model")
    store = CheckpointStore(folder / "checkpoints", Checkpoint(rolling_every=1), max_steps=9)
    for step in (1, 2):
        store.save_if_due(step, State(folder / "model", step), {}, last=True)
    return folder


class State:
    """Of a run: the good model, two moments and a counter."""

    def __init__(self, model, step=-1):
        self.model, self.step = model, step

    def snapshot(self, *, is_copied, policy_only=False):
        from trimtab.ports import Snapshot

        tensors = {f"{kind}_moment.w": torch.ones(4) for kind in ("first", "second")}
        return Snapshot(write_models=self._write, tensors=tensors, values={"step": self.step, "guard": {}})

    def _write(self, directory):
        (directory / "policy").mkdir()
        for path in self.model.iterdir():
            shutil.copyfile(path, directory / "policy" / path.name)

    def read_models(self, directory):
        loading.load(str(directory / "policy"), seed=0)

    def load(self, tensors, values):
        self.step = values["step"]
        assert {name: tensor.shape for name, tensor in tensors.items()}.keys() == {"first_moment.w", "second_moment.w"}


class Bounds:
    """Memory and time between the beginning and the end; what a refusal says is one line."""

    def __enter__(self):
        self.memory, self.began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        return self

    def __exit__(self, *_):
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.memory) << 10
        assert grown < MAX_BYTES
        assert time.process_time() - self.began < SECONDS
        return False


def test_the_good_model_and_the_good_checkpoint_are_taken(good):
    with Bounds():
        loading.load(str(good / "model"), seed=0)
        state = State(good / "model")
        assert CheckpointStore(good / "checkpoints", Checkpoint(), max_steps=9).restore(state) == state.step == 2


@pytest.mark.parametrize("name", hostile.MODELS)
def test_no_model_that_means_harm_is_loaded(good, tmp_path, monkeypatch, name):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder, canary = tmp_path / "model", tmp_path / hostile.CANARY
    shutil.copytree(good / "model", folder)
    hostile.MODELS[name](folder, canary)
    with Bounds(), pytest.raises(ModelError) as caught:
        loading.load(str(folder), seed=0)
    message = str(caught.value)
    assert all(line.startswith("policy.model: ") for line in message.splitlines())
    assert len(message) < 1500
    assert not canary.exists()
    assert "root:" not in message


def test_a_model_that_transformers_knows_is_loaded_without_the_code_that_it_brings(good, tmp_path):
    folder, canary = tmp_path / "model", tmp_path / hostile.CANARY
    shutil.copytree(good / "model", folder)
    hostile.configured(auto_map={"AutoModelForCausalLM": "modeling.Model"}, trust_remote_code=True)(folder, canary)
    assert type(loading.load(str(folder), seed=0).model).__module__.startswith("transformers.")
    assert not canary.exists()


@pytest.mark.parametrize("name", hostile.HEADERS)
def test_a_header_is_refused_by_itself_whatever_the_library_behind_it_would_do(good, tmp_path, name):
    path = tmp_path / "model.safetensors"
    shutil.copyfile(good / "model" / path.name, path)
    untrusted.refuse_header(path)
    hostile.with_header(path, hostile.HEADERS[name])
    with pytest.raises(untrusted.HarmError):
        untrusted.refuse_header(path)


@pytest.mark.parametrize("template", hostile.TEMPLATES)
def test_no_chat_template_reaches_out_of_its_sandbox(tmp_path, template):
    tokenizer, canary = builtin.tokenizer(), tmp_path / hostile.CANARY
    tokenizer.chat_template = hostile.TEMPLATES[template].replace("CANARY", str(canary))
    row = Row(id=0, place="rows.jsonl:1", values={"prompt": [{"role": "user", "content": "1+1="}]})
    with Bounds():
        try:
            found = prompt_of(row, tokenizer).text
        except MessageError as error:
            found = str(error)
            refused = ("the chat template refuses the conversation: ", "the prompt has no tokens")
            is_known = found.startswith(refused) and len(found.splitlines()) == 1
        else:
            is_known = not re.search("object|root:|PATH", found)
    assert is_known, found
    assert not canary.exists()


@pytest.mark.parametrize("name", hostile.CHECKPOINTS)
def test_no_checkpoint_that_means_harm_is_restored_though_its_manifest_fits(good, tmp_path, name):
    canary = tmp_path / hostile.CANARY
    shutil.copytree(good / "checkpoints", tmp_path / "checkpoints")
    hostile.CHECKPOINTS[name](tmp_path / "checkpoints" / "2", canary)
    said = []
    store = CheckpointStore(tmp_path / "checkpoints", Checkpoint(), max_steps=9, warn=said.append)
    state = State(good / "model")
    with Bounds():
        try:
            assert store.restore(state) == state.step == 1
            assert len(said) == 1
            assert said[0].startswith("checkpoint 2 is not used: ")
        except (StorageError, ModelError) as error:
            said = [str(error)]
    assert str(tmp_path / "checkpoints" / "2") in said[0]
    assert len(said[0].splitlines()) == 1
    assert not canary.exists()


def test_there_are_enough_of_them():
    assert len(hostile.MODELS) + len(hostile.CHECKPOINTS) + len(hostile.TEMPLATES) >= 100
