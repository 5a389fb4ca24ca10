"""The default limit on prompts gives way to a shorter limit on the whole; one that was asked for does not."""

import pytest

from trimtab import config as configs

DPO = {"algorithm": "dpo"}


@pytest.mark.parametrize(
    ("sampling", "limit", "said"),
    [
        ({}, 512, []),
        ({"max_length": 513}, 512, []),
        ({"max_length": 512}, 511, ["sampling.max_prompt_length: 511, since sampling.max_length is 512 (default 512)"]),
        ({"max_length": 200}, 199, ["sampling.max_prompt_length: 199, since sampling.max_length is 200 (default 512)"]),
        ({"max_length": 200, "max_prompt_length": "auto"}, 199, None),
        ({"max_length": 200, "max_prompt_length": 150}, 150, []),
        ({"max_length": 2}, 1, None),
    ],
)
def test_a_limit_that_was_not_asked_for_leaves_room(sampling, limit, said):
    config = configs.from_mapping({**DPO, "sampling": sampling})
    assert config.sampling.max_prompt_length == config.resolved["sampling"]["max_prompt_length"] == limit
    if said is not None:
        assert list(config.remarks) == said


def test_a_limit_that_was_asked_for_and_leaves_no_room_is_refused():
    with pytest.raises(configs.ConfigError, match=r"max_prompt_length: 200 leaves no room for a completion"):
        configs.from_mapping({**DPO, "sampling": {"max_length": 200, "max_prompt_length": 200}})
