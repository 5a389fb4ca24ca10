"""Starting a run, or going on with one: from a checked configuration to `final/` and the report."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab import assemble
from trimtab import config as configs
from trimtab.assemble import monitors
from trimtab.assemble.fingerprints import model_print
from trimtab.config import RunConfig
from trimtab.errors import ConfigError, DataError, LockError, StorageError, TrimtabError, UserError, WorkerError
from trimtab.operate import audited, continuing, finish, shortage
from trimtab.operate import changes as changing
from trimtab.operate.registering import register
from trimtab.operate.storing import RunStore
from trimtab.ports import Control, Recorder
from trimtab.secrets import redact
from trimtab.store import journal
from trimtab.store.run_directory import RunDirectory
from trimtab.types import Need

if TYPE_CHECKING:
    from trimtab.observe.notify import Notifier
    from trimtab.train.ranks import Ranks

Say = Callable[[str], None]

ADVICE = {
    1: "an internal fault: please report it with the traceback",
    2: "mend what the message names and start the same command again",
    3: "look at the journal, then start again with a lower optim.learning_rate, in another --run-dir or with --fresh",
    4: "free space or mend the storage, and start the same command again",
    5: "start the same command again",
    6: "start the same command again when the reward service answers",
    75: "start the same command again; it goes on from the saved step",
    130: "start the same command again; it goes on from the newest checkpoint",
}
"""What to do, by exit code."""


EXAMPLE = Path("examples/demo/grpo.yaml")
"""A run that samples, where the repository is the working directory."""


def aloud(text: str) -> None:
    print(redact(text), flush=True)


def silently(_: str) -> None:
    """The other ranks do not talk."""


def _signals(ranks: Ranks) -> AbstractContextManager[Control]:
    from trimtab.train.control import SignalControl

    return SignalControl(ranks)


def next_steps(config: RunConfig, directory: RunDirectory) -> list[str]:
    """Three things to try, as commands that can be copied; CONFIG stands where there is no file to name."""
    run = finish.relative(directory.root)
    file = finish.relative(Path(config.chain[0])) if config.chain else "CONFIG"
    me = sys.argv[0] if sys.argv[0].endswith("/trimtab") else "trimtab"
    example = str(EXAMPLE) if EXAMPLE.is_file() else "CONFIG"
    yours = "" if EXAMPLE.is_file() else "; CONFIG: a file with `algorithm: grpo`, data and rewards"
    if config.need & Need.DEMONSTRATIONS:
        hints = [
            (f"train {example} policy.model={run}", f"reinforcement learning from here{yours}"),
            (f"status {run}", "what the run did"),
            ("algorithms grpo", "formula, needs and settings"),
        ]
    elif not config.need & Need.ROLLOUTS:
        hints = [
            (f"eval {run}", "the evaluation alone"),
            (f"status {run}", "what the run did"),
            (f"config show {file}", "every setting, resolved"),
        ]
        if config.need & Need.PAIRS and not config.need & Need.SCORES:
            other = "ipo" if config.algorithm.name != "ipo" else "dpo"
            words = f"train {file} algorithm={other} --run-dir {run}-{other}"
            hints.insert(0, (words, "another algorithm by one word"))
        if config.need & Need.SCORES:
            words = f"train {example} rewards='[{{model: {run}}}]'"
            hints.insert(0, (words, f"a policy that is paid by it{yours}"))
    else:
        other = "ppo" if config.algorithm.name != "ppo" else "grpo"
        start = f" policy.model={config.policy.model}" if config.policy.model != "builtin:tiny" else ""
        hints = [
            (f"train {file} algorithm={other}{start} --run-dir {run}-{other}", "another algorithm by one word"),
            (f"eval {run}", "the evaluation alone"),
            (f"config show {file}", "every setting, resolved"),
        ]
    if config.checkpoint.encrypt is not None:
        hints = [(words.replace(f"model={run}", f"model={run}-plain"), why) for words, why in hints]
        hints.insert(0, (f"export {run} --to {run}-plain", "its weights in plain, as a model directory"))
    width = max(len(words) for words, _ in hints)
    return [f"{me} {words:<{width}}   # {why}" for words, why in hints]


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Who starts a run, a command or Python: how the run talks, how it is interrupted, what it calls the ways out."""

    say: Say = aloud
    is_shown: bool = True
    """Whether steps are shown while they happen."""
    recorders: Sequence[Recorder] = ()
    """Who else is told of every step."""
    control: Callable[[Ranks], AbstractContextManager[Control]] = _signals
    next_steps: Callable[[RunConfig, RunDirectory], list[str]] = next_steps
    elsewhere: str = "another --run-dir"
    over: str = "--fresh"


COMMAND = Front()


def train_in(
    config: RunConfig,
    directory: RunDirectory,
    *,
    fresh: bool = False,
    given: assemble.Given = assemble.NOTHING,
    rows: assemble.RowSets | None = None,
    front: Front = COMMAND,
) -> assemble.Assembled:
    """Train in a directory, on every rank; a failure is written down there.

    Args:
        config: checked.
        directory: its run is continued if it has one.
        fresh: a run that is there gets another name.
        given: objects that stand where the configuration has names.
        rows: the rows, if they have been read already.
        front: who starts it.
    Returns:
        The parts of the run, closed, with the weights of the last step.
    Raises:
        LockError: another process trains there; nothing of its run is touched.
        ConfigError: the directory holds a run with another configuration or other data.
        TrimtabError: whatever ended the run.
    """
    from trimtab.train.ranks import Ranks

    ranks = Ranks()
    is_first = ranks.rank == 0
    _refuse_other_processes(config, ranks.size)
    storing = RunStore(config, directory, front) if is_first else None
    if is_first:
        if storing is not None and fresh:
            storing.refuse_fresh()
        if fresh and directory.exists:
            with directory.locked():
                front.say(f"the run that was here is now {finish.relative(directory.move_aside())}")
        directory.create()
    ranks.barrier()
    with directory.locked() if is_first else nullcontext():
        if storing is not None:
            storing.begin(lambda found: continuing.compare_config(config, found, front))
        ranks.barrier()
        if directory.exists:
            # A refusal leaves the run that is there as it is, failure.json too.
            continuing.compare_config(config, directory, front)
        if is_first:
            finish.clear_failure(directory)
        notifier = None
        try:
            front = front if is_first else replace(front, say=silently)
            monitors.refuse_missing(config)
            run_id = str(directory.facts().get("id") or (storing and storing.run_id) or uuid.uuid4().hex)
            notifier = monitors.notifier_of(config, directory, run_id=run_id) if is_first else None
            built = _train_locked(
                config,
                directory,
                given=given,
                rows=rows,
                front=front,
                is_first=is_first,
                run_id=run_id,
                notifier=notifier,
                storing=storing,
            )
            if storing is not None:
                storing.close()
        except BaseException as error:
            told = shortage.explained(_of_ranks(error, ranks.size), config, directory)
            if (is_first or isinstance(error, TrimtabError)) and not directory.failure.exists():
                with suppress(OSError):  # a full disk must not hide what happened
                    write_failure(directory, told)
            if notifier is not None:
                code = exit_code(told)
                cause = f"{type(told).__name__}: {told}"
                monitors.tell_failed(notifier, code=code, cause=cause, what_to_do=ADVICE[code])
            if storing is not None:
                storing.close(told)
            if told is not error:
                raise told from error
            raise
        finally:
            if is_first:
                register(directory, front.say)
        if notifier is not None:
            outcome = f"{directory.facts().get('outcome', '')}: {finish.outcome_line(directory)}"
            monitors.tell_finished(notifier, step=built.run.step, outcome=outcome)
        return built


def _refuse_other_processes(config: RunConfig, processes: int) -> None:
    """
    Raises:
        UserError: the configuration asks for more processes than train here; only the command line starts them.
    """
    if config.cluster.processes not in (1, processes):
        what = f"cluster.processes: {config.cluster.processes}, but only the command line starts other processes"
        raise UserError(f"{what}, and here there is {processes}; use `trimtab train FILE`, or cluster.processes: 1")


def _of_ranks(error: BaseException, ranks: int) -> BaseException:
    """What an error means where several processes train: a broken connection is another process that has ended."""
    words = str(error).lower()
    if (
        ranks > 1
        and isinstance(error, RuntimeError)
        and any(w in words for w in ("gloo", "nccl", "connection", "peer"))
    ):
        return WorkerError(f"another process of the run has ended: {str(error).splitlines()[0]}")
    return error


def exit_code(error: BaseException) -> int:
    """What a process ends with that an error has ended."""
    return error.exit_code if isinstance(error, TrimtabError) else 130 if isinstance(error, KeyboardInterrupt) else 1


def write_failure(directory: RunDirectory, error: BaseException) -> None:
    """failure.json, unless the error says that another process trains there."""
    if isinstance(error, LockError) or not directory.root.is_dir():
        return
    code = exit_code(error)
    step = max((s["step"] for s in journal.read(directory.journal).steps()), default=0)
    place = error.findings[0].place if isinstance(error, ConfigError | DataError) else f"step {step}"
    finish.write_failure(
        directory, code=code, cause=f"{type(error).__name__}: {error}", place=place, advice=ADVICE[code]
    )


def _train_locked(
    config: RunConfig,
    directory: RunDirectory,
    *,
    given: assemble.Given,
    rows: assemble.RowSets | None,
    front: Front,
    is_first: bool,
    run_id: str,
    notifier: Notifier | None,
    storing: RunStore | None,
) -> assemble.Assembled:
    from trimtab.operate.steering import Steering
    from trimtab.train import loop
    from trimtab.train.ranks import Ranks

    say, ranks = front.say, Ranks()
    _introduce(config, directory, say)
    mirror = storing.open(run_id) if storing is not None else None
    rows = _rows(config, directory, given, rows, is_first=is_first)
    if directory.exists:
        continuing.compare_inputs(rows.fingerprints, given, directory, front)
    said: set[str] = set()

    def notice(line: str) -> None:
        """What a run that was rebuilt says again is known."""
        if line not in said:
            said.add(line)
            say(line)

    def build(config: RunConfig, control: Control, recorder: Recorder | None) -> assemble.Assembled:
        return assemble.build(
            config,
            directory,
            control,
            row_sets=rows if config.mix == first.mix else assemble.read_rows(config, given),
            given=given,
            monitors=_monitors(config, directory, front, run_id, notifier),
            notice=notice,
            recorder=recorder,
            mirror=mirror,
        )

    first = config
    with front.control(ranks) as signals:
        steering = Steering(config, directory, signals, ranks, build, say)
        config = steering.config
        if steering.changes:
            say(f"in force since it was started: {changing.said(steering.changes)}")
        built = steering.assemble()
        if is_first:
            if built.start is not None and (changed := assemble.what_differs(directory.facts(), built.facts)):
                say(f"from here on the numbers need not be those of an uninterrupted run: {', '.join(changed)}")
            _write_facts(config, directory, built.facts, steering.changes, run_id)
            register(directory, say)
            if storing is not None:
                storing.catch_up(built.run.checkpoints)
        ranks.barrier()
        built.run.version = len(directory.config_versions())
        if built.start is not None and built.start >= config.train.max_steps:
            say(f"already finished: all {config.train.max_steps} steps are done; raise train.max_steps to go on")
        try:
            run = loop.train(built.run)
        finally:
            steering.close()
            if given.model is not None and is_first:
                with suppress(StorageError):  # what ended the run matters more
                    directory.describe(model_left=model_print(given.model))
        built = steering.built or built
        if is_first:
            try:
                _conclude(steering.config, directory, built, front, stopped_early=run.is_finished)
            except OSError as error:
                raise StorageError(
                    f"{directory.root}: cannot write final/ and the report: {error.strerror or error}"
                ) from error
        return built


def _rows(
    config: RunConfig,
    directory: RunDirectory,
    given: assemble.Given,
    rows: assemble.RowSets | None,
    *,
    is_first: bool,
) -> assemble.RowSets:
    """The rows. Each file that was to be read stands in the audit log, whether it may be or not."""
    told = list(rows.admissions) if rows is not None else []
    try:
        return rows if rows is not None else assemble.read_rows(config, given, told.append)
    finally:
        if is_first:
            audited.note_data(directory, config.resolved, told)


def _introduce(config: RunConfig, directory: RunDirectory, say: Say) -> None:
    say(f"trimtab  {config.algorithm.name}  {config.policy.model}  ->  {finish.relative(directory.root)}")
    for line in config.aliases:
        say(line)
    for line in config.remarks:
        say(line)
    if config.unused:
        say(f"unused by {config.algorithm.name}: {', '.join(config.unused)}")
    if config.data.validation is None:
        say("data.validation is not set: no evaluation, no early stop")


def _monitors(
    config: RunConfig, directory: RunDirectory, front: Front, run_id: str, notifier: Notifier | None
) -> Callable[[dict[str, Any]], Sequence[Recorder]]:
    def made(facts: dict[str, Any]) -> list[Recorder]:
        exporter = assemble.exporter_of(config, directory, facts, front.say)
        facts["metrics"] = None if exporter is None else exporter.url
        named = monitors.monitors_of(config, directory, facts, run_id=run_id, notifier=notifier)
        others = [*([] if exporter is None else [exporter]), *named, *front.recorders]
        if not front.is_shown:
            return others
        from rich.console import Console

        from trimtab.observe.live import LiveView

        view = LiveView(
            name=directory.root.name,
            algorithm=config.algorithm.name,
            max_steps=config.train.max_steps,
            # A notebook asks for colours and says that it is one; neither makes it a place where a panel can be redrawn.
            console=Console(force_jupyter=False, force_terminal=None if sys.stdout.isatty() else False),
        )
        return [view, *others]

    return made


def _write_facts(
    config: RunConfig, directory: RunDirectory, facts: Mapping[str, Any], changes: Mapping[str, Any], run_id: str
) -> None:
    if not directory.exists:
        directory.add_config(config.requested, config.resolved, folder=config.folder, why="started")
        directory.describe(id=run_id, started=time.strftime("%Y-%m-%dT%H:%M:%S%z"), **facts)
    elif configs.differences(directory.newest_config()["requested"], config.requested):
        directory.add_config(
            config.requested, config.resolved, folder=config.folder, why="continued with other limits", changes=changes
        )
    audited.note(directory, "train", config.resolved, version=len(directory.config_versions()))
    judges = {**directory.facts().get("reward_models", {}), **facts.get("reward_models", {})}
    known = {"reward_models": judges} if judges else {}
    directory.describe(ended=None, audit=audited.newest(directory), metrics=facts.get("metrics"), **known)


def _conclude(
    config: RunConfig, directory: RunDirectory, built: assemble.Assembled, front: Front, *, stopped_early: bool
) -> None:
    say = front.say
    best = finish.write_final(directory, built.run.checkpoints)
    outcome = finish.outcome_line(directory)
    ended = "stopped early" if stopped_early else "all steps done"
    directory.describe(ended=time.strftime("%Y-%m-%dT%H:%M:%S%z"), outcome=ended, final_step=best)
    hints = front.next_steps(config, directory)
    for complaint in finish.write_report(directory, outcome=f"{ended}: {outcome}", next_steps=hints):
        say(f"report.png is not written: {complaint}")
    say(f"\n{ended}: {outcome}")
    reader = "AutoModelForSequenceClassification" if config.need & Need.SCORES else "AutoModelForCausalLM"
    if directory.final.is_dir():
        say(f"model   {finish.relative(directory.final)}  (step {best}; loads with {reader}.from_pretrained)")
    else:
        run = finish.relative(directory.root)
        say(f"model   checkpoint {best}, encrypted; `trimtab export {run} --to DIR` makes a plain directory of it")
    say(f"report  {finish.relative(directory.report)}")
    say("\nnext:")
    for line in hints:
        say(f"  {line}")
