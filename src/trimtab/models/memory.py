"""How large a model is and what a run of it holds, from config.json alone, before any weight is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from trimtab.errors import ModelError
from trimtab.kernels.log_probs import CHUNK_ELEMENTS
from trimtab.models.settings import Lora, PolicyModel, ReferenceModel

FLOAT = 4
"""Bytes of a float32; gradients and moments are always kept in it."""
HALF = 2
TRAINED = 4 * FLOAT
"""Bytes a trained parameter of four bytes: weight, gradient, two moments."""
TRAINED_HALF = HALF + 4 * FLOAT
"""Of two bytes: weight, its float32 copy, gradient, two moments."""
SHORTEST = 16
"""Tokens; no shorter completions are proposed."""


class Sizes(TypedDict):
    """What a model's config.json says of its size."""

    name: str
    architecture: str
    parameters: int
    trunk_parameters: int
    """Of the model without an output layer of its own: what a critic's copy has, but for its head."""
    matrix_parameters: int
    """Of the layers alone: each token is multiplied with all of them."""
    vocabulary: int
    positions: int | None
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_size: int
    linear_widths: dict[str, int]
    """Inputs plus outputs of all linear layers of a name, the output layer left out: times its rank, an adapter's size."""


def configuration(name: str, key: str = "policy.model") -> Any:
    """The transformers configuration of a directory, hub id, finished run or `builtin:tiny`.

    Raises:
        ModelError: nothing that could be a model is there, or its configuration cannot be read.
    """
    from trimtab.models import loading

    return loading.configuration(name, key)


def sizes(name: str, key: str = "policy.model") -> Sizes:
    """The sizes of a model. Nothing of the weights is read.

    Raises:
        ModelError: there is no model, or it is no causal language model.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config = configuration(name, key)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # whatever a file from elsewhere sets off
        raise ModelError(f"{key}: {name}: {_first_line(error)}") from error
    return _of(name, model)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _of(name: str, model: Any) -> Sizes:
    text = model.config.get_text_config()
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    everything = _count(model)
    apart = {id(embedding): embedding.numel()} | ({id(head.weight): head.weight.numel()} if head is not None else {})
    heads = int(getattr(text, "num_attention_heads", 1))
    hidden = int(text.hidden_size)
    return Sizes(
        name=name,
        architecture=type(model).__name__,
        parameters=everything,
        trunk_parameters=_count(model.base_model),
        matrix_parameters=everything - sum(apart.values()),
        vocabulary=int(text.vocab_size),
        positions=getattr(text, "max_position_embeddings", None),
        layers=int(text.num_hidden_layers),
        hidden=hidden,
        inner=int(getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * hidden),
        heads=heads,
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_size=int(getattr(text, "head_dim", None) or hidden // heads),
        linear_widths=_linear_widths(model, head),
    )


def _linear_widths(model: Any, head: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if module is not head and type(module).__name__ in ("Linear", "Conv1D") and weight is not None:
            last = name.rsplit(".", 1)[-1]
            found[last] = found.get(last, 0) + sum(weight.shape)
    return found


def _count(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


def estimate(
    *, parameters: int, has_own_critic: bool, has_reference: bool, critic_parameters: int | None = None
) -> dict[str, float]:
    """Bytes by role at float32: a trained model holds weights, gradients and two moments; a frozen one its weights."""
    found = {"policy": TRAINED * float(parameters)}
    if has_own_critic:
        found["critic"] = TRAINED * float(parameters if critic_parameters is None else critic_parameters)
    if has_reference:
        found["reference"] = FLOAT * float(parameters)
    return found


def adapter_parameters(model: Sizes, lora: Lora) -> int:
    """Trained numbers of adapters on these layers."""
    widths, wanted = model["linear_widths"], lora.target_modules
    names = widths if wanted == "auto" else {name.rsplit(".", 1)[-1] for name in wanted}
    return lora.rank * sum(widths.get(name, 0) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What decides how much memory a run wants."""

    policy: Sizes
    critic: Sizes | None = None
    """The model whose trunk the critic copies; None: it has none, or looks at the policy's."""
    reference: Sizes | None = None
    """None too where the reference is the policy with its adapter off."""
    judges: int = 0
    """Numbers in the reward models that score completions, frozen, in the precision of the policy."""
    longest: int
    """Tokens of prompt and completion, at most."""
    rows: int
    """Completions of an update, at most."""
    rows_at_once: int
    """Completions that are sampled together; 0 where nothing is sampled."""
    micro_batch_tokens: int
    weight_bytes: int = FLOAT
    """Of a weight of policy and critic."""
    is_autocast: bool = False
    """Products of float32 weights run in two bytes."""
    adapter: int | None = None
    """Trained numbers of the policy's adapter; None: all its weights are trained."""
    is_recomputed: bool = False
    """Layers keep their input alone for the backward pass."""
    reference_bytes: int = FLOAT
    """Of a weight of the reference."""
    is_offloaded: bool = False
    """The reference is on the device for its own passes alone."""
    copies_saved: bool = False
    """A checkpoint is written beside training, from a copy in the same memory."""

    @property
    def micro_batch(self) -> int:
        """Tokens of the largest forward pass: one row at least, no more than there are."""
        return min(max(self.micro_batch_tokens, self.longest), max(self.rows, 1) * self.longest)

    @property
    def critic_parameters(self) -> int:
        return self.critic["trunk_parameters"] + self.critic["hidden"] + 1 if self.critic else 0

    @property
    def trained(self) -> tuple[int, int]:
        """Trained numbers of (four, two) bytes; an adapter's and a critic's last layer are always of four."""
        own, two = self.policy["parameters"] if self.adapter is None else 0, self.weight_bytes == HALF
        wide = own + self.critic_parameters
        return (self.adapter or 0) + (0 if two else wide), wide if two else 0

    def held(self) -> dict[str, float]:
        """Bytes that are there all the time, by role."""
        each = TRAINED_HALF if self.weight_bytes == HALF else TRAINED
        found = {"policy": each * float(self.policy["parameters"])}
        if self.adapter is not None:
            found = {
                "policy": self.weight_bytes * float(self.policy["parameters"]),
                "adapter": TRAINED * float(self.adapter),
            }
        if self.critic is not None:
            found["critic"] = each * float(self.critic_parameters)
        if self.reference is not None and not self.is_offloaded:
            found["reference"] = self._reference_weights()
        if self.judges:
            found["rewards"] = self.weight_bytes * float(self.judges)
        if self.copies_saved:
            found["saving"] = checkpoint_bytes(self)
        return found

    def _reference_weights(self) -> float:
        return self.reference_bytes * float(self.reference["parameters"] if self.reference is not None else 0)

    def passing(self) -> dict[str, float]:
        """Bytes of the phases of a step, one after the other: only the largest counts."""
        update = self._activations(self.policy)
        if self.critic is not None:
            update += self._activations(self.critic)
        if self.is_autocast:
            update += HALF * float(self.policy["parameters"] + self.critic_parameters)
        found = {"update": update + logit_bytes(self.policy, self.micro_batch)}
        if self.rows_at_once:
            cache = cache_bytes(self.policy, self.rows_at_once * self.longest) * self.weight_bytes / FLOAT
            found["rollout"] = cache + 3.0 * FLOAT * (self.rows_at_once * self.policy["vocabulary"])
        if self.is_offloaded:
            found["reference"] = self._reference_weights()
        return found

    def _activations(self, model: Sizes) -> float:
        """What layers keep, of the largest forward pass."""
        of_products = AUTOCAST_SHARE if self.is_autocast else 1.0
        share = HALF / FLOAT if self.weight_bytes == HALF else of_products
        everything = share * activation_bytes(model, self.micro_batch)
        if not self.is_recomputed:
            return everything
        inputs = float(self.weight_bytes * self.micro_batch * model["layers"] * model["hidden"])
        return inputs + everything / model["layers"]

    def peak(self, phase: str | None = None) -> float:
        """Bytes at the most, or in one phase of a step."""
        passing = self.passing()
        return sum(self.held().values()) + (passing[phase] if phase else max(passing.values()))


def with_settings(
    demand: Demand, policy: PolicyModel, reference: ReferenceModel, *, device: str, is_saved_beside: bool = False
) -> Demand:
    """The demand of float32 weights that are all trained, as a configuration's precision, adapter and reference make it."""
    own = policy.lora is not None and reference.model is None
    of_reference = reference.dtype or policy.dtype
    return replace(
        demand,
        weight_bytes=FLOAT if policy.dtype == "float32" else HALF,
        is_autocast=policy.autocast is not None,
        adapter=None if policy.lora is None else adapter_parameters(demand.policy, policy.lora),
        is_recomputed=policy.gradient_checkpointing,
        reference=None if own else demand.reference,
        reference_bytes=FLOAT if of_reference == "float32" else HALF,
        is_offloaded=reference.offload and device != "cpu" and not own and demand.reference is not None,
        copies_saved=is_saved_beside and device == "cpu",
    )


def activation_bytes(model: Sizes, tokens: int) -> float:
    """What the layers keep for the backward pass of so many tokens in float32; measured on models of the Llama family."""
    queries, keys = model["heads"] * model["head_size"], model["kv_heads"] * model["head_size"]
    a_layer = 6 * model["hidden"] + 4 * queries + 3 * keys + 4 * model["inner"]
    return FLOAT * float(tokens) * model["layers"] * a_layer


AUTOCAST_SHARE = 0.6
"""Of the activations in float32, what is kept under autocast: products in two bytes, norms and their inputs in four."""


def logit_bytes(model: Sizes, tokens: int) -> float:
    """Logits, their scaled copy, log-probs and what their gradient takes, of one chunk of places."""
    return 5.0 * FLOAT * min(tokens * model["vocabulary"], CHUNK_ELEMENTS)


def cache_bytes(model: Sizes, tokens: int) -> float:
    """Keys and values of every layer in float32, for so many tokens in all rows."""
    return 2.0 * FLOAT * model["layers"] * model["kv_heads"] * model["head_size"] * tokens


def checkpoint_bytes(demand: Demand) -> float:
    """Weights of what is trained, both moments, and the float32 copies of weights of two bytes."""
    four, two = demand.trained
    return 3.0 * FLOAT * four + (HALF + 3.0 * FLOAT) * two


def available_bytes(device: str) -> tuple[float, float]:
    """(free, total) bytes that this process may use on a device, a container's and its own limit included."""
    free, total, _ = tightest(device)
    return free, total


def tightest(device: str) -> tuple[float, float, str]:
    """(free, total, whose) bytes of what leaves this process the least: computer, container, its own limits; or the GPU."""
    if device == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info()
        return float(free), float(total), "the GPU"
    import psutil

    memory = psutil.virtual_memory()
    found = [(float(memory.available), float(memory.total), "the computer")]
    limit, used = _container()
    if limit < memory.total:
        found.append((limit - used, limit, "the container"))
    return min([*found, *_own_limits()])


def _own_limits() -> list[tuple[float, float, str]]:
    """Of `ulimit -v` and `ulimit -d`: address space, and what of it is data; both count what is only reserved."""
    import resource

    try:
        pages = Path("/proc/self/statm").read_text().split()
    except OSError:
        return []
    used = {"v": (resource.RLIMIT_AS, float(pages[0])), "d": (resource.RLIMIT_DATA, float(pages[5]))}
    found = []
    for letter, (which, count) in used.items():
        limit = resource.getrlimit(which)[0]
        if limit != resource.RLIM_INFINITY:
            free = max(0.0, limit - count * resource.getpagesize())
            found.append((free, float(limit), f"this process (ulimit -{letter})"))
    return found


def _container() -> tuple[float, float]:
    """(limit, used) bytes of the container; what the system would give back at once does not count as used."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = float((folder / "memory.max").read_text())  # `max` where there is none
        used = float((folder / "memory.current").read_text())
        parts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return limit, used - float(parts.get("inactive_file", 0))
    except (OSError, ValueError):
        return float("inf"), 0.0


def bytes_in_words(size: float) -> str:
    """
    >>> bytes_in_words(13.1e6), bytes_in_words(2**31), bytes_in_words(512000)
    ('12.5 MiB', '2.0 GiB', '500.0 KiB')
    """
    for unit, least in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= least:
            return f"{size / least:,.1f} {unit}"
    return f"{size:.0f} bytes"


def smallest_change(demand: Demand, room: float, *, group_size: int, phase: str | None = None) -> str:
    """What to set so that a run fits into `room` bytes: at each turn the mildest change to what is the largest.

    Args:
        demand: of the run as it is.
        room: for what is held and what passes.
        group_size: completions of a prompt.
        phase: of `Demand.passing`, the only one that matters; None for whichever is the largest.
    """
    settings: dict[str, str] = {}
    while demand.peak(phase) > room:
        changed = _milder(demand, room, group_size, phase)
        if changed is None:
            least = sum(demand.held().values())
            adapter = "" if demand.adapter is not None else "policy.lora={rank: 16}, "
            return (
                f"the model alone takes {bytes_in_words(least)}: {adapter}a smaller policy.model, or a larger machine"
            )
        key, value, demand = changed
        settings[key] = value
    words = " ".join(f"{key}={value}" for key, value in settings.items())
    is_neutral = set(settings) <= {"checkpoint.async", "train.micro_batch_tokens", "policy.gradient_checkpointing"}
    return f"set {words}" + (", which changes speed and memory but not the result" if is_neutral else "")


def _milder(demand: Demand, room: float, group_size: int, phase: str | None = None) -> tuple[str, str, Demand] | None:
    """(key, value, the demand with it), or None if only another model would help."""
    passing = demand.passing()
    held = demand.held()
    if demand.copies_saved and (sum(held.values()) > room or held["saving"] >= max(passing.values())):
        return "checkpoint.async", "false", replace(demand, copies_saved=False)
    if sum(held.values()) > room:
        if demand.critic is not None:
            return "value.model", "shared", replace(demand, critic=None)
        if demand.reference is not None and demand.reference_bytes == FLOAT:
            return "reference.dtype", "bfloat16", replace(demand, reference_bytes=HALF)
        if demand.reference is not None:
            return "kl.coef", "0", replace(demand, reference=None)
        return None
    update = phase == "update" if phase else passing["update"] >= passing.get("rollout", 0.0)
    if update and demand.micro_batch > demand.longest:
        tokens = max(demand.micro_batch // 2, demand.longest)
        return "train.micro_batch_tokens", str(tokens), replace(demand, micro_batch_tokens=tokens)
    if update and not demand.is_recomputed:
        return "policy.gradient_checkpointing", "true", replace(demand, is_recomputed=True)
    if not update and demand.rows_at_once >= 2 * group_size:
        prompts = demand.rows_at_once // group_size // 2
        rows = prompts * group_size
        return "train.prompts_per_step", str(prompts), replace(demand, rows=min(demand.rows, rows), rows_at_once=rows)
    if demand.longest > SHORTEST:
        length = max(SHORTEST, demand.longest // 2)
        return "sampling.max_length", str(length), replace(demand, longest=length)
    return None
