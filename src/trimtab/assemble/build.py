"""A run from its configuration: parts behind ports, in the order in which one needs the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from trimtab import config as configs
from trimtab.assemble import facts as run_facts
from trimtab.assemble import judges, named_models, reading, roles, watching
from trimtab.assemble.given import NOTHING, Given, checked_tokenizer
from trimtab.assemble.inputs import RowSets, read_rows, scorer_of
from trimtab.assemble.numerics import Numerics, choose_numerics, remember_passes
from trimtab.assemble.shaping import fit_to_model, shaping_of
from trimtab.config import RunConfig
from trimtab.data.order import Order
from trimtab.errors import UserError
from trimtab.ports import Control, Evaluator, Recorder, Source
from trimtab.rewards.scorer import Scorer
from trimtab.rules import RULES, language
from trimtab.store.checkpoints import CheckpointStore
from trimtab.store.run_directory import RunDirectory
from trimtab.types import Coefficient, Need

if TYPE_CHECKING:
    from trimtab.models.roles import InProcessModels
    from trimtab.models.scoring import ScoringModels
    from trimtab.rewards.shaping import Overlong
    from trimtab.store.remote_mirror import Mirror
    from trimtab.train.run import Run

Notice = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Assembled:
    """A run and what the command line wants to know of it."""

    run: Run
    models: InProcessModels | ScoringModels
    scorer: Scorer | None
    facts: dict[str, Any]
    start: int | None
    """The step of the checkpoint that it goes on from."""

    def close(self) -> None:
        """The save that is under way is finished first."""
        try:
            self.run.checkpoints.wait()
            self.run.record_saves()
        finally:
            self.run.recorder.close()
            self.models.close()
            if self.scorer is not None:
                self.scorer.close()

    def let_go(self) -> None:
        """Close what has processes and give the models' memory back, for a run that takes over; the recorder goes on."""
        self.run.checkpoints.wait()
        self.run.record_saves()
        self.models.close()
        if self.scorer is not None:
            self.scorer.close()
        nothing: Any = None
        self.models = self.run.models = self.run.learner = nothing
        self.run.source = self.run.evaluator = self.run.checkpoints = nothing
        self.run.mixed = ()


def _refuse_fewer_than_processes(config: RunConfig, processes: int) -> None:
    """
    Raises:
        UserError: a step has not a prompt or row for every process.
    """
    a_step = {"train.prompts_per_step": config.train.prompts_per_step}
    a_step |= {f"mix[{n}].rows_per_step": part.spec.rows_per_step for n, part in enumerate(config.mix)}
    if too_few := {key: count for key, count in a_step.items() if count < processes}:
        lines = [
            f"{key}: {count}, but there are {processes} processes and each needs one a step "
            f"({count} / {processes} < 1); use {processes} or more"
            for key, count in too_few.items()
        ]
        raise UserError("\n".join(lines))


def build(
    config: RunConfig,
    directory: RunDirectory,
    control: Control,
    *,
    monitors: Callable[[dict[str, Any]], Sequence[Recorder]] = lambda _: (),
    notice: Notice = lambda _: None,
    row_sets: RowSets | None = None,
    given: Given = NOTHING,
    recorder: Recorder | None = None,
    mirror: Mirror | None = None,
) -> Assembled:
    """A run in a directory, new or continued.

    Args:
        config: checked.
        directory: locked by this process; its run is continued if it has one.
        control: asked at every step boundary whether to end.
        monitors: given the run's facts, who else is told of every step, on the first rank.
        notice: is told what was chosen or left out.
        row_sets: the rows, if they have been read already.
        given: objects that stand where the configuration has names.
        recorder: goes on being told, in the place of a new one.
        mirror: brings the checkpoints into an object store.
    """
    from trimtab.models import policy as policies
    from trimtab.observe.recorders import Recorders
    from trimtab.store.recorder import RunRecorder
    from trimtab.train.alarms import limits_of
    from trimtab.train.guard import StepGuard
    from trimtab.train.learner import Learner
    from trimtab.train.ranks import Ranks
    from trimtab.train.run import Run
    from trimtab.train.scaler import LossScaler
    from trimtab.train.step import Objective

    ranks = Ranks()
    _refuse_fewer_than_processes(config, ranks.size)
    row_sets = row_sets or read_rows(config, given)
    scorer = scorer_of(config, given)
    for line in judges.examine(config) if scorer else ():
        notice(line)
    store = CheckpointStore(
        directory.checkpoints,
        config.checkpoint,
        max_steps=config.train.max_steps,
        metric=evaluation_metric(config),
        is_writer=ranks.rank == 0,
        barrier=ranks.barrier,
        warn=notice,
        journal=directory.journal,
    )
    store.mirror = mirror
    start = store.newest_good()
    if start is None:
        named_models.refuse_spoilt(config)
    loaded = _load_policy(config, directory, start, given)
    if given.tokenizer is not None:
        loaded = policies.with_tokenizer(loaded, checked_tokenizer(given.tokenizer, loaded.model))
    if config.need & Need.SCORES:
        from trimtab.models import scoring

        loaded = scoring.prepared(loaded)
    numerics = _set_numerics(config, directory, loaded.model, start)
    notice(f"threads of mathematics: {numerics.threads}{numerics.threads_by and f' ({numerics.threads_by})'}")
    models = roles.roles_of(config, directory, store, loaded, numerics, start, notice=notice)
    store.expected_bytes, weights = roles.checkpoint_bytes(models), roles.policy_bytes(models)
    notice(store.room(weights, is_evaluated=config.data.validation is not None))
    for remark in roles.remarks(config, numerics.device):
        notice(remark)
    judged_by: dict[str, str] = {}
    if scorer is not None:
        for line in judges.put_into(scorer, config, models.tokenizer, numerics):
            notice(line)
        judged_by |= judges.weights_of(scorer, config)
        judges.refuse_other_weights(judged_by, directory.facts().get("reward_models", {}), directory.root)
    config = fit_to_model(config, loaded.model, notice)
    if config.need & Need.ROLLOUTS and (config.sampling.top_p < 1 or config.sampling.top_k is not None):
        notice(
            "sampling.top_p or top_k cuts the distribution that is sampled; the trainer's log-probs are of the whole one. "
            "Watch rollout/trainer_mismatch, or sample with top_p: 1.0 and top_k: null"
        )
    settings, shaping = config.sampling, shaping_of(config)
    labels = scorer.labels if scorer else ()
    labels = shaping.labels(labels) if shaping else labels
    own = _fitted_to_run(config, models.tokenizer)
    learner = Learner(
        models=models,
        algorithm=config.algorithm,
        config=own,
        optim=config.optim,
        train=config.train,
        micro_batch_tokens=numerics.micro_batch_tokens,
        value_learning_rate=config.critic.learning_rate,
        value_warmup_steps=config.critic.warmup_steps if config.need & Need.VALUES else 0,
        probe_tokens=config.probe.probe_tokens,
        term_norms_every=config.diagnostics.term_norms_every,
        reward_labels=labels,
        ranks=ranks,
        mixed=[Objective(algorithm=p.algorithm, config=p.config, weight=p.spec.weight) for p in config.mix],
        scaler=LossScaler(is_enabled=models.precision.needs_loss_scale, max_scale=config.optim.max_loss_scale),
        told_of_smaller_passes=remember_passes(directory, notice, is_first=ranks.rank == 0),
    )
    engine = None
    if config.need & Need.ROLLOUTS:
        from trimtab.rollout.in_process import InProcessEngine

        engine = InProcessEngine(
            model=models.model,
            tokenizer=models.tokenizer,
            eos_ids=loaded.eos_ids,
            settings=settings,
            seed=config.train.seed,
            rows_at_once=numerics.rollout_rows,
            passes=models.passes,
        )
    source, evaluator, counts = _source_and_evaluator(
        config, own, row_sets, models, loaded.eos_ids, engine, scorer, shaping, ranks, numerics, notice
    )
    mixed, more = reading.mixed_sources(config, row_sets, models, loaded.eos_ids, ranks, notice)
    counts |= more
    facts = run_facts.describe(
        config, models, row_sets, numerics, ranks.size, counts, policies.directory_of(config.policy.model)
    ) | ({"objects": dict(given.fingerprints)} if given.fingerprints else {})
    facts |= {"reward_models": judged_by} if judged_by else {}
    recorder = recorder or Recorders(
        RunRecorder(directory, config.observe.samples, warn=notice) if ranks.rank == 0 else None,
        monitors(facts) if ranks.rank == 0 else (),
    )
    early = config.eval.early_stop
    kl_limit = getattr(getattr(getattr(own, "shared", None), "kl", None), "limit", None)
    run = Run(
        learner=learner,
        models=models,
        source=source,
        mixed=mixed,
        evaluator=evaluator,
        recorder=recorder,
        guard=StepGuard(
            metric=evaluation_metric(config),
            patience=early.patience,
            limits=limits_of(RULES, config.guard.rules, kl_limit=kl_limit, max_staleness=config.sampling.max_staleness),
            window=evaluator.every if row_sets.validation is None else None,
            max_steps=config.train.max_steps,
            facts={key: value for key, _, value in configs.differences({}, config.resolved)},
            language=language(config.alarms.language),
        ),
        checkpoints=store,
        control=control,
        max_steps=config.train.max_steps,
        machine=watching.resources_of(directory, models, numerics, ranks, notice),
    )
    return Assembled(run=run, models=models, scorer=scorer, facts=facts, start=start)


def _set_temperature(temperature: Coefficient, sampled_by: Iterable[Any], step: int) -> None:
    """Engine and trainer at the temperature of a step."""
    from trimtab.train import schedule

    for part in sampled_by:
        part.temperature = schedule.number_at(temperature, step)


def evaluation_metric(config: RunConfig) -> str:
    """The figure that says which checkpoint is the best."""
    if config.eval.early_stop.metric not in (None, "auto"):
        return str(config.eval.early_stop.metric)
    if config.need & Need.ROLLOUTS:
        return "eval/reward/mean"
    if config.need & Need.SCORES:
        return "eval/reward_model/auc"
    return "eval/preference/accuracy" if config.need & (Need.PAIRS | Need.LABELS) else "eval/loss/nll"


def _load_policy(config: RunConfig, directory: RunDirectory, start: int | None, given: Given) -> Any:
    """The model to go on with: the one that was given, else of the newest checkpoint, else of `policy.model`.

    One that was given gets the weights of the checkpoint when the run is restored.
    """
    from trimtab.models import policy as policies

    if given.model is not None:
        if config.policy.lora is not None:
            raise UserError(
                "policy.lora: an adapter names the model it is for; save the given one and set policy.model"
            )
        return policies.from_objects(given.model, given.tokenizer)
    return roles.load_policy(config, directory, start)


def _set_numerics(config: RunConfig, directory: RunDirectory, model: Any, start: int | None) -> Numerics:
    import torch

    before = directory.facts().get("numerics") if start is not None else None
    numerics = choose_numerics(config, model.config, before=before)
    torch.set_num_threads(numerics.threads)
    return numerics


def _fitted_to_run(config: RunConfig, tokenizer: Any) -> Any:
    """The algorithm's record, told the length limit if a constant length normalises its loss, and token ids of marks."""
    own = config.algorithm_config
    shared = getattr(own, "shared", None)
    if shared is not None and shared.policy.norm_length is None:
        loss = replace(shared.policy, norm_length=config.sampling.max_length)
        own = replace(own, shared=replace(shared, policy=loss))
    segment = getattr(getattr(own, "policy", None), "segment", None)
    if segment is not None and segment.end_marks:
        ids = tuple(mark if isinstance(mark, int) else _one_token(mark, tokenizer) for mark in segment.end_marks)
        own = replace(own, policy=replace(own.policy, segment=replace(segment, end_marks=ids)))
    return own


def _one_token(mark: str, tokenizer: Any) -> int:
    ids = tokenizer.encode(mark, add_special_tokens=False)
    if len(ids) != 1:
        raise UserError(
            f"policy.segment.end_marks: {mark!r} is {len(ids)} tokens of this tokenizer ({ids}), expected one; name the "
            "id of the token that ends a segment, or a text that is one token"
        )
    return int(ids[0])


def _source_and_evaluator(
    config: RunConfig,
    own: Any,
    row_sets: RowSets,
    models: InProcessModels | ScoringModels,
    eos_ids: frozenset[int],
    engine: Any,
    scorer: Scorer | None,
    shaping: Overlong | None,
    ranks: Any,
    numerics: Numerics,
    notice: Notice,
) -> tuple[Source, Evaluator, dict[str, int]]:
    if engine is not None and scorer is not None:
        from trimtab.data import collate
        from trimtab.data.prompts import Limits, prompts
        from trimtab.data.rows import remarks
        from trimtab.rollout.evaluator import RolloutEvaluator
        from trimtab.rollout.scheduler import SamplingSource

        s, as_chat = config.sampling, config.data.as_chat
        limits = Limits(max_prompt_length=s.max_prompt_length, max_length=s.max_length, long_prompts=s.long_prompts)
        train, left = prompts(row_sets.train, models.tokenizer, limits, as_chat=as_chat)
        if str(left):
            notice(f"data.train: of {len(row_sets.train)} rows {left}, since they are too long")
        for line in remarks(row_sets.train):
            notice(f"data.train: {line}")
        asked = row_sets.validation
        held_out = prompts(asked, models.tokenizer, limits, as_chat=as_chat)[0] if asked else []
        source = SamplingSource(
            prompts=train,
            order=Order(len(train), seed=config.data.seed, shuffle=config.data.shuffle),
            engine=engine,
            score=scorer.score,
            collate=partial(
                collate.of_rollouts,
                weights=(*scorer.weights, 1.0) if shaping else scorer.weights,
                masks_truncated=bool(s.overlong.filter),
            ),
            prompts_per_step=config.train.prompts_per_step,
            group_size=s.group_size,
            reward_labels=shaping.labels(scorer.labels) if shaping else scorer.labels,
            reward_errors=lambda: scorer.errors,
            restarts=lambda: scorer.pool.restarts if scorer.pool else 0,
            shape=shaping or list,
            max_refills=s.dynamic.max_refills if s.dynamic.enabled else None,
            max_staleness=s.max_staleness or 0,
            at_step=partial(_set_temperature, s.temperature, (engine, models)),
            rank=ranks.rank,
            ranks=ranks.size,
            gather=ranks.gather,
        )
        evaluator = RolloutEvaluator(
            engine=engine,
            prompts=held_out,
            score=scorer.score,
            reward_labels=scorer.labels,
            every=reading.said_interval(config, len(train), notice),
            rank=ranks.rank,
            ranks=ranks.size,
            gather=ranks.gather,
        )
        return source, evaluator, {"train": len(train), "validation": len(held_out), "dropped": left.dropped}

    return reading.source_and_evaluator(
        config, own, row_sets, models, eos_ids, ranks, notice, micro_batch_tokens=numerics.micro_batch_tokens
    )
