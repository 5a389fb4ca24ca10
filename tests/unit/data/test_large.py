"""A file of 1 GB is read, tokenised and drawn from in the memory that a small one takes."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.soak

ROWS = 1_000_000
ALLOWED_BYTES = 200 << 20

CHILD = """
import json, sys, time
import psutil
from trimtab.data import rows
from trimtab.data.order import Order
from trimtab.data.prompts import Limits, prompts
from trimtab.models import builtin

process, tokenizer = psutil.Process(), builtin.tokenizer()
tokenizer("warm"), Order(10, seed=0, shuffle=True).take(1)
begun, before = time.monotonic(), process.memory_info().rss
found = rows.read(sys.argv[1], {}, ("prompt",))
read, read_seconds = process.memory_info().rss - before, time.monotonic() - begun
limits = Limits(max_prompt_length=100, max_length=128, long_prompts="drop")
kept, left = prompts(found, tokenizer, limits)
order = Order(len(kept), seed=0, shuffle=True)
ids = [kept[number].id for number in order.take(5000)]
import resource
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
print(json.dumps({"rows": len(found), "kept": len(kept), "dropped": left.dropped, "distinct": len(set(ids)),
    "read_bytes": read, "read_seconds": read_seconds, "peak_bytes": peak, "seconds": time.monotonic() - begun}))
"""


def test_memory_does_not_grow_with_the_file(tmp_path):
    file = tmp_path / "large.jsonl"
    try:
        with file.open("w") as out:
            for number in range(ROWS):
                row = {"prompt": f"{number} + {number * 7} = " + "1 + " * (5 if number % 10 else 40), "text": "x" * 980}
                out.write(json.dumps(row) + "\n")
        size = file.stat().st_size
        done = subprocess.run([sys.executable, "-c", CHILD, str(file)], capture_output=True, text=True, check=True)
    finally:
        file.unlink()
    figures = json.loads(done.stdout)
    print(size, figures)
    assert size > 1e9
    assert (figures["rows"], figures["kept"], figures["dropped"]) == (ROWS, ROWS * 9 // 10, ROWS // 10)
    assert figures["distinct"] == 5000
    assert figures["peak_bytes"] < ALLOWED_BYTES
