"""One malformed input: its files, the command that meets it, and every line that the user is told."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CONFIGS = {
    "grpo": "algorithm: grpo\ndata: {train: FILE}\nrewards: [exact_match]\n",
    "dpo": "algorithm: dpo\ndata: {train: FILE}\n",
    "kto": "algorithm: kto\ndata: {train: FILE}\n",
    "sft": "algorithm: sft\ndata: {train: FILE}\n",
}
"""What reads rows of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    files: Mapping[str, bytes | None]
    """Name -> content; None: a directory."""
    argv: tuple[str, ...]
    says: tuple[str, ...]
    """Every line on stderr without `error: `; `...` stands for anything."""
    links: Mapping[str, str] = field(default_factory=dict)

    def put(self, folder: Path) -> None:
        for name, content in self.files.items():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                place.mkdir()
            else:
                place.write_bytes(content)
        for name, target in self.links.items():
            (folder / name).symlink_to(target)


def differing(case: Case, lines: list[str]) -> list[str]:
    """Lines of stderr that are not as the case says, or are missing."""
    found = [f"said: {line}" for line in lines[len(case.says) :]]
    for number, pattern in enumerate(case.says):
        line = lines[number] if number < len(lines) else "(nothing)"
        regex = re.escape(f"error: {pattern}").replace(re.escape("..."), ".*")
        if not re.fullmatch(regex, line):
            found += [f"said: {line}", f"case: error: {pattern}"]
    return found


def rows(name, data, *says, by="grpo", file="a.jsonl"):
    """A file of rows, met by the algorithm that reads such; `FILE` in what is said stands for its name."""
    config = CONFIGS[by].replace("FILE", file)
    return Case(
        name=f"{by}: {name}",
        files={"c.yaml": config.encode(), file: data},
        argv=("train", "c.yaml", "--run-dir", "run"),
        says=tuple(line.replace("FILE", file) for line in says),
    )


def settings(name, text, *says, files=None, argv=("config", "show", "c.yaml")):
    """A configuration that is looked at alone."""
    content = text if isinstance(text, bytes) else text.encode()
    return Case(name=name, files={"c.yaml": content, **(files or {})}, argv=argv, says=says)


def words(argv, *says, files=None):
    """A command line, beside a configuration and rows without a fault."""
    own = {
        "c.yaml": CONFIGS["grpo"].replace("FILE", "a.jsonl").encode(),
        "a.jsonl": b'{"prompt": "1+1=", "answer": "2"}\n',
    }
    return Case(name=" ".join(argv)[:60], files={**own, **(files or {})}, argv=tuple(argv), says=says)
