"""A run's metrics in the format of Prometheus: over HTTP, or as a file for a node exporter's textfile collector.

Names, kinds and labels follow from the catalogue. Every series has the labels `run`, `algorithm` and `environment`; more
only where the catalogue says so, and never one without a bound, such as a prompt or a step.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trimtab import heartbeat
from trimtab.catalogue import Metric as Entry
from trimtab.catalogue import find, members
from trimtab.errors import TrimtabError
from trimtab.observe.metrics_server import MetricsServer
from trimtab.rules import HEARTBEAT
from trimtab.types import StepReport

STATES = ("starting", "training", "finished", "stopped", "preempted", "failed")
STALLED_SECONDS = 300.0
"""A role that is at work and silent for so long: the process is not well, and whoever watches may end it."""
WRITE_SECONDS = 5.0
"""Between two versions of a textfile, at least."""
LINGER_SECONDS = {"preempted": 5.0}
"""How long the last scrape is waited for at most, where less than a minute: there who has asked for the end waits too."""
LEVELS = {"": 0.0, "warn": 1.0, "act": 2.0}


class RunCollector(Collector):
    """The newest figures of one run, as families of metrics. Told by the thread that trains, asked by others."""

    def __init__(
        self,
        *,
        labels: Mapping[str, str],
        info: Mapping[str, str],
        max_steps: int,
        more: Callable[[], Mapping[str, float]] = dict,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            labels: of every series.
            info: more about the run, as labels of `trimtab_run_info` alone.
            more: metrics that are looked up at each scrape.
        """
        self.labels = dict(labels)
        self.info = dict(info)
        self.more = more
        self.clock = clock
        self.state = "starting"
        self._lock = threading.Lock()
        self._values: dict[str, float] = {
            "run/step": 0.0,
            "run/max_steps": float(max_steps),
            "run/started": clock(),
            "run/last_step": clock(),
        }

    def take(self, report: StepReport) -> None:
        """A step's figures, or an evaluation's."""
        with self._lock:
            for name, value in report.metrics.items():
                try:
                    kind = find(name).kind
                except TrimtabError:  # a plug-in's figure that no catalogue has
                    continue
                self._values[name] = value + (self._values.get(name, 0.0) if kind == "step_count" else 0.0)
            if report.phase == "eval":
                return
            self.state = "training"
            self._values |= {"run/step": float(report.step), "run/last_step": self.clock()}
            self._take_standings(report)

    def _take_standings(self, report: StepReport) -> None:
        for standing in report.standings:
            place = f"{standing.rule}/{standing.level}"
            self._values[f"alarm/{standing.rule}"] = LEVELS[standing.raised]
            self._values[f"guard/breach/{place}"] = standing.breach
            limit = f"guard/limit/{place}/{standing.figure}"
            if standing.limit is not None:
                self._values[limit] = standing.limit
            else:
                self._values.pop(limit, None)

    def count_alarm(self, rule: str, level: str) -> None:
        with self._lock:
            name = f"alarms/{rule}/{level}"
            self._values[name] = self._values.get(name, 0.0) + 1

    def go_back(self, step: int, algorithm: str | None = None) -> None:
        """The run stands at a step, with an algorithm; figures of another way of training are not its."""
        with self._lock:
            if algorithm is not None:
                self.labels["algorithm"] = algorithm
                kept = ("run/", "eval/", "guard/", "alarm/", "alarms/", "config/")
                self._values = {n: v for n, v in self._values.items() if find(n).kind != "gauge" or n.startswith(kept)}
            self._values |= {"run/step": float(step), "run/last_step": self.clock()}

    def end(self) -> None:
        """Nothing will happen any more: a run that has not said how it ended has its steps, or has failed."""
        if self.state in ("starting", "training"):
            is_done = self._values["run/step"] >= self._values["run/max_steps"]
            self.state = "finished" if is_done else "failed"

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            values = dict(self._values)
        values |= self.more()
        values |= {f"run/state/{state}": float(state == self.state) for state in STATES}
        for role, age in heartbeat.ages().items():
            values[f"role/heartbeat_age/{role}"] = age
            values[f"role/up/{role}"] = float(age <= (HEARTBEAT.act or 0.0))
        families: dict[str, Metric] = {}
        for name, value in values.items():
            entry, more = find(name), members(name)
            family = families.setdefault(entry.prometheus_name, self._family(entry))
            assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
            family.add_metric([*self.labels.values(), *more.values()], value)
        info = GaugeMetricFamily("trimtab_run_info", "what the run is", labels=[*self.labels, *self.info])
        info.add_metric([*self.labels.values(), *self.info.values()], 1.0)
        yield info
        yield from families.values()

    def _family(self, entry: Entry) -> Metric:
        made = GaugeMetricFamily if entry.kind == "gauge" else CounterMetricFamily
        return made(entry.prometheus_name, f"{entry.help} ({entry.name})", labels=[*self.labels, *entry.labels])

    def health(self) -> dict[str, Any]:
        """What `/healthz` and `/readyz` answer from."""
        ages = heartbeat.ages()
        return {
            "run": self.labels.get("run", ""),
            "state": self.state,
            "step": int(self._values["run/step"]),
            "roles": {role: round(age, 1) for role, age in ages.items()},
            "stalled": [role for role, age in ages.items() if age > STALLED_SECONDS],
        }


class Exporter:
    """A `ports.Recorder` that shows a run to Prometheus."""

    def __init__(
        self,
        collector: RunCollector,
        *,
        address: str = "127.0.0.1",
        port: int | None = None,
        token: Callable[[], str] | None = None,
        textfile: Path | None = None,
        warn: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
    ) -> None:
        """
        Args:
            port: to listen at; 0 takes a free one; None: no server. One that is taken is said, and the run goes on.
            token: what a scrape must bring along, asked for at each; None: nothing.
            textfile: written about every five seconds and at the end, whole or not at all.
        """
        self.collector = collector
        self.textfile = textfile
        self.server: MetricsServer | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)
        self._warn = warn
        self._written: float | None = None
        self._is_failing = False
        for other in [e for e in LINGERING if port]:
            LINGERING.remove(other)
            other.stop()
        if port is not None:
            try:
                self.server = MetricsServer(self._registry, collector.health, address=address, port=port, token=token)
            except OSError as error:
                where = f"observe.prometheus_port: {address}:{port}"
                self._warn(f"{where} cannot be listened at ({error.strerror or error}); the run goes on without")

    @property
    def url(self) -> str | None:
        """Where the metrics are, or None."""
        return None if self.server is None else self.server.url

    def record(self, report: StepReport) -> None:
        self.collector.take(report)
        self._write_if_due()

    def event(self, kind: str, **facts: Any) -> None:
        if kind == "alarm":
            self.collector.count_alarm(facts["rule"], facts["level"])
            if facts.get("then") == "stop":
                self.collector.state = "stopped"
        elif kind in ("started", "resumed"):
            self.collector.state = "training"
            self.collector.go_back(int(facts["step"]))
        elif kind in ("rolled back", "swapped"):
            self.collector.go_back(int(facts["step"]), facts.get("algorithm"))
        elif kind == "preempted":
            self.collector.state = "preempted"
        elif kind == "finished early":
            self.collector.state = "finished"

    def close(self) -> None:
        """The last word, in the textfile; a server that is scraped goes on until the end of the process."""
        self.collector.end()
        self._write_if_due(last=True)
        server = self.server
        if server is None:
            return
        if server.interval is None:  # nobody looks, or only somebody now and then
            self.stop()
            return
        LINGERING.append(self)
        if len(LINGERING) == 1:
            atexit.register(let_go)

    def stop(self) -> None:
        """Nobody listens any more."""
        if self.server is not None:
            self.server.close()
            self.server = None

    def linger(self) -> None:
        """Let a scrape that comes regularly see how the run has ended, then stop."""
        if self.server is not None and (interval := self.server.interval) is not None:
            most = min(1.5 * interval, LINGER_SECONDS.get(self.collector.state, 60.0))
            if most > 1:
                self._warn(f"waiting up to {most:.0f} s for a scrape that sees the end (Ctrl-C: do not)")
            with suppress(KeyboardInterrupt):
                self.server.wait_for_scrape(most)
        self.stop()

    def _write_if_due(self, *, last: bool = False) -> None:
        now = time.monotonic()
        if self.textfile is None or (not last and self._written is not None and now - self._written < WRITE_SECONDS):
            return
        self._written = now
        scratch = self.textfile.with_name(f".{self.textfile.name}.{threading.get_ident()}")
        try:
            scratch.write_bytes(generate_latest(self._registry))
            scratch.replace(self.textfile)  # no reader sees half of it; it need not survive a power cut
            self._is_failing = False
        except OSError as error:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)
            if not self._is_failing:
                self._warn(f"observe.prometheus_textfile: {self.textfile}: {error.strerror or error}; training goes on")
            self._is_failing = True


LINGERING: list[Exporter] = []
"""Those of runs that have ended, whose last state has not been scraped yet."""


def let_go() -> None:
    """At the end of the process, or where another run needs the port."""
    while LINGERING:
        LINGERING.pop().linger()
