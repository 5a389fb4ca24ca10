"""A run goes on from where it was: no row twice, none left out, from the weights that were saved."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.runs import small
from tests.runs.small import Interrupted, interrupt_after
from trimtab.data.order import Order
from trimtab.data.prompts import Demonstration
from trimtab.data.sources import DEMONSTRATIONS, ReadingSource
from trimtab.rollout.in_process import InProcessEngine
from trimtab.types import Prompt


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eight rows, four a step: two epochs of two steps."""
    folder = tmp_path_factory.mktemp("resuming")
    (folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"{n}+{n}="}) + "\n" for n in range(8)))
    return folder


def train(folder, name):
    path = small.write(folder, steps=4)
    return small.train(path, folder / name, "data.train=rows.jsonl", "data.validation=null", "sampling.group_size=2")


@pytest.fixture(scope="module")
def whole(folder):
    return small.evidence(train(folder, "whole"))


@pytest.mark.parametrize("step", [2, 4], ids=["at the end of an epoch", "at the last step"])
def test_no_row_is_repeated_or_left_out_by_a_cut_at_a_boundary(folder, whole, monkeypatch, step):
    with monkeypatch.context() as patch:
        interrupt_after(patch, step)
        with pytest.raises(Interrupted):
            train(folder, f"cut-{step}")
    directory = train(folder, f"cut-{step}")
    assert small.evidence(directory) == whole
    epochs = [[i for s in small.steps(directory)[part : part + 2] for i in s["prompt_ids"]] for part in (0, 2)]
    assert [sorted(ids) for ids in epochs] == [sorted([*range(8), *range(8)])] * 2
    assert directory.facts()["outcome"] == "all steps done"
    assert (directory.final / "config.json").is_file()


def test_the_first_completions_after_a_resume_come_from_the_saved_weights(folder, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(Interrupted):
            train(folder, "weights")
    seen = []
    generate = InProcessEngine.generate

    def looked(self, draws, **options):
        seen.append((self.version, {name: p.detach().clone() for name, p in self.model.named_parameters()}))
        return generate(self, draws, **options)

    monkeypatch.setattr(InProcessEngine, "generate", looked)
    directory = train(folder, "weights")
    version, weights = seen[0]
    saved = load_file(directory.checkpoints / "2" / "policy" / "model.safetensors")
    assert version == 2
    assert all(torch.equal(weights[name], saved[name]) for name in saved)
    assert small.steps(directory)[2]["metrics"]["staleness"] == 0.0


def reader(rank, ranks):
    rows = [
        Demonstration(prompt=Prompt(id=n, text="", tokens=(5,) * (n + 1)), completion=(7,) * (n + 1), text="")
        for n in range(10)
    ]
    order = Order(10, seed=0, shuffle=True)
    return ReadingSource(rows, order, DEMONSTRATIONS, rows_per_step=4, rank=rank, ranks=ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_go_on_behind_the_rows_of_all_also_when_there_are_more_or_fewer(ranks):
    before = [reader(rank, 2) for rank in range(2)]
    for source in before:
        source.next_batch()
        source.next_batch()
    saved = json.loads(json.dumps(before[0].state()))
    after = [reader(rank, ranks) for rank in range(ranks)]
    for source in after:
        source.load_state(saved)
    for _ in range(3):
        wanted = [source.next_batch().prompt_ids.tolist() for source in before]
        found = [source.next_batch().prompt_ids.tolist() for source in after]
        assert sorted(i for ids in found for i in ids) == sorted(i for ids in wanted for i in ids)
        assert ranks != 2 or found == wanted
