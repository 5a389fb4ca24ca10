"""Configurations with a fault: bytes, YAML, keys, values, bases, and what does not go together."""

from tests.malformed.cases import settings

GRPO = "algorithm: grpo\nrewards: [exact_match]\n"
ALGORITHMS = "ppo, reinforce, ..., sft"
PLAIN = "a configuration holds text, numbers, true, false, null, lists and keys; take the tag out"
COLON = "is it indented too far, is a text with `: ` not in quotes, or is there no space behind a `:` above?"
SECTIONS = (
    "policy", "value", "reference", "kl", "advantage", "sampling", "data", "optim", "train", "eval", "checkpoint",
    "guard", "observe", "mismatch",
)  # fmt: skip
BOMB = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]\n" for n in range(9))
INNER = ("sampling.dynamic", "sampling.overlong", "eval.early_stop", "observe.samples", "policy.lora")


def more(name, text, *says, **options):
    """A good configuration of two lines, and behind it the text."""
    return settings(name, GRPO.encode() + text if isinstance(text, bytes) else GRPO + text, *says, **options)


# ---------------------------------------------------------------------------------------------------------- the bytes
BYTES = (
    settings("empty", "", "c.yaml:1: is empty; expected at least `algorithm:`"),
    settings("comments only", "# nothing yet\n", "c.yaml:1: is empty; expected at least `algorithm:`"),
    settings("UTF-16", GRPO.encode("utf-16"), "c.yaml:1:1: is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 c.yaml"),
    settings("UTF-16 without a mark", GRPO.encode("utf-16-be"), "c.yaml:1:1: not YAML: the character U+0000 cannot stand in YAML; take it out; is the file damaged?"),
    more("GBK", "# 你好\n".encode("gbk"), "c.yaml:3: not UTF-8: byte 0xc4 at offset 2 of the line; convert it, such as: iconv -f GBK -t UTF-8 c.yaml"),
    more("a NUL byte", b"policy: {model: 'a\x00b'}\n", "c.yaml:3:19: not YAML: the character U+0000 cannot stand in YAML; take it out; is the file damaged?"),
    more("a bell", b"policy: {model: 'a\x07b'}\n", "c.yaml:3:19: not YAML: the character U+0007 cannot stand in YAML; take it out; is the file damaged?"),
    more("NUL as an escape", 'policy: {model: "a\\0b"}\n', "c.yaml:3: policy.model: 'a\\x00b' has the character U+0000, which no text here can have; take it out"),
    more("half a surrogate pair", 'policy: {model: "\\ud800"}\n', "c.yaml:3: policy.model: '\\ud800' has the character U+D800, which no text here can have; take it out"),
    settings("a file of data", b'{"prompt": "a"}\n' * 30_000, "c.yaml: has more than 256 KiB, which is no configuration; is it a file of data?"),
    settings("null", "null\n", "c.yaml:1: found text 'null', expected keys and values; such as `algorithm: grpo`"),
    settings("a list", "- algorithm\n- grpo\n", "c.yaml:1: found a list, expected keys and values; such as `algorithm: grpo`"),
    settings("an equals sign", "algorithm = grpo\n", "c.yaml:1: found text 'algorithm = grpo', expected keys and values; such as `algorithm: grpo`"),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- the YAML
SYNTAX = (
    more("a tab as indentation", "policy:\n\tmodel: x\n", "c.yaml:4:1: not YAML: a tab where YAML wants spaces; indent with spaces"),
    more("a key indented too far", " policy: {}\n", "c.yaml:3:2: not YAML: indented otherwise than the keys beside it; keys of one section begin in the same column"),
    more("a key indented otherwise", "policy:\n  model: x\n clip_ratio: 1\n", "c.yaml:5:2: not YAML: indented otherwise than the keys beside it; keys of one section begin in the same column"),
    settings("no space behind a colon", "algorithm:grpo\nrewards: [exact_match]\n", f"c.yaml:2:8: not YAML: a `:` where no key can be; {COLON}"),
    more("a colon in a text", "policy: {model: x}: y\n", "c.yaml:3:19: not YAML: ..."),
    more("a brace that is not closed", "policy: {model: x\n", "c.yaml:3:9: not YAML: `{` is not closed; add `}`"),
    more("a bracket that is not closed", "mix: [a\n", "c.yaml:3:6: not YAML: `[` is not closed; add `]`"),
    more("a brace closed by a bracket", "policy: {model: x]\n", "c.yaml:3:18: not YAML: found `]`, expected `,` or `}`; is `{` closed in the line above?"),
    more("a quote that is not closed", 'policy: {model: "x}\n', "c.yaml:3:17: not YAML: the quote that begins here is not closed; add the second one"),
    more("a path of Windows in quotes", 'policy: {model: "C:\\models"}\n', "c.yaml:3:21: not YAML: `\\m` is no escape in double quotes; write two backslashes, or put it in single quotes"),
    more("an at sign", "policy: {model: @x}\n", "c.yaml:3:17: not YAML: `@` cannot begin a value; put the value in quotes"),
    more("a star", "policy: {model: *}\n", "c.yaml:3:18: not YAML: `&` or `*` without a name; put the value in quotes if it is no anchor"),
    more("a list on the line of its key", "mix: - a\n", "c.yaml:3:6: not YAML: a `-` where no list can begin; begin the list on a line of its own"),
    more("a key without a colon", "policy\n", "c.yaml:4:1: not YAML: a key without a `:` behind it; write `key: value`"),
    more("a key without a name", ": x\n", "c.yaml:3:1: not YAML: found `:` where a key is expected; is it indented as the keys beside it?"),
    more("an alias of nothing", "policy: *p\n", "c.yaml:3:9: not YAML: `*p` names no anchor; `&p` has to stand before it"),
    more("an anchor twice", "policy: &p {model: x}\nvalue: &p {coef: 1}\n", "c.yaml:4:8: not YAML: the anchor `&p` stands twice; give one of them another name"),
    more("an alias of itself", "policy: &p\n  model: *p\n", "c.yaml:3: policy.model: is an alias of what it stands in; write the values out"),
    more("aliases that unfold without end", BOMB, "c.yaml:...: unfolds to more than 100000 values; write less by aliases (`*name`)"),
    more("5,000 lists in each other", "policy: " + "[" * 5000 + "]" * 5000, "c.yaml:3:59: not YAML: nested more than 50 levels deep"),
    more("3,000 mappings in each other", "policy: " + "{a: " * 3000 + "}" * 3000, "c.yaml:3:206: not YAML: nested more than 50 levels deep"),
    more("a call of Python", "policy: !!python/object/apply:os.system ['echo hi']\n", f"c.yaml:3: policy: the tag !!python/object/apply:os.system is not read; {PLAIN}"),
    more("a name of Python", "policy: {model: !!python/name:os.system }\n", f"c.yaml:3: policy.model: the tag !!python/name:os.system is not read; {PLAIN}"),
    more("a tuple of Python", "optim: {betas: !!python/tuple [0.9, 0.99]}\n", f"c.yaml:3: optim.betas: the tag !!python/tuple is not read; {PLAIN}"),
    more("a tag of one's own", "policy: {model: !env X}\n", f"c.yaml:3: policy.model: the tag !env is not read; {PLAIN}"),
    more("bytes", "policy: {model: !!binary aGVsbG8=}\n", f"c.yaml:3: policy.model: the tag !!binary is not read; {PLAIN}"),
    more("a set", "policy: !!set {model, dtype}\n", f"c.yaml:3: policy: the tag !!set is not read; {PLAIN}"),
    more("a number that is none", "optim: {learning_rate: !!float fast}\n", "c.yaml:3: optim.learning_rate: 'fast' does not fit !!float"),
    more("a key twice", "algorithm: ppo\n", "c.yaml:3: key `algorithm` stands twice; it is in line 1 too; keep one"),
    more("a section twice", "policy: {model: x}\npolicy: {dtype: float32}\n", "c.yaml:4: key `policy` stands twice; it is in line 3 too; keep one"),
    more("several keys twice", "policy: {model: x, model: y}\nkl: {coef: 1, coef: 2}\n", "c.yaml:3: key `policy.model` stands twice; it is in line 3 too; keep one", "c.yaml:4: key `kl.coef` stands twice; it is in line 4 too; keep one"),
    more("a merge key", "policy: &b {model: x}\nvalue: {<<: *b}\n", "c.yaml:4: merge keys (`<<`) are not read; write the keys out, or put what is common into a file that `extends` names"),
    more("a list as a key", "? [a, b]\n: 1\n", "c.yaml:3: a key must be a word, found a list or keys; is a value with braces not in quotes?"),
    more("two documents", "---\nalgorithm: ppo\n", "c.yaml:3:1: not YAML: a second document begins here; a configuration is one; take out `---`, or split the file"),
    more("text behind the end", "...\nfoo\n", "c.yaml:4:1: not YAML: something stands where the document begins or has ended; take it out"),
    settings("YAML of another version", "%YAML 2.0\n---\n" + GRPO, "c.yaml:1:1: not YAML: found incompatible YAML document (version 1.* is required)"),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- the keys
KEYS = (
    more("an unknown section", "polcy: {}\n", "c.yaml:3: unknown key `polcy`; did you mean `policy`?"),
    more("an unknown key", "eval: {evry: 3}\n", "c.yaml:3: unknown key `eval.evry`; did you mean `every`?"),
    more("an unknown key two levels down", "observe: {samples: {evry: 3}}\n", "c.yaml:3: unknown key `observe.samples.evry`; did you mean `every`?"),
    more("an unknown key of an adapter", "policy: {lora: {rnak: 3}}\n", "c.yaml:3: unknown key `policy.lora.rnak`; did you mean `rank`?"),
    more("an unknown key of a schedule", "kl: {coef: {schedule: linear, from: 1, until: 0, steps: 3}}\n", "c.yaml:3: kl.coef.to is missing", "c.yaml:3: unknown key `kl.coef.until`; there are from, schedule, steps, to"),
    settings("an unknown key of a reward", "algorithm: grpo\nrewards: [{name: exact_match, wieght: 1}]\n", "c.yaml:2: unknown key `rewards.0.wieght`; did you mean `weight`?"),
    more("an unknown key of another algorithm", "overrides: {grpo: {kl: {coeff: 1}}}\n", "c.yaml:3: unknown key `kl.coeff`; did you mean `coef`?"),
    more("an unknown algorithm to override", "overrides: {gpro: {kl: {coef: 1}}}\n", "c.yaml:3: unknown key `overrides.gpro`; did you mean `grpo`?"),
    more("a key without its section", "learning_rate: 1\n", "c.yaml:3: unknown key `learning_rate`; did you mean `value.learning_rate` or `optim.learning_rate`?"),
    more("a key in another section", "policy: {max_steps: 1}\n", "c.yaml:3: unknown key `policy.max_steps`; did you mean `train.max_steps`?"),
    more("a number as a key", "3: x\n", "c.yaml:3: unknown key `3`; ..."),
    more("a decimal comma", "optim: {learning_rate: 0,001}\n", "c.yaml:3: unknown key `optim.001`; is it what stands behind a decimal comma? Write 0.001"),
    more("ten unknown keys", "".join(f"zz{n}: 1\n" for n in range(10)), *[f"c.yaml:{3 + n}: unknown key `zz{n}`; there are ..." for n in range(10)]),
)  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- the values
def value(key, text, said, name=""):
    section, _, rest = key.partition(".")
    return more(name or f"{key}: {text}", f"{section}: {{{rest}: {text}}}\n", f"c.yaml:3: {key}: {said}")


VALUES = (
    *[more(f"{name} as a number", f"{name}: 3\n", f"c.yaml:3: {name}: 3; expected keys and values") for name in SECTIONS],
    *[more(f"{name} as a list", f"{name}: [3]\n", f"c.yaml:3: {name}: [3]; expected keys and values") for name in SECTIONS],
    *[more(f"{name} without keys", f"{name}:\n", f"c.yaml:3: {name}: null; expected keys and values under it") for name in SECTIONS],
    *[value(name, "3", "3; expected keys and values") for name in INNER],
    *[value(name, "[3]", "[3]; expected keys and values") for name in INNER],
    more("mix as a number", "mix: 3\n", "c.yaml:3: mix: 3; expected a list, such as [{algorithm: dpo, data: pairs.jsonl, weight: 0.5}]"),
    more("mix of numbers", "mix: [3]\n", "c.yaml:3: mix[0]: 3; expected keys and values"),
    more("overrides as a number", "overrides: 3\n", "c.yaml:3: overrides: 3; expected algorithms and their sections"),
    settings("rewards as a number", "algorithm: grpo\nrewards: 3\n", "c.yaml:2: rewards: 3; expected a list, such as [{name: exact_match}]"),
    settings("rewards of numbers", "algorithm: grpo\nrewards: [3]\n", "c.yaml:2: rewards.0: 3; expected keys and values"),
    settings("no algorithm", "rewards: [exact_match]\n", f"c.yaml:1: there is no `algorithm`; choose {ALGORITHMS}"),
    settings("algorithm null", "algorithm:\n", f"c.yaml:1: there is no `algorithm`; choose {ALGORITHMS}"),
    settings("algorithm a list", "algorithm: [grpo]\n", f"c.yaml:1: algorithm: ['grpo']; choose {ALGORITHMS}"),
    settings("algorithm misspelt", "algorithm: gpro\n", "c.yaml:1: algorithm: no algorithm is called `gpro`; did you mean `grpo`?"),
    settings("algorithm in capitals", "algorithm: GRPO\n", "c.yaml:1: algorithm: no algorithm is called `GRPO`; did you mean `grpo`?"),
    settings("an algorithm that is none", "algorithm: zzzz\n", f"c.yaml:1: algorithm: no algorithm is called `zzzz`; there are: {ALGORITHMS}"),
    value("optim.learning_rate", "1e-6x", "'1e-6x'; expected a number"),
    value("optim.learning_rate", "10%", "'10%'; expected a number"),
    value("optim.learning_rate", "-1", "-1; expected at least 0"),
    value("optim.learning_rate", ".inf", "inf; expected a finite number"),
    value("optim.learning_rate", ".nan", "nan; expected a finite number"),
    value("optim.learning_rate", "null", "null; expected a number"),
    value("optim.learning_rate", "true", "true; expected a number"),
    value("optim.learning_rate", "[1e-6]", "[1e-06]; expected a number"),
    value("optim.schedule", "cosin", "'cosin'; expected 'constant', 'linear' or 'cosine'"),
    value("policy.dtype", "fp32", "'fp32'; expected 'float32', 'bfloat16' or 'float16'"),
    value("policy.model", "[a]", "['a']; expected text"),
    value("policy.clip_ratio", "wide", "'wide'; expected a number"),
    value("train.max_steps", "10.5", "10.5; expected a whole number"),
    value("train.max_steps", "0", "0; expected at least 1"),
    value("train.max_steps", "", "null; expected a whole number", "max_steps without a value"),
    value("train.max_steps", "1:30", "'1:30'; expected a whole number"),
    value("train.max_steps", "99999999999999999999", "'99999999999999999999' does not fit into 64 bits"),
    value("train.seed", "9" * 5000, f"'{'9' * 59}... does not fit into 64 bits", "a seed of 5,000 digits"),
    value("data.shuffle", "perhaps", "'perhaps'; expected true or false"),
    value("data.columns", "[a]", "['a']; expected keys and values"),
    more("several values", "optim: {learning_rate: fast}\ntrain: {max_steps: 0}\nkl: {coef: high}\n", "c.yaml:3: optim.learning_rate: 'fast'; expected a number", "c.yaml:4: train.max_steps: 0; expected at least 1", "c.yaml:5: kl.coef: 'high'; expected a number"),
)  # fmt: skip


# --------------------------------------------------------------------------------------------------- bases, and together
TOGETHER = (
    more("a base that is not there", "extends: bse.yaml\n", "c.yaml:3: bse.yaml: no such file; did you mean base.yaml?", files={"base.yaml": b"kl: {coef: 0}\n"}),
    more("a base that is itself", "extends: c.yaml\n", "c.yaml:3: extends: c.yaml extends itself (c.yaml -> c.yaml); take one `extends` out"),
    more("bases in a ring", "extends: b.yaml\n", "a.yaml:1: extends: c.yaml extends itself (c.yaml -> b.yaml -> a.yaml -> c.yaml); take one `extends` out", files={"b.yaml": b"extends: a.yaml\n", "a.yaml": b"extends: c.yaml\n"}),
    more("a base that is a list", "extends: [b.yaml]\n", "c.yaml:3: extends: ['b.yaml']; expected the path of a YAML file"),
    more("a base that is no YAML", "extends: b.yaml\n", "b.yaml:1:4: not YAML: `[` is not closed; add `]`", files={"b.yaml": b"a: [1\n"}),
    more("a fault in a base", "extends: b.yaml\n", "b.yaml:2: kl.coef: 'high'; expected a number", files={"b.yaml": b"kl:\n  coef: high\n"}),
    more("a group of one", "sampling: {group_size: 1}\n", "c.yaml:3: sampling.group_size: 1, but grpo compares completions of one prompt; use 2 or more"),
    settings("no critic", "algorithm: ppo\nrewards: [exact_match]\nvalue: {enabled: false}\n", "c.yaml:3: value.enabled: false, but ppo needs a critic; leave it out, or use grpo"),
    settings("no reward", "algorithm: grpo\n", "c.yaml:1: rewards: none, but grpo learns from rewards; such as [{name: exact_match}]"),
    settings("a reward that is none", "algorithm: grpo\nrewards: [exact_mach]\n", "c.yaml:2: no reward is called `exact_mach`; did you mean `exact_match`?"),
    settings("an option that a reward lacks", "algorithm: grpo\nrewards: [{name: length, options: {max_tokns: 4}}]\n", "c.yaml:2: reward length has no option `max_tokns`; it has max_tokens"),
    settings("a pattern that is none", "algorithm: grpo\nrewards: [{name: regex, options: {pattern: '('}}]\n", "c.yaml:2: reward regex: missing ), unterminated subpattern at position 0"),
    more("clip_ratio beside clip_low", "policy: {clip_ratio: 0.2, clip_low: 0.1}\n", "c.yaml:3: policy.clip_ratio beside policy.clip_low; set clip_ratio, or clip_low and clip_high"),
    more("no room for a completion", "sampling: {max_prompt_length: 64, max_length: 64}\n", "c.yaml:3: sampling.max_prompt_length: 64 leaves no room for a completion in sampling.max_length: 64"),
    more("more mini-batches than prompts", "train: {minibatches: 8, prompts_per_step: 4}\n", "c.yaml:3: train.minibatches: 8, but a step has train.prompts_per_step: 4, and a mini-batch has whole prompts"),
    more("a batch that does not divide", "batch_size: 10\n", "c.yaml:3: batch_size: 10 completions are no whole number of groups of sampling.group_size: 8; make it a multiple"),
)  # fmt: skip

SETTINGS = (*BYTES, *SYNTAX, *KEYS, *VALUES, *TOGETHER)
