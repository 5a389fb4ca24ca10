"""A learner over a small random model and a batch that needs no engine."""

from dataclasses import replace

import torch

from trimtab import algorithms
from trimtab.models import policy as policies
from trimtab.models.roles import InProcessModels, frozen_copy
from trimtab.models.value import Critic
from trimtab.train.learner import Learner
from trimtab.train.settings import Optim, Train
from trimtab.types import Batch, Need


def batch(seed=0, rows=12, groups=4, width=6):
    """Ragged rows with rewards; `groups` prompts."""
    random = torch.Generator().manual_seed(seed)
    prompts = torch.randint(1, 6, (rows,), generator=random)
    lengths = torch.randint(1, width + 1, (rows,), generator=random)
    mask = torch.arange(width)[None, :] < lengths[:, None]
    engine = torch.Generator().manual_seed(seed + 1)
    return Batch(
        tokens=torch.randint(4, 95, (rows, 5 + width), generator=random),
        prompt_lengths=prompts,
        completion_lengths=lengths,
        loss_mask=mask,
        group_ids=torch.arange(rows) % groups,
        row_ids=torch.arange(rows),
        prompt_ids=torch.arange(rows) % groups,
        rewards=torch.rand(rows, generator=random),
        is_scored=torch.ones(rows, dtype=torch.bool),
        is_truncated=torch.rand(rows, generator=random) < 0.3,
        rollout_log_probs=-4.5 + 0.2 * torch.randn(rows, width, generator=engine),
        policy_versions=torch.zeros(rows, width, dtype=torch.int64),
    )


def learner(
    name="grpo", *, config=None, seed=0, critic="own", micro_batch_tokens=10_000, optim=None, settings=None, **train
):
    """`settings` go to the learner, `train` into its `Train`."""
    algorithm = algorithms.load(name)
    config = config or algorithm.config()
    loaded = policies.load("builtin:tiny", seed=seed)
    need = algorithm.needs(config)
    made = None
    if Need.VALUES in need:
        made = Critic.own(loaded.model) if critic == "own" else Critic.shared(loaded.model)
    models = InProcessModels(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        temperature=1.0,
        critic=made,
        reference=frozen_copy(loaded.model) if Need.REFERENCE in need else None,
    )
    return Learner(
        models=models,
        algorithm=algorithm,
        config=config,
        optim=optim or Optim(learning_rate=1e-3),
        train=Train(**{"max_steps": 10, **train}),
        micro_batch_tokens=micro_batch_tokens,
        **(settings or {}),
    )


def weights(learner):
    return {name: p.detach().clone() for name, p in learner.models.named_parameters().items()}


def with_rewards(batch, rewards):
    return replace(batch, rewards=torch.as_tensor(rewards, dtype=torch.float32))
