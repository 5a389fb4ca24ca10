"""Another key for the checkpoints of a run: each is decrypted, encrypted anew and put in the place of the old one.

A checkpoint is under the old key or the new one, whole, at every moment; the configuration names the new one at last. So
whatever interrupts it, the same command goes on, and passes over what is under the new key already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trimtab.errors import ConfigError, Finding, StorageError, UserError
from trimtab.operate import audited
from trimtab.secrets import Secret, watch
from trimtab.store import encryption, writer
from trimtab.store.checkpoints import CheckpointStore
from trimtab.store.encryption import Vault
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Checkpoint

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rekeyed:
    """What was done."""

    changed: int
    """Checkpoints that are under the new key since."""
    already: int
    """Those that were before."""
    is_final_removed: bool
    """There was a `final/`, whose weights are plain."""


def rekey(root: Path, to: str, *, old: str | None = None, say: Say = lambda _: None) -> Rekeyed:
    """Encrypt every checkpoint of a run with another key, or for the first time; those of abandoned branches too.

    Args:
        root: a run that nobody trains.
        to: `${env:NAME}` or `${file:PATH}`, which the configuration names from then on.
        old: where the present key is, if it is not where the configuration says.
        say: is told of each checkpoint.

    Raises:
        UserError: there is no run, or a reference is none.
        ConfigError: a checkpoint is under neither key; nothing was changed.
        LockError: the run is being trained.
        StorageError: a checkpoint is damaged, so nothing was changed; or the disk takes no more.
    """
    directory = RunDirectory.existing(root)
    new = _vault(to, "--to")
    present = _vault(old, "--from") if old is not None else encryption.vault_of_run(directory)
    with directory.locked():
        try:
            found = [(store, step) for store in _stores(directory, present, say) for step in _whole(store)]
            wanted = [
                (store, step) for store, step in found if _is_to_be_changed(store.directory / str(step), present, new)
            ]
            resolved = directory.newest_config()["resolved"]
            audited.note(directory, "rekey", resolved, to=str(new.secret), checkpoints=len(wanted))
            for store, step in wanted:
                store.encrypt_anew(step, new)
                say(f"checkpoint {store.directory / str(step)} is under the new key")
            _name_in_configuration(directory, new.secret)
            has_final = bool(found) and directory.final.is_dir()
            if has_final:
                writer.remove_tree(directory.final)
            if (promoted := directory.root / "promoted").is_dir():
                say(f"{promoted} stays plain, since others read it; `trimtab runs promote --undo` takes the label away")
        except OSError as error:
            what = f"{root}: cannot write there: {error.strerror or error}"
            raise StorageError(f"{what}; every checkpoint is whole, and the same command goes on") from error
    return Rekeyed(changed=len(wanted), already=len(found) - len(wanted), is_final_removed=has_final)


def _vault(reference: str, option: str) -> Vault:
    try:
        secret = Secret(reference).below(Path())
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None
    watch(secret)
    vault = Vault(secret, option)
    vault.entry()  # that it can be read is known before anything is done
    return vault


def _stores(directory: RunDirectory, present: Vault | None, say: Say) -> Iterator[CheckpointStore]:
    """The checkpoints of the run, then those of each branch."""
    for folder in (directory.checkpoints, *sorted((directory.root / "branches").glob("*/checkpoints"))):
        store = CheckpointStore(folder, Checkpoint(), max_steps=1, warn=say)
        store.vault = present
        store.clear_leftovers()
        yield store


def _whole(store: CheckpointStore) -> list[int]:
    """
    Raises:
        StorageError: one is damaged; under another key it would look whole.
    """
    for step in store.steps():
        if (fault := store.fault(step)) is not None:
            raise StorageError(f"checkpoint {step} is damaged: {fault}; remove it, then give the command again")
    return store.steps()


def _is_to_be_changed(place: Path, present: Vault | None, new: Vault) -> bool:
    """
    Raises:
        ConfigError: it is under neither key.
    """
    entry = encryption.entry_of(place)
    if entry is not None and new.opens(entry):
        return False
    if entry is not None and (present is None or not present.opens(entry)):
        tried = "" if present is None else f" and not {present.secret}"
        what = f"{place} is under the key of id {entry.get('key_id')}, which is not {new.secret}{tried}"
        raise ConfigError([Finding(place="--from", what=what, hint="name its key: --from '${env:NAME}'")])
    return True


def _name_in_configuration(directory: RunDirectory, secret: Secret) -> None:
    newest = directory.newest_config()
    requested, resolved = dict(newest["requested"]), dict(newest["resolved"])
    for document in (requested, resolved):
        document["checkpoint"] = {**(document.get("checkpoint") or {}), "encrypt": str(secret)}
    if (requested, resolved) != (newest["requested"], newest["resolved"]):
        directory.add_config(requested, resolved, folder=Path(newest["folder"]), why="rekeyed")
