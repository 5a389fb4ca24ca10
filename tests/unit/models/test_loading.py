"""What `policy.model` may name, and how each refusal says what to do."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import peft
import pytest
import torch
import transformers

from trimtab.errors import ModelError
from trimtab.models import builtin, loading

IDS = torch.arange(4, 20).unsqueeze(0)


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


def a_directory(folder, seed=0):
    builtin.model(seed).save_pretrained(folder)
    builtin.tokenizer().save_pretrained(folder)
    return folder


def an_adapter(folder, base, *, seed=1, with_tokenizer=False, **options):
    """A LoRA with weights of its own; the base model with it, not merged."""
    torch.manual_seed(seed)
    model = loading.load(str(base), seed=0).model
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **options)
    carrier = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in carrier.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    carrier.peft_config["default"].base_model_name_or_path = str(base)
    carrier.save_pretrained(folder)
    if with_tokenizer:
        builtin.tokenizer().save_pretrained(folder)
    return carrier.eval()


# ---------------------------------------------------------------------------------------------------------- directories
def test_a_directory_of_half_precision_is_loaded_in_float32_and_in_eval_mode(tmp_path):
    builtin.model(0).bfloat16().save_pretrained(tmp_path)
    builtin.tokenizer().save_pretrained(tmp_path)
    loaded = loading.load(str(tmp_path), seed=0)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert not loaded.model.training
    assert all(p.requires_grad for p in loaded.model.parameters())
    assert loaded.eos_ids == {2}


def test_a_finished_run_means_its_final_directory(tmp_path):
    a_directory(tmp_path / "final", seed=5)
    (tmp_path / "run.json").write_text("{}")
    assert torch.equal(logits(loading.load(str(tmp_path), seed=0).model), logits(builtin.model(5).eval()))


def test_the_checkpoint_of_a_run_is_refused_with_the_place_of_its_policy(tmp_path):
    a_directory(tmp_path / "policy")
    with pytest.raises(ModelError, match=r"no config\.json.*did you mean .*/policy\?"):
        loading.load(str(tmp_path), seed=0)


def test_a_quantised_directory_is_refused(tmp_path):
    a_directory(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="quantised with gptq, which cannot be trained"):
        loading.load(str(tmp_path), seed=0)


def test_a_directory_with_pickled_weights_names_the_command_that_converts_it(tmp_path):
    a_directory(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(builtin.model(0).state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"trimtab import-weights .*pytorch_model\.bin --like"):
        loading.load(str(tmp_path), seed=0)


def test_a_file_that_was_cut_is_refused_in_one_line(tmp_path):
    a_directory(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    said = r"model\.safetensors: is cut off: its header tells of 3,273,232 bytes, but it has 3,272,232"
    with pytest.raises(ModelError, match=said) as caught:
        loading.load(str(tmp_path), seed=0)
    assert len(str(caught.value).splitlines()) == 1


# ------------------------------------------------------------------------------------------------------------- adapters
@pytest.mark.parametrize("base", ["directory", "run", "built in"])
def test_an_adapter_is_merged_into_its_base(tmp_path, base):
    name = {"directory": tmp_path / "base", "run": tmp_path / "run", "built in": builtin.NAME}[base]
    if base == "directory":
        a_directory(name)
    if base == "run":
        a_directory(name / "final")
        (name / "run.json").write_text("{}")
    expected = an_adapter(tmp_path / "adapter", name)
    loaded = loading.load(str(tmp_path / "adapter"), seed=0)
    assert type(loaded.model) is transformers.LlamaForCausalLM
    torch.testing.assert_close(logits(loaded.model), logits(expected), atol=1e-4, rtol=0)
    assert float((logits(loaded.model) - logits(loading.load(str(name), seed=0).model)).abs().max()) > 0.1
    assert loaded.tokenizer("47").input_ids == builtin.tokenizer()("47").input_ids
    assert loading.configuration(str(tmp_path / "adapter")).hidden_size == 128
    assert loading.load_tokenizer(str(tmp_path / "adapter"))("47").input_ids == loaded.tokenizer("47").input_ids
    loaded.model.save_pretrained(tmp_path / "plain")
    assert not (tmp_path / "plain" / "adapter_config.json").exists()
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    assert torch.equal(logits(plain.eval()), logits(loaded.model))


def test_an_adapter_on_an_adapter_is_merged_twice(tmp_path):
    a_directory(tmp_path / "base")
    an_adapter(tmp_path / "first", tmp_path / "base", seed=1)
    expected = an_adapter(tmp_path / "second", tmp_path / "first", seed=2)
    loaded = loading.load(str(tmp_path / "second"), seed=0)
    torch.testing.assert_close(logits(loaded.model), logits(expected), atol=1e-4, rtol=0)


def test_the_base_of_an_adapter_may_be_named_from_the_adapters_own_directory(tmp_path):
    a_directory(tmp_path / "base")
    an_adapter(tmp_path / "adapter", tmp_path / "base")
    _name_base(tmp_path / "adapter", "../base")
    assert loading.configuration(str(tmp_path / "adapter")).hidden_size == 128


def _name_base(folder, name):
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = name
    (folder / "adapter_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (None, "does not name the model that the adapter belongs to"),
        ("/nowhere/at/all", r"is an adapter of /nowhere/at/all, which does not exist"),
        ("adapter", "is an adapter of itself"),
        ("weights.pt", r"pickled checkpoint.*import-weights"),
    ],
)
def test_an_adapter_without_a_usable_base_is_refused(tmp_path, base, message):
    an_adapter(tmp_path / "adapter", builtin.NAME)
    _name_base(tmp_path / "adapter", str(tmp_path / base) if base == "adapter" else base)
    with pytest.raises(ModelError, match=message):
        loading.load(str(tmp_path / "adapter"), seed=0)


def test_an_adapter_whose_weights_do_not_fit_its_base_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    an_adapter(tmp_path / "adapter", builtin.NAME)
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    weights = load_file(file)
    lost = sorted(weights)[0]
    save_file({n: t for n, t in weights.items() if n != lost}, file)
    with pytest.raises(ModelError, match="does not fit its base: it lacks"):
        loading.load(str(tmp_path / "adapter"), seed=0)
    save_file(
        {**weights, "base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight": weights[lost].clone()}, file
    )
    with pytest.raises(ModelError, match="weights without a place"):
        loading.load(str(tmp_path / "adapter"), seed=0)
    save_file({**weights, lost: torch.zeros(3, 3)}, file)
    with pytest.raises(ModelError, match="cannot be merged into its base"):
        loading.load(str(tmp_path / "adapter"), seed=0)


def test_an_adapter_with_pickled_weights_is_refused(tmp_path):
    an_adapter(tmp_path / "adapter", builtin.NAME)
    (tmp_path / "adapter" / "adapter_model.safetensors").rename(tmp_path / "adapter" / "adapter_model.bin")
    with pytest.raises(ModelError, match="its weights are pickled, which can run code when read"):
        loading.load(str(tmp_path / "adapter"), seed=0)


# ------------------------------------------------------------------------------------------------------------ GGUF files
def a_gguf(path, model, *, quantised=False):
    """The built-in model's shape as llama.cpp writes it, with a byte-level tokenizer of single characters."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("small")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    vocabulary = sorted(builtin.tokenizer().get_vocab().items(), key=lambda item: item[1])
    writer.add_token_list([{" ": "Ġ", "\n": "Ċ"}.get(token, token) for token, _ in vocabulary])
    writer.add_token_types([3] * 4 + [1] * (len(vocabulary) - 4))
    writer.add_token_scores([0.0] * len(vocabulary))  # instead of merges: single characters have none
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if "q_proj" in name or "k_proj" in name:  # llama.cpp pairs the rotated halves otherwise
            heads = config.num_attention_heads
            tensor = tensor.reshape(heads, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
        found = names.get_name(name, try_suffixes=(".weight",))
        values = tensor.float().numpy()
        if quantised and tensor.dim() == 2 and tensor.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(found, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(found, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(("quantised", "tolerance"), [(False, 1e-5), (True, 0.3)])
def test_a_gguf_file_becomes_a_plain_model_that_can_be_saved(tmp_path, quantised, tolerance):
    original = builtin.model(3).eval()
    file = a_gguf(tmp_path / "small.gguf", original, quantised=quantised)
    loaded = loading.load(str(file), seed=0)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    torch.testing.assert_close(logits(loaded.model), logits(original), atol=tolerance, rtol=0)
    loaded.model.save_pretrained(tmp_path / "plain")
    loaded.tokenizer.save_pretrained(tmp_path / "plain")
    assert "quantization_config" not in json.loads((tmp_path / "plain" / "config.json").read_text())
    again = loading.load(str(tmp_path / "plain"), seed=0)
    assert torch.equal(logits(again.model), logits(loaded.model))
    assert again.tokenizer("47 + 35\n").input_ids == builtin.tokenizer()("47 + 35\n").input_ids
    assert again.tokenizer.decode(again.tokenizer("47 + 35").input_ids, skip_special_tokens=True) == "47 + 35"
    assert loaded.eos_ids == again.eos_ids == {2}
    assert loading.configuration(str(file)).num_hidden_layers == 4


def test_a_gguf_file_that_is_damaged_or_not_there_is_refused(tmp_path):
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00 and no more")
    with pytest.raises(ModelError, match=r"cut\.gguf: is cut off: it has 20 bytes, and a header has 24"):
        loading.load(str(tmp_path / "cut.gguf"), seed=0)
    with pytest.raises(ModelError, match=r"model\.gguf does not exist; a GGUF file of a hub must be downloaded first"):
        loading.load("org/name/model.gguf", seed=0)


# --------------------------------------------------------------------------------------------------------------- the hub
class Hub(BaseHTTPRequestHandler):
    """As much of a model hub as a download needs."""

    folder = None
    asked: list = []  # noqa: RUF012

    def do_HEAD(self):
        self._answer(with_body=False)

    def do_GET(self):
        self._answer(with_body=True)

    def _answer(self, *, with_body):
        Hub.asked.append((self.path, self.headers.get("Authorization")))
        prefix = "/org/small/resolve/main/"
        file = self.folder / self.path.removeprefix(prefix)
        body, headers = b"{}", {}
        if not self.path.startswith(("/org/small/", "/api/models/org/small")):
            self.send_response(404)
            headers["X-Error-Code"] = "RepoNotFound"
        elif self.path.startswith(prefix) and file.is_file():
            body = file.read_bytes()
            self.send_response(200)
            headers |= {"X-Repo-Commit": "0" * 40, "ETag": f'"{hashlib.sha256(body).hexdigest()}"'}
        else:
            self.send_response(404)
            headers["X-Error-Code"] = "EntryNotFound"
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_):
        pass


LOADS = """
import sys
from trimtab.models import loading
for name in sys.argv[1:]:
    try:
        print(name, "has", sum(p.numel() for p in loading.load(name, seed=0).model.parameters()))
    except Exception as error:
        print(type(error).__name__, error)
"""


def loads(tmp_path, *names, **environment):
    """In a process of its own, since where the hub is and whether it is used is read once."""
    told = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", LOADS, *names],
        env={**told, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1", **environment},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_a_hub_id_is_fetched_from_the_endpoint_with_the_token(tmp_path):
    Hub.folder, Hub.asked = a_directory(tmp_path / "remote"), []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        where = f"http://127.0.0.1:{server.server_port}"
        found, absent = loads(tmp_path, "org/small", "org/absent", HF_ENDPOINT=where, HF_TOKEN="hf_abc")
    finally:
        server.shutdown()
        server.server_close()
    assert found == f"org/small has {sum(p.numel() for p in builtin.model(0).parameters())}"
    assert ("/org/small/resolve/main/model.safetensors", "Bearer hf_abc") in Hub.asked
    assert absent.startswith(f"ModelError policy.model: org/absent: no such directory, and no such model at {where}")
    assert "HF_TOKEN" in absent


def test_a_hub_id_that_is_not_in_the_cache_is_refused_when_offline(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"no such directory, and not in the cache.*HF_HUB_OFFLINE is set") as caught:
        loading.load("org/absent", seed=0)
    assert "run `hf download org/absent` where there is a network" in str(caught.value)


def test_a_hub_that_cannot_be_reached_is_told_apart_from_a_wrong_name(monkeypatch):
    from huggingface_hub import constants, errors

    def unreachable(*_, **__):
        raise OSError("We couldn't load the files") from errors.LocalEntryNotFoundError("nothing is cached")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("transformers.utils.peft_utils.find_adapter_config_file", unreachable)
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", unreachable)
    with pytest.raises(ModelError, match=r"cannot be reached; HF_ENDPOINT names a mirror, or give a directory"):
        loading.load("org/absent", seed=0)
