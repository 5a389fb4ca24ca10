"""Processes that are started once and train together, two or four at a time."""

import multiprocessing
import os
from dataclasses import replace

import torch
import torch.distributed as dist

from tests import table_model
from trimtab import algorithms
from trimtab.testing import cases
from trimtab.train.ranks import Ranks
from trimtab.train.settings import Optim
from trimtab.types import Need

SPLITS = {1: (8,), 2: (8, 0), 4: (3, 0, 4, 1)}
"""Rows of each rank, by the number of ranks: a group lies on two of them, and one has none."""
PAIR_SPLITS = {1: (8,), 2: (2, 6), 4: (2, 0, 4, 2)}
"""A pair stays together."""
STOPPING = "grpo that stops"
PRELOADED = ["trimtab.train.learner", "trimtab.testing.cases", "torch.distributed", "torch._dynamo"]
"""What all of them import, read once by the process they are forked from; the optimiser imports the last."""
PATIENCE = 120.0
"""Seconds after which a process that says nothing is taken for dead."""


def evidence(name, rank, size):
    """What one rank sees of a step of two updates; of up to four if the step may stop before its end."""
    algorithm, *stops = name.split(" that ")
    config = table_model.config_of(algorithm, *[("kl", "stop_epochs", True) for _ in stops])
    optim = Optim(learning_rate=0.1 if stops else 1e-3)
    need = algorithms.load(algorithm).needs(config)
    batch = cases.make(11, need=need).batch
    splits = (PAIR_SPLITS if Need.PAIRS in need else SPLITS)[size]
    start = sum(splits[:rank])
    rows = torch.arange(start, start + splits[rank])
    learner = table_model.learner(
        algorithm, config, ranks=Ranks(), optim=optim, epochs_per_batch=2 if stops else 1, minibatches=2, micro_batch_tokens=40,
        settings={"term_norms_every": 1},
    )  # fmt: skip
    gradients, advantages = [], []
    take_step, whole = learner.optimizer.step, learner.main.algorithm

    def step(norms, factor):
        gradients.append([p.grad.clone() for p in learner.optimizer.parameters()])
        take_step(norms, factor)

    def advantages_of(batch, frozen, config):
        advantages.append(whole.advantages(batch, frozen, config))
        return advantages[-1]

    learner.optimizer.step = step
    learner.main = replace(learner.main, algorithm=replace(whole, advantages=advantages_of))
    report = learner.update(batch.rows(rows))
    return {
        "metrics": {n: v for n, v in report.metrics.items() if not n.startswith(("time/", "throughput/", "memory/"))},
        "advantages": advantages[0].values.numpy(),
        "gradients": [g.numpy() for g in gradients[0]],
        "weights": report.weights_sum,
    }


def _serve(rank, pipe):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    while (job := pipe.recv()) is not None:
        size, names, meeting, work = job
        try:
            dist.init_process_group("gloo", init_method=f"file://{meeting}", world_size=size, rank=rank)
            found = {name: work(name, rank, size) for name in names}
            dist.destroy_process_group()
        except Exception as error:
            found = f"rank {rank} of {size}: {type(error).__name__}: {error}"
        pipe.send(found)


class Pool:
    def __init__(self, count=4):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.pipes, self.processes = [], []
        for rank in range(count):
            ours, theirs = context.Pipe()
            self.processes.append(context.Process(target=_serve, args=(rank, theirs), daemon=True))
            self.pipes.append(ours)
            self.processes[-1].start()

    def run(self, size, names, meeting, work=evidence):
        """By name, what each of `size` ranks saw, as `work` tells it: a function of a module, given (name, rank, size)."""
        for pipe in self.pipes[:size]:
            pipe.send((size, names, str(meeting), work))
        found = []
        for rank, pipe in enumerate(self.pipes[:size]):
            assert pipe.poll(PATIENCE), f"rank {rank} of {size} does not answer"
            found.append(pipe.recv())
        assert all(isinstance(one, dict) for one in found), found
        return {name: [one[name] for one in found] for name in names}

    def close(self):
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(None)
            process.join(timeout=10)
            process.kill()
