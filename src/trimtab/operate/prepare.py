"""The door from Python: `trimtab.prepare` makes a run of a configuration and of objects that stand where it has names."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab import assemble
from trimtab import config as configs
from trimtab.assemble import fingerprints
from trimtab.assemble import given as objects
from trimtab.config import RunConfig, document
from trimtab.config.document import Document, Key
from trimtab.errors import ConfigError, Finding, UserError
from trimtab.operate import finish, start
from trimtab.operate.prepared import PreparedRun
from trimtab.ports import Control, Recorder
from trimtab.store.run_directory import RunDirectory

if TYPE_CHECKING:
    from trimtab.train.ranks import Ranks

PLACES: Mapping[str, tuple[str, ...]] = {
    "model": ("policy", "model"),
    "prompts": ("data", "train"),
    "validation": ("data", "validation"),
    "rewards": ("rewards",),
}
"""Where a configuration names what the argument gives."""
Overrides = Mapping[str, Any] | Sequence[str]


def prepare(
    config: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    model: Any = None,
    tokenizer: Any = None,
    prompts: Any = None,
    validation: Any = None,
    rewards: Any = None,
    run_dir: str | Path | None = None,
    fresh: bool = False,
    recorders: Sequence[Recorder] = (),
    quiet: bool = False,
) -> PreparedRun:
    """A run that is ready to train; nothing is trained or written yet.

    Args:
        config: a YAML file, or a dict with the same keys. In a dict, too, an object may stand where a name is expected.
        overrides: `{"policy.clip_ratio": 0.3}`, `{"policy": {"clip_ratio": 0.3}}` or `["policy.clip_ratio=0.3"]`.
        model: a transformers model for causal language, trained in place in float32; or a directory, hub id or run.
        tokenizer: the model's; without it the one that lies where the model was loaded from.
        prompts: texts, rows as mappings (a `datasets.Dataset` is a list of such), or lists of chat messages; or a file.
        validation: held-out rows of the same forms.
        rewards: one or several of: a function `f(prompts, completions, **columns)` that returns one finite number or
            None for each completion; a name as in a file; a mapping such as `{"name": f, "weight": 0.5, "on_error":
            "skip"}`. A function given as an object runs in this process, so no time limit holds for it: a thread
            cannot be ended from outside. `module:function` as text runs in a worker process that can be.
        run_dir: where the run lives; default `runs/<name of the file>`, for a dict `runs/<algorithm>`.
        fresh: start over; a run that is there gets another name. Without it `train` goes on with the run that is there.
        recorders: told of every step (`trimtab.ports.Recorder`), and closed whenever `train` ends.
        quiet: print nothing.
    Raises:
        ConfigError: the configuration, with every fault of one pass; `DataError`: a row; `ModelError`: the model.

    >>> run = prepare({"algorithm": "grpo"}, prompts=["1+1=", "2+2="], rewards=[lambda completions, **_: [0.0]])
    >>> run.config.rewards[0].label, run.config.data.train
    ('lambda', 'python:prompts')
    """
    found = _document(config)
    asked = {"model": model, "prompts": prompts, "validation": validation, "rewards": rewards}
    handed = {name: value if value is not None else _taken(found, PLACES[name]) for name, value in asked.items()}
    words, given = _given(handed, tokenizer)
    checked = configs.resolve(found, [*_words(overrides), *words])
    for number, recorder in enumerate(recorders):
        if lacking := [name for name in ("record", "event", "close") if not callable(getattr(recorder, name, None))]:
            raise UserError(f"recorders[{number}]: {type(recorder).__name__} has no {' and no '.join(lacking)}")
    name = Path(config).stem if isinstance(config, str | Path) else checked.algorithm.name
    return PreparedRun(
        config=checked,
        directory=Path(run_dir) if run_dir is not None else Path("runs") / name,
        given=given,
        rows=assemble.read_rows(checked, given),
        fresh=fresh,
        front=start.Front(
            say=start.silently if quiet else start.aloud,
            is_shown=not quiet,
            recorders=tuple(recorders),
            control=_interrupts,
            next_steps=_next_steps,
            elsewhere="another run_dir",
            over="fresh=True",
        ),
    )


# -------------------------------------------------------------------------------------------------- the configuration
def _document(config: Any) -> Document:
    if isinstance(config, str | Path):
        return document.read(config)
    if isinstance(config, Mapping):
        return document.from_mapping(_plain(config))
    what = f"{type(config).__name__}, expected the path of a YAML file or a dict"
    raise ConfigError([Finding(place="config", what=what)])


def _plain(value: Any) -> Any:
    """What YAML can hold as it holds it: paths as text, tuples as lists, numbers of numpy as numbers."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def _taken(found: Document, key: Key) -> Any:
    """The object that stands in a dict where a name is expected; it is taken out. None for a name."""
    section: Any = found.values
    for part in key[:-1]:
        section = section.get(part)
        if not isinstance(section, dict):
            return None
    value = section.get(key[-1])
    if value is None or isinstance(value, str):
        return None
    if key == PLACES["rewards"] and not _has_function(value):
        return None
    return section.pop(key[-1])


def _has_function(rewards: Any) -> bool:
    several = rewards if isinstance(rewards, list) else [rewards]
    return any(callable(r) or (isinstance(r, Mapping) and callable(r.get("name"))) for r in several)


def _words(overrides: Overrides) -> list[tuple[Key, Any, str]]:
    """Overrides as the command line gives them. Of a dict in a dict each key counts for itself."""
    if not isinstance(overrides, Mapping):
        several = [overrides] if isinstance(overrides, str) else list(overrides)
        return document.parse_overrides(several)
    words: list[tuple[Key, Any, str]] = []
    for name, value in overrides.items():
        key = tuple(str(name).split("."))
        if isinstance(value, Mapping) and len(key) == 1:
            words += [((*key, *str(inner).split(".")), _plain(v), "overrides") for inner, v in value.items()]
        else:
            words.append((key, _plain(value), "overrides"))
    return words


# -------------------------------------------------------------------------------------------------------- the objects
def _given(handed: Mapping[str, Any], tokenizer: Any) -> tuple[list[tuple[Key, Any, str]], assemble.Given]:
    """The objects, and what the configuration says in their places."""
    said: dict[str, Any] = {}
    prints: dict[str, str] = {}
    rows: dict[str, bytes] = {}
    functions: dict[str, Any] = {}
    model = handed["model"]
    if isinstance(model, str | Path):
        said["model"], model = str(model), None
    elif model is not None:
        said["model"] = f"{objects.MARK}{type(objects.checked_model(model)).__name__}"
        tokenizer = tokenizer if tokenizer is not None else objects.tokenizer_of(model)
    if tokenizer is not None:
        prints["tokenizer"] = fingerprints.tokenizer_print(tokenizer)
    for name, part in (("prompts", "train"), ("validation", "validation")):
        value = handed[name]
        if isinstance(value, str | Path):
            said[name] = str(value)
        elif value is not None:
            rows[part] = objects.json_lines(value, name)
            said[name] = f"{objects.MARK}{name}"
    if handed["rewards"] is not None:
        said["rewards"], functions = objects.reward_entries(handed["rewards"])
        prints |= {f"reward {name}": fingerprints.source_print(function) for name, function in functions.items()}
    words: list[tuple[Key, Any, str]] = [(PLACES[name], value, name) for name, value in said.items()]
    given = assemble.Given(model=model, tokenizer=tokenizer, rows=rows, rewards=functions, fingerprints=prints)
    return words, given


# ---------------------------------------------------------------------------------------------------------- the front
def _interrupts(ranks: Ranks) -> AbstractContextManager[Control]:
    """Ctrl-C, or a notebook's stop, ends the run at the next step boundary, saved; the second one ends it at once.

    Only while the run trains, and only if nobody else has put a handler there. SIGTERM stays as it is.
    """
    from trimtab.train.control import NoControl, SignalControl

    is_free = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_free and threading.current_thread() is threading.main_thread():
        return SignalControl(ranks, (signal.SIGINT,))
    return nullcontext(NoControl())


def _next_steps(config: RunConfig, directory: RunDirectory) -> list[str]:
    other = "ppo" if config.algorithm.name != "ppo" else "grpo"
    run = finish.relative(directory.root)
    hints = [
        ("run.report()", "curves, terms, completions"),
        ("run.metrics, run.samples", "the same as lists, for pandas.DataFrame"),
        (f'trimtab.prepare(..., {{"algorithm": "{other}"}}, run_dir="{run}-{other}")', "another algorithm by one word"),
    ]
    width = max(len(words) for words, _ in hints)
    return [f"{words:<{width}}   # {why}" for words, why in hints]
