"""Rows as prompts and demonstrations, with the built-in tokenizer: one token a character."""

import pytest
from tokenizers.processors import TemplateProcessing

from tests.unit.data import templates
from trimtab.data import collate
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
    assert found[0].columns == {"answer": 15, "completion": "51"}


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


# ------------------------------------------------------------------------------------------------------ conversations
TALK = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo"},
    {"role": "user", "content": "2+2"},
    {"role": "assistant", "content": "4"},
]
WIDE = Limits(max_prompt_length=100, max_length=200, long_prompts="drop")


def talk(**values):
    return [Row(id=0, place="a.jsonl:1", values=values)]


def test_a_conversation_is_given_to_rewards_as_its_text_and_its_messages():
    tokenizer = templates.tokenizer(templates.ZEPHYR)
    found, _ = prompts(talk(prompt=TALK[:1], completion="yo", answer=3), tokenizer, WIDE)
    assert found[0].text == "<|user|>\nhi<eos>\n<|assistant|>\n" == tokenizer.decode(found[0].tokens)
    assert found[0].columns == {"answer": 3, "completion": "yo", "messages": TALK[:1]}


def test_text_goes_through_the_template_only_if_that_is_asked_for():
    tokenizer = templates.tokenizer(templates.ZEPHYR)
    made = talk(prompt="hi", completion="yo")
    as_it_is, _ = prompts(made, tokenizer, WIDE)
    as_chat, _ = prompts(made, tokenizer, WIDE, as_chat=True)
    assert (as_it_is[0].text, as_chat[0].text) == ("hi", "<|user|>\nhi<eos>\n<|assistant|>\n")
    assert as_chat[0].columns["messages"] == TALK[:1]
    shown, _ = demonstrations(made, tokenizer, WIDE, tokenizer.eos_token_id, as_chat=True)
    assert shown[0].prompt.tokens == as_chat[0].tokens
    assert (tokenizer.decode(shown[0].completion), shown[0].text) == ("yo<eos>", "yo")


def test_one_answer_reads_the_same_as_prompt_and_completion_and_as_messages():
    tokenizer = templates.tokenizer(templates.ZEPHYR)
    eos = tokenizer.eos_token_id
    pair, _ = demonstrations(talk(prompt=TALK[:1], completion="yo"), tokenizer, WIDE, eos)
    whole, _ = demonstrations(talk(prompt=TALK[:1], messages=TALK[:2]), tokenizer, WIDE, eos)
    assert (pair[0].prompt.tokens, pair[0].completion, pair[0].mask, pair[0].text) == (
        whole[0].prompt.tokens, whole[0].completion, whole[0].mask, whole[0].text,
    )  # fmt: skip


def test_a_conversation_of_two_answers_is_one_row_with_a_hole_in_its_mask():
    tokenizer = templates.tokenizer(templates.ZEPHYR)
    eos = tokenizer.eos_token_id
    shown, _ = demonstrations(talk(prompt=TALK[:1], messages=TALK), tokenizer, WIDE, eos)
    batch = collate.of_demonstrations(shown, [0])
    mask = batch.loss_mask[0].tolist()
    assert len(mask) == len(shown[0].completion) == int(batch.completion_lengths[0])
    trained = [token for token, is_on in zip(shown[0].completion, mask, strict=True) if is_on]
    assert tokenizer.decode(trained) == "yo<eos>4<eos>"
    last, _ = demonstrations(talk(prompt=TALK[:1], messages=TALK), tokenizer, WIDE, eos, train_on="last")
    assert (tokenizer.decode(last[0].completion), last[0].text) == ("4<eos>", "4")
    assert last[0].prompt.tokens + last[0].completion == shown[0].prompt.tokens + shown[0].completion
    assert last[0].prompt.columns["messages"] == TALK[:3]


def test_a_long_conversation_is_left_out_and_counted_and_never_without_an_answer():
    tokenizer = templates.tokenizer(templates.ZEPHYR)
    whole = demonstrations(talk(prompt=TALK[:1], messages=TALK), tokenizer, WIDE, 2)[0][0]
    size = len(whole.prompt.tokens) + len(whole.completion)
    room = Limits(max_prompt_length=8, max_length=size, long_prompts="drop")
    made = [
        *talk(prompt=TALK[:1], messages=TALK),
        Row(id=1, place="a.jsonl:2", values={"prompt": "1", "completion": "2"}),
    ]
    assert len(demonstrations(made, tokenizer, room, 2)[0]) == 2
    tight = Limits(max_prompt_length=8, max_length=size - 1, long_prompts="drop")
    kept, left = demonstrations(made, tokenizer, tight, 2)
    assert ([d.prompt.id for d in kept], left.dropped) == ([1], 1)


def test_all_conversations_that_a_template_refuses_are_named_at_once():
    made = [
        Row(id=n, place=f"a.jsonl:{n + 1}", values={"prompt": TALK[start : start + 1]})
        for n, start in enumerate((0, 1, 1))
    ]
    with pytest.raises(DataError) as error:
        prompts(made, templates.tokenizer(templates.GEMMA), WIDE)
    assert str(error.value).splitlines() == [
        f"a.jsonl:{line}: the chat template refuses the conversation: Roles must alternate" for line in (2, 3)
    ]


def test_a_text_that_was_put_into_a_template_before_begins_with_one_first_token():
    tokenizer = templates.tokenizer(None)
    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
    found, _ = prompts(rows("<bos>hi", "hi"), tokenizer, WIDE)
    assert found[0].tokens == found[1].tokens
    assert found[0].tokens.count(bos) == 1
