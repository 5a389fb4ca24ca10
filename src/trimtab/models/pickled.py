"""The process that reads a pickled checkpoint, so that whatever is in it never meets a trainer's process.

    python -P -m trimtab.models.pickled FILE OUT

torch reads it with `weights_only=True`, which builds tensors and plain containers and runs no code. OUT becomes a
safetensors file. What was found is told in one line of JSON.
"""

from __future__ import annotations

import json
import pickle
import re
import sys
from collections.abc import Mapping
from typing import Any

WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "weights")
"""Under which trainers put a model's weights beside other things, in the order in which they are looked for."""


def main(file: str, out: str) -> dict[str, Any]:
    """What was found: `error`, or the `path` of keys that led to the weights and what lay `beside` them."""
    import torch
    from safetensors.torch import save_file

    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        called = re.search(r"(?:GLOBAL|global)\s+`?([\w.]+)`?", str(error))
        what = f"reading it would call {called.group(1)}" if called else "it holds more than weights"
        return {"error": f"is refused: {what}"}
    except Exception as error:  # whatever a file from elsewhere sets off
        return {"error": f"cannot be read: {next(iter(str(error).splitlines()), '') or type(error).__name__}"}
    path: list[str] = []
    beside: list[str] = []
    while isinstance(found, Mapping):
        inner = next((w for w in WRAPPERS if isinstance(found.get(w), Mapping)), None)
        if inner is None:
            break
        path.append(inner)
        beside += [str(name) for name in found if name != inner]
        found = found[inner]
    if not isinstance(found, Mapping):
        return {"error": f"holds a {type(found).__name__}, expected weights by name"}
    weights = {str(name): v for name, v in found.items() if isinstance(v, torch.Tensor)}
    if not weights:
        return {"error": "has no weights by name in it, nor under " + ", ".join(WRAPPERS)}
    beside += [str(name) for name in found if str(name) not in weights]
    save_file({name: tensor.detach().contiguous().clone() for name, tensor in weights.items()}, out)
    return {"path": path, "beside": beside}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
