"""A run whose passes are packed learns what an unpacked one learns, and says the same of it."""

import json

import pytest

from tests.runs import small
from trimtab.errors import ModelError
from trimtab.models import packing, policy
from trimtab.operate import finish
from trimtab.store import journal

LONG = [f"{'1' * (n % 7 + 1)}+{'2' * (n * n % 30)}=" for n in range(24)]
WORDS = ["train.prompts_per_step=8", "train.minibatches=2", "sampling.max_length=64", "optim.learning_rate=1e-4"]


@pytest.fixture(autouse=True)
def without_report(monkeypatch):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])


@pytest.fixture
def tokens(monkeypatch):
    """Tokens of each pass, padding included."""
    seen, states_of = [], packing.states_of

    def watched(trunk, rows, lengths=None):
        whole = None if lengths is None else packing.packed(rows, lengths)
        seen.append(rows.numel() if whole is None else whole.tokens.numel())
        return states_of(trunk, rows, lengths)

    monkeypatch.setattr(policy, "states_of", watched)
    return seen


def ragged(tmp_path, name):
    path = tmp_path / f"{name}.jsonl"
    answers = [prompt[: 1 + n % 11] for n, prompt in enumerate(LONG)]
    rows = [{"prompt": p, "completion": a, "chosen": a, "rejected": "7" * (n % 5 + 1)} for n, (p, a) in
            enumerate(zip(LONG, answers, strict=True))]  # fmt: skip
    keys = ("prompt", "completion") if name == "sft" else ("prompt", "chosen", "rejected")
    path.write_text("\n".join(json.dumps({k: row[k] for k in keys}) for row in rows))
    return path


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_sft_has_the_same_losses_gradients_and_journal(tmp_path, tokens, aggregation):
    data = ragged(tmp_path, "sft")
    words = [*WORDS, f"data.train={data}", f"data.validation={data}", f"policy.aggregation={aggregation}"]
    found, counts = {}, {}
    for packs in ("false", "true"):
        tokens.clear()
        run = small.train(small.write(tmp_path, "sft", steps=3), tmp_path / packs, *words, f"data.packing={packs}")
        found[packs] = small.steps(run), journal.read(run.journal).evaluations()
        counts[packs] = sum(tokens)
    assert counts["true"] < 0.7 * counts["false"]
    _compared(*(found[packs] for packs in ("true", "false")), ("loss/", "grad_norm/", "entropy", "length/"))


@pytest.mark.parametrize("name", ["dpo", "reward_model"])
def test_algorithms_on_pairs_have_the_same_losses_and_gradients(tmp_path, name):
    data = ragged(tmp_path, name)
    words = [*WORDS, f"data.train={data}", f"data.validation={data}"]
    found = []
    for packs in ("true", "false"):
        run = small.train(small.write(tmp_path, name, steps=2), tmp_path / packs, *words, f"data.packing={packs}")
        found.append((small.steps(run), journal.read(run.journal).evaluations()))
    _compared(*found, ("loss/", "grad_norm/", "preference/margin", "eval/loss/"))


def _compared(packed, padded, names):
    for a, b in zip(packed[0] + packed[1], padded[0] + padded[1], strict=True):
        for part in {"prompt_ids", "completions"} & a.keys():
            assert a[part] == b[part]
        metrics = [n for n in b["metrics"] if n.removeprefix("eval/").startswith(names)]
        assert metrics
        for metric in metrics:
            assert a["metrics"][metric] == pytest.approx(b["metrics"][metric], abs=2e-6, rel=2e-5), metric


def test_demonstrations_mixed_into_a_run_that_samples_are_packed_too(tmp_path, tokens):
    data = ragged(tmp_path, "sft")
    more = f"mix: [{{algorithm: sft, data: {data}, rows_per_step: 12}}]\n"
    found, counts = {}, {}
    for packs in ("false", "true"):
        tokens.clear()
        path = small.write(tmp_path, "grpo", steps=1, more=more)
        run = small.train(path, tmp_path / packs, "sampling.max_length=64", f"data.packing={packs}")
        found[packs], counts[packs] = small.steps(run)[0]["metrics"], sum(tokens)
    assert counts["true"] < counts["false"]
    assert found["true"]["loss/mix/sft/nll"] == pytest.approx(found["false"]["loss/mix/sft/nll"], abs=1e-6)


def test_an_architecture_that_cannot_be_packed_is_refused_when_it_is_asked_for(tmp_path):
    import torch
    import transformers

    from trimtab.models import builtin

    torch.manual_seed(0)
    config = transformers.BloomConfig(vocab_size=builtin.CONFIG["vocab_size"], hidden_size=32, n_layer=1, n_head=4)
    transformers.BloomForCausalLM(config).save_pretrained(tmp_path / "bloom")
    builtin.tokenizer().save_pretrained(tmp_path / "bloom")
    words = [f"policy.model={tmp_path / 'bloom'}", "data.packing=true"]
    with pytest.raises(ModelError, match=r"data\.packing: true, but BloomForCausalLM does not keep packed rows apart"):
        small.train(small.write(tmp_path, "sft", steps=1), tmp_path / "run", *words)
