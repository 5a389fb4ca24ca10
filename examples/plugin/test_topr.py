import pytest
import torch
from trimtab_topr import ALGORITHM

from trimtab.testing import algorithms as suite
from trimtab.testing import cases


@pytest.mark.parametrize("check", suite.CHECKS, ids=lambda check: check.__name__)
def test_contract(check):
    check(ALGORITHM, seed=1)


def test_good_tokens_weigh_one_and_bad_ones_their_ratio_up_to_the_cap():
    case, config = cases.make(), ALGORITHM.config()
    values = cases.advantages_of(ALGORITHM, config, case).values
    ratio = torch.exp(case.policy.log_probs - case.frozen.old_log_probs)
    weights = torch.where(values > 0, 1.0, ratio.clamp(max=1.0))
    expected = -weights * values / case.batch.loss_mask.sum()
    torch.testing.assert_close(cases.evaluate(ALGORITHM, config, case).gradients["log_probs"], expected)
