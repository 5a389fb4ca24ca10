"""Two and four processes make the updates of one, with every algorithm, though a rank has no row at all.

One test, so that the processes are started once however the tests are shared out.
"""

import numpy
import pytest

from tests import online
from tests.contracts import rank_pool

READING = ("dpo", "dpo_norm", "ipo", "simpo", "cpo", "orpo", "kto")
"""Of the algorithms that learn from preferences those whose losses, or statistics, are their own."""
TOLERANCE = 1e-6
"""Relative to max(1, |expected|), float32."""
NAMES = [*online.NAMES, "sft", *READING, rank_pool.STOPPING]
COMPARED = ("loss/", "grad_norm/", "kl/", "entropy", "ratio/", "updates/", "advantage/", "clip_fraction/", "covariance/",
            "mismatch/", "ess", "segment/", "cispo/", "sapo/", "coefficient/", "reward/", "explained_variance",
            "preference/", "kto/")  # fmt: skip


@pytest.fixture
def pool():
    found = rank_pool.Pool()
    yield found
    found.close()


def is_close(expected, got):
    return bool((numpy.abs(expected - got) <= TOLERANCE * numpy.maximum(1, numpy.abs(expected))).all())


def differences(alone, one):
    """What a rank saw otherwise than the lone process."""
    found = [] if is_close(alone["advantages"], one["advantages"]) else ["advantages"]
    for expected, got in zip(alone["gradients"], one["gradients"], strict=True):
        found += [] if is_close(expected, got) else [f"a gradient by {float(numpy.abs(expected - got).max()):g}"]
    for name, value in alone["metrics"].items():
        got = one["metrics"].get(name)
        if name.startswith(COMPARED) and (got is None or not is_close(numpy.float64(value), got)):
            found.append(f"{name}: {value} became {got}")
    return found


def test_ranks_make_the_losses_gradients_advantages_and_stops_of_one_process(pool, tmp_path):
    alone = {name: rank_pool.evidence(name, 0, 1) for name in NAMES}
    for name, found in alone.items():
        stops = name == rank_pool.STOPPING
        count, stopped = (int(found["metrics"][f"updates/{n}"]) for n in ("count", "stopped"))
        assert (1 <= count < 4 and count + stopped == 4) if stops else (count, stopped) == (2, 0), name
        assert any(n.startswith("grad_norm/") and n != "grad_norm/total" for n in found["metrics"]), name
    for size in (2, 4):
        for name, ranks in pool.run(size, NAMES, tmp_path / f"{size}").items():
            assert len({one["weights"] for one in ranks}) == 1, f"{name} on {size} ranks: their weights differ"
            for rank, one in enumerate(ranks):
                assert not differences(alone[name], one), f"{name}, rank {rank} of {size}"
