"""The files in deploy/: each treats every exit code as `trimtab.errors` means it, and asks for no more rights than it needs."""

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml

from trimtab import errors
from trimtab.operate import supervise

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "trimtab@.service"
SBATCH = DEPLOY / "slurm" / "train.sbatch"
TRAIN = DEPLOY / "kubernetes" / "train.yaml"
ROLES = DEPLOY / "kubernetes" / "roles.yaml"

STOP, AGAIN, FREE = "stop", "again", "again, uncounted"
MEANING = {1: STOP, 2: STOP, 3: STOP, 4: STOP, 5: AGAIN, 6: AGAIN, 75: FREE}


def _codes(cls=errors.TrimtabError):
    return {cls.exit_code}.union(*(_codes(sub) for sub in cls.__subclasses__()))


def test_the_table_of_this_file_has_every_exit_code_of_the_program():
    assert set(MEANING) == _codes()
    assert {code for code, what in MEANING.items() if what == AGAIN} == set(supervise.RETRIED)
    assert [code for code, what in MEANING.items() if what == FREE] == [supervise.FREE]


# ---- systemd


class _Unit(dict):
    """Sections of a unit file; a key that stands several times is a list."""

    def __init__(self, text):
        section = None
        for line in text.splitlines():
            if match := re.fullmatch(r"\[(\w+)\]", line):
                section = self.setdefault(match[1], {})
            elif line and not line.startswith("#"):
                key, value = line.split("=", 1)
                section.setdefault(key, []).append(value)

    def one(self, section, key):
        (value,) = self[section][key]
        return value


@pytest.fixture(scope="module")
def unit():
    return _Unit(UNIT.read_text())


def _systemd_starts_again(unit, code=None, by_signal=False):
    """systemd.service(5): Restart=on-abnormal, then RestartForceExitStatus=, and RestartPreventExitStatus= above all."""
    assert unit.one("Service", "Restart") == "on-abnormal"
    if str(code) in unit.one("Service", "RestartPreventExitStatus").split():
        return False
    return by_signal or str(code) in unit.one("Service", "RestartForceExitStatus").split()


@pytest.mark.parametrize("code", MEANING)
def test_systemd_starts_again_what_is_worth_it(unit, code):
    assert _systemd_starts_again(unit, code) == (MEANING[code] != STOP)


def test_systemd_starts_again_after_a_signal_and_not_after_130_or_success(unit):
    assert _systemd_starts_again(unit, by_signal=True)
    assert not _systemd_starts_again(unit, 0)
    assert not _systemd_starts_again(unit, 130)
    assert unit.one("Service", "SuccessExitStatus") == "75", "a stop is no failure"


def test_systemd_lets_the_run_save_and_gives_it_few_rights(unit):
    service = {key: values[-1] for key, values in unit["Service"].items()}
    wanted = {
        "KillMode": "mixed", "KillSignal": "SIGTERM", "User": "trimtab", "NoNewPrivileges": "yes", "PrivateTmp": "yes",
        "ProtectSystem": "strict", "ProtectHome": "yes", "CapabilityBoundingSet": "", "AmbientCapabilities": "",
    }  # fmt: skip
    assert {key: service.get(key) for key in wanted} == wanted
    assert int(service["TimeoutStopSec"].removesuffix("min")) >= 5
    assert service["ReadWritePaths"].split() == ["/var/lib/trimtab", "/var/cache/trimtab"]
    words = shlex.split(service["ExecStart"])
    assert words[:2] == ["/opt/trimtab/bin/trimtab", "train"]
    _assert_options_exist(words[1:])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_itself_finds_no_fault_in_the_unit(tmp_path):
    copy = tmp_path / "trimtab@demo.service"
    copy.write_text(UNIT.read_text().replace("/opt/trimtab/bin/trimtab", sys.executable))
    found = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")
    security = ["systemd-analyze", "security", "--offline=true", "--json=short", "--threshold=25", str(copy)]
    rated = subprocess.run(security, capture_output=True, text=True)
    assert rated.returncode == 0, "more exposed than 2.5: " + rated.stdout


# ---- Kubernetes


def _documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


@pytest.fixture(scope="module")
def job():
    return next(d for d in _documents(TRAIN) if d["kind"] == "Job")


def _kubernetes_action(job, code=None, condition=None):
    """The Job controller's own rule: the first that matches; what none matches counts against backoffLimit."""
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        if codes := rule.get("onExitCodes"):
            inside = code in codes["values"]
            if code not in (None, 0) and (inside if codes["operator"] == "In" else not inside):
                return rule["action"]
        for pattern in rule.get("onPodConditions", []):
            if condition == (pattern["type"], pattern.get("status", "True")):
                return rule["action"]
    return "Count"


@pytest.mark.parametrize("code", MEANING)
def test_kubernetes_tries_again_what_is_worth_it(job, code):
    action = {STOP: "FailJob", AGAIN: "Count", FREE: "Ignore"}[MEANING[code]]
    assert _kubernetes_action(job, code) == action


def test_kubernetes_counts_a_kill_and_does_not_count_a_drained_node(job):
    assert _kubernetes_action(job, 137) == "Count"
    assert _kubernetes_action(job, 137, condition=("DisruptionTarget", "True")) == "Ignore"
    assert _kubernetes_action(job, 2, condition=("DisruptionTarget", "True")) == "FailJob"


NAME = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}
QUANTITY = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


def _of(required=(), **properties):
    """An object with these fields and no others."""
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


def _list(items, at_least=1):
    return {"type": "array", "items": items, "minItems": at_least}


PROBE = _of(
    ("httpGet",),
    httpGet=_of(("path", "port"), path={"enum": ["/healthz", "/readyz"]}, port={"const": "metrics"}),
    **{key: {"type": "integer", "minimum": 1} for key in ("periodSeconds", "timeoutSeconds", "failureThreshold")},
)
CONTAINER = _of(
    ("name", "image", "args", "securityContext", "resources", "livenessProbe", "readinessProbe"),
    name=NAME, image={"type": "string"}, args=_list({"type": "string"}),
    securityContext=_of(
        allowPrivilegeEscalation={"const": False}, readOnlyRootFilesystem={"const": True},
        capabilities=_of(drop={"const": ["ALL"]}),
    ),
    resources=_of(requests={"type": "object", "additionalProperties": QUANTITY},
                  limits={"type": "object", "additionalProperties": QUANTITY}),
    ports=_list(_of(("containerPort",), name=NAME, containerPort={"type": "integer"}, protocol={"enum": ["TCP", "UDP"]})),
    startupProbe=PROBE, livenessProbe=PROBE, readinessProbe=PROBE,
    volumeMounts=_list(_of(("name", "mountPath"), name=NAME, mountPath={"type": "string", "pattern": "^/"},
                           readOnly={"type": "boolean"})),
)  # fmt: skip
VOLUME = _of(
    ("name",), name=NAME, persistentVolumeClaim=_of(("claimName",), claimName=NAME),
    emptyDir=_of(medium={"const": "Memory"}, sizeLimit=QUANTITY), configMap=_of(("name",), name=NAME),
    secret=_of(("secretName",), secretName=NAME, defaultMode={"type": "integer", "minimum": 0, "maximum": 0o777}),
)  # fmt: skip
EXIT_CODES = {"type": "integer", "minimum": 1, "maximum": 255}
RULE = {
    **_of(
        ("action",),
        action={"enum": ["FailJob", "Ignore", "Count"]},
        onExitCodes=_of(
            ("operator", "values"),
            containerName=NAME,
            operator={"enum": ["In", "NotIn"]},
            values={**_list(EXIT_CODES), "uniqueItems": True},
        ),
        onPodConditions=_list(_of(("type",), type={"type": "string"}, status={"enum": ["True", "False", "Unknown"]})),
    ),
    "oneOf": [{"required": ["onExitCodes"]}, {"required": ["onPodConditions"]}],
}
POD = _of(
    ("restartPolicy", "containers", "securityContext"),
    restartPolicy={"const": "Never"}, serviceAccountName=NAME, automountServiceAccountToken={"const": False},
    enableServiceLinks={"type": "boolean"}, terminationGracePeriodSeconds={"type": "integer", "minimum": 300},
    securityContext=_of(
        runAsNonRoot={"const": True}, runAsUser={"type": "integer", "minimum": 1},
        runAsGroup={"type": "integer", "minimum": 1}, fsGroup={"type": "integer"},
        fsGroupChangePolicy={"enum": ["OnRootMismatch", "Always"]}, seccompProfile=_of(type={"const": "RuntimeDefault"}),
    ),
    containers=_list(CONTAINER), volumes=_list(VOLUME),
)  # fmt: skip
PEERS = _list(_of(namespaceSelector=_of(matchLabels=TEXTS), podSelector=_of(matchLabels=TEXTS)))
PORTS = _list(_of(protocol={"enum": ["TCP", "UDP"]}, port={"type": "integer"}))
SPECS = {
    "Job": ("batch/v1", _of(
        ("template", "podFailurePolicy"), parallelism={"const": 1}, completions={"const": 1},
        backoffLimit={"type": "integer"}, podReplacementPolicy={"const": "Failed"},
        podFailurePolicy=_of(("rules",), rules={**_list(RULE), "maxItems": 20}),
        template=_of(("spec",), metadata=_of(labels=TEXTS), spec=POD),
    )),
    "PersistentVolumeClaim": ("v1", _of(
        ("accessModes", "resources"), accessModes=_list({"enum": ["ReadWriteOnce", "ReadWriteMany"]}),
        resources=_of(requests={"type": "object", "additionalProperties": QUANTITY}),
    )),
    "NetworkPolicy": ("networking.k8s.io/v1", _of(
        ("podSelector", "policyTypes"), podSelector=_of(matchLabels=TEXTS),
        policyTypes=_list({"enum": ["Ingress", "Egress"]}),
        ingress=_list(_of(**{"from": PEERS, "ports": PORTS})), egress=_list(_of(to=PEERS, ports=PORTS)),
    )),
}  # fmt: skip
RBAC = "rbac.authorization.k8s.io"
VERBS = ["get", "list", "watch", "create", "update", "patch", "delete"]
OTHERS = {
    "ServiceAccount": ("v1", {"automountServiceAccountToken": {"const": False}}),
    "Role": (f"{RBAC}/v1", {"rules": _list(_of(
        ("apiGroups", "resources", "verbs"), apiGroups=_list({"enum": ["", "batch"]}), resources=_list({"type": "string"}),
        verbs=_list({"enum": VERBS}),
    ))}),
    "RoleBinding": (f"{RBAC}/v1", {
        "roleRef": _of(("apiGroup", "kind", "name"), apiGroup={"const": RBAC}, kind={"const": "Role"}, name=NAME),
        "subjects": _list(_of(("kind", "name"), apiGroup={"const": RBAC}, kind={"const": "Group"}, name=NAME)),
    }),
}  # fmt: skip


def _schema(kind):
    metadata = _of(("name", "namespace"), name=NAME, namespace={"const": "trimtab"}, labels=TEXTS)
    if kind in SPECS:
        version, spec = SPECS[kind]
        more = {"spec": spec}
    else:
        version, more = OTHERS[kind]
    head = {"apiVersion": {"const": version}, "kind": {"const": kind}, "metadata": metadata}
    return _of((*head, *more), **head, **more)


@pytest.mark.parametrize("path", [TRAIN, ROLES], ids=lambda path: path.name)
def test_the_kubernetes_documents_have_the_fields_that_there_are(path):
    for document in _documents(path):
        jsonschema.Draft202012Validator(_schema(document["kind"])).validate(document)


def test_exit_codes_in_the_job_are_in_order_as_the_api_server_wants_them(job):
    lists = [r["onExitCodes"]["values"] for r in job["spec"]["podFailurePolicy"]["rules"] if "onExitCodes" in r]
    assert lists == [sorted(values) for values in lists]
    names = {c["name"] for c in job["spec"]["template"]["spec"]["containers"]}
    assert {
        r["onExitCodes"]["containerName"] for r in job["spec"]["podFailurePolicy"]["rules"] if "onExitCodes" in r
    } == names


def test_what_the_job_mounts_is_there_and_what_it_starts_exists(job):
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    claims = {d["metadata"]["name"] for d in _documents(TRAIN) if d["kind"] == "PersistentVolumeClaim"}
    assert {v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v} <= claims
    accounts = {d["metadata"]["name"] for d in _documents(TRAIN) if d["kind"] == "ServiceAccount"}
    assert pod["serviceAccountName"] in accounts
    _assert_options_exist(container["args"])
    _assert_keys_exist([word for word in container["args"] if not word.startswith("-") and "=" in word])


def test_no_role_reads_secrets_or_goes_beyond_its_namespace():
    documents = _documents(ROLES)
    roles = {d["metadata"]["name"]: d["rules"] for d in documents if d["kind"] == "Role"}
    assert {d["roleRef"]["name"] for d in documents if d["kind"] == "RoleBinding"} == set(roles)
    for name, rules in roles.items():
        for rule in rules:
            assert not {"secrets", "serviceaccounts", "roles", "*"} & set(rule["resources"]), name
            if name == "trimtab-viewer":
                assert set(rule["verbs"]) <= {"get", "list", "watch"}


# ---- Slurm


@pytest.fixture
def slurm(tmp_path):
    """Run the script beside a `srun` that ends with a code, and a `scontrol` that notes what it is asked."""
    programs, run = tmp_path / "bin", tmp_path / "run"
    programs.mkdir()

    def write(name, text):
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)

    write("scontrol", 'if [ "$1" = show ]; then echo "JobId=7 JobState=$STATE"; else echo "$*" >> "$NOTES"; fi')

    def submit(code, restarts=0, state="RUNNING", processes=1, written=None):
        write("srun", f'printf "%s\\n" "$@" > "$WORDS"; {written or ":"}; exit {code}')
        notes, words = tmp_path / "notes", tmp_path / "words"
        notes.unlink(missing_ok=True)
        environment = {
            **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "STATE": state, "NOTES": str(notes),
            "WORDS": str(words), "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts),
            "TRIMTAB_PROCESSES": str(processes), "TRIMTAB_PYTHON": sys.executable, "RUN": str(run),
        }  # fmt: skip
        command = ["bash", str(SBATCH), "a.yaml", str(run), "kl.coef=0.1"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        return done.returncode, notes.read_text().split() if notes.exists() else [], words.read_text().split(), done

    return submit


@pytest.mark.parametrize("code", [0, 130, *MEANING])
def test_slurm_queues_again_what_is_worth_it(slurm, code):
    ended, asked, _, done = slurm(code)
    assert ended == code
    assert asked == (["requeue", "7"] if MEANING.get(code, STOP) != STOP else []), done.stdout


@pytest.mark.parametrize("code", [5, 6, 137, 139, 75])
def test_slurm_gives_up_after_a_number_of_times_but_for_preemption(slurm, code):
    _, asked, _, done = slurm(code, restarts=5)
    assert bool(asked) == (code == 75), done.stdout
    assert slurm(code, restarts=4)[1] == ["requeue", "7"]


def test_slurm_does_not_queue_a_cancelled_job_again(slurm):
    _, asked, _, done = slurm(75, state="CANCELLED")
    assert asked == []
    assert "cancelled" in done.stdout


def test_slurm_takes_the_code_of_several_processes_from_what_the_run_has_written(slurm):
    failure = 'echo \'{"code": 75}\' > "$RUN/failure.json"'
    ended, asked, words, _ = slurm(1, processes=2, written=f"sleep 0.01; {failure}")
    assert (ended, asked) == (75, ["requeue", "7"])
    assert words[1:6] == [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    assert words[6:9] == ["-m", "trimtab", "train"]
    assert slurm(1, processes=2)[:2] == (1, []), "what is there from before says nothing"


def test_slurm_starts_a_command_that_there_is_and_asks_for_time_to_save(slurm):
    words = slurm(0)[2]
    assert words[:4] == ["--ntasks=1", sys.executable, "-m", "trimtab"]
    _assert_options_exist(words[4:])
    assert words[-1] == "kl.coef=0.1"
    settings = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", SBATCH.read_text(), re.MULTILINE))
    assert settings["signal"] == "TERM@120"
    assert "requeue" in settings


# ---- the image


def test_the_image_is_made_of_what_the_project_has():
    instructions = _instructions((DEPLOY / "Containerfile").read_text())
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    locked = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    for name, value in instructions:
        if name == "COPY" and not value.startswith("--from"):
            *sources, _ = value.split()
            assert all((ROOT / source).exists() for source in sources), value
            assert all(f"!{source}" in ignored for source in sources), f"{value} is kept out by the .dockerignore"
        for step in value.split("&&") if name == "RUN" else []:
            words = shlex.split(step.partition(">")[0])
            if words[0] == "/opt/trimtab/bin/trimtab":
                _assert_options_exist(words[1:])
            elif words[:2] == ["/opt/trimtab/bin/pip", "install"]:
                _assert_pinned(words[2:], locked)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    last = dict(instructions)
    assert json.loads(last["ENTRYPOINT"]) == ["trimtab"]
    assert "trimtab" in project["scripts"]
    _assert_options_exist(json.loads(last["CMD"]))
    assert last["STOPSIGNAL"] == "SIGTERM"
    names = [name for name, _ in instructions]
    assert "USER" in names[names.index("FROM", names.index("FROM") + 1) :], "the second stage has a user"
    assert last["USER"].split(":")[0] not in ("0", "root")


def _instructions(text):
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def _assert_pinned(words, locked):
    """Every package that pip is to get has one version, in the lock or in the constraints."""
    if "--require-hashes" in words:
        assert words[words.index("-r") + 1] == "requirements.lock"
    elif "--no-deps" in words:
        assert [w for w in words if not w.startswith("-")] == ["."]
    else:
        assert words[:2] == ["-c", "constraints.txt"]
        assert set(words[2:]) <= locked


# ---- words of a command line


def _command(words):
    import typer

    from trimtab import cli

    command = typer.main.get_command(cli.app)
    words = list(words)
    while hasattr(command, "commands") and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    return command, words


def _assert_options_exist(words):
    command, rest = _command(words)
    known = {name for parameter in command.params for name in parameter.opts}
    used = {word.partition("=")[0] for word in rest if word.startswith("--")}
    assert used <= known, f"{command.name} has no {used - known}"


def _assert_keys_exist(words):
    from trimtab.config import sections

    known = {section: set(keys) for section, keys in sections.known_keys().items()}
    for word in words:
        section, _, key = word.partition("=")[0].partition(".")
        assert key in known.get(section, ()), f"{section}.{key} is no key"


def test_the_slurm_script_is_readable_by_bash_and_no_file_is_writable_by_others():
    assert subprocess.run(["bash", "-n", str(SBATCH)], capture_output=True).returncode == 0
    for path in DEPLOY.rglob("*"):
        assert not path.stat().st_mode & stat.S_IWOTH, path
