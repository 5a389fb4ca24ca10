"""Command lines with a fault, beside a configuration and rows without any."""

from tests.malformed.cases import words

NO_RUN = "no run was started here (there is no run.json)"
SUCH_AS = "such as optim.learning_rate=1e-5"
HELD = "give a directory with --run-dir"


def train(word, *says):
    return words(
        ("train", "c.yaml", *([word] if isinstance(word, str) else word)), *[f"command line: {line}" for line in says]
    )


OVERRIDES = (
    train("fast", f"`fast` is neither KEY=VALUE nor --KEY VALUE; {SUCH_AS}"),
    train(("fast", "slow"), f"`fast` is neither KEY=VALUE nor --KEY VALUE; {SUCH_AS}", f"`slow` is neither KEY=VALUE nor --KEY VALUE; {SUCH_AS}"),
    train("=3", f"`=3` has no key, or a part of it is empty; {SUCH_AS}"),
    train("policy.=3", f"`policy.=3` has no key, or a part of it is empty; {SUCH_AS}"),
    train("policy..model=x", f"`policy..model=x` has no key, or a part of it is empty; {SUCH_AS}"),
    train("--optim.learning_rate", "--optim.learning_rate has no value; write optim.learning_rate=VALUE"),
    train(("--optim.learning_rate", "--train.max_steps", "3"), "--optim.learning_rate has no value; write optim.learning_rate=VALUE"),
    train("-optim.learning_rate=3", "unknown key `-optim`; options have two dashes, and settings none"),
    train("algoritm=ppo", "unknown key `algoritm`; did you mean `algorithm`?"),
    train(("--algoritm", "ppo"), "unknown key `algoritm`; did you mean `algorithm`?"),
    train("algorithm=", "there is no `algorithm`; choose ppo, ..."),
    train("algorithm=gpro", "algorithm: no algorithm is called `gpro`; did you mean `grpo`?"),
    train("policy=3", "policy: 3; expected keys and values"),
    train("policy.model.x=3", "policy.model: {'x': 3}; expected text"),
    train("policy.clip_ratio=wide", "policy.clip_ratio: 'wide'; expected a number"),
    train("policy.clip_ration=0.2", "unknown key `policy.clip_ration`; did you mean `clip_ratio`?"),
    train("optim.learning_rate=", "optim.learning_rate: null; expected a number"),
    train("optim.learning_rate=1e-6x", "optim.learning_rate: '1e-6x'; expected a number"),
    train("train.max_steps=[1", "train.max_steps: '[1'; expected a whole number"),
    train("train.max_steps=!!python/object/apply:os.system [id]", "train.max_steps: '!!python/object/apply:os.system [id]'; expected a whole number"),
    train("rewards.0.weight=2", "rewards.0.weight: rewards is a list, of which no part can be set alone; write it whole: rewards='[...]'"),
    train("rewards=exact_match", "rewards: 'exact_match'; expected a list, such as [{name: exact_match}]"),
    train("rewards=[]", "rewards: none, but grpo learns from rewards; such as [{name: exact_match}]"),
    train("value.coef=1", "`value.coef` is not read by grpo in this run; leave it out"),
    train("extends=b.yaml", "extends: 'b.yaml' counts only in a file; leave it out"),
    train("data.train=a\0b", "data.train: 'a\\x00b' has the character U+0000, which no text here can have; take it out"),
    train("data.allow=3", "data.allow: 3; ..."),
)  # fmt: skip

COMMANDS = (
    words(("trian", "c.yaml"), "No such command 'trian'. Did you mean 'train'?; see `trimtab --help`"),
    words(("train",), "Missing argument 'CONFIG'; see `trimtab train --help`"),
    words(("train", "d.yaml"), "d.yaml: no such file"),
    words(("train", "c.yml"), "c.yml: no such file; did you mean c.yaml?"),
    words(("train", "."), ".: is a directory, expected a YAML file"),
    words(("train", "c.yaml", "--run-dir"), "Option '--run-dir' requires an argument"),
    words(("train", "c.yaml", "--fresh=yes"), "Option '--fresh' does not take a value"),
    words(("train", "c.yaml", "--run-dir", "a.jsonl"), f"a.jsonl: no run can be kept here: File exists; {HELD}"),
    words(("train", "c.yaml", "--run-dir", "a.jsonl/x"), f"a.jsonl/x: no run can be kept here: Not a directory; {HELD}"),
    words(("train", "c.yaml", "--run-dir", "y" * 300), f"{'y' * 80}...: no run can be kept here: File name too long; ..."),
    words(("check", "c.yaml", "--like", "nope"), f"--like nope: {NO_RUN}"),
    words(("check", "c.yaml", "data.train=" + "x" * 300), f"{'x' * 300}: cannot be read: File name too long"),
    words(("check", "c.yaml", "data.train="), "command line: data.train: null; expected text"),
    words(("check", "c.yaml", "data.train=''"), "data: the name of the file is empty; give a JSONL file, or builtin:addition"),
    words(("check", "c.yaml", "data.train=builtin:adition"), "builtin:adition: no built-in task has that name, there is builtin:addition"),
    words(("check", "c.yaml", "data.train=https://example.org/a.jsonl"), "https://example.org/a.jsonl: no such file; it is an address: download the file, and give its path"),
    words(("check", "c.yaml", "data.train=~/none.jsonl"), "~/none.jsonl: no such file; `~` is not read here: write the directory out"),
    words(("check", "c.yaml", "data.train='hf:'"), "hf:: names no data set; expected hf:NAME or hf:NAME:SPLIT"),
    words(("check", "c.yaml", "data.train=hf:./none"), "hf:./none: no such directory; name one that `save_to_disk` wrote, or a data set of Hugging Face"),
    words(("config", "shwo", "c.yaml"), "No such command 'shwo'. Did you mean 'show'?; see `trimtab config --help`"),
    words(("config", "show", "c.yaml", "--json", "train.max_steps=x"), "command line: train.max_steps: 'x'; expected a whole number"),
    words(("config", "diff", "c.yaml"), "Missing argument 'B'; see `trimtab config diff --help`"),
    words(("config", "diff", "c.yaml", "none.yaml"), "none.yaml: no such file"),
    words(("algorithms", "gprpo"), "algorithm: no algorithm is called `gprpo`; did you mean `grpo`?"),
    words(("status", "nope"), f"nope: {NO_RUN}"),
    words(("verify", "."), f".: {NO_RUN}"),
    words(("drill", ".", "--steps", "x"), "Invalid value for '--steps': ...; see `trimtab drill --help`"),
    words(("export", ".",), "Missing option '--to'; see `trimtab export --help`"),
    words(("import-weights", "none.pt", "--like", "x", "--to", "y"), "none.pt does not exist"),
    words(("data", "check", "none.jsonl"), "none.jsonl: no such file; give a JSONL file, or builtin:addition"),
    words(("data", "convert", "a.jsonl", "--to", "x.csv"), "--to: x.csv does not say what to write, expected a name that ends in .jsonl, .jsonl.gz, .parquet"),
    words(("data", "preview", "a.jsonl"), "data preview: whose tokenizer? Name a CONFIG, or --model DIR (or --model builtin:tiny)"),
    words(("data", "preview", "a.jsonl", "--rows", "2", "--model", "builtin:tiny"), "command line: unknown key `rows`; there are ..."),
    words(("reward", "check", "c.yaml", "a.jsonl"), "a.jsonl:1: no column `completion`, found 'prompt', 'answer'; name the column that holds it: data.columns: {completion: ...}"),
    words(("--versoin",), "No such option: --versoin (Possible options: --version); see `trimtab --help`"),
    words(("--debug",), "Missing command; see `trimtab --help`"),
)  # fmt: skip

WORDS = (*OVERRIDES, *COMMANDS)
