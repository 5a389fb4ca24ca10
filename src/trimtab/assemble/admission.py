"""Which files may be read as data: those of `data.allow`, wherever links lead; and that each decision is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trimtab.config import RunConfig
from trimtab.data import builtin, files
from trimtab.errors import ConfigError, Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A file that was to be read as data, and whether it may be."""

    key: str
    """Of the configuration, such as `data.train` or `mix[0].data`; FILE: an argument of a command."""
    name: str
    """As it was given."""
    place: str
    """Where it is once all links are followed; of rows without a file, its name."""
    is_allowed: bool


Tell = Callable[[Admission], None]


def find(config: RunConfig, name: str) -> str:
    """A file as it is named, else beside the configuration."""
    beside = config.folder / name
    try:
        return str(beside) if not Path(name).exists() and beside.exists() else name
    except OSError:  # no file can have such a name; whoever reads it says so
        return name


def admit(config: RunConfig, names: Mapping[str, str], tell: Tell = lambda _: None) -> None:
    """Every file must lie in a folder of `data.allow`, if there is one.

    Args:
        config: of the run.
        names: the key -> the file's name.
        tell: is told of each, before any is refused.
    Raises:
        ConfigError: with every file that does not.
    """
    allow = config.data.allow
    folders = None if allow is None else [Path(find(config, folder)).resolve() for folder in allow]
    findings = []
    for key, name in names.items():
        named, real = _place(config, name)
        is_allowed = folders is None or name in builtin.NAMES
        is_allowed = is_allowed or (real is not None and any(real.is_relative_to(f) for f in folders or ()))
        if is_allowed and folders is not None and real is not None and real.is_dir():
            inner = next((p for p in _links(real) if not any(p.is_relative_to(f) for f in folders)), None)
            real, is_allowed = (real, True) if inner is None else (inner, False)
        tell(Admission(key=key, name=name, place=name if real is None else str(real), is_allowed=is_allowed))
        if is_allowed:
            continue
        what = f"{name} lies outside of the folders of data.allow"
        if real is None:
            what = f"{name} lies in no folder, and data.allow names those that data must lie in"
        elif real != named.absolute():
            what = f"{name} is {real}, which lies outside of the folders of data.allow"
        allowed = ", ".join(map(str, folders or ())) or "none"
        findings.append(Finding(place=key, what=what, hint=f"allowed: {allowed}"))
    if findings:
        raise ConfigError(findings)


def _links(folder: Path) -> Iterator[Path]:
    """Where the links in a data set's directory lead."""
    return (path.resolve() for path in folder.rglob("*") if path.is_symlink())


def _place(config: RunConfig, name: str) -> tuple[Path, Path | None]:
    """The file or directory that is read, as it is named and with all links followed; None if it is neither."""
    if name.startswith(files.HUB):
        inner = Path(files._name_and_split(name)[0])
        return inner, inner.resolve() if inner.exists() else None
    named = Path(find(config, name))
    return named, None if name in builtin.NAMES else named.resolve()
