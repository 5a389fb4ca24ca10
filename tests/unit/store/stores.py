"""Object stores for tests: in memory, with something between them and whoever writes."""

import itertools
import shutil
from pathlib import Path

import fsspec

from tests.unit.store.test_checkpoints import FakeRun
from trimtab.store.checkpoints import CheckpointStore
from trimtab.store.journal import Journal
from trimtab.store.remote import Remote
from trimtab.store.remote_mirror import Mirror
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Checkpoint

NUMBERS = itertools.count()
METRIC = "eval/reward/mean"


def new_url():
    """A place in memory where nothing is."""
    return f"memory://store-{next(NUMBERS)}/a"


class Broken(OSError):
    """What a store says that fails."""


class Between:
    """A file system that tells of what changes it, and lets one such operation fail."""

    CHANGES = ("put_file", "pipe_file", "rm_file")

    def __init__(self, fs, at=None, how="before"):
        self.fs, self.at, self.how = fs, at, how
        self.log = []

    def __getattr__(self, name):
        real = getattr(self.fs, name)
        return real if name not in self.CHANGES else lambda *words, **more: self._do(name, real, words, more)

    def _do(self, name, real, words, more):
        self.log.append((name, words[-1] if name == "put_file" else words[0]))
        if self.at is None or len(self.log) - 1 != self.at:
            return real(*words, **more)
        if self.how == "after":
            real(*words, **more)
        if self.how == "cut" and name != "rm_file" and more.get("mode") != "create":
            path, data = (words[1], Path(words[0]).read_bytes()) if name == "put_file" else words[:2]
            self.fs.pipe_file(path, data[: len(data) // 2])
        raise Broken("the store is away")


class Kept:
    """A run's directory and its store."""

    def __init__(self, folder, url, *, run_id="a", **rule):
        self.url, self.said = url, []
        self.directory = RunDirectory(folder)
        self.directory.create()
        if not self.directory.exists:
            self.directory.add_config({"n": 1}, {"n": 1}, why="started")
            self.directory.describe(id=run_id)
        self.journal = Journal(self.directory.journal)
        self.remote = Remote(url)
        self.mirror = Mirror(self.remote, self.directory, run_id=run_id, say=self.said.append)
        rule = Checkpoint(**{"every": 100, "rolling_every": 1, **rule})
        self.store = CheckpointStore(self.directory.checkpoints, rule, max_steps=100, metric=METRIC)
        self.store.mirror = self.mirror

    def save(self, step, reward=None):
        self.journal.append("step", step=step, metrics={})
        self.store.save_if_due(step, FakeRun(float(step)), {} if reward is None else {METRIC: reward}, last=True)
        self.mirror.settle()
        self.mirror.figures()

    def between(self, at=None, how="before"):
        """Put something between this run and its store."""
        self.remote._fs = Between(fsspec.filesystem("memory"), at, how)
        return self.remote._fs

    def plain(self):
        self.remote._fs = fsspec.filesystem("memory")

    def forget(self):
        """Make room; a store in memory is slower the more there is."""
        shutil.rmtree(self.directory.root)
        fs, root = fsspec.core.url_to_fs(self.url)
        fs.rm(root, recursive=True)


def copied(kept, folder, **rule):
    """The same run and the same store once more, each in a place of its own, for another process."""
    shutil.copytree(kept.directory.root, folder)
    url, fs = new_url(), fsspec.filesystem("memory")
    old, new = (fsspec.core.url_to_fs(place)[1] for place in (kept.url, url))
    for path, data in fs.cat(fs.find(old)).items():
        fs.pipe_file(path.replace(old, new, 1), data)
    return Kept(folder, url, **rule)


def files(folder):
    """Of a directory, every file and its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def steps(url):
    return sorted(upload.step for upload in Remote(url).contents().uploads)
