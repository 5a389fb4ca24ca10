"""Low-rank adapters on the policy, through peft: only they are trained, and with them off the policy is what it was.

    policy/adapter_model.safetensors   the adapter, as `PeftModel.from_pretrained(base, directory)` reads it
    policy/adapter_config.json         names the base by what `policy.model` was
    policy/base.json                   the base's name, seed and fingerprint: an adapter on other weights is another policy

Adapter weights are float32 whatever the base is. The first factor is drawn from the run's seed, the second is 0, so that
the policy is the base until the first update.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.errors import ModelError
from trimtab.models.settings import Lora

KEY = "policy.lora"
WEIGHTS, CONFIG, BASE = "adapter_model.safetensors", "adapter_config.json", "base.json"
ADAPTER = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What an adapter was trained on."""

    model: str
    """As `from_pretrained` reads it, or `builtin:tiny`."""
    seed: int
    """That `builtin:tiny` was drawn from."""
    dtype: str
    fingerprint: str
    """Of the weights in that precision."""

    def save(self, directory: Path) -> None:
        values = {name: getattr(self, name) for name in Base.__slots__}
        (directory / BASE).write_text(json.dumps(values, indent=1))

    @classmethod
    def of(cls, directory: Path) -> Base:
        return cls(**json.loads((directory / BASE).read_text()))


class Adapter:
    """The adapter in a model, in place: the model stays the transformers object that it was."""

    def __init__(self, model: Any, settings: Lora, *, base: Base, seed: int, task: str = "CAUSAL_LM") -> None:
        """Put an adapter into `model` and freeze all else of it; `task` is peft's name of what the model is for.

        Raises:
            ModelError: a name in target_modules is that of no layer, or peft cannot adapt one.
        """
        from peft import LoraConfig, get_peft_model
        from peft.tuners.tuners_utils import BaseTunerLayer

        wanted = settings.target_modules
        if wanted != "auto":
            _refuse_unknown(model, wanted)
        config = LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,  # type: ignore[arg-type]  # peft only divides it by the rank
            lora_dropout=settings.dropout,
            target_modules="all-linear" if wanted == "auto" else list(wanted),
            task_type=task,
        )
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # peft asks transformers by an older name, and says what it sets by itself
                torch.manual_seed(seed % (1 << 63))
                self.peft = get_peft_model(model, config)
        except ValueError as error:
            raise ModelError(f"{KEY}.target_modules: {str(error).splitlines()[0]}") from error
        self.peft.eval()
        self.config = self.peft.peft_config[ADAPTER]
        self.config.base_model_name_or_path = base.model
        self.base = base
        self.layers = [m for m in model.modules() if isinstance(m, BaseTunerLayer)]

    @contextmanager
    def off(self) -> Iterator[None]:
        """Passes in this context are the base's."""
        for layer in self.layers:
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in self.layers:
                layer.enable_adapters(True)

    def writer(self, take: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]) -> Callable[[Path], None]:
        """What writes the adapter alone into a directory, from what `take` makes of its weights."""
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        weights = take(get_peft_model_state_dict(self.peft, save_embedding_layers=False))

        def write(directory: Path) -> None:
            directory.mkdir(parents=True, exist_ok=True)
            flat = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
            save_file(flat, str(directory / WEIGHTS), metadata={"format": "pt"})
            _write_config(self.config, directory)
            self.base.save(directory)

        return write

    def load(self, directory: Path) -> None:
        """Put a saved adapter in the place of the present one.

        Raises:
            ModelError: it was trained on other weights.
        """
        from peft import set_peft_model_state_dict
        from safetensors.torch import load_file

        refuse_another_base(Base.of(directory), self.base, str(directory))
        told: Any = set_peft_model_state_dict(self.peft, load_file(str(directory / WEIGHTS)))
        missing = [name for name in told.missing_keys if "lora_" in name]
        if missing or told.unexpected_keys:
            raise ValueError(f"{directory}: the adapter does not fit: {sorted([*missing, *told.unexpected_keys])[:3]}")


def refuse_another_base(trained_on: Base, present: Base, place: str) -> None:
    """
    Raises:
        ModelError: the adapter would be put on weights that are not those it was trained on.
    """
    if trained_on.fingerprint != present.fingerprint:
        raise ModelError(
            f"policy.model: {present.model} has other weights than those that the adapter in {place} was trained on "
            f"(fingerprint {present.fingerprint[:12]}, expected {trained_on.fingerprint[:12]}); "
            "put the model back as it was, or start again with --fresh"
        )


def fingerprint(model: nn.Module) -> str:
    """SHA-256 over names, shapes, types and bytes of all weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def is_adapter(directory: Path) -> bool:
    """Whether a directory holds an adapter that was saved here."""
    return (directory / CONFIG).is_file() and (directory / BASE).is_file()


def write_merged(directory: Path, to: Path) -> None:
    """The policy of a checkpoint that holds an adapter, merged into its base: a plain Hugging Face directory.

    The sum is formed in float32 and rounded once to the precision of the run.

    Raises:
        ModelError: the base is not there, or has other weights now.
    """
    from trimtab.models import policy as policies
    from trimtab.models import scoring
    from trimtab.models.precision import DTYPES

    if scoring.is_reward_model(str(directory)):
        scoring.write_merged(directory, to)
        return
    loaded = policies.load(str(directory), seed=0)
    to.mkdir(parents=True, exist_ok=True)
    loaded.model.to(DTYPES[Base.of(directory).dtype]).save_pretrained(str(to))
    loaded.tokenizer.save_pretrained(str(to))


def _write_config(config: Any, directory: Path) -> None:
    """As `config.save_pretrained`, but with sets in order, so that equal adapters are equal files."""
    values = {name: sorted(v) if isinstance(v, set) else v for name, v in config.to_dict().items()}
    (directory / CONFIG).write_text(json.dumps(values, indent=2, sort_keys=True))


def _refuse_unknown(model: nn.Module, wanted: tuple[str, ...]) -> None:
    names = [name for name, _ in model.named_modules()]
    for one in wanted:
        if not any(name == one or name.endswith(f".{one}") for name in names):
            there = sorted({n.rsplit(".", 1)[-1] for n, m in model.named_modules() if _is_linear(m)})
            raise ModelError(f"{KEY}.target_modules: no layer is named {one}; there are {', '.join(there)}")


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
