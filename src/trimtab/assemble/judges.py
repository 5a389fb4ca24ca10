"""Reward models that judge a run's completions: which are named, whether they may be trusted, and put into the scorer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.assemble.fingerprints import model_print
from trimtab.config import RunConfig
from trimtab.data.prompts import demonstration_of, prompt_of
from trimtab.data.rows import Row
from trimtab.errors import ConfigError, Finding, ModelError
from trimtab.rewards.model import Ids, ModelReward, auc_of, judged
from trimtab.types import Rollout

if TYPE_CHECKING:
    from trimtab.assemble.numerics import Numerics
    from trimtab.rewards.scorer import Scorer


def key_of(place: int) -> str:
    """What errors call the reward at a place of the list."""
    return f"rewards[{place}].model"


def examine(config: RunConfig) -> list[str]:
    """Every reward model looked at, no weight read; a line about the quality of each.

    Raises:
        ModelError: one is not there, or gives no score.
        RewardError: one is too weak.
    """
    from trimtab.models import policy as policies
    from trimtab.models import scoring

    said = []
    for place, spec in enumerate(config.rewards):
        if spec.model is None:
            continue
        at = key_of(place)
        if not scoring.is_reward_model(spec.model, at):
            raise ModelError(
                f"{at}: {spec.model} has no head that gives a score, expected a model for sequence classification with "
                "one label; `algorithm: reward_model` trains one"
            )
        auc = auc_of(Path(policies.directory_of(spec.model, at)))
        said.append(judged(spec.model, auc, allow_weak=spec.allow_weak, place=f"rewards[{place}]"))
    return said


def put_into(scorer: Scorer, config: RunConfig, tokenizer: Any, numerics: Numerics) -> list[str]:
    """Load the reward models of a scorer; a line about each whose tokens are not the policy's.

    They compute in the precision of the policy, their last layer in float32.

    Args:
        scorer: of the configuration.
        config: of the run.
        tokenizer: the policy's, whose ids the completions have.
        numerics: device and size of a pass.
    """
    from trimtab.kernels import sampling
    from trimtab.models import precision as precisions
    from trimtab.models import scoring

    said = []
    precision = precisions.of_policy(config.policy)
    for place, spec in enumerate(config.rewards):
        if spec.model is None or place in scorer.models:
            continue
        loaded = scoring.load(spec.model, seed=sampling.key(config.train.seed, "reward"), key=key_of(place))
        weights = model_print(loaded.model)
        model = scoring.cast(loaded.model.requires_grad_(False), precision).to(numerics.device)
        encode: Callable[[Rollout], Ids] = ids_of
        if not have_equal_ids(tokenizer, loaded.tokenizer):
            encode = partial(tokenised, tokenizer=loaded.tokenizer, end_ids=loaded.eos_ids)
            said.append(
                f"rewards[{place}]: {spec.model} has another tokenizer than the policy; texts are tokenised for it"
            )
        score = partial(scoring.scores_of, model, precision=precision, micro_batch_tokens=numerics.micro_batch_tokens)
        scorer.models[place] = ModelReward(encode, score, weights=weights)
    return said


def weights_of(scorer: Scorer, config: RunConfig) -> dict[str, str]:
    """The fingerprint of each reward model's weights, by its name."""
    named = {place: spec.model for place, spec in enumerate(config.rewards) if spec.model is not None}
    found = {name: scorer.models.get(place) for place, name in named.items()}
    return {name: model.weights for name, model in found.items() if isinstance(model, ModelReward)}


def refuse_other_weights(weights: Mapping[str, str], before: Mapping[str, str], root: Path) -> None:
    """A run goes on only with the reward models that it was started with: the same name may hold others by now.

    Args:
        weights: of `weights_of`.
        before: likewise, of the run in `root`.
    Raises:
        ConfigError: one has other weights.
    """
    changed = [name for name, print_ in weights.items() if before.get(name, print_) != print_]
    if changed:
        names = " and ".join(changed)
        what = f"rewards: {names}: the weights are not those that this run was started with"
        raise ConfigError(
            [
                Finding(
                    place=str(root), what=what, hint="put them back, or use another --run-dir, or --fresh to start over"
                )
            ]
        )


def ids_of(rollout: Rollout) -> Ids:
    """As they were sampled."""
    return (*rollout.prompt.tokens, *rollout.tokens)


def tokenised(rollout: Rollout, *, tokenizer: Any, end_ids: frozenset[int]) -> Ids:
    """Prompt and completion in another tokenizer's ids; a conversation by its own chat template.

    Raises:
        ModelError: a conversation, and the tokenizer has no chat template.
        MessageError: the template refuses it.
    """
    turns = rollout.prompt.columns.get("messages")
    values = {"prompt": turns if turns is not None else rollout.prompt.text, "completion": rollout.text}
    row = Row(id=rollout.prompt.id, place=f"prompt {rollout.prompt.id}", values=values)
    eos_id = tokenizer.eos_token_id
    if not rollout.text:  # no turn of the assistant that a template could show
        end = () if eos_id is None else (eos_id,)
        return (*prompt_of(row, tokenizer).tokens, *end)
    made = demonstration_of(row, tokenizer, eos_id, end_ids=end_ids)
    return (*made.prompt.tokens, *made.completion)


def have_equal_ids(one: Any, other: Any) -> bool:
    """Whether two tokenizers give every text and conversation the same ids; what they pad with does not matter."""
    return bool(_print(one) == _print(other))


def _print(tokenizer: Any) -> Any:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        rules: Any = (type(tokenizer).__name__, sorted(tokenizer.get_vocab().items()))
    else:
        import json

        whole = json.loads(backend.to_str())
        rules = {name: whole.get(name) for name in ("normalizer", "pre_tokenizer", "post_processor", "model")}
        pad = tokenizer.pad_token
        rules["added"] = [t for t in whole.get("added_tokens", []) if t["content"] != pad]
    return rules, tokenizer.chat_template, tokenizer.bos_token_id, tokenizer.eos_token_id
