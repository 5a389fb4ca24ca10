"""The in-process engine with a small random model, for the engine suite."""

import torch

from trimtab.data import collate
from trimtab.models import policy as policies
from trimtab.models.roles import InProcessModels
from trimtab.rollout.in_process import InProcessEngine
from trimtab.rollout.settings import Sampling
from trimtab.types import Need, Prompt, Scored

TEXTS = ("47+35=", "what is 9 times 8?", "a", "47+35=", "once upon a time, there was")


class InProcess:
    tolerance = 2e-5
    max_length = 40

    def __init__(self, model, tokenizer, eos_ids, **sampling):
        self.model, self.tokenizer, self.eos_ids, self.sampling = model, tokenizer, eos_ids, sampling
        self.prompts = [Prompt(id=i, text=t, tokens=tuple(tokenizer(t).input_ids)) for i, t in enumerate(TEXTS)]

    def build(self, seed, *, temperature=1.0):
        settings = Sampling(max_length=self.max_length, temperature=temperature, **self.sampling)
        return InProcessEngine(
            model=self.model, tokenizer=self.tokenizer, eos_ids=self.eos_ids, settings=settings, seed=seed
        )

    def trainer_log_probs(self, rollouts, *, temperature):
        models = InProcessModels(model=self.model, tokenizer=self.tokenizer, temperature=temperature)
        scored = [Scored(rollout=r, reward=0.0, parts=(0.0,), is_scored=True) for r in rollouts]
        frozen = models.freeze(collate.of_rollouts(scored), Need.OLD_LOG_PROBS)
        return [row[: len(r.tokens)].tolist() for row, r in zip(frozen.old_log_probs, rollouts, strict=True)]

    @torch.no_grad()
    def change_weights(self):
        for parameter in self.model.parameters():
            parameter.mul_(1.5)


def tiny(seed=0, **sampling):
    loaded = policies.load("builtin:tiny", seed=seed)
    # end-of-sequence is rare in a random model; more ids that end a completion give lengths of all kinds
    return InProcess(loaded.model, loaded.tokenizer, loaded.eos_ids | {7, 20, 33, 61, 80}, **sampling)
