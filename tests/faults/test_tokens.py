"""Special tokens: none is made up, none is lost, none stands twice."""

import pytest
from tokenizers.processors import TemplateProcessing

from trimtab.data import collate
from trimtab.data.prompts import Limits, demonstrations, prompts
from trimtab.data.rows import Row
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
