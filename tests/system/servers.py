"""Real servers for tests: a Prometheus on a free port of loopback, waited for, asked, and ended."""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

START_SECONDS = 60.0


def free_port():
    """A port of loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, what, seconds=60.0):
    """The first true value of `condition()`; the test fails if there is none in time."""
    ends = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > ends:
            pytest.fail(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.05)
    return found


def fetch(url):
    """The body that a server answers with; None while nobody answers well."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()
    except OSError:
        return None


def installed(program, package):
    """The path of a program; the test fails, saying what to install, if it is not there."""
    found = shutil.which(program)
    if found is None:
        pytest.fail(f"{program} is needed: apt-get install -y {package}")
    return found


@contextmanager
def serving(command, ready, log):
    """A server until the block is left; it answers at the URL `ready` when the block begins."""
    with Path(log).open("wb") as out:
        process = subprocess.Popen([str(word) for word in command], stdout=out, stderr=subprocess.STDOUT)
        try:
            wait_for(lambda: fetch(ready) or process.poll() is not None, ready, START_SECONDS)
            assert process.poll() is None, Path(log).read_text()
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Prometheus:
    """What a Prometheus at an address answers."""

    def __init__(self, url):
        self.url = url

    def query(self, expr, at=None):
        """The result of an instant query: dicts with `metric` and `value` (or `values`).

        Args:
            at: seconds since the epoch; None: now.
        """
        asked = {"query": expr} | ({} if at is None else {"time": f"{at:.3f}"})
        return self._api("query", asked)["result"]

    def values(self, expr, at=None):
        """The numbers of an instant query."""
        return [float(series["value"][1]) for series in self.query(expr, at)]

    def last_seen(self, selector):
        """When the newest sample of a plain selector was taken, or None."""
        times = [float(series["values"][-1][0]) for series in self.query(f"{selector}[1h]")]
        return max(times, default=None)

    def rules(self):
        """Alert rules by name, with state and health."""
        groups = self._api("rules", {})["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    def _api(self, path, asked):
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(asked)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{asked}: {json.load(error).get('error')}") from None


@contextmanager
def prometheus(folder, configuration):
    """A Prometheus with a configuration (a dict, or a path of a YAML file), until the block is left."""
    program = installed("prometheus", "prometheus")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(configuration, dict):
        path = folder / "prometheus.yml"
        path.write_text(yaml.safe_dump(configuration))
        configuration = path
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        program,
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--log.level=warn",
    ]
    with serving(command, f"{url}/-/ready", folder / "prometheus.log"):
        yield Prometheus(url)


def scraping(*addresses, every="200ms"):
    """The configuration of a Prometheus that asks these addresses for metrics."""
    return {
        "global": {"scrape_interval": every, "evaluation_interval": every},
        "scrape_configs": [{"job_name": "trimtab", "static_configs": [{"targets": list(addresses)}]}],
    }
