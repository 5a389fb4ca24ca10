"""The roles with weights, from their configuration: which models are loaded, in what precision, with what in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.assemble.numerics import Numerics
from trimtab.config import RunConfig
from trimtab.errors import ModelError, StorageError, UserError
from trimtab.store import encryption, writer
from trimtab.store.checkpoints import CheckpointStore
from trimtab.store.run_directory import RunDirectory
from trimtab.types import Need

if TYPE_CHECKING:
    from trimtab.models.lora import Adapter
    from trimtab.models.policy import LoadedModel
    from trimtab.models.precision import Precision
    from trimtab.models.reference import Reference
    from trimtab.models.roles import InProcessModels
    from trimtab.models.scoring import ScoringModels
    from trimtab.models.value import Critic
    from trimtab.store.reference_cache import ReferenceCache

Notice = Callable[[str], None]


def load_policy(config: RunConfig, directory: RunDirectory, start: int | None) -> LoadedModel:
    """The model to go on with: of the newest checkpoint, else of `policy.model`.

    With an adapter it is always `policy.model`: a checkpoint holds the adapter alone.
    """
    from trimtab.kernels import sampling
    from trimtab.models import policy as policies
    from trimtab.models import scoring

    load = scoring.load if config.need & Need.SCORES else policies.load
    if not config.need & Need.SCORES and scoring.is_reward_model(config.policy.model):
        raise ModelError(
            f"policy.model: {config.policy.model} is a reward model, which writes nothing; name the model that it was "
            "trained from, and this one in rewards: [{model: ...}]"
        )
    if start is not None and config.policy.lora is None:
        with _policy_of(config, directory, start) as place:
            return load(place, seed=0)
    return load(config.policy.model, seed=sampling.key(config.train.seed, "policy"))


@contextmanager
def _policy_of(config: RunConfig, directory: RunDirectory, step: int) -> Iterator[str]:
    """Where the policy of a checkpoint is in plain."""
    vault = encryption.vault_of(config.checkpoint.encrypt)
    with encryption.opened(directory.checkpoints / str(step), vault, ("policy/",)) as plain:
        yield str(plain / "policy")


def roles_of(
    config: RunConfig,
    directory: RunDirectory,
    store: CheckpointStore,
    loaded: LoadedModel,
    numerics: Numerics,
    start: int | None,
    *,
    notice: Notice = lambda _: None,
) -> InProcessModels | ScoringModels:
    """Policy, critic and reference on their device; or the reward model that is trained in the policy's place.

    Args:
        notice: is told what is known of the reference already.
    Raises:
        UserError: a precision that the device has not, a model that cannot do what is asked, or a cache that cannot be.
        StorageError: the reference is the policy at step 0, whose checkpoint is damaged.
    """
    from trimtab.models import packing
    from trimtab.models import policy as policies
    from trimtab.models import precision as precisions
    from trimtab.models.roles import InProcessModels
    from trimtab.train import schedule

    precision = precisions.of_policy(config.policy)
    precisions.refuse_what_the_device_lacks(precision, numerics.device)
    if config.data.packing:
        trunk = loaded.model.base_model if config.need & Need.SCORES else policies.trunk_of(loaded.model)
        packing.refuse_what_mixes_rows(trunk, type(loaded.model).__name__)
    if config.need & Need.SCORES:
        return _reward_model(config, loaded, precision, numerics)
    precision.cast(loaded.model).to(numerics.device)
    critic = _critic(config, loaded.model, precision, numerics) if config.need & Need.VALUES else None
    own = None
    if config.need & Need.REFERENCE and not _is_adapter_off(config):
        own = _reference_model(config, directory, store, loaded.model, start)
    adapter = _adapter(config, loaded.model) if config.policy.lora is not None else None
    temperature = schedule.number_at(config.sampling.temperature, 1) if config.need & Need.ROLLOUTS else 1.0
    models = InProcessModels(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        temperature=temperature,
        critic=critic,
        precision=precision,
        adapter=adapter,
        gradient_checkpointing=config.policy.gradient_checkpointing,
        packing=config.data.packing,
    )
    if config.need & Need.REFERENCE:
        models.reference = _reference(config, models, own, directory, notice)
        if start is not None and (directory.checkpoints / str(start) / "reference").is_dir():
            notice(
                f"checkpoint {start} was written by an earlier version and holds log-probs of the reference; they are "
                "computed anew, and the numbers are those of an uninterrupted run to rounding only"
            )
    return models


def checkpoint_bytes(models: InProcessModels | ScoringModels) -> float:
    """Of one checkpoint: trained weights, both moments, and the float32 copies of weights of two bytes."""
    return float(sum(p.numel() * (12 if p.element_size() == 4 else 14) for p in models.named_parameters().values()))


def policy_bytes(models: InProcessModels | ScoringModels) -> float:
    """Of a checkpoint of the policy's weights alone: all of them, or those of its adapter."""
    weights = models.model.parameters() if models.adapter is None else models.parameters()["policy"]
    return float(sum(p.numel() * p.element_size() for p in weights))


def _reward_model(config: RunConfig, loaded: LoadedModel, precision: Precision, numerics: Numerics) -> ScoringModels:
    """The adapter's base is known by its weights before the head is made float32 again."""
    from trimtab.models import scoring

    head = loaded.model.score.weight.detach().clone()
    model = precision.cast(loaded.model).to(numerics.device)
    adapter = _adapter(config, model, task=scoring.TASK) if config.policy.lora is not None else None
    scoring.keep_head(model, head)
    return scoring.ScoringModels(
        model=model,
        tokenizer=loaded.tokenizer,
        precision=precision,
        adapter=adapter,
        gradient_checkpointing=config.policy.gradient_checkpointing,
        packing=config.data.packing,
    )


def remarks(config: RunConfig, device: str) -> list[str]:
    """What is asked for and has no effect here, or one that surprises."""
    from trimtab.models import precision as precisions

    found = []
    precision = precisions.of_policy(config.policy)
    if precision.needs_loss_scale and device == "cpu":
        found.append(
            "policy: float16 is some 40 times slower on a CPU than bfloat16, which needs no loss scale; "
            "policy.autocast: bfloat16 is the better choice here"
        )
    if not precision.needs_loss_scale and "max_loss_scale" in config.requested.get("optim", {}):
        found.append("optim.max_loss_scale has no effect: only float16 scales the loss")
    if not config.need & Need.REFERENCE:
        return found
    settings = config.reference
    if _is_adapter_off(config):
        asked = [
            name for name, is_set in (("dtype", settings.dtype is not None), ("offload", settings.offload)) if is_set
        ]
        if asked:
            keys = " and ".join(f"reference.{name}" for name in asked)
            verb = "have" if len(asked) > 1 else "has"
            found.append(f"{keys} {verb} no effect: the reference is the policy with its adapter off, no second model")
    elif settings.offload and device == "cpu":
        found.append("reference.offload has no effect: the run is on the CPU, and so is the reference")
    return found


def _is_adapter_off(config: RunConfig) -> bool:
    """Whether the reference is the policy without its adapter."""
    return config.policy.lora is not None and config.reference.model is None


def _critic(config: RunConfig, policy: Any, precision: Precision, numerics: Numerics) -> Critic:
    from trimtab.models import policy as policies
    from trimtab.models import scoring
    from trimtab.models.value import Critic

    named = config.value.model
    if named == "shared":
        critic = Critic.shared(policy)
    elif named is None:
        critic = Critic.own(policy)
    else:
        load = scoring.load if scoring.is_reward_model(named, "value.model") else policies.load
        critic = Critic.own(precision.cast(load(named, seed=0, key="value.model").model))
    critic.to(numerics.device)
    return critic


def _reference_model(
    config: RunConfig, directory: RunDirectory, store: CheckpointStore, policy: Any, start: int | None
) -> Any:
    """The frozen model, in the precision in which it was stored; of step 0 if none is named."""
    from trimtab.models import policy as policies
    from trimtab.models.roles import frozen_copy

    if config.reference.model is not None:
        return policies.load(config.reference.model, seed=0, key="reference.model").model
    if start is None:
        return frozen_copy(policy)
    fault = store.fault(0)
    if fault is not None:
        raise StorageError(f"the reference model is the policy at step 0, but {fault}")
    with _policy_of(config, directory, 0) as place:
        return policies.load(place, seed=0, key="reference.model").model


def _adapter(config: RunConfig, model: Any, *, task: str = "CAUSAL_LM") -> Adapter:
    from trimtab.kernels import sampling
    from trimtab.models import lora
    from trimtab.models import policy as policies

    assert config.policy.lora is not None
    base = lora.Base(
        model=policies.directory_of(config.policy.model),
        seed=sampling.key(config.train.seed, "policy"),
        dtype=config.policy.dtype,
        fingerprint=lora.fingerprint(model),
    )
    return lora.Adapter(
        model, config.policy.lora, base=base, seed=sampling.key(config.train.seed, "adapter"), task=task
    )


def _reference(
    config: RunConfig, models: InProcessModels, own: Any, directory: RunDirectory, notice: Notice
) -> Reference:
    from trimtab.models import lora
    from trimtab.models import precision as precisions
    from trimtab.models.reference import Reference

    precision = models.precision
    if own is not None:
        precision = precisions.of_reference(config.reference, precision)
        own = precision.cast(own.eval().requires_grad_(False))
    cache = None
    if config.reference.cache is not False and reads_with_reference(config):
        weights = models.adapter.base.fingerprint if models.adapter and own is None else lora.fingerprint(own)
        cache = _reference_cache(config, models, own, weights, precision, directory, notice)
    if own is None and models.adapter is not None:
        return Reference(
            models.model, precision=precision, around=models.adapter.off, cache=cache, packing=models.packing
        )
    offload = config.reference.offload and models.device.type != "cpu"
    return Reference(
        own if offload else own.to(models.device),
        precision=precision,
        device=models.device,
        offload=offload,
        cache=cache,
        packing=models.packing,
    )


def reads_with_reference(config: RunConfig) -> bool:
    """Whether rows of a file are asked of the reference: they are met again, completions that are sampled are not."""
    own = config.algorithm.needs(config.algorithm_config)
    parts = [own, *(part.need for part in config.mix)]
    return any(need & Need.REFERENCE and not need & Need.ROLLOUTS for need in parts)


def _reference_cache(
    config: RunConfig,
    models: InProcessModels,
    own: Any,
    weights: str,
    precision: Precision,
    directory: RunDirectory,
    notice: Notice,
) -> ReferenceCache:
    """What is kept of this reference, read from its place.

    Raises:
        UserError: the directory that `reference.cache` names cannot be made.
    """
    from trimtab.models.reference import facts_of, kernel_of
    from trimtab.store.reference_cache import ReferenceCache, default_place

    limits = {
        f"sampling.{name}": getattr(config.sampling, name)
        for name in ("max_length", "max_prompt_length", "long_prompts")
    }
    computed = {"kernel": kernel_of(models.device), "adapter": "off" if own is None else "none"}
    settings = {**limits, "temperature": 1.0, **computed, "data.packing": config.data.packing}
    model = models.model if own is None else own
    facts = facts_of(model, weights, models.tokenizer, precision=precision, settings=settings)
    asked = config.reference.cache
    place = Path(asked).expanduser() if isinstance(asked, str) else default_place()
    try:
        writer.make_directory(place)
    except OSError as error:
        why = f"{place}: {error.strerror or error}"
        if isinstance(asked, str):
            raise UserError(f"reference.cache: no directory can be made there: {why}; name another, or true") from error
        place = directory.root / "reference"
        notice(f"reference.cache: the user's cache cannot be used ({why}); it is {place}")
    cache = ReferenceCache(facts, place, tell=notice)
    cache.open()
    return cache
