"""Chat templates of the usual shapes: which ids a conversation becomes, and which of them are trained on."""

import pytest
from tokenizers.processors import TemplateProcessing

from tests.unit.data import templates
from trimtab.data import chat
from trimtab.data.messages import MessageError
from trimtab.errors import ModelError

TALK = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo"},
    {"role": "user", "content": "2+2"},
    {"role": "assistant", "content": "4"},
]
# template, end of sequence, other ends of a turn, the whole with what is trained on in ⟦ ⟧
SHAPES = {
    "chatml": (
        templates.CHATML, "<|im_end|>", [],
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n⟦yo<|im_end|>⟧\n"
        "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n⟦4<|im_end|>⟧",
    ),
    "chatml on a base model": (
        templates.CHATML, "<eos>", [],
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n⟦yo<|im_end|>⟧\n"
        "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n⟦4<|im_end|><eos>⟧",
    ),
    "llama 3": (
        templates.LLAMA3, "<|eot_id|>", [],
        "<bos><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n⟦yo<|eot_id|>⟧"
        "<|start_header_id|>user<|end_header_id|>\n\n2+2<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n⟦4<|eot_id|>⟧",
    ),
    "gemma": (
        templates.GEMMA, "<eos>", ["<end_of_turn>"],
        "<bos><start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n⟦yo<end_of_turn>⟧\n"
        "<start_of_turn>user\n2+2<end_of_turn>\n<start_of_turn>model\n⟦4<end_of_turn>⟧",
    ),
    "mistral": (
        templates.MISTRAL, "<eos>", [],
        "<bos>[INST] hi [/INST]⟦ yo<eos>⟧[INST] 2+2 [/INST]⟦ 4<eos>⟧",
    ),
    "zephyr": (
        templates.ZEPHYR, "<eos>", [],
        "<|user|>\nhi<eos>\n<|assistant|>\n⟦yo<eos>⟧\n<|user|>\n2+2<eos>\n<|assistant|>\n⟦4<eos>⟧",
    ),
    "plain": (
        templates.PLAIN, "<eos>", [],
        "user: hi\nassistant: ⟦yo\n⟧user: 2+2\nassistant: ⟦4\n<eos>⟧",
    ),
    "one end for all": (
        templates.LAST_EOS, "<eos>", [],
        "[user]hi[assistant]⟦yo⟧[user]2+2[assistant]⟦4<eos>⟧",
    ),
    "glm": (
        templates.GLM, "<eos>", ["<|user|>"],
        "<|user|>hi<|assistant|>⟦yo<|user|>⟧2+2<|assistant|>⟦4<eos>⟧",
    ),
    "tagged": (
        templates.TAGGED, "<|im_end|>", [],
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n⟦yo<|im_end|>⟧\n"
        "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n⟦4<|im_end|>⟧",
    ),
}  # fmt: skip


def shown(made, tokenizer):
    """Ids as text, what is trained on in brackets."""
    text, was_on = tokenizer.decode(made.prompt), False
    for token, is_on in zip(made.completion, made.mask, strict=True):
        text += ("⟦" if is_on and not was_on else "⟧" if was_on and not is_on else "") + tokenizer.decode([token])
        was_on = is_on
    return text + ("⟧" if was_on else "")


def encoded(template, turns=TALK, *, eos="<eos>", more=(), train_on="all"):
    tokenizer = templates.tokenizer(template, eos=eos)
    return shown(chat.encoded(turns, tokenizer, templates.ends(tokenizer, *more), train_on), tokenizer)


@pytest.mark.parametrize("name", SHAPES)
def test_answers_and_the_ends_of_their_turns_are_trained_on_and_nothing_else(name):
    template, eos, more, wanted = SHAPES[name]
    assert encoded(template, eos=eos, more=more) == wanted


@pytest.mark.parametrize("name", SHAPES)
def test_of_the_last_answer_alone_everything_before_is_the_prompt(name):
    template, eos, more, wanted = SHAPES[name]
    head, _, last = wanted.rpartition("⟦")
    assert encoded(template, eos=eos, more=more, train_on="last") == head.replace("⟦", "").replace("⟧", "") + "⟦" + last


@pytest.mark.parametrize("name", SHAPES)
def test_the_prompt_to_sample_from_is_the_beginning_of_what_is_trained_on(name):
    template, eos, more, _ = SHAPES[name]
    tokenizer = templates.tokenizer(template, eos=eos)
    made = chat.encoded(TALK, tokenizer, templates.ends(tokenizer, *more), "all")
    assert chat.prompt_ids(TALK[:1], tokenizer) == made.prompt
    assert tokenizer.decode(made.prompt) == chat.prompt_text(TALK[:1], tokenizer)


def test_an_answer_that_brings_its_own_end_gets_no_second_one():
    turns = [TALK[0], {"role": "assistant", "content": "yo<eos>"}]
    assert encoded(templates.ZEPHYR, turns) == "<|user|>\nhi<eos>\n<|assistant|>\n⟦yo<eos>⟧"
    assert encoded(templates.MISTRAL, turns) == "<bos>[INST] hi [/INST]⟦ yo<eos>⟧"
    twice = encoded(templates.ZEPHYR, [*turns, *TALK[2:]])
    assert twice.startswith("<|user|>\nhi<eos>\n<|assistant|>\n⟦yo<eos>⟧<eos>\n<|user|>")


THOUGHT = [TALK[0], {"role": "assistant", "content": "<think>hm</think>yo"}, *TALK[2:]]


def test_a_template_that_leaves_out_earlier_thoughts_is_refused_when_all_answers_are_trained_on():
    with pytest.raises(MessageError) as fault:
        encoded(templates.FORGETFUL, THOUGHT, eos="<|im_end|>")
    assert str(fault.value) == (
        "the chat template rewrites earlier turns: messages[1] reads otherwise once more turns follow, "
        "so it cannot be told which tokens to train on"
    )
    assert fault.value.hint.startswith("set data.train_on: last, or mark the answers")


def test_a_template_that_leaves_out_earlier_thoughts_can_train_on_the_last_answer():
    assert encoded(templates.FORGETFUL, THOUGHT, eos="<|im_end|>", train_on="last") == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n"
        "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n⟦4<|im_end|>⟧"
    )


def test_tags_tell_the_answers_of_a_template_that_leaves_out_earlier_thoughts():
    assert encoded(templates.TAGGED, THOUGHT, eos="<|im_end|>") == SHAPES["tagged"][3]


def test_a_template_that_announces_another_answer_than_it_shows_is_refused():
    for train_on in ("all", "last"):
        with pytest.raises(MessageError, match=r"does not begin the answer as it announces it"):
            encoded(templates.EAGER, TALK[:2], train_on=train_on)


def test_tags_round_nothing_are_refused():
    template = templates.TAGGED.replace("'assistant' %}{% gen", "'nobody' %}{% gen")
    with pytest.raises(MessageError, match="tags enclose nothing of this conversation"):
        encoded(template)


def test_where_a_token_spans_the_end_of_a_turn_the_row_is_refused():
    """`yo` and the line break behind it are one token, but only once another turn follows."""
    template = "{% for m in messages %}{{ m['content'] }}{{ '\\n' if not loop.last }}{% endfor %}"
    template += "{% if add_generation_prompt %}{{ '\\n' }}{% endif %}"
    tokenizer = templates.tokenizer(template)
    tokenizer.add_tokens(["yo\n"])
    with pytest.raises(MessageError, match=r"rewrites earlier turns: messages\[1\]"):
        chat.encoded(TALK, tokenizer, templates.ends(tokenizer), "all")


def test_a_first_token_of_template_and_tokenizer_stands_once():
    tokenizer = templates.tokenizer(templates.LLAMA3)
    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
    assert tokenizer("a").input_ids[0] == bos
    assert chat.prompt_ids(TALK[:1], tokenizer).count(bos) == 1
    assert chat.encoded(TALK, tokenizer, templates.ends(tokenizer, "<|eot_id|>"), "all").prompt.count(bos) == 1


def test_a_tokenizer_without_a_first_token_gives_none():
    tokenizer = templates.tokenizer(templates.LLAMA3, bos=None)
    assert tokenizer.bos_token_id is None
    assert tokenizer.decode(chat.prompt_ids(TALK[:1], tokenizer)).startswith("<|start_header_id|>user")


def test_a_template_that_refuses_a_conversation_says_why():
    with pytest.raises(MessageError, match="the chat template refuses the conversation: Roles must alternate"):
        encoded(templates.GEMMA, [{"role": "system", "content": "be kind"}, *TALK])


def test_a_tokenizer_without_a_template_names_the_key_and_what_to_do():
    with pytest.raises(ModelError) as error:
        chat.prompt_ids(TALK[:1], templates.tokenizer(None))
    assert str(error.value).startswith(
        "policy.model: its tokenizer has no chat template, but the data has conversation"
    )
    assert "set tokenizer.chat_template and save it beside the model" in str(error.value)
