"""Whether a run's files are as they were written, and agree with each other."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trimtab.errors import ConfigError, ModelError, StorageError
from trimtab.operate import verify_store
from trimtab.operate.verdict import DAMAGE, Verdict, readable, reason
from trimtab.operate.verify_journal import check_journal, ends_agree
from trimtab.store import audit, encryption
from trimtab.store.checkpoints import MANIFEST, CheckpointStore, resumable, sha256
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Checkpoint


def verify(root: Path) -> Verdict:
    """Look at every file of a run.

    Raises:
        UserError: there is no run.
    """
    directory = RunDirectory.existing(root)
    verdict = Verdict()
    if directory.is_locked():
        verdict.note(root, "a process trains here now, so what it is writing may look unfinished")
    facts = _facts(directory, verdict)
    resolved = _configs(directory, verdict)
    good = _checkpoints(directory, verdict)
    steps = check_journal(directory, facts, resolved, verdict)
    if steps is not None:
        with readable(verdict, "journal", directory.journal):
            ends_agree(directory, facts, resolved, steps, good, verdict)
        with readable(verdict, "weights", directory.journal):
            _weights(directory, steps, good, verdict)
    with readable(verdict, "final", directory.final):
        _final(directory, facts, good, verdict)
    verify_store.check_store(directory, facts, resolved, verdict)
    with readable(verdict, "audit", directory.audit):
        _audit(directory, facts, verdict)
    return verdict


# ----------------------------------------------------------------------------------------------- run.json and config/
def _facts(directory: RunDirectory, verdict: Verdict) -> Mapping[str, Any]:
    place = directory.root / "run.json"
    try:
        facts = json.loads(place.read_bytes())
    except DAMAGE as error:
        verdict.fault("run.json", place, f"cannot be read: {reason(error)}")
        return {}
    if not isinstance(facts, dict):
        verdict.fault("run.json", place, "is no JSON object")
        return {}
    return facts


def _configs(directory: RunDirectory, verdict: Verdict) -> Mapping[str, Any]:
    """The newest configuration, resolved; empty if there is none that can be read."""
    import yaml

    newest: Mapping[str, Any] = {}
    versions = directory.config_versions()
    for number, path in enumerate(versions, 1):
        if int(path.stem) != number:
            verdict.fault("config", directory.config / f"{number:04}.yaml", "is missing")
            break
    for path in versions:
        try:
            document = yaml.safe_load(path.read_bytes())
            parts = document["requested"], document["resolved"]
        except (*DAMAGE, yaml.YAMLError) as error:
            verdict.fault("config", path, f"cannot be read: {reason(error)}")
            continue
        if all(isinstance(part, dict) for part in parts):
            newest = parts[1]
        else:
            verdict.fault("config", path, "has no `requested` and `resolved` configuration")
    if not versions:
        verdict.fault("config", directory.config, "holds no configuration", "the run cannot be continued")
    elif "config" not in verdict.findings:
        verdict.good("config", f"{len(versions)} version{'s' * (len(versions) > 1)}")
    return newest


# ------------------------------------------------------------------------------------------------------------ the audit log
def _audit(directory: RunDirectory, facts: Mapping[str, Any], verdict: Verdict) -> None:
    """The chain holds, and has the line that was its newest when the run was started last."""
    reading, known = audit.read(directory.audit), facts.get("audit")
    for line, what in reading.faults:
        verdict.fault("audit", f"{directory.audit}:{line}", what, "somebody has changed the log")
    if known and known not in {line["hash"] for line in reading.lines}:
        what = "has lost the line that was its newest when the run was started last" if reading.lines else "is missing"
        verdict.fault("audit", directory.audit, what, "somebody has changed the log")
    if reading.cut:
        verdict.note(directory.audit, "a crash cut the last line; the next one says so")
    if reading.lines and "audit" not in verdict.findings:
        verdict.good("audit", f"{len(reading.lines)} lines, an unbroken chain; newest hash {reading.newest}")


# --------------------------------------------------------------------------------------------------------- checkpoints
def _checkpoints(directory: RunDirectory, verdict: Verdict) -> list[int]:
    """The steps whose checkpoints are as they were written."""
    store = CheckpointStore(directory.checkpoints, Checkpoint(), max_steps=1)
    try:
        steps = store.steps()
    except DAMAGE as error:
        verdict.fault("checkpoints", directory.checkpoints, f"cannot be looked through: {reason(error)}")
        verdict.is_storage_damaged = True
        return []
    good, files, size = [], 0, 0
    for step in steps:
        fault = _fault(store, step)
        if fault is not None:
            place, _, what = fault.partition(" ")
            verdict.fault("checkpoints", place, what, "this checkpoint will not be used")
            verdict.is_storage_damaged = True
            continue
        good.append(step)
        with readable(verdict, "checkpoints", directory.checkpoints / str(step)):
            named = _manifest(directory, step)["files"]
            files, size = files + len(named) + 1, size + sum(entry["bytes"] for entry in named.values())
            for extra in _unnamed(directory.checkpoints / str(step), named):
                verdict.fault(
                    "checkpoints", extra, "is not in the manifest", "remove it; it did not come from this run"
                )
    if not good:
        what = f"none of {len(steps)} checkpoints is good" if steps else "there is no checkpoint"
        verdict.fault("checkpoints", directory.checkpoints, what)
        verdict.is_storage_damaged = True
    can_go_on = resumable(directory.checkpoints)
    verdict.newest_good = max((step for step in good if can_go_on.get(step)), default=None)
    if good and verdict.newest_good is None:
        verdict.fault("checkpoints", directory.checkpoints, "every good one holds the policy's weights alone")
        verdict.is_storage_damaged = True
    if "checkpoints" not in verdict.findings:
        text = f"{_listed(good)}: {files} files, {size / 2**20:,.1f} MiB, every SHA-256 as written"
        verdict.good("checkpoints", text)
    return good


def _fault(store: CheckpointStore, step: int) -> str | None:
    try:
        return store.fault(step)
    except DAMAGE as error:
        return f"{store.directory / str(step)} cannot be checked: {reason(error)}"


def _manifest(directory: RunDirectory, step: int) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((directory.checkpoints / str(step) / MANIFEST).read_bytes())
    return found


def _unnamed(place: Path, named: Mapping[str, Any]) -> list[Path]:
    known = {MANIFEST, *named}
    return [p for p in sorted(place.rglob("*")) if not p.is_dir() and str(p.relative_to(place)) not in known]


def _listed(steps: list[int]) -> str:
    """
    >>> _listed([0, 15]), _listed(list(range(9)))
    ('0, 15', '0, 1, 2, ... 8')
    """
    shown = steps if len(steps) <= 6 else [*steps[:3], "...", steps[-1]]
    return ", ".join(map(str, shown)).replace("..., ", "... ")


# ------------------------------------------------------------------------------------------ what must agree with what


def _weights(directory: RunDirectory, steps: list[Mapping[str, Any]], good: list[int], verdict: Verdict) -> None:
    """The sum of the weights in each good checkpoint is the one in the journal.

    One of the policy's weights alone does not say which of them are trained, so it has no such sum.
    """
    from safetensors import SafetensorError

    written = {step["step"]: step.get("weights") for step in steps}
    equal, can_go_on = [], resumable(directory.checkpoints)
    for step in good:
        if not written.get(step) or not can_go_on.get(step):
            continue
        place = directory.checkpoints / str(step)
        try:
            with encryption.opened(place, _vault(directory, place)) as plain:
                found = weights_sum(plain, _manifest(directory, step)["files"])
        except ConfigError as error:
            verdict.note(place, f"is encrypted, and the sum of its weights is not compared: {error}")
            continue
        except (*DAMAGE, StorageError, SafetensorError) as error:
            verdict.fault("weights", place, f"the weights cannot be summed: {reason(error)}")
            continue
        if found is None:
            verdict.note(place, "the sum of the weights cannot be told from its files, so it is not compared")
        elif found != written[step]:
            what = f"the weights sum to {found}, the journal says {written[step]}"
            verdict.fault("weights", place, what, "checkpoint and journal are not of the same run")
        else:
            equal.append(step)
    if equal and "weights" not in verdict.findings:
        verdict.good("weights", f"{_listed(equal)}: the sums of the weights are those in the journal")


def _vault(directory: RunDirectory, place: Path) -> encryption.Vault | None:
    return encryption.vault_of_run(directory) if encryption.is_encrypted(place) else None


def weights_sum(checkpoint: Path, names: Iterable[str]) -> str | None:
    """The order-free 64-bit sum over the bits of all trained weights in the named files, as the learner reports it.

    Which are trained, the moments tell: the optimiser's state names every trained parameter once, weights that are
    tied to it not again. None if a trained weight is not in the files under its own name.
    """
    import torch
    from safetensors import safe_open

    trained = _trained(checkpoint)
    total, met = 0, set()
    for file in sorted(name for name in names if name.endswith(".safetensors") and "/" in name):
        role = file.split("/")[0]
        with safe_open(str(checkpoint / file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no dict
                full = f"{role}.{_as_trained(name)}"
                if full not in trained:
                    continue
                values = tensors.get_tensor(name)
                width = torch.int32 if values.element_size() == 4 else torch.int16
                total += int(values.view(width).sum(dtype=torch.int64))
                met.add(full)
    return f"{total & ((1 << 64) - 1):016x}" if trained and met == trained else None


def _as_trained(name: str) -> str:
    """A weight's name while it is trained; peft leaves the adapter's own name out of a file."""
    if not name.startswith("base_model.model."):
        return name
    return re.sub(r"\.(lora_[AB])\.", r".\1.default.", name.removeprefix("base_model.model."))


def _trained(checkpoint: Path) -> set[str]:
    from safetensors import safe_open

    with safe_open(str(checkpoint / "optimizer.safetensors"), framework="np") as moments:
        names = [name for name in moments.keys() if name.startswith("first_moment.")]  # noqa: SIM118 - it is no dict
    return {name.removeprefix("first_moment.") for name in names}


def _final(directory: RunDirectory, facts: Mapping[str, Any], good: list[int], verdict: Verdict) -> None:
    """`final/` is the policy of the checkpoint that run.json names."""
    step = facts.get("final_step")
    if step is None:
        if directory.final.exists():
            verdict.fault("final", directory.final, "is there, but run.json does not say of which step")
        return
    if encryption.is_encrypted(directory.checkpoints / str(step)):
        if directory.final.is_dir():
            verdict.note(directory.final, f"holds plain weights, though those of checkpoint {step} are encrypted")
        elif step in good:
            verdict.good("final", f"there is none: the weights of checkpoint {step} are encrypted")
        return
    if not directory.final.is_dir():
        verdict.fault("final", directory.final, f"is missing; it is the policy of step {step}")
        return
    if step not in good:
        verdict.note(directory.final, f"cannot be compared, since there is no good checkpoint of step {step}")
        return
    _compared(directory, step, verdict)
    if "final" not in verdict.findings:
        verdict.good("final", f"the policy of checkpoint {step}, byte by byte")


def _wanted(directory: RunDirectory, step: int) -> dict[str, str]:
    """SHA-256 of each file that `final/` should have: of the checkpoint's policy, or of what its adapter merges into."""
    policy = directory.checkpoints / str(step) / "policy"
    if (policy / "adapter_config.json").is_file():
        from trimtab.models import lora

        with tempfile.TemporaryDirectory() as scratch:
            lora.write_merged(policy, Path(scratch))
            return {str(p.relative_to(scratch)): sha256(p) for p in Path(scratch).rglob("*") if p.is_file()}
    return {
        name.removeprefix("policy/"): entry["sha256"]
        for name, entry in _manifest(directory, step)["files"].items()
        if name.startswith("policy/")
    }


def _compared(directory: RunDirectory, step: int, verdict: Verdict) -> None:
    try:
        wanted = _wanted(directory, step)
    except ModelError as error:  # the base of an adapter is gone, or another
        verdict.note(directory.final, f"cannot be compared: {error}")
        return
    for name, expected in wanted.items():
        file = directory.final / name
        try:
            found = sha256(file) if file.is_file() else None
        except OSError as error:
            verdict.fault("final", file, f"cannot be read: {reason(error)}")
            continue
        if found is None:
            verdict.fault("final", file, f"is missing; checkpoint {step} has it")
        elif found != expected:
            verdict.fault("final", file, f"is not that of checkpoint {step}, which run.json names")
    for file in sorted(p for p in directory.final.rglob("*") if p.is_file()):
        name = str(file.relative_to(directory.final))
        if name not in wanted and name != "README.md":
            verdict.fault("final", file, f"is not in checkpoint {step}, which run.json names")
