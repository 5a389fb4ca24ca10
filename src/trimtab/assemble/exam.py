"""What an evaluation by sampling needs and no more: the policy, an engine, the held-out prompts, the reward functions.

No critic, reference or optimiser is made and no training row is tokenised, so it fits where the run itself would not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trimtab.assemble import judges, named_models, roles
from trimtab.assemble.fingerprints import module_print, tokenizer_print
from trimtab.assemble.inputs import RowSets, scorer_of
from trimtab.assemble.numerics import Numerics, choose_numerics
from trimtab.assemble.shaping import fit_to_model
from trimtab.config import RunConfig
from trimtab.errors import UserError
from trimtab.ports import RolloutEngine
from trimtab.rewards import rules
from trimtab.rewards.scorer import Scorer
from trimtab.store.run_directory import RunDirectory
from trimtab.types import Prompt, Scored

BRANCH = "evaluation"
"""Of the random numbers, so that an evaluation with the run's own seed repeats no completion of training."""


@dataclass(slots=True, kw_only=True)
class Exam:
    """A model, the prompts that it answers and what judges the answers."""

    engine: RolloutEngine | None
    """None once it is closed."""
    prompts: Sequence[Prompt]
    """Those that fit; made again whenever they are asked for."""
    left: str
    """What became of prompts that are too long; empty: all are there as they are."""
    scorer: Scorer
    answer: Callable[[Scored], str | None]
    """The answer that a completion states."""
    extraction: str
    """What answers are read by."""
    identity: dict[str, Any]
    """All that the completions depend on, but for how they are sampled."""
    numerics: Numerics

    def column(self, name: str) -> Iterator[Any]:
        """A column's value of each prompt; None where it has none."""
        return (prompt.columns.get(name) for prompt in self.prompts)

    def close(self) -> None:
        """Gives the model's memory back; the prompts stay."""
        self.engine = None
        self.scorer.models.clear()
        self.scorer.close()


def prepare(
    config: RunConfig,
    rows: RowSets,
    *,
    temperature: float,
    top_p: float,
    seed: int,
    notice: Callable[[str], None] = lambda _: None,
) -> Exam:
    """Everything read and on its device.

    Args:
        config: of an algorithm that samples.
        rows: with those that are held out.
        temperature, top_p: in the place of the run's.
        seed: of all that is sampled.
        notice: is told what was chosen or left out.
    Raises:
        UserError: there is nothing to evaluate on, or a model or reward cannot be used.
    """
    import torch

    from trimtab.data.prompts import Limits, prompts
    from trimtab.models import lora
    from trimtab.models import precision as precisions
    from trimtab.rollout.in_process import InProcessEngine

    if not rows.validation:
        raise UserError(f"data.validation: {config.data.validation} has no rows to evaluate on")
    scorer = scorer_of(config)
    if scorer is None:
        raise ValueError(f"{config.algorithm.name} does not sample")
    try:
        for line in judges.examine(config):
            notice(line)
        named_models.refuse_spoilt(config)
        loaded = roles.load_policy(config, RunDirectory(Path()), None)
        numerics = choose_numerics(config, loaded.model.config)
        torch.set_num_threads(numerics.threads)
        precision = precisions.of_policy(config.policy)
        precisions.refuse_what_the_device_lacks(precision, numerics.device)
        precision.cast(loaded.model.requires_grad_(False)).to(numerics.device)
        for line in judges.put_into(scorer, config, loaded.tokenizer, numerics):
            notice(line)
        settings = replace(fit_to_model(config, loaded.model, notice).sampling, temperature=temperature, top_p=top_p)
        limits = Limits(
            max_prompt_length=settings.max_prompt_length,
            max_length=settings.max_length,
            long_prompts=settings.long_prompts,
        )
        found, left = prompts(rows.validation, loaded.tokenizer, limits, as_chat=config.data.as_chat)
        if str(left):
            notice(f"data.validation: of {len(rows.validation):,} rows {left}, since they are too long")
        answer, extraction = _extraction(scorer)
        return Exam(
            engine=InProcessEngine(
                model=loaded.model,
                tokenizer=loaded.tokenizer,
                eos_ids=loaded.eos_ids,
                settings=settings,
                seed=seed,
                branch=BRANCH,
                rows_at_once=numerics.rollout_rows,
                passes=partial(precision.passes, loaded.model.device),
            ),
            prompts=found,
            left=str(left),
            scorer=scorer,
            answer=answer,
            extraction=extraction,
            identity={
                "model": lora.fingerprint(loaded.model),
                "precision": {"dtype": config.policy.dtype, "autocast": config.policy.autocast},
                "tokenizer": tokenizer_print(loaded.tokenizer),
                "data": {
                    "fingerprint": rows.fingerprints["validation"],
                    "rows": len(rows.validation),
                    "prompts": len(found),
                    "columns": dict(config.data.columns),
                    "as_chat": config.data.as_chat,
                },
                "limits": {**asdict(limits), "stop": list(settings.stop), "top_k": settings.top_k},
                "rewards": _judged_by(config, scorer),
            },
            numerics=numerics,
        )
    except BaseException:
        scorer.close()
        raise


def _judged_by(config: RunConfig, scorer: Scorer) -> list[dict[str, Any]]:
    """Each reward, with a fingerprint of its code or weights if it is not a built-in rule."""
    weights = judges.weights_of(scorer, config)
    found = []
    for spec in config.rewards:
        said = asdict(spec) | {"options": dict(spec.options)}
        del said["timeout_seconds"], said["allow_weak"]
        if spec.model is not None:
            said["weights"] = weights.get(spec.model)
        elif spec.name not in rules.RULES:
            said["code"] = module_print(spec.name, [config.folder.resolve(), Path.cwd()])
        found.append(said)
    return found


def _extraction(scorer: Scorer) -> tuple[Callable[[Scored], str | None], str]:
    """How answers are read out of completions: by the first reward that does, else the whole completion is one."""
    for place, spec in enumerate(scorer.specs):
        if spec.model is not None or spec.name not in rules.RULES:
            continue
        rule = rules.make(spec.name, spec.options)
        if rules.states_answers(rule):
            is_penalty = spec.penalty if spec.on_error == "penalty" and spec.name in rules.RUNS_ELSEWHERE else None
            return partial(_stated, rule=rule, place=place, penalty=is_penalty), spec.label
    return _whole, "the whole completion"


def _stated(scored: Scored, *, rule: Any, place: int, penalty: float | None) -> str | None:
    """A pattern that ran out of time is not tried again here, where nothing would end it."""
    if not scored.is_scored or scored.parts[place] is None or scored.parts[place] == penalty:
        return None
    found: str | None = rule.answer(scored.rollout.text)
    return found


def _whole(scored: Scored) -> str | None:
    return scored.rollout.text.strip()
