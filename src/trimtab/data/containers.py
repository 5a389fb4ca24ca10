"""Records written as JSON lines, gzip or Parquet; which, the name of the file says."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from trimtab.data.files import BATCH, library, without_nulls
from trimtab.data.messages import has_half_a_pair
from trimtab.errors import DataError, Finding, UserError

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")


def must_be_known(name: str) -> None:
    """
    Raises:
        UserError: the name ends in nothing that can be written.
    """
    if not name.endswith(SUFFIXES):
        raise UserError(f"--to: {name} does not say what to write, expected a name that ends in {', '.join(SUFFIXES)}")


def write(file: BinaryIO, name: str, records: Iterable[Mapping[str, Any]]) -> int:
    """How many records were written to the file, in the form that the name says.

    The same records give the same bytes. Parquet keeps all records in memory, and does not tell null from what is absent.

    Raises:
        DataError: Parquet, and a column holds values that do not go together.
        MissingExtraError: Parquet, and its library is not installed.
    """
    if name.endswith(".parquet"):
        return _write_parquet(file, name, records)
    if name.endswith(".gz"):
        with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
            return _write_lines(packed, records)
    return _write_lines(file, records)


def _write_lines(file: BinaryIO | io.BufferedIOBase, records: Iterable[Mapping[str, Any]]) -> int:
    count = 0
    for count, record in enumerate(records, 1):  # noqa: B007 - it is returned
        text = json.dumps(record, ensure_ascii=False)
        file.write((json.dumps(record) if has_half_a_pair(text) else text).encode() + b"\n")
    return count


def _write_parquet(file: BinaryIO, name: str, records: Iterable[Mapping[str, Any]]) -> int:
    arrow, parquet = library("pyarrow", f"{name}: writing Parquet"), library("pyarrow.parquet", name)
    found = list(records)
    findings, columns = [], {}
    for column in dict.fromkeys(column for record in found for column in record):
        values = [record.get(column) for record in found]
        try:
            columns[column] = arrow.array(values)
            if _text(columns[column].to_pylist()) != _text(values):
                raise arrow.ArrowInvalid("it would not come back as it is")
        except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            what = f"column `{column}` cannot be one column of Parquet: {' '.join(str(error).split())[:200]}"
            findings.append(Finding(place=name, what=what, hint="write .jsonl or .jsonl.gz"))
    if findings:
        raise DataError(findings)
    try:
        parquet.write_table(arrow.table(columns), file, row_group_size=BATCH)
    except arrow.ArrowException as error:  # an object without any member, say
        what = f"cannot be Parquet: {' '.join(str(error).split())[:200]}"
        raise DataError([Finding(place=name, what=what, hint="write .jsonl or .jsonl.gz")]) from None
    return len(found)


def _text(values: list[Any]) -> str:
    """So that 1 and 1.0 differ: a column of both holds the second only."""
    return json.dumps(without_nulls(values), sort_keys=True)
