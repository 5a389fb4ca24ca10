"""The policy of a run as a Hugging Face directory somewhere else, and how such a directory is written: whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.errors import ModelError, StorageError, UserError
from trimtab.operate import audited
from trimtab.operate.finish import model_card
from trimtab.store import encryption, writer
from trimtab.store.checkpoints import CheckpointStore
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Checkpoint

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    source: Path
    dtype: str
    """Of the weights; of an adapter, that of its own."""
    is_adapter: bool
    bytes: int
    """Of all files."""


def export(root: Path, to: Path, *, checkpoint: int | None, dtype: str | None, as_adapter: bool) -> Exported:
    """Write the policy of a run's `final/`, or of one checkpoint, to a directory that is new or empty.

    Args:
        root: a run.
        to: becomes a Hugging Face directory; of an adapter, with `as_adapter`, a PEFT directory.
        checkpoint: a step; its bytes are verified. None: `final/`.
        dtype: of the weights; None: as they are.
        as_adapter: the adapter as it was trained, not merged into its base.

    Raises:
        UserError: there is no such run or step, the directory has something in it, or the choices contradict each other.
        StorageError: the checkpoint is damaged, or the disk takes no more.
    """
    directory = RunDirectory.existing(root)
    refuse_what_is_there(to)
    if checkpoint is None and not directory.final.is_dir():
        step = directory.facts().get("final_step")
        checkpoint = step if encryption.is_encrypted(directory.checkpoints / str(step)) else None
    source = _source(directory, checkpoint, as_adapter)
    is_adapter = (source / "adapter_config.json").is_file()
    if as_adapter and not is_adapter:
        raise UserError(f"--adapter: {source} holds all weights, not an adapter; leave --adapter out")
    if as_adapter and dtype is not None:
        raise UserError("--dtype is of merged weights; an adapter is written as it was trained: leave one of them out")
    audited.note_if_possible(directory, "export", source=str(source), to=str(to.resolve()))
    with _plain(directory, source) as place, written_whole(to) as scratch:
        if (is_adapter and not as_adapter) or dtype is not None:
            written = _write_weights(place, scratch, dtype)
        else:
            shutil.copytree(place, scratch, dirs_exist_ok=True)
            written = _dtype_of(scratch)
        if not (scratch / "README.md").exists() and checkpoint is not None:
            writer.write_bytes(scratch / "README.md", model_card(directory, checkpoint).encode())
    size = sum(p.stat().st_size for p in to.rglob("*") if p.is_file())
    return Exported(source=source, dtype=written, is_adapter=as_adapter, bytes=size)


def _source(directory: RunDirectory, checkpoint: int | None, as_adapter: bool) -> Path:
    store = CheckpointStore(directory.checkpoints, Checkpoint(), max_steps=1)
    there = ", ".join(map(str, store.steps())) or "none"
    if checkpoint is None:
        if not directory.final.is_dir():
            raise UserError(
                f"{directory.root} has not finished, so it has no `final/`; take a checkpoint with --checkpoint STEP "
                f"(there are: {there})"
            )
        if as_adapter and not (directory.final / "adapter_config.json").is_file():
            raise UserError(
                f"--adapter: the weights in {directory.final} are merged; take the adapter of a step with "
                f"--checkpoint STEP (there are: {there})"
            )
        return directory.final
    if checkpoint not in store.steps():
        raise UserError(f"--checkpoint: {directory.root} has no checkpoint of step {checkpoint}; there are: {there}")
    fault = store.fault(checkpoint)
    if fault is not None:
        raise StorageError(f"--checkpoint: step {checkpoint} is damaged: {fault}; there are: {there}")
    return directory.checkpoints / str(checkpoint) / "policy"


@contextmanager
def _plain(directory: RunDirectory, source: Path) -> Iterator[Path]:
    """The policy's files in plain: where they are, or decrypted meanwhile."""
    if not encryption.is_encrypted(source.parent):
        yield source
        return
    with encryption.opened(source.parent, encryption.vault_of_run(directory), (f"{source.name}/",)) as plain:
        yield plain / source.name


def _write_weights(source: Path, scratch: Path, dtype: str | None) -> str:
    """Read, merged if it is an adapter, and saved in another precision."""
    import torch

    from trimtab.models import adapters, loading, scoring

    load = scoring.load if scoring.is_reward_model(str(source), "export") else loading.load
    loaded = load(str(source), seed=0, key="export")
    recorded = adapters.recorded_base(source)
    wanted = dtype or (recorded.dtype if recorded else "float32")
    model = loaded.model.to(getattr(torch, wanted))
    broken = [name for name, weight in model.named_parameters() if not bool(torch.isfinite(weight).all())]
    if broken:
        raise ModelError(f"--dtype: {len(broken)} weights are not finite in {wanted}, as {broken[0]}; use bfloat16")
    save(model, loaded.tokenizer, scratch)
    if (source / "README.md").is_file():
        shutil.copyfile(source / "README.md", scratch / "README.md")
    return wanted


def save(model: Any, tokenizer: Any, directory: Path) -> None:
    """A model and its tokenizer in the layout that everybody reads."""
    model.save_pretrained(str(directory))
    tokenizer.save_pretrained(str(directory))


def _dtype_of(directory: Path) -> str:
    """The precision of the first weight."""
    from safetensors import safe_open

    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - it is no dict
                return str(weights.get_tensor(name).dtype).removeprefix("torch.")
    raise ModelError(f"{directory}: there are no weights")


def refuse_what_is_there(to: Path) -> None:
    """
    Raises:
        UserError: the directory is a file or has something in it.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        what = "has files in it" if to.is_dir() else "is a file"
        raise UserError(f"--to: {to} {what}; nothing is overwritten, so name a directory that is new or empty")


@contextmanager
def written_whole(to: Path) -> Iterator[Path]:
    """A scratch directory beside `to` that takes its name once everything in it is on the disk, readable by umask.

    Raises:
        StorageError: the disk takes no more.
    """
    from safetensors import SafetensorError

    scratch = to.resolve().with_name(f".{to.resolve().name}.new")
    try:
        if scratch.exists():
            writer.remove_tree(scratch)
        writer.make_directory(scratch)
        yield scratch
        for path in sorted(scratch.rglob("*")):
            writer.readable_by_umask(path)
            writer.sync(path)
        writer.sync(scratch)
        writer.rename(scratch, to.resolve())
    except (OSError, SafetensorError) as error:
        raise StorageError(f"cannot write to {to}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
