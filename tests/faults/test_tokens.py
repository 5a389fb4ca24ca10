"""Special tokens: none is made up, none is lost, none stands twice."""

import pytest
from tokenizers.processors import TemplateProcessing

from tests.unit.data import templates
from trimtab.data import collate
from trimtab.data.prompts import Limits, demonstrations, prompts
from trimtab.data.rows import Row
from trimtab.errors import DataError
from trimtab.models import builtin

BOS, EOS = builtin.CONFIG["bos_token_id"], builtin.CONFIG["eos_token_id"]


def rows(*texts):
    return [Row(id=n, place=f"a:{n}", values={"prompt": t, "completion": "7"}) for n, t in enumerate(texts)]


def limits(longest=512, what="drop"):
    return Limits(max_prompt_length=longest, max_length=1024, long_prompts=what)


@pytest.fixture
def tokenizer():
    """One that begins a text with a special token."""
    found = builtin.tokenizer()
    found.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return found


def test_a_tokenizer_without_a_first_token_adds_none():
    tokenizer = builtin.tokenizer()
    tokenizer.bos_token = None
    shown, _ = demonstrations(rows("1+1=", "2+3="), tokenizer, limits(), EOS)
    tokens = collate.of_demonstrations(shown, [0, 1]).tokens
    assert tokenizer.bos_token_id is None
    assert tokenizer.decode(tokens[0].tolist()) == "1+1=7<eos>"


@pytest.mark.parametrize("what", ["drop", "truncate", "refuse"])
def test_a_limit_that_does_not_bind_changes_no_token(tokenizer, what):
    free, _ = prompts(rows("1+1=", "23+4="), tokenizer, limits())
    tight, left = prompts(rows("1+1=", "23+4="), tokenizer, limits(6, what))
    assert [p.tokens for p in tight] == [p.tokens for p in free]
    assert [p.tokens[0] for p in tight] == [BOS, BOS]
    assert str(left) == ""


def test_a_first_token_stands_before_the_prompt_alone_and_one_last_token_ends_the_completion(tokenizer):
    shown, _ = demonstrations(rows("1+1="), tokenizer, limits(), EOS)
    tokens = shown[0].prompt.tokens + shown[0].completion
    assert tokenizer.decode(tokens) == "<bos>1+1=7<eos>"
    assert (tokens.count(BOS), tokens.count(EOS)) == (1, 1)


TALK = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "<think>hm</think>yo"},
    {"role": "user", "content": "2+2"},
    {"role": "assistant", "content": "4"},
]


def talk(turns):
    return [Row(id=0, place="a:1", values={"prompt": turns[:1], "messages": turns})]


def test_a_template_that_ends_with_an_end_of_sequence_gets_no_second_one():
    tokenizer = templates.tokenizer(templates.LAST_EOS)
    shown, _ = demonstrations(talk(TALK), tokenizer, limits(), EOS)
    ids = shown[0].prompt.tokens + shown[0].completion
    assert (ids.count(EOS), ids[-1]) == (1, EOS)


def test_a_template_that_rewrites_earlier_turns_is_refused_at_its_line_or_masked_rightly():
    with pytest.raises(DataError, match=r"a:1: the chat template rewrites earlier turns: messages\[1\]"):
        demonstrations(talk(TALK), templates.tokenizer(templates.FORGETFUL, eos="<|im_end|>"), limits(), 101)
    tagged = templates.tokenizer(templates.TAGGED, eos="<|im_end|>")
    shown, _ = demonstrations(talk(TALK), tagged, limits(), tagged.eos_token_id)
    trained = [token for token, is_on in zip(shown[0].completion, shown[0].mask, strict=True) if is_on]
    assert tagged.decode(trained) == "yo<|im_end|>4<|im_end|>"


@pytest.mark.parametrize("what", ["drop", "truncate", "refuse"])
def test_a_limit_that_does_not_bind_changes_no_token_of_a_conversation(what):
    tokenizer = templates.tokenizer(templates.LLAMA3)
    free, _ = prompts(talk(TALK[:1]), tokenizer, limits())
    tight, left = prompts(talk(TALK[:1]), tokenizer, limits(len(free[0].tokens), what))
    assert (tight[0].tokens, str(left)) == (free[0].tokens, "")
    assert free[0].tokens[0] == BOS


def test_a_row_whose_prompt_fills_the_length_is_left_out_and_never_padding_alone():
    made = rows("1" * 20, "1")
    kept, left = demonstrations(
        made, builtin.tokenizer(), Limits(max_prompt_length=512, max_length=21, long_prompts="drop"), EOS
    )
    batch = collate.of_demonstrations(kept, range(len(kept)))
    assert (len(kept), left.dropped) == (1, 1)
    assert batch.loss_mask.any(dim=1).all()
