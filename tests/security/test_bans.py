"""No code here runs what a file or a text brings along, and the check that says so can see it."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _script():
    spec = importlib.util.spec_from_file_location("bans", ROOT / "scripts" / "bans.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


bans = _script()


def test_nothing_here_is_banned():
    assert bans.findings(ROOT) == []


def test_at_most_three_lines_are_allowed_and_each_says_why():
    assert len(bans.ALLOWED) <= 3
    assert all(len(allowed.why.split()) > 4 for allowed in bans.ALLOWED)


BAD = """
import pickle
import dill as d
from pickle import loads
from joblib import load
from torch import load
from os import system
from subprocess import getoutput
torch.load(path)
torch.load(path, weights_only=True)
torch.load(path, weights_only=False)
yaml.load(text, Loader=yaml.Loader)
yaml.unsafe_load(text)
yaml.full_load(text)
eval(text)
exec(text)
compile(text, "a", "exec")
builtins.eval(text)
__import__(name)
os.system(text)
os.popen(text)
subprocess.run(text, shell=True)
subprocess.run(text, shell=chosen)
np.load(path)
numpy.load(path, allow_pickle=True)
AutoModel.from_pretrained(path, use_safetensors=True, trust_remote_code=True)
AutoConfig.from_pretrained(path, trust_remote_code=trusted)
load(path, **{"trust_remote_code": True})
AutoModelForCausalLM.from_pretrained(path)
AutoModelForCausalLM.from_pretrained(path, use_safetensors=False)
type(model).from_pretrained(path, use_safetensors=None)
fetch(weights_only=False)
""".strip().splitlines()


@pytest.mark.parametrize("line", BAD)
def test_each_of_these_is_found(line):
    found = bans.banned(f"# first\n{line}\n", "a.py")
    assert found
    assert str(found[0]).startswith("a.py:2: ")


GOOD = """
model.eval()
self.load(path)
yaml.safe_load(text)
re.compile(text)
subprocess.run([program], shell=False)
text = "eval(x) torch.load(y) import pickle"  # eval(x)
AutoTokenizer.from_pretrained(path, trust_remote_code=False)
AutoModelForCausalLM.from_pretrained(path, use_safetensors=True, trust_remote_code=False)
from trimtab.models import pickled
""".strip().splitlines()


@pytest.mark.parametrize("line", GOOD)
def test_none_of_these_is_found(line):
    assert bans.banned(line, "a.py") == []


def test_a_permission_holds_for_its_line_alone_and_ends_with_it(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("import pickle\n")
    allowed = (bans.Allowed("src/a.py", "import pickle", "for this test alone"),)
    assert bans.findings(tmp_path, ("src",), allowed) == []
    (tmp_path / "src" / "b.py").write_text("import pickle\n")
    assert [f.split(":")[0] for f in bans.findings(tmp_path, ("src",), allowed)] == ["src/b.py"]
    (tmp_path / "src" / "a.py").write_text("import dill\n")
    assert len(bans.findings(tmp_path, ("src",), allowed)) == 3  # dill, pickle in b, a permission that is of no use
    assert "at most 3" in bans.findings(tmp_path, (), allowed * 4)[-1]


def test_the_script_ends_with_1_at_a_finding(tmp_path, capsys):
    (tmp_path / "bad.py").write_text("eval(x)\n")
    assert bans.main([str(tmp_path / "bad.py")]) == 1
    assert "bad.py:1: eval, which runs text as code" in capsys.readouterr().out
    assert bans.main([]) == 0
