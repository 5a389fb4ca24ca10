"""Who else is told of a run besides its journal: experiment trackers and webhooks."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from trimtab import config as configs
from trimtab.config import RunConfig
from trimtab.errors import ConfigError, Finding, StorageError
from trimtab.observe import notify_http, trackers
from trimtab.observe.notify import Courier, Notifier, warn
from trimtab.observe.notify_messages import Editor, Subject
from trimtab.observe.notify_services import SERVICES
from trimtab.observe.settings import Webhook
from trimtab.observe.trackers import Tracked, TrackerRecorder
from trimtab.ports import Recorder
from trimtab.rules import language
from trimtab.store import writer
from trimtab.store.outbox import Outbox
from trimtab.store.run_directory import RunDirectory


def refuse_missing(config: RunConfig) -> None:
    """
    Raises:
        MissingExtraError: the library of a tracker is not installed.
    """
    for name in config.telling.trackers:
        trackers.require(name)


def monitors_of(
    config: RunConfig,
    directory: RunDirectory,
    facts: Mapping[str, Any],
    *,
    run_id: str,
    notifier: Notifier | None = None,
) -> list[Recorder]:
    """Everybody whom a configuration names, in the order in which they are told.

    Args:
        facts: what run.json will say of the run.
        run_id: its id, which run.json may not have yet.
        notifier: of the webhooks, if there is one already.

    Raises:
        MissingExtraError: the library of a tracker is not installed.
        UserError: a tracker cannot start.
        ConfigError: a webhook's address cannot be read.
    """
    found: list[Recorder] = []
    refuse_missing(config)  # all of them before any is started
    try:
        for name in dict.fromkeys(config.telling.trackers):
            run = _tracked(config, directory, facts, name, run_id)
            found.append(TrackerRecorder(name, trackers.backend_of(name), run))
    except Exception:
        for started in found:
            with suppress(Exception):  # that the other one cannot start is what is said
                started.close()
        raise
    notifier = notifier or notifier_of(config, directory, run_id=run_id)
    return found if notifier is None else [*found, notifier]


# -------------------------------------------------------------------------------------------------------------- webhooks
def notifier_of(config: RunConfig, directory: RunDirectory, *, run_id: str) -> Notifier | None:
    """Who tells the webhooks; it begins at once with what an earlier process has left. None if there are none.

    Raises:
        ConfigError: an address or a key cannot be read.
        StorageError: the outbox cannot be read.
    """
    if not config.telling.webhook:
        return None
    for place, hook in placed(config):
        check(place, hook)
    try:
        couriers = [
            Courier(hook, Outbox(directory.root / "outbox" / _folder(hook)), place=place)
            for place, hook in placed(config)
        ]
    except OSError as error:
        raise StorageError(f"{directory.root / 'outbox'}: cannot be read: {error.strerror or error}") from error
    return Notifier(couriers, editor_of(config, directory, run_id), version=lambda: len(directory.config_versions()))


def editor_of(config: RunConfig, directory: RunDirectory, run_id: str) -> Editor:
    """Who puts events into words."""
    subject = Subject(
        name=directory.root.resolve().name,
        run_id=run_id,
        algorithm=config.algorithm.name,
        max_steps=config.train.max_steps,
    )
    process = f"{os.getpid()} {time.time()}"
    return Editor(subject, language=language(config.alarms.language), process=process)


def placed(config: RunConfig) -> Iterator[tuple[str, Webhook]]:
    """The webhooks with the keys that messages name.

    Raises:
        ConfigError: two are the same.
    """
    hooks = config.telling.webhook or ()
    seen: dict[str, int] = {}
    for number, hook in enumerate(hooks):
        place = "observe.webhook" if len(hooks) == 1 else f"observe.webhook[{number}]"
        if (first := seen.setdefault(_folder(hook), number)) != number:
            what = f"{place}: has the address and format of observe.webhook[{first}]"
            raise ConfigError([Finding(place=place, what=what, hint="name it once, with everything in its `on`")])
        yield place, hook


def check(place: str, hook: Webhook) -> None:
    """
    Raises:
        ConfigError: its address or its key cannot be read, or it has a key that is of no use.
    """
    notify_http.address(hook.url, f"{place}.url")
    if hook.secret is not None:
        hook.secret.read(f"{place}.secret")
        if hook.format != "json" and SERVICES[hook.format].sign is None:
            what = f"{place}.secret: {hook.format} signs no messages"
            raise ConfigError([Finding(place=f"{place}.secret", what=what, hint="leave it out")])


def tell_finished(notifier: Notifier, *, step: int, outcome: str) -> None:
    """The run is over, and its model and report are written."""
    _tell(notifier, "finished", step=step, outcome=outcome)


def tell_failed(notifier: Notifier, *, code: int, cause: str, what_to_do: str) -> None:
    """A process has ended with another exit code than 0; nothing of one that was interrupted and has said so."""
    if code == 130:  # somebody wants it to end now
        notifier.at_the_end = min(notifier.at_the_end, 1.0)
    if code == 3:
        _tell(notifier, "stop", code=code, reason=cause)
    elif code != 75:
        _tell(notifier, "failed", code=code, cause=cause, what_to_do=what_to_do)


def _tell(notifier: Notifier, event: str, **facts: Any) -> None:
    """Tell, and see that it is sent; a fault here must not hide how the run has ended."""
    try:
        notifier.event(event, **facts)
        notifier.close()
    except Exception as error:
        warn(f"the webhooks are not told that the run is over: {type(error).__name__}: {error}")


def _folder(hook: Webhook) -> str:
    """A name of a webhook's outbox: the same as long as it is named in the same way."""
    return f"{hook.format}-{hashlib.sha256(str(hook.url).encode()).hexdigest()[:12]}"


# -------------------------------------------------------------------------------------------------------------- trackers
def _tracked(config: RunConfig, directory: RunDirectory, facts: Mapping[str, Any], name: str, run_id: str) -> Tracked:
    path = directory.root / "trackers.json"

    def known() -> dict[str, dict[str, str]]:
        try:
            found = json.loads(path.read_bytes()) if path.is_file() else {}
        except ValueError as error:
            raise StorageError(
                f"{path}: is not as it was written: {error}; remove it to begin new tracker runs"
            ) from error
        return found if isinstance(found, dict) else {}

    def remember(what: Mapping[str, str]) -> None:
        writer.replace_text(path, json.dumps({**known(), name: dict(what)}, indent=1))

    return Tracked(
        name=directory.root.resolve().name,
        run_id=run_id,
        directory=str(directory.root),
        parameters=dict(_parameters({**config.resolved, "versions": facts.get("versions", {})})),
        algorithm=config.algorithm.name,
        max_steps=config.train.max_steps,
        samples_every=config.observe.samples.every,
        remembered=known().get(name, {}),
        remember=remember,
    )


def _parameters(resolved: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every key at its value; a list as JSON."""
    for key, _, value in configs.differences({}, resolved):
        is_plain = value is None or isinstance(value, str | int | float)
        yield key, value if is_plain else json.dumps(value, ensure_ascii=False)
