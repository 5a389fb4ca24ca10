"""The report in a real browser: nothing is fetched, nothing fails, the charts are there."""

import re
import shutil
import subprocess

import pytest

from tests.runs import small

pytestmark = pytest.mark.system
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=3000",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def hosts_asked(page, folder):
    """Hosts that the browser asked for while it showed a page; some are its own business."""
    log = folder / "net.json"
    assert browse(page, folder, "--dump-dom", f"--log-net-log={log}").returncode == 0
    return set(re.findall(r'"url":"https?://([^/"]+)', log.read_text()))


def browse(page, folder, *flags):
    command = [shutil.which("chromium"), *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_browser_shows_the_report_without_fetching_anything(tmp_path):
    directory = small.train(small.write(tmp_path, "ppo", steps=3), tmp_path / "run")
    shown = browse(directory.report, tmp_path, "--dump-dom", "--enable-logging=stderr")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("<svg") >= 10
    for term in ("loss/policy", "loss/value", "loss/total"):
        assert term in shown.stdout
    assert not re.findall(r"CONSOLE.*(?:error|refused)", shown.stderr, re.IGNORECASE)
    blank = tmp_path / "blank.html"
    blank.write_text("<!doctype html><title>blank</title>")
    assert hosts_asked(directory.report, tmp_path) <= hosts_asked(blank, tmp_path)


def test_a_picture_of_the_page_can_be_taken_at_phone_width(tmp_path):
    directory = small.train(small.write(tmp_path, steps=2), tmp_path / "run")
    picture = tmp_path / "phone.png"
    assert browse(directory.report, tmp_path, "--window-size=390,2000", f"--screenshot={picture}").returncode == 0
    assert picture.stat().st_size > 20_000
