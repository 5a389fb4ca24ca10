"""In what numbers the models compute. One policy for all passes, so that the ratio is 1 until the first update.

Three ways: float32; float32 weights whose matrix products run in two bytes (`autocast`); weights of two bytes. Whatever
it is, log-softmax and all that follows is float32, and so is the critic's last layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from trimtab.errors import UserError
from trimtab.models.settings import PolicyModel, ReferenceModel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Of weights, and of the matrix products of float32 weights."""

    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None

    @property
    def needs_loss_scale(self) -> bool:
        """float16 has no exponents for small gradients."""
        return torch.float16 in (self.dtype, self.autocast)

    @contextmanager
    def passes(self, device: torch.device) -> Iterator[None]:
        """What every pass over a model runs in; does nothing where the weights say it all."""
        if self.autocast is None:
            yield
            return
        with torch.autocast(device.type, dtype=self.autocast):
            yield

    def cast(self, model: Any) -> Any:
        """The model with its weights in `dtype`, in place."""
        return model.to(self.dtype)


def of_policy(settings: PolicyModel) -> Precision:
    """The precision of the policy, and of all that is compared with it.

    Raises:
        UserError: autocast over weights that are not float32.
    """
    if settings.autocast is not None and settings.dtype != "float32":
        raise UserError(
            f"policy.autocast: {settings.autocast}, but policy.dtype is {settings.dtype} and its passes run in that; "
            "set policy.autocast: null, or policy.dtype: float32"
        )
    autocast = DTYPES[settings.autocast] if settings.autocast else None
    return Precision(dtype=DTYPES[settings.dtype], autocast=autocast)


def of_reference(settings: ReferenceModel, policy: Precision) -> Precision:
    """Its own if it has one, else the policy's."""
    return policy if settings.dtype is None else Precision(dtype=DTYPES[settings.dtype])


def refuse_what_the_device_lacks(precision: Precision, device: str) -> None:
    """
    Raises:
        UserError: bfloat16 on a GPU that has none (before Ampere).
    """
    if device != "cuda" or torch.bfloat16 not in (precision.dtype, precision.autocast):
        return
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        name = torch.cuda.get_device_name()
        raise UserError(
            f"policy: bfloat16, but {name} has none; set policy.autocast: float16 and policy.dtype: float32"
        )
