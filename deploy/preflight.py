"""Whether the nodes of a run see each other, their accelerators and the shared storage. Started as the run will be:

    torchrun --standalone --nproc-per-node=2 deploy/preflight.py STORAGE
    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 deploy/preflight.py STORAGE

STORAGE is a directory that all nodes share, such as the one that runs will live in. Each process adds up a tensor with
all others, reads what the first has written to STORAGE, and tells the memory that it sees. Ends with 0 if all is well,
1 with what is not. torchrun itself ends with 1 if a node is not reached within its time.
"""

import argparse
import os
import socket
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

MEBIBYTE = 2**20
GIBIBYTE = 2**30
ROUNDS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("storage", type=Path, metavar="STORAGE", help="a directory that all nodes share")
    parser.add_argument("--mebibytes", type=int, default=64, help="that are added up, as gradients are; default 64")
    parser.add_argument("--seconds", type=float, default=120.0, help="to wait for other processes; default 120")
    given = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with torchrun, as the run will be started")
    local = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.is_available() and local < torch.cuda.device_count()
    if on_gpu:
        torch.cuda.set_device(local)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=given.seconds))
    try:
        return report(look(given.storage, given.mebibytes, on_gpu=on_gpu), given.storage)
    finally:
        dist.destroy_process_group()


def look(storage: Path, mebibytes: int, *, on_gpu: bool) -> dict[str, object]:
    """What this process sees; collective."""
    rank, size = dist.get_rank(), dist.get_world_size()
    faults = []
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    if torch.cuda.is_available() and not on_gpu:
        faults.append("more processes than accelerators on this node")
    everywhere: list[bool | None] = [None] * size
    dist.all_gather_object(everywhere, on_gpu)
    if len(set(everywhere)) > 1:
        faults.append("some processes see an accelerator and others do not")
        device = torch.device("cpu")
    numbers = torch.full((mebibytes * MEBIBYTE // 4,), float(rank + 1), device=device)
    started = time.perf_counter()
    for _ in range(ROUNDS):
        numbers.fill_(rank + 1)
        dist.all_reduce(numbers)
        if float(numbers[0]) != size * (size + 1) / 2 or float(numbers[-1]) != size * (size + 1) / 2:
            faults.append("a sum over all processes is wrong")
    seconds = (time.perf_counter() - started) / ROUNDS
    faults += shared(storage)
    free, total = torch.cuda.mem_get_info(device) if device.type == "cuda" else (0, 0)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    return {
        "rank": rank,
        "host": socket.gethostname(),
        "device": name,
        "memory": f"{free / GIBIBYTE:.1f} of {total / GIBIBYTE:.1f} GiB free" if total else "no accelerator",
        "rate": f"{numbers.nbytes / MEBIBYTE / seconds:,.0f} MiB/s added up",
        "faults": faults,
    }


def shared(storage: Path) -> list[str]:
    """Every process reads what the first one has written."""
    place = [str(storage.resolve() / f".preflight-{uuid.uuid4().hex}")]
    dist.broadcast_object_list(place)
    file, problem = Path(place[0]), ""
    if dist.get_rank() == 0:
        try:
            storage.mkdir(parents=True, exist_ok=True)
            file.write_text(file.name)
        except OSError as error:
            problem = f"{storage}: cannot be written to: {error.strerror}"
    dist.barrier()
    try:
        seen = file.read_text() == file.name
    except OSError:
        seen = False
    dist.barrier()
    if dist.get_rank() == 0:
        file.unlink(missing_ok=True)
    return [problem] if problem else [] if seen else [f"{storage}: what the first process has written is not seen here"]


def report(mine: dict[str, object], storage: Path) -> int:
    """A line a process, from the first; 1 if there is a fault anywhere."""
    found: list[dict[str, object] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    rows = [row for row in found if row is not None]
    has_faults = any(row["faults"] for row in rows)
    if dist.get_rank() == 0:
        for row in rows:
            print(f"rank {row['rank']}  {row['host']}  {row['device']}  {row['memory']}  {row['rate']}")
            for fault in row["faults"]:  # type: ignore[attr-defined]
                print(f"FAIL    rank {row['rank']}: {fault}")
        hosts = len({row["host"] for row in rows})
        print(
            "not all is well"
            if has_faults
            else f"{len(rows)} processes on {hosts} host(s) see each other and {storage}"
        )
    return int(has_faults)


if __name__ == "__main__":
    sys.exit(main())
