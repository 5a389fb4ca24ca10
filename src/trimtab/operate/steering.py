"""A run's helm: what people and the guard ask of it, at step boundaries. All of it is one thing, a rebuild:

    save what is, write down the configuration to come, assemble the run anew from its directory, put the state back

so a run that was changed while it trained is, bit for bit, one that was stopped, changed and started again; and a crash
in between leaves the one or the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trimtab import assemble
from trimtab.config import RunConfig
from trimtab.errors import GuardError, StorageError, TrimtabError
from trimtab.operate import changes as changing
from trimtab.ports import Control, Recorder
from trimtab.store import branches, requests
from trimtab.store.branches import Rollback
from trimtab.store.requests import Answer, Request
from trimtab.store.run_directory import RunDirectory
from trimtab.types import Verdict

if TYPE_CHECKING:
    from trimtab.train.ranks import Ranks
    from trimtab.train.run import Run

Build = Callable[[RunConfig, Control, Recorder | None], assemble.Assembled]


class Steering:
    """The `Control` of a run that trains in a directory. On several ranks all do the same; the first one writes."""

    def __init__(
        self,
        start: RunConfig,
        directory: RunDirectory,
        signals: Control,
        ranks: Ranks,
        build: Build,
        say: Callable[[str], None],
    ) -> None:
        """
        Args:
            start: what the run was started with.
            directory: locked by this process.
            signals: say when to end.
            build: assembles a run of the directory; given a recorder, with that one.
        """
        self.start = start
        self.directory = directory
        self.signals = signals
        self.ranks = ranks
        self.build = build
        self.say = say
        self.changes: Mapping[str, Any] = {}
        """What is in force over `start`."""
        if directory.exists:
            self.changes = directory.newest_config().get("changes") or {}
        self.config = changing.in_force(start, self.changes)
        self.built: assemble.Assembled | None = None
        self._pending: Rollback | None = None
        self._recorder: Recorder | None = None

    # ---------------------------------------------------------------------------------------------------- the first
    def assemble(self) -> assemble.Assembled:
        """The run as it stands in the directory; a rollback that was interrupted is carried on."""
        self._pending = branches.pending(self.directory)
        if self._pending is not None:
            self._on_first(lambda: carry_on(self.start, self.directory, self._decided))
            self.changes = self._pending.changes
            self.config = changing.in_force(self.start, self.changes)
        self.built = self.build(self.config, self, None)
        return self.built

    def close(self) -> None:
        if self.built is not None:
            self.built.close()
        elif self._recorder is not None:
            self._recorder.close()
        if self.ranks.rank == 0:
            for request in requests.waiting(self.directory):
                requests.answer(self.directory, request, Answer(done=False, message="the run has ended", step=-1))

    # --------------------------------------------------------------------------------------------- the `Control` port
    def should_stop(self) -> str | None:
        return self.signals.should_stop()

    def apply(self, run: Run) -> Run:
        if self._pending is not None:
            self._complete(run)
        for request in self._requests():
            run = self._granted(run, request)
        return self.signals.apply(run)  # type: ignore[no-any-return]

    def roll_back(self, run: Run, verdict: Verdict) -> Run:
        alarm = verdict.cause
        if alarm is None:
            raise GuardError(verdict.reason)
        guard, was = self.config.guard, alarm.step
        self._settle(run)
        if run.rollbacks >= guard.max_rollbacks:
            times = f"the run has gone back {run.rollbacks} times (guard.max_rollbacks)"
            raise GuardError(f"step {was}: {verdict.reason}. {times if run.rollbacks else 'guard.max_rollbacks is 0'}")
        to = self._checkpoint_before(run, alarm.since)
        values = run.checkpoints.values(to)
        base = self.directory.config_of(int(values["version"]))
        before = base.get("changes") or {}
        softer, remark = changing.gentler(
            changing.in_force(self.start, before), values["learner"].get("controller", {})
        )
        config, changes = changing.changed(self.start, before, softer, place="guard")
        why = f"{alarm.rule} at step {was}: {alarm.figure} {alarm.value:.4g}, limit {alarm.limit:.4g}"
        rollback = Rollback(
            to=to,
            was=was,
            branch=branches.next_name(self.directory),
            version=self._next_version(),
            changes=changes,
            rule=alarm.rule,
            why=why,
            rollbacks=run.rollbacks + 1,
            sources=[dict(source.state()) for source in (run.source, *run.mixed)],
        )
        self.say(f"going back to step {to}, with {changing.said(softer)}{remark}")
        return self._go_back(rollback, config)

    def _checkpoint_before(self, run: Run, since: int) -> int:
        """The newest good step before the first sign of an alarm."""
        try:
            found = run.checkpoints.newest_good(before=since)
        except StorageError as error:
            raise GuardError(f"there is no good checkpoint from before step {since} to go back to: {error}") from error
        if found is None:
            raise GuardError(f"there is no checkpoint from before step {since} to go back to")
        return found

    # ------------------------------------------------------------------------------------------------------ requests
    def _requests(self) -> list[Request]:
        """What is asked; the same on every rank."""
        mine = requests.waiting(self.directory) if self.ranks.rank == 0 else []
        return list(self.ranks.gather(mine)[0])

    def _granted(self, run: Run, request: Request) -> Run:
        """The run after a request, which is answered; one that cannot be granted changes nothing."""
        newest = self.directory.newest_config()
        if newest.get("request") == request.id:  # it was, and a crash came before the answer
            self._answer(request, True, f"configuration {newest['version']} is in force", run.step)
            return run
        try:
            found = self._swapped(run, request) if request.kind == "swap" else self._rolled_back(run, request)
        except TrimtabError as error:
            run.recorder.event("refused", step=run.step, asked=_said(request), reason=str(error), who=request.who)
            self._answer(request, False, str(error), run.step)
            return run if self.built is None else self.built.run
        self._answer(request, True, f"configuration {found.version} is in force from step {found.step} on", found.step)
        return found

    def _answer(self, request: Request, done: bool, message: str, step: int) -> None:
        version = len(self.directory.config_versions())
        self._on_first(
            lambda: requests.answer(
                self.directory, request, Answer(done=done, message=message, step=step, version=version)
            )
        )

    def _swapped(self, run: Run, request: Request) -> Run:
        config, changes = changing.changed(self.start, self.changes, request.changes, place="swap")
        return self._changed_in_place(run, config, changes, request)

    def _changed_in_place(self, run: Run, config: RunConfig, changes: Mapping[str, Any], request: Request) -> Run:
        """The run at the step where it is, under another configuration; if that cannot be built, as it was."""
        old_config, old_changes, why = self.config, self.changes, swap_reason(request, run.step)
        self._save(run)
        self._on_first(lambda: write_version(self.directory, config, changes, why, request))
        try:
            found = self._rebuilt(config, changes)
        except Exception:  # whatever it was, the next start must not meet a configuration that cannot be built
            undone = f"undone, since it could not be: {why}"
            self._on_first(lambda: write_version(self.directory, old_config, old_changes, undone))
            self._rebuilt(old_config, old_changes)
            raise
        found.recorder.event(
            "swapped",
            step=found.step,
            version=found.version,
            algorithm=config.algorithm.name,
            changes=swap_changes(request, changes),
            who=request.who,
        )
        self.say(f"step {found.step}: configuration {found.version}, {why}")
        return found

    def _rolled_back(self, run: Run, request: Request) -> Run:
        config, changes, to = decided(self.start, self.directory, run.checkpoints, request)
        if to is None:
            return self._changed_in_place(run, config, changes, request)
        self._settle(run)
        rollback = by_hand(self.directory, request, changes, to=to, was=run.step, version=self._next_version())
        return self._go_back(replace(rollback, rollbacks=run.rollbacks), config)

    # ------------------------------------------------------------------------------------------------------- rebuild
    def _go_back(self, rollback: Rollback, config: RunConfig) -> Run:
        self._on_first(lambda: branches.begin(self.directory, rollback))
        self._pending = rollback
        self._on_first(lambda: carry_on(self.start, self.directory, rollback))
        run = self._rebuilt(config, rollback.changes)
        self._complete(run)
        return run

    @property
    def _decided(self) -> Rollback:
        assert self._pending is not None
        return self._pending

    def _complete(self, run: Run) -> None:
        """The run stands at the checkpoint it went back to: put what is new into its state, and save it there."""
        rollback = self._decided
        run.rollbacks, run.version = rollback.rollbacks, len(self.directory.config_versions())
        if rollback.sources is not None:
            for source, state in zip((run.source, *run.mixed), rollback.sources, strict=False):
                source.load_state(state)
        metrics = dict(run.checkpoints.metrics(rollback.to))
        self.ranks.barrier()
        self._on_first(lambda: branches.keep_original(self.directory, rollback))
        run.checkpoints.save_if_due(rollback.to, run, metrics, last=True)
        run.record_saves()
        self.ranks.barrier()
        run.recorder.event(
            "rolled back",
            step=rollback.to,
            was=rollback.was,
            branch=rollback.branch,
            version=run.version,
            algorithm=self.config.algorithm.name,
            rule=rollback.rule,
            reason=rollback.why,
        )
        self._on_first(lambda: branches.end(self.directory))
        self._pending = None

    def _rebuilt(self, config: RunConfig, changes: Mapping[str, Any]) -> Run:
        """The run of the directory under another configuration. The old one lets go of its models first."""
        if self.built is not None:  # another configuration could not be built
            old, self.built = self.built, None
            self._recorder = old.run.recorder
            old.let_go()
        built = self.build(config, self, self._recorder)
        self.built, self.config, self.changes = built, config, changes
        run = built.run
        run.version = len(self.directory.config_versions())
        run.checkpoints.restore(run)
        run.source.refresh(version=run.step)
        self._on_first(lambda: self.directory.describe(**built.facts))
        return run

    def _settle(self, run: Run) -> None:
        """Until no save is under way, so that every rank finds the same checkpoints."""
        run.checkpoints.wait()
        run.record_saves()
        self.ranks.barrier()

    def _save(self, run: Run) -> None:
        """The state of this step boundary, unless it is there already."""
        self._settle(run)
        if run.checkpoints.newest_good() != run.step:
            run.checkpoints.save_if_due(run.step, run, {}, last=True)
        run.record_saves()
        self.ranks.barrier()

    def _next_version(self) -> int:
        return len(self.directory.config_versions()) + 1

    def _on_first(self, work: Callable[[], Any]) -> None:
        """Do on the first rank what writes, while the others wait."""
        if self.ranks.rank == 0:
            work()
        self.ranks.barrier()


def decided(
    start: RunConfig,
    directory: RunDirectory,
    checkpoints: Any,
    request: Request,
) -> tuple[RunConfig, dict[str, Any], int | None]:
    """Configuration, changes and step of a rollback that a person asks for; the step is None if it stays where it is.

    Raises:
        UserError: there is no such checkpoint or version; ConfigError: the changes do not fit.
    """
    to = request.to
    if to is None:
        before = directory.config_of(request.version or 0).get("changes") or {}
    else:
        refuse_missing(directory, checkpoints, to)
        before = directory.config_of(int(checkpoints.values(to)["version"])).get("changes") or {}
    config, changes = changing.changed(start, before, request.changes, place="rollback")
    return config, changes, to


def refuse_missing(directory: RunDirectory, checkpoints: Any, to: int) -> None:
    """
    Raises:
        StorageError: there is no good checkpoint of that step.
    """
    fault = checkpoints.fault(to) if to in checkpoints.steps() else None
    if to not in checkpoints.steps():
        there = ", ".join(map(str, checkpoints.steps())) or "none"
        raise StorageError(f"{directory.checkpoints}: there is no checkpoint of step {to}; there are {there}")
    if fault is not None:
        raise StorageError(f"checkpoint {to} is not used: {fault}")


def swap_reason(request: Request, step: int) -> str:
    """Why there is a new configuration at a step where the run stays."""
    if request.kind == "swap":
        return f"swap at step {step}: {changing.said(request.changes)}"
    return f"configuration {request.version} put back at step {step}"


def swap_changes(request: Request, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What a swap tells of: what was asked for; of a configuration that was put back, all that it changes."""
    return dict(request.changes if request.kind == "swap" else changes)


def write_version(
    directory: RunDirectory, config: RunConfig, changes: Mapping[str, Any], why: str, request: Request | None = None
) -> int:
    """A new version of a run's configuration; its number."""
    return directory.add_config(
        config.requested,
        config.resolved,
        folder=config.folder,
        why=why,
        changes=changes,
        who=request.who if request else None,
        request=request.id if request else None,
    )


def carry_on(start: RunConfig, directory: RunDirectory, rollback: Rollback) -> None:
    """What a rollback does to the files before its run is assembled; a second time it changes nothing."""
    branches.leave(directory, rollback)
    if len(directory.config_versions()) < rollback.version:
        config = changing.in_force(start, rollback.changes)
        directory.add_config(
            config.requested,
            config.resolved,
            folder=config.folder,
            why=f"rolled back to step {rollback.to}: {rollback.why}",
            changes=rollback.changes,
            request=rollback.request,
        )


def by_hand(
    directory: RunDirectory, request: Request, changes: Mapping[str, Any], *, to: int, was: int, version: int
) -> Rollback:
    """The decision that a request leads to."""
    also = f", {changing.said(request.changes)}" if request.changes else ""
    return Rollback(
        to=to,
        was=was,
        branch=branches.next_name(directory),
        version=version,
        changes=changes,
        rule="",
        why=f"asked for by {request.who}{also}",
        rollbacks=0,
        request=request.id,
    )


def _said(request: Request) -> str:
    where = f"to step {request.to}" if request.to is not None else f"to configuration {request.version}"
    return f"{request.kind} {changing.said(request.changes)}" if request.kind == "swap" else f"rollback {where}"
