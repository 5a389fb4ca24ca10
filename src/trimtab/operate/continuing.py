"""Whether a run that is there may be gone on with: configuration, data and objects are those that it was started with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trimtab import assemble
from trimtab import config as configs
from trimtab.config import RunConfig
from trimtab.errors import ConfigError, Finding
from trimtab.store.run_directory import RunDirectory

if TYPE_CHECKING:
    from trimtab.operate.start import Front


def compare(
    config: RunConfig, rows: assemble.RowSets, given: assemble.Given, directory: RunDirectory, front: Front
) -> None:
    """A run goes on only with what it was started with: configuration, data, objects.

    Raises:
        ConfigError: something else differs.
    """
    compare_config(config, directory, front)
    compare_inputs(rows.fingerprints, given, directory, front)


def compare_config(config: RunConfig, directory: RunDirectory, front: Front) -> None:
    """A run goes on only with the configuration that it was started with, but for what may change.

    Raises:
        ConfigError: something else differs; each difference is a finding.
    """
    before = directory.newest_config()["requested"]
    refused = [
        Finding(place=key, what=f"the run has {_said(old)}, asked for is {_said(new)}")
        for key, old, new in configs.differences(before, config.requested)
        if not configs.may_change(key)
    ]
    if refused:
        hint = Finding(
            place=str(directory.root),
            what="this run was started with another configuration",
            hint=f"use {front.elsewhere}, or {front.over} to start over",
        )
        raise ConfigError([hint, *refused])


def _said(value: Any) -> str:
    return "its default" if value is None else repr(value)


def compare_inputs(
    fingerprints: Mapping[str, str], given: assemble.Given, directory: RunDirectory, front: Front
) -> None:
    """A run goes on only with the data and the objects that it was started with.

    Raises:
        ConfigError: the bytes of a file, the rows, a function's source or the weights of a given model have changed.
    """
    facts = directory.facts()
    before = facts.get("data_fingerprints", {})
    changed = [part for part, print_ in fingerprints.items() if before.get(part, print_) != print_]
    files = [part for part in changed if part not in given.rows]
    findings = []
    root, ways = str(directory.root), f"use {front.elsewhere}, or {front.over} to start over"
    if files:
        what = f"data.{' and data.'.join(files)}: the file is not what it was when this run was started"
        findings.append(Finding(place=root, what=what, hint=f"put the old file back, or {ways}"))
    if rows := [assemble.NAMES[part] for part in changed if part in given.rows]:
        what = f"{' and '.join(rows)}: the rows are not those that this run was started with"
        findings.append(Finding(place=root, what=what, hint=ways))
    objects = facts.get("objects", {})
    for name in sorted({*objects, *given.fingerprints}):
        known = {objects.get(name), facts.get("model_left") if name == "model" else objects.get(name)}
        if given.fingerprints.get(name) not in known:
            findings.append(Finding(place=root, what=f"{name}: it is not what this run was started with", hint=ways))
    if findings:
        raise ConfigError(findings)
