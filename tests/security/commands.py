"""A command as a person types it, in this process."""

import sys

import pytest

from trimtab import cli


def command(monkeypatch, capfd, *words):
    """(exit code, all that it and its processes have shown)."""
    streams = sys.stdout, sys.stderr
    monkeypatch.setattr(sys, "argv", ["trimtab", *map(str, words)])
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        sys.stdout, sys.stderr = streams  # what a process of its own would end with
    return ended.value.code, "".join(capfd.readouterr())
