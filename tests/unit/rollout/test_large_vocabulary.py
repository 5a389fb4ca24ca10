"""Tokens are drawn a few rows at a time where the vocabulary is large."""

from tests.contracts import engine_under_test
from trimtab.rollout import in_process
from trimtab.types import Draw


def test_drawing_in_parts_gives_the_same_tokens(monkeypatch):
    under_test = engine_under_test.tiny()
    draws = [Draw(prompt=p, draw=i) for i, p in enumerate(under_test.prompts)]
    whole = under_test.build(0).generate(draws, group_size=3)
    sizes = []
    draw = in_process.InProcessEngine._draw

    def counted(self, logits, state, step):
        sizes.append(len(logits))
        return draw(self, logits, state, step)

    monkeypatch.setattr(in_process.InProcessEngine, "_draw", counted)
    monkeypatch.setattr(in_process, "CHUNK_ELEMENTS", 4 * 100)
    assert under_test.build(0).generate(draws, group_size=3) == whole
    assert max(sizes) == 4
