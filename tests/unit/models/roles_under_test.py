"""The roles of a run over the built-in model, and rows that need no engine."""

import torch

from trimtab.models import lora
from trimtab.models import policy as policies
from trimtab.models.precision import Precision
from trimtab.models.reference import Reference
from trimtab.models.roles import InProcessModels
from trimtab.models.settings import Lora
from trimtab.models.value import Critic
from trimtab.types import Batch, Need

EVERYTHING = Need.OLD_LOG_PROBS | Need.REFERENCE | Need.VALUES | Need.ENTROPY
PRECISIONS = {
    "float32": Precision(),
    "bfloat16 autocast": Precision(autocast=torch.bfloat16),
    "bfloat16": Precision(dtype=torch.bfloat16),
    "float16 autocast": Precision(autocast=torch.float16),
    "float16": Precision(dtype=torch.float16),
}


def rows(seed=0, count=6, width=6):
    """Ragged rows of completions."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, width + 1, (count,), generator=random)
    return Batch(
        tokens=torch.randint(4, 95, (count, 5 + width), generator=random),
        prompt_lengths=torch.randint(1, 6, (count,), generator=random),
        completion_lengths=lengths,
        loss_mask=torch.arange(width)[None, :] < lengths[:, None],
        group_ids=torch.arange(count),
        row_ids=torch.arange(count),
        prompt_ids=torch.arange(count),
        rewards=torch.zeros(count),
        is_scored=torch.ones(count, dtype=torch.bool),
        is_truncated=torch.arange(count) % 2 == 0,
    )


def adapted(model, seed=1, **settings):
    base = lora.Base(model="builtin:tiny", seed=0, dtype="float32", fingerprint=lora.fingerprint(model))
    return lora.Adapter(model, Lora(**{"rank": 4, **settings}), base=base, seed=seed)


def roles(precision=None, *, seed=0, critic=None, adapter=False, reference=None, **more):
    precision = precision or Precision()
    loaded = policies.load("builtin:tiny", seed=seed)
    model = precision.cast(loaded.model)
    value = {"own": Critic.own, "shared": Critic.shared}[critic](model) if critic else None
    if value is not None:
        torch.manual_seed(0)
        torch.nn.init.normal_(value.head.output.weight)
    lora_ = adapted(model) if adapter else None
    made = InProcessModels(
        model=model,
        tokenizer=loaded.tokenizer,
        temperature=1.0,
        critic=value,
        precision=precision,
        adapter=lora_,
        reference=reference,
        **more,
    )
    if lora_ is not None and reference is None:
        made.reference = Reference(model, precision=precision, around=lora_.off)
    return made


def disturb(models, seed=3, size=0.05):
    """Move all trained weights, as an update would."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in models.named_parameters().values():
            parameter.add_(torch.randn(parameter.shape, generator=random) * size)


def gradients(models, batch, need=EVERYTHING):
    """Of a loss in which all that a policy gives takes part."""
    found = models.forward(batch, need)
    total = (found.log_probs * torch.linspace(1, 2, found.log_probs.numel()).view_as(found.log_probs)).sum()
    total = total + found.entropy.sum() + (found.values.square().sum() if found.values is not None else 0.0)
    for parameter in models.named_parameters().values():
        parameter.grad = None
    total.backward()
    return {name: p.grad.clone() for name, p in models.named_parameters().items() if p.grad is not None}
