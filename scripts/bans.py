"""What no code here may do: run code that a file or a text brings along. Part of `make check`.

    python scripts/bans.py [PATH ...]     one line a finding, exit code 1 if there is one

It reads the syntax tree, so that a comment, a text or another function of the same name is no finding.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
WHERE = ("src", "scripts", "benchmarks", "examples")
MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
"""Reading their files runs what is in them."""
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    "torch.load": "reads pickle",
    "numpy.load": "reads pickle where it is told to",
    "np.load": "reads pickle where it is told to",
    "pandas.read_pickle": "reads pickle",
    "pd.read_pickle": "reads pickle",
    "yaml.load": "makes any object that a file asks for",
    "yaml.load_all": "makes any object that a file asks for",
    "yaml.full_load": "makes objects that a file asks for",
    "yaml.unsafe_load": "makes any object that a file asks for",
    "os.system": "starts a shell",
    "os.popen": "starts a shell",
    "subprocess.getoutput": "starts a shell",
    "subprocess.getstatusoutput": "starts a shell",
    "asyncio.create_subprocess_shell": "starts a shell",
}
MAX_ALLOWED = 3


@dataclass(frozen=True, slots=True)
class Allowed:
    """A line that may stand, as long as it stands so."""

    file: str
    line: str
    why: str


ALLOWED = (
    Allowed(
        "src/trimtab/models/pickled.py",
        "import pickle",
        "for the name of the error that torch raises, in the process of import-weights",
    ),
    Allowed(
        "src/trimtab/models/pickled.py",
        'found = torch.load(file, map_location="cpu", weights_only=True)',
        "import-weights: in a process of its own, tensors and plain containers only",
    ),
    Allowed(
        "src/trimtab/config/document.py",
        "return yaml.load(text, Loader=_Loader)  # noqa: S506 - _Loader is a SafeLoader",
        "a safe loader that reads numbers and words by YAML 1.2",
    ),
)


@dataclass(frozen=True, slots=True)
class Banned:
    """A finding."""

    file: str
    number: int
    line: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.what}: {self.line}"


def banned(source: str, file: str) -> list[Banned]:
    """Everything in a source text that is not allowed there."""
    lines = source.splitlines()
    return [
        Banned(file, node.lineno, lines[node.lineno - 1].strip(), what)
        for node in ast.walk(ast.parse(source))
        for what in _faults(node)
    ]


def _faults(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for name in node.names:
            if name.name.partition(".")[0] in MODULES:
                yield f"import of {name.name}, whose files run code"
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        module = node.module or ""
        if module.partition(".")[0] in MODULES:
            yield f"import from {module}, whose files run code"
        for name in node.names:
            if (called := f"{module}.{name.name}") in CALLS:
                yield f"import of {called}, which {CALLS[called]}"
    elif isinstance(node, ast.Call):
        yield from _faults_of_call(node)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "trust_remote_code" and not _is(value, False):
                yield "trust_remote_code, which runs a model's own code"


def _faults_of_call(node: ast.Call) -> Iterator[str]:
    called = ast.unparse(node.func)
    if called.removeprefix("builtins.") in BUILTINS:
        yield f"{called}, which runs text as code"
    if called in CALLS:
        yield f"{called}, which {CALLS[called]}"
    words = {word.arg: word.value for word in node.keywords}
    for word, value in words.items():
        if word == "trust_remote_code" and not _is(value, False):
            yield "trust_remote_code, which runs a model's own code"
        if word == "shell" and not _is(value, False):
            yield "shell=, which lets a text start programs"
        if word == "allow_pickle" and not _is(value, False):
            yield "allow_pickle, which runs what is in the file"
        if word == "use_safetensors" and not _is(value, True):
            yield "use_safetensors that is not True: pickled weights would be read"
        if word == "weights_only" and not _is(value, True):
            yield "weights_only that is not True: pickle would run"
    is_model = called.endswith(".from_pretrained") and "Model" in called.replace("PretrainedModel", "").split(".")[0]
    if is_model and "use_safetensors" not in words:
        yield f"{called} without use_safetensors=True: pickled weights would be read"


def _is(node: ast.AST, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def findings(root: Path, where: tuple[str, ...] = WHERE, allowed: tuple[Allowed, ...] = ALLOWED) -> list[str]:
    """Every line that may not stand, and every permission that nothing needs any more."""
    found, used = [], set()
    for folder in where:
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            for fault in banned(path.read_text(encoding="utf-8"), name):
                permission = next((a for a in allowed if (a.file, a.line) == (name, fault.line)), None)
                if permission is None:
                    found.append(str(fault))
                else:
                    used.add(permission)
    found += [f"{a.file}: nothing needs the permission any more: {a.line}" for a in allowed if a not in used]
    if len(allowed) > MAX_ALLOWED:
        found.append(f"scripts/bans.py: {len(allowed)} permissions, at most {MAX_ALLOWED} are given")
    return found


def main(words: list[str]) -> int:
    found = [str(b) for word in words for b in banned(Path(word).read_text(encoding="utf-8"), word)]
    found = found if words else findings(ROOT)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
