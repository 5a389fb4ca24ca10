"""Model directories and checkpoints as somebody makes them who means harm. Each builder takes a good one and spoils it."""

import io
import json
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

CANARY = "canary"
"""A file that no code of a model may make."""


class Bomb:
    """What makes a file when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return open, (str(self.canary), "w")


def pickled(canary, protocol=4):
    return pickle.dumps({"weights": Bomb(canary), "epoch": 3}, protocol=protocol)


def torch_zip(path, canary):
    """What `torch.save` writes, with a pickle in it that runs code."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled(canary, 2))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")


def slipping_zip(path, canary):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"../../../../../../../..{canary}", "x")
        archive.writestr("archive/data.pkl", pickled(canary, 2))


def slipping_tar(path, canary):
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo(f"../../../../../../../..{canary}")
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))


def code_of(canary):
    return f"open({str(canary)!r}, 'w').close()\nclass Model:\n    pass\n"


# ------------------------------------------------------------------------------------------------------- safetensors
def header_of(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def with_header(path, change):
    """The file with another header over the same bytes. `change` gets and returns a dict, or bytes."""
    header, data = header_of(path)
    found = change(header)
    text = found if isinstance(found, bytes) else json.dumps(found).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def first(header):
    return next(name for name in header if name != "__metadata__")


def entry(header, **changes):
    return {**header, first(header): {**header[first(header)], **changes}}


def offsets(header, place, value):
    found = list(header[first(header)]["data_offsets"])
    found[place] = value
    return entry(header, data_offsets=found)


def overlapping(header):
    one, two = [name for name in header if name != "__metadata__"][:2]
    return {**header, two: {**header[two], "shape": header[one]["shape"], "data_offsets": header[one]["data_offsets"]}}


def repeated(header):
    name = first(header)
    text = json.dumps(header)
    return (text[:-1] + f", {json.dumps(name)}: {json.dumps(header[name])}}}").encode()


def many(header):
    empty = ", ".join(f'"w{n}": {{"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}' for n in range(100_000))
    return f"{json.dumps(header)[:-1]}, {empty}}}".encode()


def deep(levels=100_000):
    return b"[" * levels + b"]" * levels


HEADERS = {
    "offsets that overlap": overlapping,
    "an offset behind the file's end": lambda h: offsets(h, 1, 1 << 40),
    "an offset under 0": lambda h: offsets(h, 0, -8),
    "offsets in the wrong order": lambda h: entry(h, data_offsets=h[first(h)]["data_offsets"][::-1]),
    "an offset that is no number": lambda h: offsets(h, 0, "0"),
    "an offset that is a fraction": lambda h: offsets(h, 0, 0.5),
    "an offset of 2^64": lambda h: offsets(h, 1, 1 << 64),
    "no offsets": lambda h: entry(h, data_offsets=None),
    "a hundred thousand entries": many,
    "another dtype": lambda h: entry(h, dtype="F16"),
    "an unknown dtype": lambda h: entry(h, dtype="OBJECT"),
    "a dtype that is no word": lambda h: entry(h, dtype=["F32"]),
    "a shape of 2^40 numbers": lambda h: entry(h, shape=[1 << 20, 1 << 20]),
    "a shape that overflows": lambda h: entry(h, shape=[1 << 62, 1 << 62, 4]),
    "a shape under 0": lambda h: entry(h, shape=[-1, -1]),
    "a shape that is no list": lambda h: entry(h, shape=7),
    "the same name twice": repeated,
    "a name twice with other bytes": lambda h: repeated({**h, "a": dict(h[first(h)])}),
    "no UTF-8": lambda h: json.dumps(h).encode().replace(b"model", b"mod\xff\xfe", 1),
    "a list": lambda h: [h],
    "no JSON": lambda h: b"{" * 20,
    "deep JSON": lambda h: deep(),
    "nothing": lambda h: {},
    "a hole in the file": lambda h: {name: value for name, value in h.items() if name != first(h)},
}


def of_length(length, keep=8):
    def spoil(folder, _):
        path = folder / "model.safetensors"
        path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[keep:])

    return spoil


def headed(change):
    return lambda folder, _: with_header(folder / "model.safetensors", change)


# -------------------------------------------------------------------------------------------------------- directories
def without_weights(folder, name, write, canary):
    (folder / "model.safetensors").unlink()
    write(folder / name, canary)


def bombed(name, write=lambda path, canary: path.write_bytes(pickled(canary))):
    return lambda folder, canary: without_weights(folder, name, write, canary)


def configured(**values):
    def spoil(folder, canary):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
        (folder / "modeling.py").write_text(code_of(canary))

    return spoil


def tokenizer_configured(**values):
    def spoil(folder, canary):
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
        (folder / "modeling.py").write_text(code_of(canary))

    return spoil


def indexed(file):
    """An index instead of one file, which says that all weights are in `file`; the good file lies outside as `stolen`."""

    def spoil(folder, _):
        weights = folder / "model.safetensors"
        header, _data = header_of(weights)
        stolen = folder.parent / "stolen.safetensors"
        weights.replace(stolen)
        name = str(stolen) if file == "absolute" else file
        index = {"metadata": {"total_size": 1}, "weight_map": {n: name for n in header if n != "__metadata__"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return spoil


def linked(name, to=None):
    """A file of the directory that is a link out of it, to a good one that lies there."""

    def spoil(folder, _):
        outside = folder.parent / f"outside-{name}"
        (folder / name).replace(outside)
        (folder / name).symlink_to(to or outside)

    return spoil


def written(name, content):
    return lambda folder, _: (folder / name).write_bytes(content)


def sparse(name, size):
    def spoil(folder, _):
        with (folder / name).open("r+b") as file:
            file.truncate(size)

    return spoil


def adapter(base):
    def spoil(folder, canary):
        (folder / "config.json").unlink()
        config = {"peft_type": "LORA", "r": 1, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
        (folder / "adapter_config.json").write_text(
            json.dumps({**config, "base_model_name_or_path": base.replace("FOLDER", str(folder))})
        )
        (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
        (folder / "base.bin").write_bytes(pickled(canary))
        (folder / "modeling.py").write_text(code_of(canary))

    return spoil


MODELS = {
    **{f"weights as {name}": bombed(name) for name in ("pytorch_model.bin", "model.pt", "model.pth", "model.ckpt")},
    "weights as a zip of torch": bombed("pytorch_model.bin", torch_zip),
    "weights as a zip that slips": bombed("pytorch_model.bin", slipping_zip),
    "weights as a tar that slips": bombed("pytorch_model.bin", slipping_tar),
    "a pickle called safetensors": bombed("model.safetensors"),
    "a zip of torch called safetensors": bombed("model.safetensors", torch_zip),
    "an index of pickled weights": lambda folder, canary: (
        bombed("part.bin")(folder, canary),
        written("pytorch_model.bin.index.json", b'{"metadata": {}, "weight_map": {"a": "part.bin"}}')(folder, canary),
    ),
    **{f"a header with {name}": headed(change) for name, change in HEADERS.items()},
    "a header of 2^60 bytes": of_length(1 << 60),
    "a header of 2^63 bytes": of_length(1 << 63),
    "a header longer than the file": of_length(1 << 30),
    "a header of 0 bytes": of_length(0),
    "weights that are missing": written("model.safetensors", b""),
    "code for an unknown architecture": configured(
        model_type="mine", auto_map={"AutoConfig": "modeling.Config", "AutoModelForCausalLM": "modeling.Model"}
    ),
    "code of another repository": configured(
        model_type="mine", auto_map={"AutoConfig": "someone/code--modeling.Config"}, trust_remote_code=True
    ),
    "code for the tokenizer": tokenizer_configured(
        tokenizer_class="Mine", auto_map={"AutoTokenizer": ["modeling.Slow", "modeling.Fast"]}, trust_remote_code=True
    ),
    "an index that leads out by ..": indexed("../stolen.safetensors"),
    "an index that leads out by a whole path": indexed("absolute"),
    "an index of a system's file": indexed("/etc/passwd"),
    "an index with a NUL": indexed("a\0.safetensors"),
    "an index of pickled files": indexed("weights.bin"),
    **{
        f"a link out of the directory as {name}": linked(name)
        for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")
    },
    "a link to a file of the system": linked("tokenizer_config.json", "/etc/passwd"),
    "a link to a device": linked("model.safetensors", "/dev/zero"),
    "a configuration in deep JSON": written("config.json", b'{"a": ' + deep() + b"}"),
    "a configuration of a gigabyte": sparse("config.json", 1 << 30),
    "a tokenizer in deep JSON": written("tokenizer.json", b'{"a": ' + deep() + b"}"),
    "a tokenizer's settings of a gigabyte": sparse("tokenizer_config.json", 1 << 30),
    "a model of 2^40 numbers": configured(hidden_size=1 << 20, intermediate_size=1 << 20, head_dim=1 << 17),
    "a configuration with a shape under 0": configured(hidden_size=-128),
    **{
        f"an adapter of {base}": adapter(base)
        for base in (
            "someone/somewhere",
            "https://example.org/model",
            "FOLDER/base.bin",
            "/etc",
            "../../../..",
            "FOLDER",
        )
    },
}
"""name -> what spoils the directory of a good model."""


TEMPLATES = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "classes by another way": "{{ messages.__class__.__base__.__subclasses__() }}",
    "classes by a filter": "{{ ''|attr('__class__')|attr('__mro__') }}",
    "globals of a function": "{{ raise_exception.__globals__['__builtins__']['open']('CANARY', 'w') }}",
    "globals of the environment": "{{ self.__init__.__globals__.__builtins__.open('CANARY', 'w') }}",
    "a macro's code": "{% macro m() %}{% endmacro %}{{ m.__code__.co_consts }}",
    "a generator's frame": "{{ (messages|map('upper')).gi_frame.f_globals }}",
    "format": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "format of a map": "{{ '{a.__class__}'.format_map({'a': messages}) }}",
    "os": "{{ cycler.__init__.__globals__.os.system('touch CANARY') }}",
    "lipsum": "{{ lipsum.__globals__['os'].environ }}",
    "an import": "{% import 'os' as os %}{{ os }}",
    "a file": "{% include '/etc/passwd' %}",
    "a change of what it was given": "{% set _ = messages.append({'role': 'user', 'content': 'x'}) %}{{ messages }}",
    "a range without end": "{% for i in range(10 ** 12) %}x{% endfor %}",
    "a division by 0": "{{ 1 // 0 }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "what is not there": "{{ nothing.of.this }}",
}
"""Chat templates that try to get out of the sandbox in which they are rendered."""


# -------------------------------------------------------------------------------------------------------- checkpoints
def sealed(place, change=lambda manifest: manifest):
    """The manifest made anew over what lies there, as somebody does who can write it: every checksum is right."""
    from trimtab.store.checkpoints import MANIFEST, _json, sha256
    from trimtab.store.manifests import checksum

    manifest = json.loads((place / MANIFEST).read_bytes())
    files = {str(p.relative_to(place)) for p in place.rglob("*") if p.is_file() and p.name != MANIFEST}
    manifest["files"] = {n: {"bytes": (place / n).stat().st_size, "sha256": sha256(place / n)} for n in sorted(files)}
    manifest = change({name: value for name, value in manifest.items() if name != "checksum"})
    (place / MANIFEST).write_bytes(_json({**manifest, "checksum": checksum(manifest)}))


def listing(name, **facts):
    """A manifest that names another file, right in size and hash."""
    from trimtab.store.checkpoints import sha256

    def spoil(place, canary):
        real = name.replace("CANARY", str(canary.with_name("outside")))
        canary.with_name("outside").write_bytes(b"x")
        path = place / real
        known = (
            {"bytes": path.stat().st_size, "sha256": sha256(path)} if path.is_file() else {"bytes": 1, "sha256": "0"}
        )
        sealed(place, lambda manifest: {**manifest, "files": {**manifest["files"], real: {**known, **facts}}})

    return spoil


def replaced(name, write):
    def spoil(place, canary):
        write(place / name, canary)
        sealed(place)

    return spoil


def only_linked(name):
    def spoil(place, canary):
        outside = canary.with_name("outside.file")
        (place / name).replace(outside)
        (place / name).symlink_to(outside)
        sealed(place)

    return spoil


def padded(size):
    def write(path, _):
        text = path.read_bytes().rstrip()
        with path.open("wb") as file:
            file.write(text)
            file.truncate(size)

    return write


def bytes_of(content):
    return lambda path, _: Path(path).write_bytes(content)


CHECKPOINTS = {
    **{
        f"a bomb as {name}": replaced(name, lambda path, canary: path.write_bytes(pickled(canary)))
        for name in (
            "optimizer.pt",
            "training_args.bin",
            "policy/pytorch_model.bin",
            "optimizer.safetensors",
            "state.json",
        )
    },
    "a zip of torch as rng_state.pth": replaced("rng_state.pth", torch_zip),
    "a bomb as the policy's weights": replaced(
        "policy/model.safetensors", lambda path, canary: path.write_bytes(pickled(canary))
    ),
    **{
        f"moments with {name}": replaced(
            "optimizer.safetensors", lambda path, _, change=change: with_header(path, change)
        )
        for name, change in HEADERS.items()
        if name
        in ("offsets that overlap", "an offset behind the file's end", "the same name twice", "deep JSON", "nothing")
    },
    "a manifest of /etc/passwd": listing("/etc/passwd"),
    "a manifest that leads out by ..": listing("../../../outside"),
    "a manifest that leads out by a whole path": listing("CANARY"),
    "a manifest with a NUL": listing("a\0b"),
    "a manifest without a size": listing("state.json", bytes=None),
    "a manifest with a hash that is no text": listing("state.json", sha256=["a"]),
    "a manifest whose files are a list": lambda place, _: sealed(place, lambda m: {**m, "files": ["state.json"]}),
    "a manifest without files": lambda place, _: sealed(place, lambda m: {**m, "files": {}}),
    "a manifest in deep JSON": lambda place, _: (place / "manifest.json").write_bytes(b'{"a": ' + deep() + b"}"),
    "a manifest of a gigabyte": lambda place, _: sparse("manifest.json", 1 << 30)(place, None),
    **{
        f"a link as {name}": only_linked(name)
        for name in ("state.json", "optimizer.safetensors", "policy/model.safetensors")
    },
    "a state in deep JSON": replaced("state.json", bytes_of(b'{"a": ' + deep() + b"}")),
    "a state of 300 MB": replaced("state.json", padded(300 << 20)),
    "a state that is a list": replaced("state.json", bytes_of(b"[]")),
    "a state without what it should have": replaced("state.json", bytes_of(b"{}")),
}
"""name -> what spoils a good checkpoint, with a manifest that fits."""
