"""A copy of the models writes, whenever it is asked, what the weights were when it was taken: byte for byte."""

import pytest
import torch

from tests.unit.models.roles_under_test import PRECISIONS, disturb, roles
from tests.unit.models.test_architectures import ARCHITECTURES, configured
from tests.unit.models.test_scoring import place_of
from tests.unit.models.test_scoring import roles as scoring_roles
from trimtab.models import builtin
from trimtab.models.lora import Adapter, Base
from trimtab.models.roles import InProcessModels
from trimtab.models.saving import copied
from trimtab.models.scoring import TASK, ScoringModels
from trimtab.models.settings import Lora

ROLES = {
    "a policy": lambda _: roles(),
    "a policy in bfloat16": lambda _: roles(PRECISIONS["bfloat16"]),
    "a critic of its own": lambda _: roles(critic="own"),
    "a shared critic": lambda _: roles(critic="shared"),
    "an adapter": lambda _: roles(adapter=True),
    "a reward model": lambda folder: scoring_roles(place_of(folder / "model")),
    "a reward model's adapter": lambda folder: with_adapter(scoring_roles(place_of(folder / "model"))),
}


def with_adapter(models):
    base = Base(model="builtin:tiny", seed=0, dtype="float32", fingerprint="")
    adapter = Adapter(models.model, Lora(rank=2), base=base, seed=0, task=TASK)
    return ScoringModels(model=models.model, tokenizer=models.tokenizer, adapter=adapter)


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("name", ROLES)
def test_what_a_copy_writes_does_not_change_with_the_weights(tmp_path, name):
    models = ROLES[name](tmp_path)
    disturb(models)
    models.save(tmp_path / "before")
    write = models.writer(is_copied=True)
    disturb(models, seed=4)
    write(tmp_path / "copied")
    models.save(tmp_path / "after")
    assert files(tmp_path / "copied") == files(tmp_path / "before")
    changed = {n for n, data in files(tmp_path / "after").items() if data != files(tmp_path / "before")[n]}
    assert changed == {n for n in files(tmp_path / "before") if n.endswith(".safetensors")}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_so_it_is_with_every_architecture(tmp_path, name):
    """Some keep weights in another form than they store them, and some share them."""
    models = InProcessModels(model=configured(name), tokenizer=builtin.tokenizer(), temperature=1.0)
    models.save(tmp_path / "before")
    write = models.writer(is_copied=True)
    with torch.no_grad():
        for parameter in models.model.parameters():
            parameter.add_(1.0)
    write(tmp_path / "copied")
    assert files(tmp_path / "copied") == files(tmp_path / "before")


def test_weights_that_are_shared_are_copied_once():
    shared, own = torch.ones(3), torch.ones(3)
    found = copied({"a": shared, "b": shared, "c": own, "part": shared[:2]})
    assert found["a"] is found["b"]
    assert len({found[name].data_ptr() for name in ("a", "c", "part")} | {shared.data_ptr(), own.data_ptr()}) == 5
    shared.zero_()
    assert found["b"].tolist() == [1.0, 1.0, 1.0]


def test_the_policy_alone_is_the_policy_and_nothing_else(tmp_path):
    models = roles(critic="own")
    models.save(tmp_path / "all")
    models.writer(is_copied=True, policy_only=True)(tmp_path / "alone")
    everything = files(tmp_path / "all")
    assert files(tmp_path / "alone") == {n: data for n, data in everything.items() if n.startswith("policy/")}
    assert any(name.startswith("value/") for name in everything)


def test_a_tokenizer_that_is_used_meanwhile_is_written_as_it_was(tmp_path):
    models = roles()
    models.save(tmp_path / "before")
    write = models.writer(is_copied=True)
    models.tokenizer(["1+1=", "1"], padding="max_length", truncation=True, max_length=3)
    write(tmp_path / "copied")
    assert files(tmp_path / "copied") == files(tmp_path / "before")
