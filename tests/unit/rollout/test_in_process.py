"""What the engine suite does not ask: stop strings, truncated sampling, and how little it computes."""

import pytest
import torch

from tests.contracts.engine_under_test import tiny
from trimtab.kernels import sampling as kernel
from trimtab.types import Draw


def draws(under_test):
    return [Draw(prompt=p, draw=i) for i, p in enumerate(under_test.prompts)]


def test_a_stop_string_ends_a_completion_and_is_not_in_its_text():
    under_test = tiny()
    plain = under_test.build(0).generate(draws(under_test), group_size=4)
    long = max(plain, key=lambda r: len(r.text))
    stop = long.text[3:5]
    under_test.sampling = {"stop": (stop,)}
    stopped = under_test.build(0).generate(draws(under_test), group_size=4)
    for before, after in zip(plain, stopped, strict=True):
        if stop in before.text:
            assert after.text == before.text.split(stop)[0]
            assert not after.is_truncated
            assert len(after.tokens) <= len(before.tokens)
            assert under_test.tokenizer.decode(after.tokens).endswith(stop)
        else:
            assert after.tokens == before.tokens
    assert any(stop in r.text for r in plain)


@pytest.mark.parametrize("cut", [{"top_p": 0.5}, {"top_k": 3}, {"top_p": 0.8, "top_k": 5}])
def test_log_probs_are_of_the_truncated_distribution(cut):
    under_test = tiny(**cut)
    rollout = under_test.build(0).generate(draws(under_test)[:1], group_size=1)[0]
    ids = torch.tensor([rollout.prompt.tokens + rollout.tokens])
    logits = under_test.model(input_ids=ids).logits[0, len(rollout.prompt.tokens) - 1 : -1]
    expected = kernel.sampling_log_probs(logits, temperature=1.0, **cut)
    found = expected.gather(1, torch.tensor(rollout.tokens)[:, None]).squeeze(1)
    assert found.tolist() == pytest.approx(list(rollout.log_probs), abs=1e-4)
    assert bool(found.isfinite().all())


def test_a_prompt_is_run_once_a_group_and_ended_rows_leave_the_batch(monkeypatch):
    under_test = tiny()
    engine = under_test.build(0)
    shapes = []
    forward = under_test.model.forward

    def counted(*args, **kwargs):
        shapes.append(tuple(kwargs["input_ids"].shape))
        return forward(*args, **kwargs)

    monkeypatch.setattr(under_test.model, "forward", counted)
    rollouts = engine.generate(draws(under_test), group_size=16)
    assert shapes[0][0] == len(under_test.prompts)
    decoding = [rows for rows, width in shapes[1:] if width == 1]
    assert decoding[0] <= 16 * len(under_test.prompts)
    assert decoding == sorted(decoding, reverse=True)
    tokens = sum(len(r.tokens) for r in rollouts)
    assert sum(decoding) < 1.3 * tokens, "ended completions were decoded on"


def test_many_rows_are_decoded_in_chunks_with_the_same_result():
    under_test = tiny()
    whole = under_test.build(0).generate(draws(under_test), group_size=4)
    engine = under_test.build(0)
    engine.rows_at_once = 8
    assert [r.tokens for r in engine.generate(draws(under_test), group_size=4)] == [r.tokens for r in whole]
