"""A process that has loaded everything and computed nothing, and its forked children.

A child has one thread, whatever its parent had. If the parent's mathematics had started threads, the child would wait
for them for ever; so the parent must not have run one operator of torch, and must have one thread.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}

MODULES = (
    "torch",
    "trimtab.cli",
    "trimtab.operate.start",
    "trimtab.operate.verify",
    "trimtab.models.roles",
    "trimtab.models.builtin",
    "trimtab.models.lora",
    "trimtab.rollout.evaluator",
    "trimtab.rollout.scheduler",
    "trimtab.observe.live",
    "trimtab.observe.recorders",
    "trimtab.train.guard",
    "trimtab.train.control",
    "trimtab.train.loop",
    "trimtab.cluster.torchrun",
    "transformers.models.llama.modeling_llama",
    "transformers.modeling_utils",
    "transformers.convert_slow_tokenizer",
    "transformers.tokenization_utils_tokenizers",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.encoder_decoder",
    "transformers.conversion_mapping",
    "safetensors.torch",
    "torch.distributed.fsdp",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "PIL.PngImagePlugin",
    "PIL.JpegImagePlugin",
)
"""What a run loads, as far as it takes long; the rest each child loads for itself."""

SUBREAPER = 36
"""Of prctl: what a child leaves behind becomes a child of this process."""


def warm_up() -> None:
    """Load what a run loads."""
    assert "torch" not in sys.modules, "the environment must be set before torch is loaded"
    os.environ.update(ENVIRONMENT)
    for name in MODULES:
        importlib.import_module(name)
    _fill_caches()
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    gc.collect()
    gc.freeze()  # or every child would copy the pages that its first collection marks


def _fill_caches() -> None:
    """What a run computes once and keeps, as far as it takes no operator of torch."""
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    get_checkpoint_conversion_mapping("llama")


def fork(work: Callable[[], int], log: Path) -> int:
    """Let a child do some work, its output appended to a file, in a process group of its own; its id."""
    _assert_one_thread()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setpgid(0, 0)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        import torch

        torch.set_num_threads(1)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _assert_one_thread() -> None:
    """What was loaded may have started a thread that is about to end; it is given a moment."""
    assert threading.active_count() == 1, threading.enumerate()
    until = time.monotonic() + 10
    while len(tasks := [*Path("/proc/self/task").iterdir()]) > 1:
        assert time.monotonic() < until, f"the parent has {len(tasks)} threads, so its children would hang"
        time.sleep(0.001)
