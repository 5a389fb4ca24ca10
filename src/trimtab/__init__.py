"""Trimtab trains language models with reinforcement learning; the algorithm is a plug-in of one loop.

>>> import trimtab
>>> trimtab.__version__.count(".")
2
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
