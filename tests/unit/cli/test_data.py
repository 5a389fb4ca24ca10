"""`trimtab data preview`: ids, text and mask of rows, as people and as programs see them."""

import json
import sys

import pytest

from tests.unit.data import templates
from trimtab import cli
from trimtab.cli import data as command

TALK = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo"},
    {"role": "user", "content": "2+2"},
    {"role": "assistant", "content": "4"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory with a tokenizer and what ends a sequence, without weights."""
    folder = tmp_path_factory.mktemp("model")
    templates.tokenizer(templates.CHATML, eos="<eos>").save_pretrained(folder)
    im_end = templates.tokenizer(None).convert_tokens_to_ids("<|im_end|>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, im_end]}))
    return folder


@pytest.fixture
def preview(monkeypatch, capsys, tmp_path):
    """Runs the command over rows: (exit code, output, errors)."""

    def run(rows, *words):
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
        monkeypatch.setattr(sys, "argv", ["trimtab", "data", "preview", str(tmp_path / "a.jsonl"), *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        shown = capsys.readouterr()
        return end.value.code, shown.out, shown.err

    return run


def test_a_conversation_shows_its_turns_and_what_is_trained_on_in_brackets(preview, model):
    code, out, _ = preview([{"messages": TALK}], "--model", model)
    assert code == 0
    assert out.splitlines()[0].endswith("a.jsonl:1  49 tokens: 21 prompt, 28 completion, 5 trained on")
    text = [line[8:] for line in out.splitlines()[1:] if not line.startswith("   ids")]
    assert text[:6] == [
        "<|im_start|>user↵",
        "hi<|im_end|>↵",
        "<|im_start|>assistant↵",
        "[[yo<|im_end|>]]↵",
        "<|im_start|>user↵",
        "2+2<|im_end|>↵",
    ]
    assert text[7] == "[[4<|im_end|>]]"


def test_programs_get_ids_text_and_mask(preview, model):
    code, out, _ = preview([{"prompt": "1+1=", "completion": "2\n"}] * 3, "--model", model, "-n", 2, "--json")
    found = json.loads(out)
    assert (code, len(found)) == (0, 2)
    assert found[0]["row"] == 0
    assert found[0]["prompt_length"] == 4
    assert found[0]["trained"] == sum(found[0]["mask"]) == 3
    assert found[0]["mask"] == [0, 0, 0, 0, 1, 1, 1]
    assert found[0]["text"] == "".join(found[0]["tokens"]) == "1+1=2\n<eos>"
    tokenizer = templates.tokenizer(None)
    assert tokenizer.decode(found[0]["ids"]) == found[0]["text"]


def test_rows_without_answers_are_shown_as_prompts(preview, model):
    code, out, _ = preview([{"prompt": TALK[:1], "answer": 3}], "--model", model)
    assert code == 0
    assert "21 prompt" in out
    assert "completion" not in out
    assert out.splitlines()[-1] == "these are prompts: the model samples what follows them"


def test_a_configuration_gives_columns_model_and_limits(preview, model, tmp_path):
    (tmp_path / "a.yaml").write_text(
        f"algorithm: sft\npolicy: {{model: {model}}}\ndata: {{columns: {{prompt: q, completion: a}}, as_chat: true}}\n"
        "sampling: {max_prompt_length: 23}\n"
    )
    rows = [{"q": "1+1", "a": "2"}, {"q": "1+1+1", "a": "3"}]
    code, out, _ = preview(rows, tmp_path / "a.yaml", "sampling.long_prompts=truncate")
    assert code == 0
    assert "[[2<|im_end|>]]" in out
    assert out.count("the prompt is longer than 23 tokens: cut at its front") == 1


def test_key_value_words_count_without_a_configuration(preview, model):
    code, out, _ = preview(
        [{"q": "1", "a": "2"}], "data.columns.prompt=q", "data.columns.completion=a", "--model", model
    )
    assert code == 0
    assert "1[[2<eos>]]" in out


def test_no_tokenizer_is_guessed(preview):
    code, out, err = preview([{"prompt": "1"}])
    assert (code, out) == (2, "")
    assert err == "error: data preview: whose tokenizer? Name a CONFIG, or --model DIR (or --model builtin:tiny)\n"


def test_a_fault_of_a_row_is_named_at_its_line(preview, model):
    code, _, err = preview([{"prompt": "1", "completion": "2"}, {"messages": [{"role": "bot"}]}], "--model", model)
    assert code == 2
    assert "a.jsonl:2: `messages[0].role` is 'bot', expected one of system" in err


def test_a_conversation_without_a_chat_template_names_the_key(preview):
    code, _, err = preview([{"messages": TALK}], "--model", "builtin:tiny")
    assert code == 2
    assert err.startswith("error: policy.model: its tokenizer has no chat template")


def test_a_character_of_several_tokens_stands_at_its_last_one():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = {c: n for n, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(alphabet, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    pieces = list(command._pieces(tokenizer("a你b").input_ids, tokenizer))
    assert pieces == ["a", "", "", "你", "b"]
