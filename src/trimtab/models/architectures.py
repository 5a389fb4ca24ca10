"""Which architectures the installed transformers has, read from its tables as text: loading it takes seconds."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@cache
def known() -> tuple[frozenset[str], frozenset[str]]:
    """Every architecture that transformers has, and those that are causal language models; both empty if it cannot be told."""
    found = find_spec("transformers")
    places = list(found.submodule_search_locations or ()) if found is not None else []
    if not places:
        return frozenset(), frozenset()
    folder = Path(places[0]) / "models" / "auto"
    try:
        tables = "".join(p.read_text("utf-8") for p in folder.glob("*auto*.py") if "tokenization" not in p.name)
        models = (folder / "modeling_auto.py").read_text("utf-8")
    except OSError:
        return frozenset(), frozenset()
    every = frozenset(re.findall(r'^\s*\(?"([\w.-]+)"(?:,|:)', tables, re.MULTILINE))
    _, _, rest = models.partition("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = ")
    causal = frozenset(re.findall(r'^\s*\(?"([\w.-]+)"(?:,|:)', rest.partition("\n)")[0], re.MULTILINE))
    return (every, causal) if "llama" in every & causal else (frozenset(), frozenset())


def registered() -> Mapping[str, Any]:
    """Architectures that a program has added to transformers."""
    module = sys.modules.get("transformers.models.auto.configuration_auto")
    mapping = getattr(module, "CONFIG_MAPPING", None)
    found: Mapping[str, Any] = getattr(mapping, "_extra_content", {})
    return found


def of_transformers() -> str:
    """Its version."""
    try:
        return version("transformers")
    except PackageNotFoundError:
        return ""
