"""The built-in algorithms that learn from sampled completions."""

from trimtab import algorithms
from trimtab.types import Need


def _need(name):
    algorithm = algorithms.load(name)
    return algorithm.needs(algorithm.config())


NAMES = [name for name in algorithms.MODULES if Need.ROLLOUTS in _need(name)]
GROUPED = [name for name in NAMES if Need.GROUPS in _need(name)]
"""Those that compare the completions of one prompt."""
