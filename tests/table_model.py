"""A model of two tables: what follows a token, and what it is worth. Quick to train where no transformer is needed."""

from dataclasses import replace

import torch
from torch import nn

from trimtab import algorithms
from trimtab.testing.algorithms import rich_config, with_value
from trimtab.train.learner import Learner
from trimtab.train.settings import Optim, Train
from trimtab.types import Frozen, Need, Policy

VOCABULARY = 96


class TableModels:
    """The models of a learner. The reference is another table; the critic has weights of its own."""

    device = torch.device("cpu")

    def __init__(self, *, has_critic, seed=0):
        random = torch.Generator().manual_seed(seed)

        def table(*shape):
            return torch.randn(*shape, generator=random) * 0.5

        self.logits = nn.Parameter(table(VOCABULARY, VOCABULARY))
        self.reference = self.logits.detach() + table(VOCABULARY, VOCABULARY) * 0.2
        self.worth = nn.Parameter(table(VOCABULARY)) if has_critic else None

    def forward(self, batch, need):
        before, sampled = _tokens(batch)
        log_probs = self.logits[before].log_softmax(-1)
        values = self.worth[before] if self.worth is not None and Need.VALUES in need else None
        return Policy(
            loss_mask=batch.loss_mask,
            log_probs=log_probs.gather(-1, sampled[..., None]).squeeze(-1),
            entropy=-(log_probs.exp() * log_probs).sum(-1),
            values=values,
        )

    @torch.no_grad()
    def freeze(self, batch, need):
        before, sampled = _tokens(batch)
        found = self.forward(batch, need)
        reference = self.reference[before].log_softmax(-1).gather(-1, sampled[..., None]).squeeze(-1)
        return Frozen(
            loss_mask=batch.loss_mask,
            old_log_probs=found.log_probs,
            ref_log_probs=reference if Need.REFERENCE in need else None,
            old_values=found.values,
            bootstrap_values=torch.zeros(len(batch)) if found.values is not None else None,
        )

    def parameters(self):
        return {"policy": [self.logits], **({} if self.worth is None else {"value": [self.worth]})}

    def named_parameters(self):
        return {f"{role}.{n}": p for role, found in self.parameters().items() for n, p in enumerate(found)}

    def weights_sum(self):
        return f"{sum(int(p.detach().view(torch.int32).long().sum()) for p in self.named_parameters().values()):x}"


def _tokens(batch):
    """[B, T] twice: the token before each place of the completion, and the one that stands there."""
    place = batch.prompt_lengths[:, None] + torch.arange(batch.loss_mask.shape[1])
    last = batch.tokens.shape[1] - 1
    return batch.tokens.gather(1, (place - 1).clamp(0, last)), batch.tokens.gather(1, place.clamp(max=last))


def config_of(name, *changes):
    """The algorithm's settings with every shared term switched on, and tokens of any covariance picked."""
    config = rich_config(algorithms.load(name))
    picks = [("policy", "cov_share", 0.3), ("policy", "cov_low", -9.0), ("policy", "cov_high", 9.0)]
    for section, key, value in [*picks, *changes]:
        config = with_value(config, section, key, value) or config
    return config


def learner(name, config=None, *, optim=None, micro_batch_tokens=1000, ranks=None, settings=None, seed=0, **train):
    """`settings` go to the learner, `train` into its `Train`."""
    algorithm = algorithms.load(name)
    config = config or config_of(name)
    return Learner(
        models=TableModels(has_critic=Need.VALUES in algorithm.needs(config), seed=seed),
        algorithm=algorithm,
        config=config,
        optim=optim or Optim(learning_rate=1e-3),
        train=Train(**{"max_steps": 10, **train}),
        micro_batch_tokens=micro_batch_tokens,
        ranks=ranks,
        **(settings or {}),
    )


def record_statistics(learner, seen):
    """Put what the algorithm's `statistics` is given and gives into `seen`, an update after the other."""
    algorithm = learner.main.algorithm

    def recorded(batch, frozen, advantages, policy, config, noise):
        found = algorithm.statistics(batch, frozen, advantages, policy, config, noise)
        seen.append((batch, frozen, policy, found))
        return found

    learner.main = replace(learner.main, algorithm=replace(algorithm, statistics=recorded))
    return learner
