"""What the catalogue promises is recorded, and what is recorded is in the catalogue."""

from tests.runs import small
from trimtab import catalogue
from trimtab.store import journal

MORE = """
kl: {coef: 0.05}
value: {clip_ratio: 0.2}
"""
QUICK = ["data.validation=null", "train.minibatches=1"]
OTHERS = {
    "gspo_segment": [
        *QUICK,
        "mismatch.mode=truncate",
        "kl.coef=0.1",
        "kl.controller=adaptive",
        "kl.controller_target=1",
    ],
    "cispo": [*QUICK, "mix=[{algorithm: sft, data: 'builtin:addition', weight: 0.5, rows_per_step: 2}]"],
    "sapo": QUICK,
    "clip_cov": QUICK,
    "rloo": [*QUICK, "train.epochs_per_batch=2", "optim.learning_rate=1e30", "guard.rules.broken_weights.then=off"],
    "sft": ["train.minibatches=1", "policy.autocast=float16"],
    "dpo": ["train.minibatches=1", "preference.nll_coef=0.1"],
    "kto": ["train.minibatches=1", "train.prompts_per_step=12", "eval.prompts=20"],
    "reward_model": ["train.minibatches=1", "preference.center=0.1"],
}
"""What else must be set for what only these record."""
READERS = ("sft", "dpo", "kto", "reward_model")
READ = (
    *("preference/", "kto/", "reward_model/", "loss/preference", "loss/nll", "loss/center", "loss_scale"),
    *("grad_norm/preference", "grad_norm/nll", "grad_norm/center"),
    *("eval/preference", "eval/kto", "eval/reward_model", "eval/loss"),
)
"""Beginnings of what algorithms that read record."""
ONLY_WITH_SEVERAL_PROCESSES = {"time/communication"}
OF_OTHER_COMMANDS = {"drill/last_success"}
ONLY_WITH_A_GPU = {"utilisation/accelerator", "utilisation/accelerator_memory"}
ONLY_EXPORTED = ("run/", "role/heartbeat_age/", "role/up/", "alarm/", "alarms/", "guard/limit/", "guard/breach/")
"""Shown to whoever watches, and not in the journal: runs/test_exporter."""


def recorded(directory):
    reading = journal.read(directory.journal)
    return {name for record in [*reading.steps(), *reading.evaluations()] for name in record["metrics"]}


def recorded_by(folder, names):
    """What one step of each algorithm records."""
    found = set()
    for name in names:
        found |= recorded(small.train(small.write(folder, name, steps=1), folder / name, *OTHERS[name]))
    return found


def examine(found, wanted):
    """Whether a part of the catalogue was recorded, and nothing that is not in it."""
    for name in found:
        assert catalogue.find(name).unit
    assert not {name for name in found if name.startswith(ONLY_EXPORTED)}
    assert not {name for name in wanted if not name.endswith("/*")} - found
    for family in {name for name in wanted if name.endswith("/*")}:
        assert any(name.startswith(family[:-1]) for name in found), family


def is_read(name):
    return name.startswith(READ)


WANTED = {
    name
    for name in catalogue.METRICS
    if not name.startswith(ONLY_EXPORTED)
    and name not in ONLY_WITH_SEVERAL_PROCESSES | OF_OTHER_COMMANDS | ONLY_WITH_A_GPU
}


def test_every_metric_of_algorithms_that_read_is_recorded_by_some_run(tmp_path):
    examine(recorded_by(tmp_path, READERS), set(filter(is_read, WANTED)))


def test_every_other_metric_of_the_catalogue_is_recorded_by_some_run(tmp_path, monkeypatch):
    monkeypatch.setenv("DEAD_HOOK", "http://127.0.0.1:9/hook/0123")
    ppo = small.train(
        small.write(tmp_path, "ppo", steps=2, more=MORE),
        tmp_path / "ppo",
        "policy.entropy_coef=0.01",
        "policy.dual_clip=3",
        "sampling.dynamic.enabled=true",
        "sampling.overlong.buffer=4",
        "observe.webhook={url: '${env:DEAD_HOOK}'}",
        "observe.trackers=[tensorboard]",
        f"checkpoint.store=file://{tmp_path}/store",
    )
    others = recorded_by(tmp_path, [name for name in OTHERS if name not in READERS])
    examine(recorded(ppo) | others, {name for name in WANTED if not is_read(name)})
