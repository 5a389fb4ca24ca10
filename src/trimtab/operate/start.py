"""Starting a run, or going on with one: from a checked configuration to `final/` and the report."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from trimtab import assemble
from trimtab import config as configs
from trimtab.config import RunConfig
from trimtab.errors import ConfigError, DataError, Finding, LockError, StorageError, TrimtabError, WorkerError
from trimtab.operate import finish
from trimtab.ports import Recorder
from trimtab.store import journal
from trimtab.store.run_directory import RunDirectory
from trimtab.types import Need

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


def train_in(config: RunConfig, directory: RunDirectory, *, fresh: bool = False) -> None:
    """Train in a directory, on every rank; a failure is written down there.

    Raises:
        LockError: another process trains there; nothing of its run is touched.
        ConfigError: the directory holds a run with another configuration or other data.
        TrimtabError: whatever ended the run.
    """
    from trimtab.train.ranks import Ranks

    ranks = Ranks()
    is_first = ranks.rank == 0
    if is_first:
        if fresh and directory.exists:
            with directory.locked():
                print(f"the run that was here is now {finish.relative(directory.move_aside())}")
        directory.create()
    ranks.barrier()
    with directory.locked() if is_first else nullcontext():
        if directory.exists:
            _compare_with_run(config, directory)  # a refusal leaves the run that is there as it is, failure.json too
        if is_first:
            finish.clear_failure(directory)
        try:
            _train_locked(config, directory, say=_say if is_first else _say_nothing, is_first=is_first)
        except BaseException as error:
            told = _of_ranks(error, ranks.size)
            if (is_first or isinstance(error, TrimtabError)) and not directory.failure.exists():
                with suppress(OSError):  # a full disk must not hide what happened
                    write_failure(directory, told)
            if told is not error:
                raise told from error
            raise


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


def write_failure(directory: RunDirectory, error: BaseException) -> None:
    """failure.json, unless the error says that another process trains there."""
    if isinstance(error, LockError) or not directory.root.is_dir():
        return
    code = error.exit_code if isinstance(error, TrimtabError) else 130 if isinstance(error, KeyboardInterrupt) else 1
    step = max((s["step"] for s in journal.read(directory.journal).steps()), default=0)
    place = error.findings[0].place if isinstance(error, ConfigError | DataError) else f"step {step}"
    finish.write_failure(
        directory, code=code, cause=f"{type(error).__name__}: {error}", place=place, advice=ADVICE[code]
    )


def _train_locked(config: RunConfig, directory: RunDirectory, *, say: Say, is_first: bool) -> None:
    from trimtab.train import loop
    from trimtab.train.control import SignalControl
    from trimtab.train.ranks import Ranks

    _introduce(config, directory, say)
    rows = assemble.read_rows(config)
    if directory.exists:
        _compare_data(rows.fingerprints, directory)
    with SignalControl(Ranks()) as control:
        built = assemble.build(
            config, directory, control, row_sets=rows, monitors=_monitors(config, directory), notice=say
        )
        if is_first:
            if built.start is not None and (changed := assemble.what_differs(directory.facts(), built.facts)):
                say(f"from here on the numbers need not be those of an uninterrupted run: {', '.join(changed)}")
            _write_facts(config, directory, built.facts)
        if built.start is not None and built.start >= config.train.max_steps:
            say(f"already finished: all {config.train.max_steps} steps are done; raise train.max_steps to go on")
        try:
            run = loop.train(built.run)
        finally:
            built.close()
        if is_first:
            try:
                _conclude(config, directory, built, say, stopped_early=run.is_finished)
            except OSError as error:
                raise StorageError(
                    f"{directory.root}: cannot write final/ and the report: {error.strerror or error}"
                ) from error


def _say(text: str) -> None:
    print(text, flush=True)


def _say_nothing(_: str) -> None:
    """The other ranks do not talk."""


def _introduce(config: RunConfig, directory: RunDirectory, say: Say) -> None:
    say(f"trimtab  {config.algorithm.name}  {config.policy.model}  ->  {finish.relative(directory.root)}")
    for line in config.aliases:
        say(line)
    if config.unused:
        say(f"unused by {config.algorithm.name}: {', '.join(config.unused)}")
    if config.data.validation is None:
        say("data.validation is not set: no evaluation, no early stop")


def _monitors(config: RunConfig, directory: RunDirectory) -> Callable[[dict[str, Any]], Sequence[Recorder]]:
    def made(_: dict[str, Any]) -> list[Recorder]:
        from trimtab.observe.live import LiveView

        return [LiveView(name=directory.root.name, algorithm=config.algorithm.name, max_steps=config.train.max_steps)]

    return made


def _compare_with_run(config: RunConfig, directory: RunDirectory) -> None:
    """A run goes on only with the configuration that it was started with, but for what may change.

    Raises:
        ConfigError: something else differs; each difference is a finding.
    """
    before = directory.newest_config()["requested"]
    refused = [
        Finding(place=key, what=f"the run has {_said(old)}, asked for is {_said(new)}")
        for key, old, new in configs.differences(before, config.requested)
        if not configs.may_change(key)
    ]
    if refused:
        hint = Finding(
            place=str(directory.root),
            what="this run was started with another configuration",
            hint="use another --run-dir, or --fresh to start over",
        )
        raise ConfigError([hint, *refused])


def _said(value: Any) -> str:
    return "its default" if value is None else repr(value)


def _compare_data(fingerprints: Mapping[str, str], directory: RunDirectory) -> None:
    """A run goes on only with the data that it was started with.

    Raises:
        ConfigError: the bytes of a file have changed.
    """
    before = directory.facts().get("data_fingerprints", {})
    changed = [part for part, print_ in fingerprints.items() if before.get(part, print_) != print_]
    if changed:
        what = f"data.{' and data.'.join(changed)}: the file is not what it was when this run was started"
        hint = "put the old file back, or use another --run-dir, or --fresh to start over"
        raise ConfigError([Finding(place=str(directory.root), what=what, hint=hint)])


def _write_facts(config: RunConfig, directory: RunDirectory, facts: Mapping[str, Any]) -> None:
    if not directory.exists:
        directory.add_config(config.requested, config.resolved, folder=config.folder, why="started")
        directory.describe(id=uuid.uuid4().hex, started=time.strftime("%Y-%m-%dT%H:%M:%S%z"), **facts)
    elif configs.differences(directory.newest_config()["requested"], config.requested):
        directory.add_config(config.requested, config.resolved, folder=config.folder, why="continued with other limits")
    directory.describe(ended=None)


def _conclude(
    config: RunConfig, directory: RunDirectory, built: assemble.Assembled, say: Say, *, stopped_early: bool
) -> None:
    best = finish.write_final(directory, built.run.checkpoints)
    outcome = finish.outcome_line(directory)
    ended = "stopped early" if stopped_early else "all steps done"
    directory.describe(ended=time.strftime("%Y-%m-%dT%H:%M:%S%z"), outcome=ended, final_step=best)
    hints = next_steps(config, directory)
    for complaint in finish.write_report(directory, outcome=f"{ended}: {outcome}", next_steps=hints):
        say(f"report.png is not written: {complaint}")
    say(f"\n{ended}: {outcome}")
    say(f"model   {finish.relative(directory.final)}  (step {best}; loads with AutoModelForCausalLM.from_pretrained)")
    say(f"report  {finish.relative(directory.report)}")
    say("\nnext:")
    for line in hints:
        say(f"  {line}")


def next_steps(config: RunConfig, directory: RunDirectory) -> list[str]:
    """Three things to try, as commands that can be copied."""
    run = finish.relative(directory.root)
    file = finish.relative(Path(config.chain[0])) if config.chain else "CONFIG"
    me = sys.argv[0] if sys.argv[0].endswith("/trimtab") else "trimtab"
    if config.need & Need.DEMONSTRATIONS:
        hints = [
            (f"train examples/demo/grpo.yaml policy.model={run}", "reinforcement learning from here"),
            (f"status {run}", "what the run did"),
            ("algorithms grpo", "formula, needs and settings"),
        ]
    else:
        other = "ppo" if config.algorithm.name != "ppo" else "grpo"
        start = f" policy.model={config.policy.model}" if config.policy.model != "builtin:tiny" else ""
        hints = [
            (f"train {file} algorithm={other}{start} --run-dir {run}-{other}", "another algorithm by one word"),
            (f"eval {run}", "the evaluation alone"),
            (f"config show {file}", "every setting, resolved"),
        ]
    width = max(len(words) for words, _ in hints)
    return [f"{me} {words:<{width}}   # {why}" for words, why in hints]
