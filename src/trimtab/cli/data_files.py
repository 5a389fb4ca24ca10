"""`trimtab data split` and `trimtab data convert`: files made of a file, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from trimtab.cli.data_check import COLUMNS, FILE, KIND, column_names, forms_of, kind_of, read
from trimtab.errors import StorageError, UserError

if TYPE_CHECKING:
    from trimtab.data.rows import Row


def split(
    file: FILE,
    to: Annotated[Path, typer.Option("--to", help="A new folder.", show_default=False)],
    by: Annotated[
        str | None, typer.Option("--by", help="A column: each of its values is in every part.", show_default=False)
    ] = None,
    parts: Annotated[str, typer.Option("--parts", help="Sizes of train, validation and test.")] = "8:1:1",
    seed: Annotated[int, typer.Option("--seed", help="Another one gives another split.")] = 0,
    kind: KIND = "auto",
    columns: COLUMNS = None,
) -> None:
    """Cut a file into train.jsonl, validation.jsonl and test.jsonl. Rows with the same prompt stay together."""
    from trimtab.data.split import PARTS
    from trimtab.data.split import split as cut
    from trimtab.store import writer

    weights = _weights(parts)
    named = column_names(columns)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"--to: {to} exists and is not empty; name a new folder")
    rows = read(file, kind_of(file, kind, named), named)
    if by is not None and all(by not in row.values for row in rows):
        raise UserError(f"--by: no row has a column `{by}`, found {', '.join(map(repr, rows[0].values))}")
    found = cut(rows, weights, by=by, seed=seed)
    names = [name for name, weight in zip(PARTS, weights, strict=True) if weight]
    with _whole(to.with_name(f"{to.name}.new"), to) as scratch:
        for name, numbers in zip(PARTS, found.parts, strict=True):
            if name in names:
                with (scratch / f"{name}.jsonl").open("wb") as out:
                    for number in numbers:
                        out.write(_line(rows, number) + b"\n")
                    _flush(out)
        writer.sync(scratch)
    _say_parts(found.counts, names, weights, by)
    for scene, count in found.too_small.items():
        prompts = "1 prompt" if count == 1 else f"{count} prompts"
        typer.echo(f"too small: {scene or 'the file'} has {prompts} for {len(names)} parts, and is not in every part")
    typer.echo(f"wrote {', '.join(str(to / f'{name}.jsonl') for name in names)}")


def _line(rows: Sequence[Row], number: int) -> bytes:
    """A row as it stands in its file."""
    import json

    from trimtab.data.rows import Rows

    if isinstance(rows, Rows):
        return rows.raw(number).strip()
    return json.dumps(dict(rows[number].values), ensure_ascii=False).encode()


def _weights(text: str) -> tuple[int, ...]:
    """
    >>> _weights("8:1:1"), _weights("9:1")
    ((8, 1, 1), (9, 1, 0))
    """
    words = text.split(":")
    sizes = [int(word) for word in words if word.isdecimal()]
    if not (2 <= len(words) <= 3 and len(sizes) == len(words) and any(sizes)):
        raise UserError(f"--parts: {text!r}, expected two or three whole numbers, such as 8:1:1 or 9:1:0")
    return (*sizes, 0) if len(sizes) == 2 else tuple(sizes)


def _say_parts(counts: dict[str, list[int]], names: list[str], weights: tuple[int, ...], by: str | None) -> None:
    kept = [place for place, weight in enumerate(weights) if weight]
    rows = [(scene, [found[place] for place in kept]) for scene, found in counts.items()] if by is not None else []
    rows.append(("all", [sum(found[place] for found in counts.values()) for place in kept]))
    width = max(len(by or ""), *(len(scene) for scene, _ in rows))
    typer.echo("  ".join([(by or "").ljust(width), *(f"{name:>10}" for name in names)]).rstrip())
    for scene, sizes in rows:
        typer.echo("  ".join([scene.ljust(width), *(f"{size:>10,}" for size in sizes)]))


def convert(
    file: FILE,
    to: Annotated[str, typer.Option("--to", help="A file .jsonl, .jsonl.gz or .parquet.", show_default=False)],
    schema: Annotated[str, typer.Option("--schema", help="trl, seed, verl, messages or kto.")] = "trl",
    kind: KIND = "auto",
    columns: COLUMNS = None,
) -> None:
    """Write a file's rows in another form. A row that the form cannot express is refused with its line.

    seed is prompt, preferred_response, dispreferred_response. kto makes two rows of a pair.
    """
    from trimtab.data import containers, formats
    from trimtab.data.convert import SCHEMAS, converted

    containers.must_be_known(to)
    if schema not in SCHEMAS:
        raise UserError(f"--schema: {schema!r}, expected {', '.join(SCHEMAS)}")
    target, named = Path(to), column_names(columns)
    if target.exists():
        raise UserError(f"--to: {to} exists; name a new file")
    kind = kind_of(file, kind, named)
    rows = read(file, kind, named)
    count = _write_file(target, lambda out: containers.write(out, to, converted(rows, kind, schema)))
    typer.echo(f"{file}: {len(rows):,} rows of {kind} ({formats.counted(forms_of(rows))})")
    typer.echo(f"wrote {to}: {count:,} rows, {schema}")


# ---------------------------------------------------------------------------------------------------------- writing
def _write_file(target: Path, write: Callable[[BinaryIO], int]) -> int:
    from trimtab.store import writer

    scratch = target.with_name(f".{target.name}.new")
    try:
        with scratch.open("wb") as out:
            count = write(out)
            _flush(out)
        writer.rename(scratch, target)
    except OSError as error:
        raise StorageError(f"{target}: cannot be written: {error.strerror}") from None
    finally:
        scratch.unlink(missing_ok=True)
    return count


@contextmanager
def _whole(scratch: Path, target: Path) -> Iterator[Path]:
    """A folder that appears under its name once all of it is there."""
    from trimtab.store import writer

    try:
        if scratch.exists():  # of a process that was killed
            writer.remove_tree(scratch)
        writer.make_directory(scratch)
        yield scratch
        if target.exists():
            target.rmdir()
        writer.rename(scratch, target)
    except OSError as error:
        raise StorageError(f"{target}: cannot be written: {error.strerror}") from None
    finally:
        if scratch.exists():
            writer.remove_tree(scratch)


def _flush(out: BinaryIO) -> None:
    out.flush()
    os.fsync(out.fileno())
