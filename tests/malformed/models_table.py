"""Directories of models, adapters and tokenizers with a fault; `m` is the directory."""

import json
import struct

from tests.malformed import model_files
from tests.malformed.cases import Case
from tests.malformed.model_files import CONFIG, TOKENIZER_CONFIG, dumped, header, safetensors, tokenizer, with_config

COPY = "copy the file anew"
CUT = "is the file cut off? Copy it anew"
MADE = "`model.save_pretrained` writes it"
ONE = "are they of one model? Save both together"
WHOLE = model_files.whole()
WEIGHTS, VOCABULARY = WHOLE["model.safetensors"], WHOLE["tokenizer.json"]


def model(name, changes, *says, text="policy: {model: m}", only=False, key="policy.model"):
    """The whole model with files changed, added or (None) taken away."""
    files = {f"m/{file}": data for file, data in ({} if only else WHOLE | changes).items() if data is not None}
    files |= {f"m/{file}": data for file, data in changes.items() if only}
    config = f"algorithm: grpo\n{text}\ndata: {{train: a.jsonl}}\nrewards: [exact_match]\n"
    return Case(
        name=name,
        files={"c.yaml": config.encode(), "a.jsonl": b'{"prompt": "1", "answer": "2"}\n', **files},
        argv=("check", "c.yaml"),
        says=tuple(f"{key}: {line}" if key else line for line in says),
    )


def named(name, said):
    return model(f"named {name or 'nothing'}", {}, said, text=f"policy: {{model: '{name}'}}")


def config(name, said, **changes):
    return model(f"config.json: {name}", with_config(**changes), f"m/config.json: {said}")


def weights(name, data, said):
    return model(f"weights: {name}", {"model.safetensors": data}, f"m/model.safetensors: {said}")


CONFIGS = (
    model("no config.json", {"config.json": None}, "m has no config.json; expected a Hugging Face model directory or a finished run"),
    model("config.json cut off", {"config.json": WHOLE["config.json"][:65]}, f"m/config.json:5:16: not JSON: the text that begins here does not end; {CUT}"),
    model("config.json cut behind a comma", {"config.json": b'{\n "model_type": "llama",\n'}, f"m/config.json:3:1: not JSON: ends where a key in double quotes is expected; {CUT}"),
    model("config.json with a comment", {"config.json": b'{\n // mine\n "model_type": "llama"}'}, "m/config.json:2:2: not JSON: a comment, and JSON has none; take it out"),
    model("config.json empty", {"config.json": b""}, f"m/config.json: is empty, expected a JSON object; {COPY}"),
    model("config.json a list", {"config.json": b"[1]"}, f"m/config.json: is a list, expected a JSON object; {COPY}"),
    model("config.json in UTF-16", {"config.json": WHOLE["config.json"].decode().encode("utf-16")}, f"m/config.json:1: not UTF-8: byte 0xff at offset 0; {COPY}"),
    config("no model_type", f"no model_type, expected the name of an architecture, such as `llama`; {MADE}", model_type=KeyError),
    config("model_type a list", f"model_type: ['llama'], expected the name of an architecture, such as `llama`; {MADE}", model_type=["llama"]),
    config("an unknown architecture", "model_type: lamma is no architecture that transformers ... knows; did you mean `llama`?", model_type="lamma"),
    config("an architecture of tomorrow", "model_type: zzz is no architecture that transformers ... knows; a newer one may know it", model_type="zzz"),
    config("an architecture with its own code", "model_type: mine needs code that comes with the model, which is never run; use a model without it", model_type="mine", auto_map={"AutoConfig": "x.Y"}),
    config("no causal model", "model_type: t5 is no causal language model; a decoder is wanted, such as llama or qwen3", model_type="t5"),
    config("a size as text", "hidden_size: '16', expected a whole number of at least 1", hidden_size="16"),
    config("a size of 0", "vocab_size: 0, expected a whole number of at least 1", vocab_size=0),
    config("heads that do not divide", "hidden_size: 16 is no multiple of num_attention_heads: 3", num_attention_heads=3),
    config("a dtype that is none", "dtype: 'fp32' is no type of trainable weights; did you mean float32?", dtype="fp32"),
    config("an id as text", "eos_token_id: '2', expected a whole number", eos_token_id="2"),
    config("quantised", "its weights are quantised with gptq, which cannot be trained; use the model that it was made from", quantization_config={"quant_method": "gptq", "bits": 4}),
)  # fmt: skip

ENTRIES, SIZE = header()
SHARDS = {name: f"{'a' if number < 10 else 'b'}.safetensors" for number, name in enumerate(ENTRIES)}
INDEX = {"model.safetensors": None, "model.safetensors.index.json": dumped({"weight_map": SHARDS})}
OF_A = {name: model_files.shapes()[name] for name, file in SHARDS.items() if file.startswith("a")}
OF_B = {name: model_files.shapes()[name] for name, file in SHARDS.items() if file.startswith("b")}

TENSORS = (
    model("no weights", {"model.safetensors": None}, f"m: has no weights: expected model.safetensors, or model.safetensors.index.json and its files; {MADE}"),
    model("pickled weights alone", {"model.safetensors": None, "pytorch_model.bin": b"PK"}, "m: its weights are pickled (.bin), which can run code when they are read; `trimtab import-weights m/pytorch_model.bin --like m --to DIR` makes a directory of them"),
    weights("no bytes", b"", f"has 0 bytes, too few for a safetensors file; {COPY}"),
    weights("a pointer of LFS", b"version https://git-lfs.github.com/spec/v1\nsize 9\n", "is a pointer of Git LFS, not the file itself; fetch it: git lfs pull"),
    weights("cut in the tensors", WEIGHTS[:-100], f"is cut off: its header tells of {len(WEIGHTS):,} bytes, but it has {len(WEIGHTS) - 100:,}; {COPY}"),
    weights("cut in the header", WEIGHTS[:100], f"is no whole safetensors file: its header should have ... bytes, but the file has 100; {COPY}"),
    weights("bytes behind the end", WEIGHTS + b"xx", f"goes on behind its end: its header tells of {len(WEIGHTS):,} bytes, but it has {len(WEIGHTS) + 2:,}; {COPY}"),
    weights("a header of a terabyte", struct.pack("<Q", 1 << 40) + WEIGHTS[8:], f"is no whole safetensors file: its header should have 1,099,511,627,776 bytes, but the file has {len(WEIGHTS):,}; {COPY}"),
    weights("a header that is no JSON", struct.pack("<Q", 100) + b"x" * 100, f"is no safetensors file: its header is no JSON; {COPY}"),
    weights("a header that is a list", safetensors([1], SIZE), f"is no safetensors file: its header does not tell of tensors; {COPY}"),
    weights("a tensor without a place", safetensors({**ENTRIES, "x": {"dtype": "F32", "shape": [1]}}, SIZE), f"is no safetensors file: its header does not tell of tensors; {COPY}"),
    weights("no tensors", safetensors({}, 0), f"has no weights in it; {MADE}"),
    weights("packed numbers", safetensors(*header(dtype="F8_E4M3", width=1)), "... has numbers of type F8_E4M3, which cannot be trained; use the model it was made from"),
    model("another vocabulary", with_config(vocab_size=13), f"m/model.safetensors: model.embed_tokens.weight has 12 rows, but config.json says vocab_size: 13; {ONE}"),
    model("another width", with_config(hidden_size=32), f"m/model.safetensors: model.embed_tokens.weight is 16 wide, but config.json says hidden_size: 32; {ONE}"),
    model("layers missing", with_config(num_hidden_layers=4), "m/model.safetensors: lacks layer 2, 3 of num_hidden_layers: 4; its weights would be random; are both of one model?"),
    model("a shard without its index", {"model.safetensors": None, "model-00001-of-00002.safetensors": WEIGHTS}, "m: has model-00001-of-00002.safetensors, but neither model.safetensors nor model.safetensors.index.json, which says what is where; copy the whole directory anew"),
    model("a shard missing", {**INDEX, "a.safetensors": safetensors(*header(OF_A))}, f"m/model.safetensors.index.json: names b.safetensors, which is not there, for {len(OF_B)} weights; copy the file too, or download the model anew"),
    model("both shards missing", INDEX, *[f"m/model.safetensors.index.json: names {n}.safetensors, which is not there, for {len(of)} weights; copy the file too, or download the model anew" for n, of in (("a", OF_A), ("b", OF_B))]),
    model("a shard cut off", {**INDEX, "a.safetensors": safetensors(*header(OF_A)), "b.safetensors": safetensors(*header(OF_B))[:-4]}, f"m/b.safetensors: is cut off: ...; {COPY}"),
    model("a shard of another model", {**INDEX, "a.safetensors": safetensors(*header(OF_A)), "b.safetensors": safetensors(*header({"x": [2]}))}, "m/model.safetensors.index.json: says that ... is in b.safetensors, but it is not; are the files of one model? Download it anew"),
    model("an index of nothing", {**INDEX, "model.safetensors.index.json": b"{}"}, f"m/model.safetensors.index.json: has no `weight_map` from weights to files; {COPY}"),
    model("an index cut off", {**INDEX, "model.safetensors.index.json": b'{"weight_map": {'}, f"m/model.safetensors.index.json:1:17: not JSON: ends where a key in double quotes is expected; {CUT}"),
)  # fmt: skip

LARGER = tokenizer()["model"] | {"vocab": tokenizer()["model"]["vocab"] | {"9": 40}}
NO_TOKENIZER = "has no tokenizer that can be read: expected one of tokenizer.json, ...; save one beside the model with `tokenizer.save_pretrained`"

TOKENIZERS = (
    model("no tokenizer", {"tokenizer.json": None, "tokenizer_config.json": None}, f"m: {NO_TOKENIZER}"),
    model("tokenizer.json cut off", {"tokenizer.json": VOCABULARY[:200]}, f"m/tokenizer.json:...: not JSON: ...; {CUT}"),
    model("tokenizer.json empty", {"tokenizer.json": b""}, f"m/tokenizer.json: is empty, expected a JSON object; {COPY}"),
    model("tokenizer.json without a vocabulary", {"tokenizer.json": b"{}"}, "m/tokenizer.json: has no vocabulary (model.vocab); `tokenizer.save_pretrained` writes it"),
    model("tokenizer_config.json cut off", {"tokenizer_config.json": b'{"eos_token": '}, f"m/tokenizer_config.json:1:15: not JSON: ends where a value is expected; {CUT}"),
    model("more tokens than embeddings", {"tokenizer.json": dumped(tokenizer(model=LARGER))}, "m/tokenizer.json: has tokens up to id 40, but config.json says vocab_size: 12, so some have no embedding; is it the model's own? Else resize_token_embeddings and save both"),
    model("no end of a sequence", {**with_config(eos_token_id=None), "tokenizer_config.json": dumped(TOKENIZER_CONFIG | {"eos_token": None})}, "m/tokenizer_config.json: names no end of a sequence (eos_token), nor does config.json: every completion would run to its limit; set eos_token, or eos_token_id in config.json"),
    model("an end that is no token", {"tokenizer_config.json": dumped(TOKENIZER_CONFIG | {"eos_token": "<end>"})}, "m/tokenizer_config.json: eos_token: '<end>' is no token of the vocabulary; name the token that ends a sequence"),
    model("three faults", {**with_config(num_attention_heads=3), "model.safetensors": WEIGHTS[:-4], "tokenizer_config.json": b"{"}, "m/config.json: hidden_size: 16 is no multiple of num_attention_heads: 3", f"m/model.safetensors: is cut off: ...; {COPY}", f"m/tokenizer_config.json:1:2: not JSON: ends where a key in double quotes is expected; {CUT}"),
)  # fmt: skip

LORA = {"peft_type": "LORA", "base_model_name_or_path": "builtin:tiny", "r": 4}
OF_ADAPTER = safetensors(*header({"base_model.model.lora_A.weight": [4, 4]}))


def adapter(name, record, *says, data=OF_ADAPTER):
    files = {"adapter_config.json": record if isinstance(record, bytes) else dumped(record)}
    return model(f"adapter: {name}", files | ({"adapter_model.safetensors": data} if data else {}), *says, only=True)


ADAPTERS = (
    adapter("cut off", b'{"peft_type": "LORA"', f"m/adapter_config.json:1:21: not JSON: ends where `,` or a closing bracket is expected; {CUT}"),
    adapter("no kind", {"base_model_name_or_path": "builtin:tiny"}, "m/adapter_config.json: no peft_type, expected the kind of adapter, such as LORA; peft writes it"),
    adapter("no base", {"peft_type": "LORA"}, "m/adapter_config.json: does not name the model that the adapter belongs to; write its directory or hub id at base_model_name_or_path"),
    adapter("a base that is not there", LORA | {"base_model_name_or_path": "./none"}, "m is an adapter of ./none, which does not exist; put the model there or correct base_model_name_or_path in m/adapter_config.json"),
    adapter("of itself", LORA | {"base_model_name_or_path": "m"}, "m is an adapter of itself: m -> m"),
    adapter("a rank of 0", LORA | {"r": 0}, "m/adapter_config.json: r: 0, expected a whole number of at least 1"),
    adapter("no weights", LORA, "m: has no adapter_model.safetensors; save the adapter with safetensors", data=None),
    adapter("weights cut off", LORA, f"m/adapter_model.safetensors: is cut off: ...; {COPY}", data=OF_ADAPTER[:-4]),
)  # fmt: skip

NAMES = (
    named("", "'' is no name; expected a directory, a hub id, a run or `builtin:tiny`"),
    named("builtin:tinny", "builtin:tinny, but the only built-in model is `builtin:tiny`"),
    named("./none", "./none does not exist; expected a directory with a model, a hub id or a finished run"),
    named("a/b/c", "a/b/c does not exist; expected a directory with a model, a hub id or a finished run"),
    named("https://example.org/a/b", "https://example.org/a/b is an address; give the hub id, such as org/name, or a directory"),
    named("m/model.safetensors", "m/model.safetensors is a file; expected a directory, a hub id or a file that ends in .gguf"),
    named("x.pt", "x.pt is a pickled checkpoint, which can run code when it is read; `trimtab import-weights x.pt --like HF_DIR --to DIR` makes a directory of it in a process of its own"),
    named("none.gguf", "none.gguf does not exist; a GGUF file of a hub must be downloaded first"),
    model("an empty directory", {"readme.md": b"hi"}, "m has no config.json; expected a Hugging Face model directory or a finished run", only=True),
    model("a checkpoint of a run", {"policy/config.json": b"{}"}, "m has no config.json; expected a Hugging Face model directory or a finished run; did you mean m/policy?", only=True),
    model("a run that has not finished", {"run.json": b"{}"}, "m is a run that has not finished; it has no `final/` yet. `trimtab export m --to DIR --checkpoint STEP` makes a model of a checkpoint", only=True),
    model("GGUF that is none", {"x.gguf": b"GGUX" + bytes(40)}, "m/x.gguf: is no GGUF file: it begins with b'GGUX'; download it anew", text="policy: {model: m/x.gguf}", only=True),
    model("GGUF cut off", {"x.gguf": b"GGUF\3\0\0\0"}, "m/x.gguf: is cut off: it has 8 bytes, and a header has 24; download it anew", text="policy: {model: m/x.gguf}", only=True),
    model("GGUF of another version", {"x.gguf": b"GGUF" + struct.pack("<I", 9) + bytes(40)}, "m/x.gguf: is GGUF of version 9, expected 2 or 3; convert it anew", text="policy: {model: m/x.gguf}", only=True),
    model("two models of one run", {"config.json": b"{"}, "policy.model: ./none does not exist; expected a directory with a model, a hub id or a finished run", f"reference.model: m/config.json:1:2: not JSON: ends where a key in double quotes is expected; {CUT}", text="policy: {model: ./none}\nkl: {coef: 0.1}\nreference: {model: m}", key=""),
)  # fmt: skip

MODELS = (*CONFIGS, *TENSORS, *TOKENIZERS, *ADAPTERS, *NAMES)
assert json.loads(WHOLE["config.json"]) == CONFIG
