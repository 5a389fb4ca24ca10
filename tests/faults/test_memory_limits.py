"""Where memory does not suffice a pass is halved and the result is the same; where nothing can be halved, all is said."""

import json
import multiprocessing
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tests import online, table_model
from tests.contracts import rank_pool
from tests.runs import small
from trimtab import algorithms
from trimtab import config as configs
from trimtab.errors import NumericalError, OutOfMemoryError
from trimtab.models import memory
from trimtab.models.roles import InProcessModels
from trimtab.operate import finish, shortage
from trimtab.rollout.in_process import InProcessEngine
from trimtab.store.run_directory import RunDirectory
from trimtab.testing import cases
from trimtab.train import loop, passes
from trimtab.train.learner import Learner
from trimtab.train.optimizer import Optimizer
from trimtab.train.settings import Optim, Train
from trimtab.types import Need

CPU = "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 512000 bytes."
SHORTAGES = {
    "a device": (lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB."), 1.5 * 2**30),
    "the allocator": (lambda: RuntimeError(CPU), 512000),
    "Windows": (lambda: RuntimeError("not enough memory: you tried to allocate 77 bytes."), 77),
    "the C++ library": (lambda: RuntimeError("std::bad_alloc"), None),
    "the system": (lambda: OSError(12, "Cannot allocate memory"), None),
    "Python": (MemoryError, None),
}
ROWS = 8
"""Of `cases.make`, of up to eleven tokens."""


class Scarce(table_model.TableModels):
    """Passes of more than `most` tokens do not fit; the others are counted."""

    most = 10**9
    where = "forward"
    """Or `backward`, or `freeze`."""
    error = staticmethod(MemoryError)

    def __init__(self, **more):
        super().__init__(**more)
        self.seen = []

    def _check(self, batch):
        size = len(batch) * int(batch.lengths.max())
        if size > self.most:
            raise self.error()
        self.seen.append(size)

    def forward(self, batch, need):
        if self.where == "forward":
            self._check(batch)
        policy = super().forward(batch, need)
        if self.where == "backward" and policy.log_probs.requires_grad:
            policy.log_probs.register_hook(lambda _: self._check(batch))
        return policy

    def freeze(self, batch, need):
        if self.where == "freeze":
            self._check(batch)
        return super().freeze(batch, need)


def learner_of(name, *, tokens=1000, models=Scarce, told=None, **more):
    algorithm, config = algorithms.load(name), table_model.config_of(name)
    return Learner(
        models=models(has_critic=Need.VALUES in algorithm.needs(config)),
        algorithm=algorithm,
        config=config,
        optim=Optim(learning_rate=1e-3),
        train=Train(max_steps=9, epochs_per_batch=2),
        micro_batch_tokens=tokens,
        told_of_smaller_passes=(lambda _: None) if told is None else told.append,
        **more,
    )


def batch_of(name, seed=3):
    return cases.make(seed, need=algorithms.load(name).needs(table_model.config_of(name))).batch


def figures(report):
    keep = ("loss/", "grad_norm/", "kl/", "entropy", "ratio/", "updates/", "coefficient/", "clip_fraction/")
    return {name: value for name, value in report.metrics.items() if name.startswith(keep)}


# ------------------------------------------------------------------------------------------------------------ halving
@pytest.mark.parametrize("where", ["forward", "backward", "freeze"])
@pytest.mark.parametrize("name", [*online.NAMES, "dpo", "kto", "sft"])
def test_a_step_whose_passes_do_not_fit_is_the_step_of_smaller_ones(name, where):
    batch, more = batch_of(name), batch_of(name, seed=4)
    plenty, told = learner_of(name), []
    learner = learner_of(name, told=told, term_norms_every=1)
    learner.models.where, learner.models.most = where, 45
    wanted = [plenty.update(b) for b in (batch, more)]
    found = [learner.update(b) for b in (batch, more)]
    assert found[0].metrics["memory/halvings"] >= 1
    tokens = int(found[0].metrics["memory/micro_batch_tokens"])
    assert tokens == learner.passes.tokens < 90
    assert told == sorted({int(r.metrics["memory/micro_batch_tokens"]) for r in found}, reverse=True)
    for a, b in zip(wanted, found, strict=True):
        for loss in [n for n in a.metrics if n.startswith("loss/")]:
            assert b.metrics[loss] == pytest.approx(a.metrics[loss], rel=1e-6, abs=1e-6), loss
        assert a.metrics["updates/count"] == b.metrics["updates/count"] == 2
    # to the last bit it is what a run that begins with so few tokens does
    other = learner_of(name, tokens=tokens, term_norms_every=1)
    if where == "forward":  # the others have frozen in larger passes than they update in, or the other way round
        again = [other.update(b) for b in (batch, more)]
        assert again[0].weights_sum == found[0].weights_sum
        assert figures(again[0]) == figures(found[0])


@pytest.mark.parametrize("kind", SHORTAGES)
def test_every_way_to_say_so_is_understood(kind):
    error, asked = SHORTAGES[kind]
    assert passes.asked_bytes(error()) == asked
    learner, batch = learner_of("grpo"), batch_of("grpo")
    learner.models.error, learner.models.most = error, 40
    assert learner.update(batch).metrics["memory/halvings"] >= 1


@pytest.mark.parametrize(
    "error",
    [lambda: RuntimeError("shapes do not match"), lambda: KeyError("memory"), lambda: NumericalError("out of memory")],
)
def test_what_is_no_shortage_of_memory_is_raised_as_it_is(error):
    learner, batch = learner_of("grpo"), batch_of("grpo")
    learner.models.error, learner.models.most = error, 40
    with pytest.raises(type(error())):
        learner.update(batch)
    assert learner.passes.halvings == 0


def test_a_pass_is_halved_to_less_than_the_one_that_failed_and_no_more():
    learner, batch = learner_of("grpo", tokens=4096), batch_of("grpo")
    whole = ROWS * int(batch.lengths.max())
    learner.models.most = whole - 1
    report = learner.update(batch)
    assert report.metrics["memory/halvings"] == 1
    assert report.metrics["memory/micro_batch_tokens"] == max(4096 >> k for k in range(13) if 4096 >> k < whole)
    assert learner.update(batch).metrics["memory/halvings"] == 0


def test_an_update_that_was_begun_leaves_nothing_behind(monkeypatch):
    """Of four micro-batches the third does not fit: gradients, sums and figures of the first two are thrown away."""
    batch = batch_of("ppo")
    plain, learner = learner_of("ppo", tokens=12), learner_of("ppo", tokens=25)
    calls, forward = [], learner.models.forward

    def once(rows, need):
        calls.append(torch.is_grad_enabled())
        if sum(calls) == 3 and calls[-1]:
            raise MemoryError
        return forward(rows, need)

    learner.models.forward = once
    freeze = learner.models.freeze
    learner.models.freeze = lambda rows, need: freeze(rows, need)
    found = learner.update(batch)
    assert found.metrics["memory/halvings"] == 1
    assert learner.passes.tokens == 12
    wanted = plain.update(batch)
    for name, value in figures(wanted).items():
        assert figures(found)[name] == pytest.approx(value, rel=1e-6, abs=1e-6), name
    assert all(p.grad is None for p in learner.models.named_parameters().values())


class Half(Scarce):
    """In two bytes, trained through float32 copies."""

    def __init__(self, **more):
        super().__init__(**more)
        self.logits = nn.Parameter(self.logits.detach().bfloat16())

    def weights_sum(self):
        return str(self.logits.detach().double().sum().item())


def test_weights_of_two_bytes_keep_no_gradient_of_what_failed(monkeypatch):
    """Not even of a backward pass that fails where a gradient is to become float32."""
    found, take = [], Optimizer.take_gradient
    for fails in (False, True):
        calls = []

        def once(self, parameter, fails=fails, calls=calls):
            calls.append(1)
            if fails and len(calls) == 2:
                raise MemoryError
            take(self, parameter)

        monkeypatch.setattr(Optimizer, "take_gradient", once)
        learner = learner_of("grpo", tokens=40 if fails else 10, models=Half)
        report = learner.update(batch_of("grpo"))
        assert (report.metrics["memory/halvings"], learner.passes.tokens) == (fails, 10)
        found.append(report.metrics["grad_norm/total"])
        assert learner.models.logits.grad is None
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_random_numbers_of_a_pass_are_drawn_again_from_where_they_stood():
    class Dropping(Scarce):
        def forward(self, batch, need):
            policy = super().forward(batch, need)
            if not torch.is_grad_enabled():
                return policy
            return replace(policy, log_probs=policy.log_probs * (torch.rand(policy.log_probs.shape) < 0.9))

    sums = []
    for tokens, most in ((16, 10**9), (32, 20)):
        learner = learner_of("sft", tokens=tokens, models=Dropping)
        learner.models.where, learner.models.most = "backward", most
        torch.manual_seed(5)
        report = learner.update(batch_of("sft"))
        assert report.metrics["memory/halvings"] == (most == 20)
        sums.append((report.weights_sum, torch.rand(3).tolist()))
    assert sums[0] == sums[1]


@pytest.mark.parametrize(("name", "unit"), [("grpo", 1), ("dpo", 2)])
@pytest.mark.parametrize("where", ["forward", "backward", "freeze"])
def test_one_row_or_pair_that_does_not_fit_ends_the_step_and_moves_nothing(name, unit, where):
    learner, batch = learner_of(name), batch_of(name)
    before, state = learner.models.weights_sum(), learner.values()
    longest = int(batch.lengths.max())
    learner.models.where, learner.models.most, learner.models.error = where, longest - 1, lambda: RuntimeError(CPU)
    with pytest.raises(OutOfMemoryError, match=rf"a pass of [12] x {longest} tokens does not fit$") as caught:
        learner.update(batch)
    assert caught.value.exit_code == 2
    assert caught.value.asked == 512000
    assert learner.passes.tokens >= longest // 2, "it was tried again where nothing could be cut"
    assert learner.models.weights_sum() == before
    assert learner.values() == state
    assert all(p.grad is None for p in learner.models.named_parameters().values())
    if where == "backward":
        assert f"a pass of {unit} x" in str(caught.value)


# ------------------------------------------------------------------------------------------------------------- ranks
def on_two_ranks(job, rank, size):
    """The second of two ranks has less memory. Run by `rank_pool`."""
    from trimtab.train.ranks import Ranks

    name, where, most = job.split(" ")
    told = []
    learner = learner_of(name, ranks=Ranks(), told=told, term_norms_every=1)
    learner.models.where = where
    if rank == 1 and where != "nowhere":
        learner.models.most = int(most)
    try:
        reports = [learner.update(batch_of(name, seed).rows(torch.arange(4) + 4 * rank)) for seed in (3, 4)]
    except OutOfMemoryError as error:
        return {"error": str(error), "weights": learner.models.weights_sum()}
    tokens = [int(r.metrics["memory/micro_batch_tokens"]) for r in reports]
    return {
        "losses": [{n: v for n, v in r.metrics.items() if n.startswith("loss/")} for r in reports],
        "tokens": tokens,
        "told": told,
        "halvings": [r.metrics["memory/halvings"] for r in reports],
        "own": learner.passes.halvings,
    }


def test_a_rank_that_has_less_memory_halves_alone_and_all_go_on_with_what_fits(tmp_path):
    kinds = [(name, where) for name in ("ppo", "dpo", "kto") for where in ("forward", "backward", "freeze")]
    jobs = [f"{name} {where} 30" for name, where in kinds] + [f"{name} nowhere 0" for name in ("ppo", "dpo", "kto")]
    jobs += ["grpo forward 1", "grpo freeze 1", "dpo backward 1"]
    pool = rank_pool.Pool(2)
    try:
        found = pool.run(2, jobs, tmp_path / "meeting", work=on_two_ranks)
    finally:
        pool.close()
    for job in jobs:
        name, where, most = job.split(" ")
        first, second = found[job]
        if most == "1":
            assert first["error"] == second["error"], job
            assert "does not fit" in first["error"], job
            assert first["weights"] == second["weights"] == table_model.learner(name).models.weights_sum(), job
            continue
        assert first["losses"] == second["losses"], job
        assert first["tokens"] == second["tokens"], job
        assert first["told"] == second["told"], job
        if where != "nowhere":
            assert (first["own"], second["own"] > 0) == (0, True), job
            assert first["halvings"][0] == second["own"], job
            assert first["tokens"][1] <= first["tokens"][0] < 1000, job
            plenty = found[f"{name} nowhere 0"][0]
            for a, b in zip(plenty["losses"], first["losses"], strict=True):
                assert b == pytest.approx(a, rel=1e-6, abs=1e-6), job


# -------------------------------------------------------------------------------------------------------------- runs
@pytest.fixture
def without_reports(monkeypatch):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])


WORDS = ("data.validation=null", "train.minibatches=1", "checkpoint.async=false", "train.micro_batch_tokens=4096")


def narrow(monkeypatch, most, error=lambda: RuntimeError(CPU)):
    """Passes with a gradient over more than so many tokens do not fit."""
    forward, sizes = InProcessModels.forward, []

    def scarce(self, batch, need):
        if torch.is_grad_enabled():
            size = len(batch) * int(batch.lengths.max())
            if size > most:
                raise error()
            sizes.append(size)
        return forward(self, batch, need)

    monkeypatch.setattr(InProcessModels, "forward", scarce)
    return sizes


def test_a_run_says_and_records_what_fits_and_a_resumed_one_begins_with_it(
    tmp_path, monkeypatch, capsys, without_reports
):
    config = small.write(tmp_path, "grpo", steps=3)
    with monkeypatch.context() as patch:
        narrow(patch, 100)
        small.interrupt_after(patch, 2)
        with pytest.raises(small.Interrupted):
            small.train(config, tmp_path / "run", *WORDS)
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("micro-batches of 4,096 tokens became 64") == 1
    facts = json.loads((tmp_path / "run" / "run.json").read_text())["numerics"]
    assert facts["micro_batch_tokens"] == 64
    sizes = narrow(monkeypatch, 10**9)
    directory = small.train(config, tmp_path / "run", *WORDS)
    assert sizes
    assert max(sizes) <= 64
    steps = [step["metrics"] for step in small.steps(directory)]
    assert [m["memory/halvings"] > 0 for m in steps] == [True, False, False]
    assert [m["memory/micro_batch_tokens"] for m in steps] == [64] * 3


def test_a_run_that_nothing_can_be_halved_for_ends_with_all_that_matters(tmp_path, monkeypatch, without_reports):
    config = small.write(tmp_path, "grpo", steps=3)
    with monkeypatch.context() as patch:
        small.interrupt_after(patch, 1)
        with pytest.raises(small.Interrupted):
            small.train(config, tmp_path / "run", *WORDS)
    narrow(monkeypatch, 2, lambda: RuntimeError(CPU.replace("512000", "50000")))
    with pytest.raises(OutOfMemoryError) as caught:
        small.train(config, tmp_path / "run", *WORDS)
    text = str(caught.value)
    assert text.startswith("out of memory in the update, a pass of 1 x ")
    for part in (
        "sampling.group_size 4 x length 14 x micro-batch 14 tokens x float32: about ",
        "48.8 KiB more were asked for; the computer has ",
        "set policy.gradient_checkpointing=true",
        "changes speed and memory but not the result; the run goes on from step 1",
    ):
        assert part in text
    directory = RunDirectory(tmp_path / "run")
    failure = small.failure(directory)
    assert (failure["code"], failure["last_checkpoint"]) == (2, 1)
    assert failure["cause"] == f"OutOfMemoryError: {text}"
    monkeypatch.undo()
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])
    again = small.train(config, tmp_path / "run", *WORDS, "policy.gradient_checkpointing=true")
    assert len(small.steps(again)) == 3


def test_a_run_goes_on_with_smaller_micro_batches_if_they_are_asked_for(tmp_path, monkeypatch, capsys, without_reports):
    """After the system has killed it, which says nothing."""
    config = small.write(tmp_path, "grpo", steps=2)
    with monkeypatch.context() as patch:
        small.interrupt_after(patch, 1)
        with pytest.raises(small.Interrupted):
            small.train(config, tmp_path / "run", *WORDS)
    sizes = narrow(monkeypatch, 10**9)
    small.train(config, tmp_path / "run", *WORDS[:-1], "train.micro_batch_tokens=40")
    assert max(sizes) <= 40
    said = " ".join(capsys.readouterr().out.split())
    assert "numbers need not be those of an uninterrupted run: micro-batch tokens 4096 -> 40" in said


@pytest.mark.parametrize(
    ("greedy", "doing", "change"),
    [(False, "sampling", "set train.prompts_per_step=2 sampling.max_length="), (True, "the evaluation", "set ")],
)
def test_what_a_run_was_doing_is_named(tmp_path, monkeypatch, greedy, doing, change):
    chunk = InProcessEngine._generate_chunk

    def scarce(self, draws, group_size, is_greedy):
        if is_greedy is greedy:
            raise MemoryError
        return chunk(self, draws, group_size, is_greedy)

    monkeypatch.setattr(InProcessEngine, "_generate_chunk", scarce)
    with pytest.raises(OutOfMemoryError, match=f"^out of memory in {doing}\n") as caught:
        small.train(small.write(tmp_path, "grpo", steps=1), tmp_path / "run", "checkpoint.async=false")
    assert change.split("=")[0] in str(caught.value)
    assert small.failure(RunDirectory(tmp_path / "run"))["code"] == 2


def test_a_model_that_cannot_be_loaded_for_want_of_memory_is_said_to_be_that(tmp_path, monkeypatch):
    def scarce(*_, **__):
        raise MemoryError

    monkeypatch.setattr("trimtab.models.builtin.model", scarce)
    with pytest.raises(OutOfMemoryError, match=r"^out of memory in loading models and data\n") as caught:
        small.train(small.write(tmp_path, "grpo", steps=1), tmp_path / "run")
    assert "set " in str(caught.value)


def test_other_errors_are_not_touched(tmp_path):
    config, directory = configs.load(small.write(tmp_path)), RunDirectory(tmp_path / "run")
    for error in (ValueError("no"), NumericalError("no"), KeyboardInterrupt(), RuntimeError("shapes")):
        assert shortage.explained(error, config, directory) is error


# ---------------------------------------------------------------------------------------------------------- real limits
def under_a_limit(path, run, left, words, pipe):
    """In a process of its own: after its first save so many bytes are left, however much was free before."""
    resume, filled = loop.resume, []

    def limited(*given):
        found = resume(*given)
        reserve = torch.ones(left // 4)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        size = 2**20
        while size >= 2**12:
            try:
                filled.append(torch.ones(size // 4))
            except RuntimeError:
                size //= 2
        del reserve
        return found

    loop.resume = limited
    finish.write_report = lambda *_, **__: []
    try:
        small.train(path, run, *words)
    except OutOfMemoryError as error:
        pipe.send((error.exit_code, str(error)))
    except BaseException as error:
        pipe.send((-1, repr(error)))
    else:
        pipe.send((0, ""))


@pytest.mark.parametrize(("mib", "code"), [(128, 0), (4, 2)])
def test_under_a_real_limit_a_run_fits_itself_in_or_ends_plainly(tmp_path, mib, code):
    path = small.write(tmp_path, "sft", steps=1)
    words = [w for w in WORDS if "micro_batch" not in w]
    words += ["train.prompts_per_step=384", "observe.term_norms_every=null", "checkpoint.rolling_every=9"]
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    child = context.Process(target=under_a_limit, args=(path, tmp_path / "run", mib * 2**20, words, theirs))
    child.start()
    assert ours.poll(120)
    found, said = ours.recv()
    child.join()
    assert found == code, said
    steps = [step["metrics"] for step in small.steps(RunDirectory(tmp_path / "run"))]
    if code == 0:
        assert steps[0]["updates/count"] == 1
        assert steps[0]["memory/halvings"] >= 1
    else:
        assert said.startswith(("out of memory in the update", "out of memory in saving"))
        assert "this process (ulimit -v) has" in said
        assert small.failure(RunDirectory(tmp_path / "run"))["code"] == 2
        assert (tmp_path / "run" / "checkpoints" / "0" / "manifest.json").is_file()


def test_the_limits_of_this_process_count(monkeypatch):
    whose = memory.tightest("cpu")[2]
    assert whose in ("the computer", "the container")
    for which, letter in ((resource.RLIMIT_AS, "v"), (resource.RLIMIT_DATA, "d")):
        limits = {which: (2**33, 2**33)}
        monkeypatch.setattr(
            resource, "getrlimit", lambda n, limits=limits: limits.get(n, (resource.RLIM_INFINITY,) * 2)
        )
        found = memory.tightest("cpu")
        assert found[1:] == (2**33, f"this process (ulimit -{letter})")
        assert 0 < found[0] < 2**33
        assert memory.available_bytes("cpu") == found[:2]


@pytest.mark.parametrize("phase", ["update", "rollout"])
@pytest.mark.parametrize("share", [0.9, 0.5, 0.2])
def test_what_is_proposed_for_a_phase_fits_into_it(phase, share):
    tiny = memory.sizes("builtin:tiny")
    demand = memory.Demand(policy=tiny, longest=512, rows=512, rows_at_once=512, micro_batch_tokens=16384)
    held = sum(demand.held().values())
    room = held + (demand.peak(phase) - held) * share
    words = memory.smallest_change(demand, room, group_size=8, phase=phase)
    assert words.startswith("set ")
    given = dict(word.rstrip(",").split("=") for word in words.split()[1:] if "=" in word)
    assert ("train.micro_batch_tokens" in given) is (phase == "update")
    assert ("train.prompts_per_step" in given) is (phase == "rollout")
