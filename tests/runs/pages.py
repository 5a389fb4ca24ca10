"""Pages of commands: every ```sh block is run, or, behind `<!-- needs: ... -->`, held against what there is.

A command that is run on a page is run here with the same words, and with fewer and shorter steps: `SMALL`.
"""

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from trimtab import cli
from trimtab.config import sections
from trimtab.operate import supervise

ROOT = Path(__file__).parents[2]
NEEDS = ("several nodes", "a run that trains", "docker", "systemd", "kubernetes", "slurm")
"""What a block may need that a test has not."""
PROGRAMS = {"torchrun", "docker", "curl", "cp", "systemctl", "journalctl", "kubectl", "sbatch", "trimtab"}

BRIEF = [
    "train.max_steps=2", "eval.every=1", "eval.prompts=4", "checkpoint.rolling_every=1", "checkpoint.rolling_keep=9",
    "sampling.max_length=16",
]  # fmt: skip
FEW = [*BRIEF, "train.prompts_per_step=4", "train.minibatches=1"]
SMALL = {
    "examples/demo/sft.yaml": FEW,
    "examples/demo/grpo.yaml": [*FEW, "sampling.group_size=2"],
    "examples/guide.yaml": [*FEW, "sampling.group_size=2"],
    "examples/ppo.yaml": [*FEW, "sampling.group_size=2"],
    "examples/guide_flat.yaml": [*BRIEF, "batch_size=4", "epoch_num=1", "sampling.group_size=2"],
    "examples/dpo.yaml": FEW,
    "examples/guide_dpo.yaml": [*BRIEF, "batch_size=4", "reference.cache=false"],
}
"""By configuration, what stands for the words that a page gives for the same keys."""
INSTEAD = {"--to 15": "--to 1", "--to 80": "--to 1", "observe.prometheus_port=9464": "observe.prometheus_port=0"}


@dataclass(frozen=True, kw_only=True)
class Command:
    text: str
    """Without its comment."""
    codes: tuple[int, ...]
    """That it may end with: `# ends with 0 or 1`."""
    needs: str
    part: str
    """The heading that it stands under."""


def commands(page):
    found, part = [], ""
    pattern = r"^#+ (?P<part>.*?)$|(?:^<!-- needs: (?P<needs>.*?) -->\n)?^```sh\n(?P<block>.*?)^```"
    text = re.sub(r"^```(?!sh\b)\w+\n.*?^```\n", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for match in re.finditer(pattern, text, flags=re.DOTALL | re.MULTILINE):
        if match["block"] is None:
            part = match["part"] or part
            continue
        for line in match["block"].splitlines():
            text_of, _, comment = line.partition("  #")
            told = re.search(r"ends with (\d)(?: or (\d))?|以 (\d)(?: 或 (\d))? 结束", comment)
            codes = tuple(int(code) for code in told.groups() if code) if told else (0,)
            found.append(Command(text=text_of.strip(), codes=codes, needs=match["needs"] or "", part=part))
    return found


class Reader:
    """Somebody who types a page's commands, from its top, in a folder where the project's files are."""

    def __init__(self, page, folder, *, but=()):
        """
        Args:
            but: commands that are not typed, since another page has them.
        """
        self.commands = commands(page)
        self.but = but
        self.folder = folder
        self.said = {}
        self._next = 0
        for name in ("examples", "deploy"):
            (folder / name).symlink_to(ROOT / name)

    def read_on_to(self, part):
        """Type what has not been typed up to the end of a part; its commands."""
        last = max(n for n, command in enumerate(self.commands) if command.part == part)
        while self._next <= last:
            command = self.commands[self._next]
            self._next += 1
            if not command.needs and command.text not in self.but:
                self._type(command)
        return [command for command in self.commands if command.part == part]

    def _type(self, command):
        text = command.text
        for theirs, ours in INSTEAD.items():
            text = text.replace(theirs, ours)
        words = shlex.split(text)
        code, said = _trimtab(made_small(words[1:])) if words[0] == "trimtab" else _program(words)
        self.said[command.text] = said
        assert code in command.codes, f"{command.text}: ended with {code}\n{said}"


def made_small(words):
    """The words of a command with fewer and shorter steps, where it names a configuration."""
    if words[0] not in ("train", "smoke", "check") or words[1] not in SMALL:
        return words
    small = {word.partition("=")[0]: word for word in SMALL[words[1]]}
    return [word for word in words if word.partition("=")[0] not in small] + list(small.values())


def _trimtab(words):
    """In this process, which has loaded what takes long."""
    import contextlib
    import io

    told, before = io.StringIO(), sys.argv
    sys.argv = ["trimtab", *words]
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            cli.main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = before
    return code, told.getvalue()


def _program(words):
    if words[0] == "torchrun":
        words = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


class Inside:
    """As `subprocess.Popen`, for the supervisor: the process that it starts is this one."""

    def __init__(self, words, **_):
        assert words[:3] == [sys.executable, "-m", "trimtab"]
        self.words = words[3:]

    def wait(self):
        before = sys.argv
        sys.argv = ["trimtab", *self.words]
        try:
            cli.main()
        except SystemExit as end:
            return end.code or 0
        finally:
            sys.argv = before
        return 0

    def send_signal(self, number):
        raise AssertionError(f"nobody sent {number}")


def shorten(monkeypatch):
    """Leave out what takes seconds and is tested elsewhere: a picture, a new interpreter for the supervised process."""
    from types import SimpleNamespace

    from trimtab.observe import report

    monkeypatch.setattr(report, "png", lambda *_: None)
    monkeypatch.setattr(supervise, "subprocess", SimpleNamespace(Popen=Inside, DEVNULL=subprocess.DEVNULL))


def hold(command):
    """What can be said of a command without running it: the program, the files, the options and the keys exist."""
    words = shlex.split(command.text)
    while re.match(r"[A-Z_]+=", words[0]):  # the environment's
        words = words[1:]
    assert words[0] in PROGRAMS, command.text
    for word in words[1:]:
        for path in re.findall(r"(?:^|=)((?:deploy|examples|ops)/[^\s:=]*)", word):
            assert (ROOT / path).exists(), f"{command.text}: there is no {path}"
    if words[0] == "trimtab":
        _hold_words(words[1:])


def _hold_words(words):
    command, rest = typer.main.get_command(cli.app), list(words)
    while hasattr(command, "commands") and rest and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    known = {name for parameter in command.params for name in parameter.opts}
    used = {word.partition("=")[0] for word in rest if word.startswith("--")}
    assert used <= known, f"trimtab {' '.join(words)}: there is no {used - known}"
    keys = {section: set(names) for section, names in sections.known_keys().items()}
    for word in rest:
        if match := re.match(r"([a-z]+)\.([a-z_]+)=", word):
            assert match[2] in keys.get(match[1], {match[2]}), f"{match[1]}.{match[2]} is no key"


def bare(page):
    """The commands alone: the same in every language."""
    return [(command.text, command.codes, command.needs) for command in commands(page)]
