"""The small files of a model's directory, JSON objects all of them, and how a fault in one is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trimtab import not_json, untrusted
from trimtab.errors import Finding
from trimtab.models import inspection


class FaultError(Exception):
    """One fault, on its way to whoever collects them."""

    def __init__(self, place: str, what: str, hint: str = "") -> None:
        self.finding = Finding(place=place, what=what, hint=hint)
        super().__init__(str(self.finding))


def object_of(path: Path) -> dict[str, Any]:
    """
    Raises:
        FaultError: it is no JSON object, or cannot be read.
    """
    try:
        untrusted.refuse_size(path, inspection.MAX_VOCABULARY)
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
        found = json.loads(text)
    except untrusted.HarmError as error:
        raise FaultError(str(path), str(error)) from None
    except OSError as error:
        raise FaultError(str(path), f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = 1 + error.object.count(b"\n", 0, error.start)
        what = f"not UTF-8: byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise FaultError(f"{path}:{line}", what, "copy the file anew") from None
    except json.JSONDecodeError as error:
        if not text.strip():
            raise FaultError(str(path), "is empty, expected a JSON object", "copy the file anew") from None
        fault = not_json.explained(text, error)
        is_cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        hint = "is the file cut off? Copy it anew" if is_cut else fault.hint
        raise FaultError(f"{path}:{error.lineno}:{error.colno}", f"not JSON: {fault.what}", hint) from None
    except RecursionError:
        raise FaultError(str(path), "is nested too deeply", "copy the file anew") from None
    if not isinstance(found, dict):
        raise FaultError(str(path), f"is {_kind(found)}, expected a JSON object", "copy the file anew")
    return found


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
