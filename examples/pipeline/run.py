"""The whole pipeline: data -> SFT -> reward model -> PPO, SFT -> DPO, and DPO behind PPO. Runs go to runs/pipeline/.

    python examples/pipeline/run.py                         # builtin:tiny, about a minute
    python examples/pipeline/run.py --model DIR             # a pretrained model, on a GPU
    python examples/pipeline/run.py --model DIR --solutions FILE data.as_chat=true

KEY=VALUE words go to every stage. Each stage is one command, which is printed and may be copied. Started again, the
pipeline goes on where it was: a stage that is finished says so and does nothing. The exit code is that of the stage that
failed (2 what you can mend, 75 SIGTERM: saved, start again), 0 if all are done.
"""

import argparse
import os
import sys
from pathlib import Path

import pairs

from trimtab import cli

HERE = Path(__file__).parent
RUNS = Path("runs/pipeline")
STAGES = ("sft", "reward_model", "ppo", "dpo", "dpo_after_ppo")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="where it starts; default builtin:tiny, with the settings of tiny/")
    parser.add_argument("--solutions", type=Path, default=HERE / "data" / "solutions.jsonl", help="marked solutions")
    given, words = parser.parse_known_args()
    prepare(given.solutions)
    folder = HERE if given.model else HERE / "tiny"
    for name in STAGES:
        start = [f"policy.model={given.model}"] if given.model and name == "sft" else []
        command("train", shown(folder / f"{name}.yaml"), "--run-dir", str(RUNS / name), *start, *words)


def prepare(solutions: Path) -> None:
    """The same problems are held out in every stage, so they are split before anything is made of them."""
    data = RUNS / "data"
    if data.is_dir():
        print(f"{data}: is there and is used; remove {RUNS} to start from other data")
    else:
        RUNS.mkdir(parents=True, exist_ok=True)
        split = ("data", "split", shown(solutions), "--to", str(data), "--parts", "8:2")
        command(*split, "--kind", "prompts", "--column", "prompt=question")
    for part in ("train.jsonl", "validation.jsonl"):
        if not (data / f"pairs.{part}").is_file():
            pairs.write(data / part)


def command(*words: str) -> None:
    """`trimtab WORDS` in this process; a failure ends it with its exit code."""
    print("\n$ trimtab", *words, flush=True)
    sys.argv = ["trimtab", *words]
    try:
        cli.main()
    except SystemExit as end:
        if end.code:
            raise


def shown(path: Path) -> str:
    return os.path.relpath(path)


if __name__ == "__main__":
    main()
