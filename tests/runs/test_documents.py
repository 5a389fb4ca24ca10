"""Documents and examples that show Python: what they show runs."""

import re
from pathlib import Path

import nbclient
import nbformat

from trimtab.store.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def test_the_page_on_python_runs_from_top_to_bottom_and_says_what_it_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    page = ROOT / "docs" / "python.md"
    found = blocks(page, "python")
    assert len(found) == 3
    for number, block in enumerate(found):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)
    assert (tmp_path / "runs" / "vowels" / "report.html").is_file()
    assert [m["step"] for m in names["table"]] == [0, 1, 2, 3]
    assert names["table"][0]["eval/reward/mean"] == names["before"]
    assert names["text"].startswith("d: ")
    assert blocks(page, "text")[0] in capsys.readouterr().out


def test_the_readmes_show_the_call_that_there_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grpo.yaml").write_text("{algorithm: grpo, sampling: {max_length: 12}, train: {max_steps: 1}}")
    shown = [blocks(ROOT / name, "python") for name in ("README.md", "README.zh.md")]
    calls = [next(b for b in found if "trimtab.prepare" in b) for found in shown]
    assert calls[0] == calls[1]
    names = {"my_reward": lambda completions, **_: [0.0] * len(completions)}
    exec(calls[0], names)
    assert names["run"].state == "all steps done"
    assert names["run"].config.resolved["policy"]["clip_low"] == 0.3


def test_the_notebook_runs_and_its_reward_rises(tmp_path):
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kept = [_text(cell) for cell in code]
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    run = RunDirectory.existing(tmp_path / "runs" / "vowels")
    assert run.facts()["outcome"] == "all steps done"
    said = [_text(cell) for cell in code]
    assert "step  12/12" in said[2]
    assert "\x1b" not in said[2]
    rewards = [float(r) for r in re.findall(r"reward (\d\.\d+)", said[4])]
    assert rewards[0] < 0.3
    assert rewards[-1] > 0.8
    report = [o for o in code[6].outputs if o.output_type == "display_data"]
    assert "<iframe srcdoc=" in report[0]["data"]["text/html"]
    assert [bool(text) for text in kept] == [bool(text) for text in said]  # what is committed has been run


def _text(cell):
    """What a cell has printed and shown as text."""
    parts = [
        o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.outputs if o.get("name") != "stderr"
    ]
    return "".join(parts)
