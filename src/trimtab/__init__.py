"""Trimtab trains language models with reinforcement learning; the algorithm is a plug-in of one loop.

    run = trimtab.prepare("grpo.yaml", {"policy.clip_ratio": 0.3}, rewards=[my_reward])
    run.train()
    run.report()

Importing it loads nothing else; what a name needs is loaded when the name is first used.

>>> import trimtab
>>> trimtab.__version__.count(".")
2
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

ERRORS = (
    "TrimtabError",
    "UserError",
    "ConfigError",
    "DataError",
    "ModelError",
    "RewardError",
    "GuardError",
    "StorageError",
    "Preempted",
)
"""What a script may want to catch; `trimtab.errors` draws the tree."""
_HOMES = {
    "prepare": "trimtab.operate.prepare",
    "PreparedRun": "trimtab.operate.prepared",
    **dict.fromkeys(ERRORS, "trimtab.errors"),
}

__all__ = ["__version__", "PreparedRun", "prepare", *ERRORS]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module `trimtab` has no attribute `{name}`")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
