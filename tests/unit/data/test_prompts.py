"""Rows as prompts and demonstrations, with the built-in tokenizer: one token a character."""

import pytest

from trimtab.data.prompts import Limits, demonstrations, prompts
from trimtab.data.rows import Row
from trimtab.errors import DataError
from trimtab.models import builtin

EOS = builtin.CONFIG["eos_token_id"]


@pytest.fixture(scope="module")
def tokenizer():
    return builtin.tokenizer()


def rows(*texts, **columns):
    return [
        Row(id=number, place=f"a.jsonl:{number + 1}", values={"prompt": text, **columns})
        for number, text in enumerate(texts)
    ]


def limits(longest=4, max_length=8, what="drop"):
    return Limits(max_prompt_length=longest, max_length=max_length, long_prompts=what)


def test_a_prompt_keeps_its_row_and_its_other_columns(tokenizer):
    found, left = prompts(rows("12+3", answer=15, completion="51"), tokenizer, limits())
    assert (found[0].id, found[0].text, str(left)) == (0, "12+3", "")
    assert tokenizer.decode(found[0].tokens) == "12+3"
    assert found[0].columns == {"answer": 15}


def test_a_long_prompt_is_dropped_and_counted_and_the_others_keep_their_numbers(tokenizer):
    found, left = prompts(rows("1234", "12345", "12"), tokenizer, limits())
    assert ([p.id for p in found], str(left)) == ([0, 2], "1 left out")


def test_a_long_prompt_is_cut_at_the_front_if_that_is_asked_for(tokenizer):
    found, left = prompts(rows("abcdef"), tokenizer, limits(what="truncate"))
    assert (tokenizer.decode(found[0].tokens), str(left)) == ("cdef", "1 cut")


def test_a_long_prompt_is_refused_with_its_line_if_that_is_asked_for(tokenizer):
    with pytest.raises(DataError) as error:
        prompts(rows("1234", "12345"), tokenizer, limits(what="refuse"))
    assert str(error.value) == (
        "a.jsonl:2: the prompt has 5 tokens, allowed are 4; "
        "raise sampling.max_prompt_length, or set sampling.long_prompts to drop or truncate"
    )


def test_one_token_of_the_whole_length_is_kept_for_the_completion(tokenizer):
    found, left = prompts(rows("1234567", "12345678"), tokenizer, limits(longest=512, max_length=8))
    assert ([len(p.tokens) for p in found], left.dropped) == ([7], 1)


def test_it_is_a_fault_if_every_prompt_is_dropped(tokenizer):
    with pytest.raises(DataError, match=r"a\.jsonl:1: all 2 prompts are longer than 4 tokens; raise sampling\.max_pr"):
        prompts(rows("12345", "123456"), tokenizer, limits())


def test_a_demonstration_ends_in_exactly_one_end_of_sequence(tokenizer):
    found, _ = demonstrations(rows("1+1=", completion="2"), tokenizer, limits(), EOS)
    shown, _ = demonstrations(rows("1+1=", completion="2<eos>"), tokenizer, limits(), EOS)
    for one in (found[0], shown[0]):
        assert tokenizer.decode(one.completion[:-1]) == "2"
        assert one.completion[-1] == EOS
        assert one.completion.count(EOS) == 1


def test_a_model_without_an_end_of_sequence_gets_none(tokenizer):
    found, _ = demonstrations(rows("1+1=", completion="2"), tokenizer, limits(), None)
    assert tokenizer.decode(found[0].completion) == "2"


def test_a_demonstration_that_does_not_fit_is_dropped_and_counted_with_the_long_prompts(tokenizer):
    made = rows("12345", "1", "1")
    for row, text in zip(made, ("1", "1234567", "123456"), strict=True):
        row.values["completion"] = text
    found, left = demonstrations(made, tokenizer, limits(), EOS)
    assert ([d.prompt.id for d in found], left.dropped) == ([2], 2)
    assert len(found[0].prompt.tokens) + len(found[0].completion) == 8


def test_a_demonstration_that_does_not_fit_is_refused_with_its_line_if_that_is_asked_for(tokenizer):
    with pytest.raises(
        DataError, match=r"a\.jsonl:1: the completion has 9 tokens, behind its prompt there is room for 7"
    ):
        demonstrations(rows("1", completion="12345678"), tokenizer, limits(what="refuse"), EOS)


def test_it_is_a_fault_if_no_demonstration_fits(tokenizer):
    with pytest.raises(DataError, match=r"a\.jsonl:1: no demonstration fits into sampling\.max_length 8"):
        demonstrations(rows("1", completion="12345678"), tokenizer, limits(), EOS)


def test_an_empty_completion_is_the_end_of_sequence_alone(tokenizer):
    assert demonstrations(rows("1", completion=""), tokenizer, limits(), EOS)[0][0].completion == (EOS,)
