"""Files of rows with a fault: JSON lines, gzip, JSON arrays, Parquet; prompts, demonstrations, pairs, labels."""

import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet

from tests.malformed.cases import CONFIGS, Case, rows

PROMPT = b'{"prompt": "1+1=", "answer": "2"}\n'
PAIR = b'{"prompt": "1+1=", "chosen": "2", "rejected": "3"}\n'
LABEL = b'{"prompt": "1+1=", "completion": "2", "label": true}\n'
DEMONSTRATION = b'{"prompt": "1+1=", "completion": "2"}\n'
GOOD = {"grpo": PROMPT, "dpo": PAIR, "kto": LABEL, "sft": DEMONSTRATION}
USER, ASSISTANT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}
CUT_OFF = "is the line cut off? A line end inside a text is written \\n"
NO_END = "is the line cut off, or an object on more than one line?"
AGAIN = "fetch it again, or write it again"
ROLES = "expected one of system, developer, user, assistant, tool"
LABELS = "expected true or false (1, 0, 'true' and 'false' are read as well)"


def second(name, line, *says, by="grpo"):
    """A good row, then the line, then a good row again: only the line is refused."""
    data = line if isinstance(line, bytes) else json.dumps(line).encode()
    return rows(name, GOOD[by] + data + b"\n" + GOOD[by], *says, by=by)


def parquet(**columns):
    out = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(columns), out)
    return out.getvalue()


# ------------------------------------------------------------------------------------------------------------ a line
LINES = (
    second("cut inside a text", b'{"prompt": "1+1=", "ans', f"FILE:2:20: not JSON: the text that begins here does not end; {CUT_OFF}"),
    second("cut behind a colon", b'{"prompt": "1+1=", "answer":', f"FILE:2:29: not JSON: ends where a value is expected; {NO_END}"),
    second("cut behind a value", b'{"prompt": "1+1="', f"FILE:2:18: not JSON: ends where `,` or a closing bracket is expected; {NO_END}"),
    second("cut at an escape", b'{"prompt": "1\\', f"FILE:2:12: not JSON: the text that begins here does not end; {CUT_OFF}"),
    second("key without quotes", b'{prompt: "a"}', 'FILE:2:2: not JSON: found `prompt: "a"}`, expected a key in double quotes'),
    second("single quotes", b"{'prompt': 'a'}", "FILE:2:2: not JSON: `'prompt': 'a'}` has single quotes, expected double ones"),
    second("comma at the end", b'{"prompt": "a", }', "FILE:2:17: not JSON: a comma with nothing behind it; take it out"),
    second("no comma", b'{"prompt": "a" "answer": "1"}', 'FILE:2:16: not JSON: found `"answer": "1"}`, expected `,` or a closing bracket'),
    second("no colon", b'{"prompt" "a"}', 'FILE:2:11: not JSON: found `"a"}`, expected `:`'),
    second("comma behind the object", PROMPT.strip() + b",", "FILE:2:34: more than one value on the line: `,` follows; JSON lines have no commas between them; take it out"),
    second("two objects", PROMPT.strip() * 2, "FILE:2:34: more than one value on the line: `{...` follows; put each object on a line of its own"),
    second("a brace too many", PROMPT.strip() + b"}", "FILE:2:34: more than one value on the line: `}` follows; take it out"),
    second("a value of Python", b'{"prompt": "a", "answer": True}', "FILE:2:27: not JSON: `True` is Python's, expected true; write the file with json.dumps"),
    second("a comment", b"# the second part", "FILE:2:1: not JSON: a comment, and JSON has none; take it out"),
    second("a word", b"hello", "FILE:2:1: not JSON: found `hello`, expected a value"),
    second("a number with a zero in front", b'{"prompt": "a", "answer": 01}', "FILE:2:28: not JSON: found `1}`, expected `,` or a closing bracket"),
    second("an escape that is none", b'{"prompt": "\\frac\\x"}', "FILE:2:18: not JSON: `\\x` is no escape; write a backslash as two: \\\\"),
    second("half an escape", b'{"prompt": "\\u12"}', 'FILE:2:14: not JSON: `\\u12"}` is no escape; four hexadecimal digits follow \\u'),
    second("a tab in a text", b'{"prompt": "a\tb"}', "FILE:2:14: not JSON: a tab inside a text; write it as \\t"),
    second("a bell in a text", b'{"prompt": "a\x07b"}', "FILE:2:14: not JSON: the control character U+0007 inside a text; write it as \\u0007"),
    second("NUL in a text", b'{"prompt": "a\x00b"}', "FILE:2:14: not JSON: a NUL byte inside a text; the file may be damaged; fetch or write it again"),
    second("a line of NUL", b"\x00" * 40, "FILE:2:1: not JSON: NUL bytes, expected a value; the file may be damaged; fetch or write it again"),
    second("a mark inside the file", b"\xef\xbb\xbf" + PROMPT.strip(), "FILE:2:1: not JSON: a byte order mark (U+FEFF) inside the file; were two files put together? Take it out"),
    second("GBK", '{"prompt": "你"}'.encode("gbk"), "FILE:2: not UTF-8: byte 0xc4 at offset 12 of the line; convert it, such as: iconv -f GBK -t UTF-8 FILE"),
    second("Latin", '{"prompt": "é"}'.encode("latin-1"), "FILE:2: not UTF-8: byte 0xe9 at offset 12 of the line; convert it, such as: iconv -f CP1252 -t UTF-8 FILE"),
    second("a character cut in two", '{"prompt": "你'.encode()[:-1] + b'"}', "FILE:2: not UTF-8: byte 0xe4 at offset 12 of the line; ..."),
    second("bytes of half a pair", b'{"prompt": "\xed\xa0\x80"}', "FILE:2: not UTF-8: byte 0xed at offset 12 of the line; it is half a surrogate pair, which is no character; write the text anew from its source"),
    second("half a surrogate pair", b'{"prompt": "\\ud800"}', "FILE:2: `prompt` has half a surrogate pair, which is no character"),
    second("a key twice", b'{"prompt": "a", "prompt": "b"}', "FILE:2: key 'prompt' stands twice in one object"),
    second("a key twice inside", b'{"prompt": "a", "x": {"k": 1, "k": 2}}', "FILE:2: key 'k' stands twice in one object"),
    second("NaN", b'{"prompt": "a", "x": NaN}', "FILE:2: NaN is not JSON; write a number or null"),
    second("infinity", b'{"prompt": "a", "x": -Infinity}', "FILE:2: -Infinity is not JSON; write a number or null"),
    second("a number without end", b'{"prompt": "a", "x": 1e999}', "FILE:2: the number 1e999 is too large; write it as text"),
    second("an integer of 64 bits", b'{"prompt": "a", "x": 9223372036854775808}', "FILE:2: the integer 9223372036854775808 does not fit into 64 bits; write it as text"),
    second("an integer of 5,000 digits", b'{"prompt": "a", "x": ' + b"9" * 5000 + b"}", f"FILE:2: the integer {'9' * 24} does not fit into 64 bits; write it as text"),
    second("10,000 lists in each other", b'{"prompt": "a", "x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "FILE:2: is nested more than 64 levels deep; ..."),
    second("100,000 brackets", b"[" * 100_000, "FILE:2: is nested more than 64 levels deep; ..."),
    second("100 objects in each other", b'{"prompt": "a", "x": ' + b'{"y": ' * 100 + b"1" + b"}" * 101, "FILE:2: `x` is nested more than 64 levels deep; ..."),
    second("10 MB that do not end", b'{"prompt": "' + b"a" * (10 << 20), f"FILE:2:12: not JSON: the text that begins here does not end; {CUT_OFF}"),
    second("10 MB of nothing", b"a" * (10 << 20), "FILE:2:1: not JSON: found `aaaaaaaaaaaaaaaaaaaaaaaa...`, expected a value"),
    second("null", b"null", "FILE:2: expected a JSON object, found null"),
    second("a number", b"3.5", "FILE:2: expected a JSON object, found a number"),
    second("a text", b'"abc"', "FILE:2: expected a JSON object, found text"),
    second("a list", b'["a", "b"]', "FILE:2: expected a JSON object, found a list"),
    second("a list of objects", b'[{"prompt": "a"}]', "FILE:2: expected a JSON object, found a list; let the file's name end in .json, or: jq -c '.[]' FILE > NEW.jsonl"),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- a file
FILES = (
    rows("empty", b"", "FILE:1: has no rows; expected one JSON object a line"),
    rows("blank lines only", b"\n \n\t\r\n", "FILE:1: has no rows; expected one JSON object a line"),
    rows("a mark alone", b"\xef\xbb\xbf", "FILE:1: has no rows; expected one JSON object a line"),
    rows("a directory", None, "FILE: is a directory, expected a JSONL file; a data set that was saved there is hf:FILE"),
    rows("UTF-16", PROMPT.decode().encode("utf-16"), "FILE:1:1: is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE"),
    rows("UTF-16 without a mark", PROMPT.decode().encode("utf-16-le"), "FILE:1:1: is UTF-16LE; convert it: iconv -f UTF-16LE -t UTF-8 FILE"),
    rows("UTF-16 the other way round", PROMPT.decode().encode("utf-16-be"), "FILE:1:1: is UTF-16BE; convert it: iconv -f UTF-16BE -t UTF-8 FILE"),
    rows("UTF-32", PROMPT.decode().encode("utf-32"), "FILE:1:1: is UTF-32; convert it: iconv -f UTF-32 -t UTF-8 FILE"),
    rows("two marks", b"\xef\xbb\xbf\xef\xbb\xbf" + PROMPT, "FILE:1:1: not JSON: a byte order mark (U+FEFF) inside the file; were two files put together? Take it out"),
    rows("lines that end in CR", PROMPT.replace(b"\n", b"\r") * 3, "FILE:1:34: its lines end in CR alone, expected LF; convert them: tr '\\r' '\\n' < FILE > NEW.jsonl"),
    rows("one object over several lines", b'{\n "prompt": "a",\n "answer": "1"\n}\n', "FILE:1:1: is JSON over several lines, expected one object a line; jq -c '.' FILE > NEW.jsonl"),
    rows("an array over several lines", b'[\n {"prompt": "a"}\n]\n', "FILE:1:1: is a JSON array over several lines, expected one object a line; jq -c '.[]' FILE > NEW.jsonl"),
    rows("an array on one line", b'[{"prompt": "a"}]\n', "FILE:1: expected a JSON object, found a list; let the file's name end in .json, or: jq -c '.[]' FILE > NEW.jsonl"),
    rows("CSV", b"prompt,answer\n1+1=,2\n", "FILE:1:1: looks like CSV, expected one JSON object a line; pandas.read_csv('FILE').to_json('NEW.jsonl', orient='records', lines=True)"),
    rows("TSV", b"prompt\tanswer\n1+1=\t2\n", "FILE:1:1: looks like TSV, expected one JSON object a line; pandas.read_csv('FILE', sep='\\t').to_json('NEW.jsonl', orient='records', lines=True)"),
    rows("the page of an error", b"<!DOCTYPE html>\n<html>404</html>\n", "FILE:1:1: is HTML or XML, not JSON lines; is it the page of an error that was downloaded in the file's place?"),
    rows("a pointer of LFS", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n", "FILE:1:1: is a pointer of Git LFS, not the file itself; fetch it: git lfs pull"),
    rows("gzip by another name", gzip.compress(PROMPT), "FILE:1:1: is gzip; let its name end in .gz"),
    rows("Parquet by another name", parquet(prompt=["a"]), "FILE:1:1: is Parquet; let its name end in .parquet"),
    rows("a ZIP archive", b"PK\x03\x04" + bytes(60), "FILE:1:1: is a ZIP archive; unpack it: unzip FILE"),
    rows("zstd", b"\x28\xb5\x2f\xfd" + bytes(60), "FILE:1:1: is zstd; unpack it: zstd -d FILE", file="a.jsonl.zst"),
    rows("30 faults", b"x\n" * 30, *[f"FILE:{line}:1: not JSON: found `x`, expected a value" for line in range(1, 21)]),
    rows("faults in several rows", b'{"prompt": 1}\n' + PROMPT + b'nonsense\n{"prompt": ""}\n', "FILE:1: `prompt` is a number, expected text or messages", "FILE:3:1: not JSON: found `nonsense`, expected a value", "FILE:4: `prompt` is empty, expected text"),
    Case(name="a file that cannot be read", files={"c.yaml": CONFIGS["grpo"].replace("FILE", "a.jsonl").encode()}, links={"a.jsonl": "/proc/self/mem"}, argv=("train", "c.yaml", "--run-dir", "run"), says=("a.jsonl: cannot be read: Input/output error",)),
    Case(name="no such file", files={"c.yaml": CONFIGS["grpo"].replace("FILE", "rows.jsonl").encode(), "row.jsonl": PROMPT}, argv=("train", "c.yaml", "--run-dir", "run"), says=("rows.jsonl: no such file; did you mean row.jsonl?",)),
    Case(name="a link to nowhere", files={"c.yaml": CONFIGS["grpo"].replace("FILE", "a.jsonl").encode()}, links={"a.jsonl": "nowhere"}, argv=("train", "c.yaml", "--run-dir", "run"), says=("a.jsonl: no such file; ...",)),
)  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- columns
COLUMNS = (
    rows("a column of another name", b'{"question": "a", "answer": "1"}\n' * 3, "FILE:1: no column `prompt`, found 'question', 'answer' (so too in 2 more rows); name the column that holds it: data.columns: {prompt: question}"),
    rows("a column in capitals", b'{"Prompt": "a", "answer": "1"}\n', "FILE:1: no column `prompt`, found 'Prompt', 'answer'; name the column that holds it: data.columns: {prompt: Prompt}"),
    second("no prompt", {"answer": "1"}, "FILE:2: no column `prompt`, found 'answer'; name the column that holds it: data.columns: {prompt: ...}"),
    second("nothing", {}, "FILE:2: no column `prompt`, found none; name the column that holds it: data.columns: {prompt: ...}"),
    second("no answer", {"prompt": "a"}, "FILE:2: no column `answer`, which reward exact_match reads; found 'prompt'; name the column that holds it: data.columns: {answer: ...}"),
    second("answer a list", {"prompt": "a", "answer": ["1"]}, "FILE:2: `answer` is a list, which reward exact_match cannot compare; expected text or a number, or null"),
    second("answer an object", {"prompt": "a", "answer": {"value": 1}}, "FILE:2: `answer` is an object, which reward exact_match cannot compare; expected text or a number, or null"),
    second("prompt null", {"prompt": None}, "FILE:2: `prompt` is null, expected text or messages"),
    second("prompt a number", {"prompt": 3}, "FILE:2: `prompt` is a number, expected text or messages"),
    second("prompt true", {"prompt": True}, "FILE:2: `prompt` is true, expected text or messages"),
    second("prompt empty", {"prompt": ""}, "FILE:2: `prompt` is empty, expected text"),
    second("prompt an object", {"prompt": {"a": 1}}, "FILE:2: `prompt` is an object, expected text or messages"),
    second("prompt an empty list", {"prompt": []}, "FILE:2: `prompt` is empty, expected messages"),
    second("prompt a list of texts", {"prompt": ["a"]}, "FILE:2: `prompt[0]` is text, expected an object with role and content"),
    second("prompt that ends with an answer", {"prompt": [USER, ASSISTANT]}, "FILE:2: `prompt` ends with a turn of the assistant, expected one of the user; put a whole conversation into `messages`"),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------ demonstrations
def turns(name, messages, *says):
    return second(name, {"messages": messages}, *says, by="sft")


DEMONSTRATIONS = (
    second("no completion", {"prompt": "a"}, "FILE:2: no column `completion`, found 'prompt'; name the column that holds it: data.columns: {completion: ...}", by="sft"),
    second("other names", {"instruction": "a", "output": "b"}, "FILE:2: no column `prompt` and no `completion`, found 'instruction', 'output'; name the columns that hold them: data.columns: {prompt: instruction, completion: output}", by="sft"),
    second("conversations", {"conversations": [USER, ASSISTANT]}, "FILE:2: no column `prompt` and no `completion`, found 'conversations'; name the column that holds it: data.columns: {messages: conversations}", by="sft"),
    second("completion empty", {"prompt": "a", "completion": ""}, "FILE:2: `completion` is empty, expected text", by="sft"),
    second("completion null", {"prompt": "a", "completion": None}, "FILE:2: `completion` is null, expected text or messages", by="sft"),
    second("completion of messages, prompt of text", {"prompt": "a", "completion": [ASSISTANT]}, "FILE:2: `completion` is messages, but `prompt` is text; write both as messages or both as text", by="sft"),
    second("completion of two turns", {"prompt": [USER], "completion": [ASSISTANT, USER]}, "FILE:2: `completion` has the turns assistant, user, expected one of the assistant; put a whole conversation into `messages`", by="sft"),
    turns("messages null", None, "FILE:2: `messages` is null, expected a list of messages"),
    turns("messages a text", "hi", "FILE:2: `messages` is text, expected a list of messages"),
    turns("messages an object", USER, "FILE:2: `messages` is an object, expected a list of messages"),
    turns("no messages", [], "FILE:2: `messages` is empty, expected messages"),
    turns("numbers as messages", [1, 2], "FILE:2: `messages[0]` is a number, expected an object with role and content"),
    turns("no role", [{"content": "hi"}, ASSISTANT], f"FILE:2: `messages[0]` has no role, found 'content'; {ROLES}"),
    turns("role null", [{"role": None, "content": "hi"}, ASSISTANT], f"FILE:2: `messages[0].role` is null, {ROLES}"),
    turns("a role of another system", [USER, {"role": "bot", "content": "hi"}], f"FILE:2: `messages[1].role` is 'bot', {ROLES}; did you mean `assistant`?"),
    turns("a role in capitals", [{"role": "User", "content": "hi"}, ASSISTANT], f"FILE:2: `messages[0].role` is 'User', {ROLES}; did you mean `user`?"),
    turns("a role that is none", [{"role": "moderator", "content": "hi"}, ASSISTANT], f"FILE:2: `messages[0].role` is 'moderator', {ROLES}"),
    turns("no content", [{"role": "user"}, ASSISTANT], "FILE:2: `messages[0]` has no content, expected text or a list of text parts"),
    turns("content null", [{"role": "user", "content": None}, ASSISTANT], "FILE:2: `messages[0].content` is null, expected text or a list of text parts"),
    turns("content empty", [{"role": "user", "content": ""}, ASSISTANT], "FILE:2: `messages[0].content` is empty, expected text"),
    turns("answer empty", [USER, {"role": "assistant", "content": ""}], "FILE:2: the last turn of the assistant is empty, expected text"),
    turns("content a number", [{"role": "user", "content": 3}, ASSISTANT], "FILE:2: `messages[0].content` is a number, expected text or a list of text parts"),
    turns("an image", [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, ASSISTANT], "FILE:2: `messages[0].content[0]` is of type 'image_url', expected {type: text, text: ...}"),
    turns("assistant first", [ASSISTANT, USER, ASSISTANT], "FILE:2: `messages` has a turn of the assistant before any of the user; begin with the turn that it answers"),
    turns("no assistant", [USER], "FILE:2: `messages` has no turn of the assistant to imitate"),
)  # fmt: skip


# -------------------------------------------------------------------------------------------------- pairs and labels
def pair(name, *says, **columns):
    return second(name, columns, *says, by="dpo")


def label(name, given):
    shown = {None: "null"}.get(given, repr(given)) if not isinstance(given, list) else "[True]"
    return second(
        name, {"prompt": "a", "completion": "b", "label": given}, f"FILE:2: `label` is {shown}, {LABELS}", by="kto"
    )


JUDGED = (
    pair("no rejected", 'FILE:2: a pair has `prompt`, `chosen` and `rejected`; no `rejected`, found `prompt`, `chosen`; such as {"prompt": "2+2=", "chosen": "4", "rejected": "5"}; for other names data.columns: {rejected: ...}', prompt="a", chosen="b"),
    pair("other names", "FILE:2: a pair has `prompt`, `chosen` and `rejected`; no `chosen` and no `rejected`, found `prompt`, `winner`, `loser`; ...; for other names data.columns: {chosen: winner, rejected: loser}", prompt="a", winner="b", loser="c"),
    pair("no prompt", "FILE:2: no `prompt`, and `chosen` is no dialogue: it has no line that begins with `Assistant:`; add the column `prompt`, or name it: data.columns: {prompt: ...}", chosen="b", rejected="c"),
    pair("chosen null", "FILE:2: `chosen` is null, expected text or messages", prompt="a", chosen=None, rejected="c"),
    pair("rejected a number", "FILE:2: `rejected` is a number, expected text or messages", prompt="a", chosen="b", rejected=3),
    pair("chosen of texts", "FILE:2: `chosen[0]` is text, expected an object with role and content", prompt="a", chosen=["b"], rejected=["c"]),
    pair("one side of messages", "FILE:2: `chosen` is messages, the other columns are text; write all as messages or all as text", prompt="a", chosen=[ASSISTANT], rejected="c"),
    pair("prompt empty", "FILE:2: `prompt` is empty, expected text", prompt="", chosen="b", rejected="c"),
    pair("margin a text", "FILE:2: `margin` is '1', expected a number of at least 0", prompt="a", chosen="b", rejected="c", margin="1"),
    pair("margin below 0", "FILE:2: `margin` is -1, expected a number of at least 0", prompt="a", chosen="b", rejected="c", margin=-1),
    pair("margin true", "FILE:2: `margin` is true, expected a number of at least 0", prompt="a", chosen="b", rejected="c", margin=True),
    pair("dialogues of two prompts", "FILE:2: `chosen` and `rejected` part at messages[0], which is not the assistant's in both; ...", chosen=[USER, ASSISTANT], rejected=[{"role": "user", "content": "y"}, ASSISTANT]),
    pair("a dialogue that ends with the user", "FILE:2: `chosen` ends with a turn of the user, expected one of the assistant", chosen=[USER, ASSISTANT, USER], rejected=[USER, {"role": "assistant", "content": "c"}]),
    pair("texts of two prompts", "FILE:2: `chosen` and `rejected` part at character 10, before the first `Assistant:`; ...", chosen="\n\nHuman: a\n\nAssistant: x", rejected="\n\nHuman: b\n\nAssistant: y"),
    label("label null", None),
    label("label yes", "yes"),
    label("label a word", "desirable"),
    label("label empty", ""),
    label("label 2", 2),
    label("label below 0", -1),
    label("label a half", 0.5),
    label("label a list", [True]),
    second("no label", {"prompt": "a", "completion": "b", "desirable": True}, 'FILE:2: no column `label`, found `prompt`, `completion`, `desirable`; such as {"prompt": "2+2=", "completion": "4", "label": true}; for another name data.columns: {label: desirable}', by="kto"),
    second("no completion", {"prompt": "a", "label": True}, "FILE:2: no column `completion`, found 'prompt', 'label'; name the column that holds it: data.columns: {completion: ...}", by="kto"),
    second("completion a number", {"prompt": "a", "completion": 4, "label": True}, "FILE:2: `completion` is a number, expected text or messages", by="kto"),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------- other forms
PACKED = gzip.compress(DEMONSTRATION * 1000, mtime=0)
TABLE = parquet(prompt=["a", "b"], completion=["c", "d"])


def packed(name, data, *says):
    return rows(name, data, *says, by="sft", file="a.jsonl.gz")


def columnar(name, data, *says):
    return rows(name, data, *says, by="sft", file="a.parquet")


def array(name, data, *says):
    return rows(name, data, *says, by="sft", file="a.json")


FORMS = (
    packed("gzip that is cut", PACKED[:-20], "FILE: is not whole gzip: its end is cut off; fetch it again, or pack it again: gzip ..."),
    packed("gzip that is none", DEMONSTRATION, "FILE: is no gzip: it begins with b'{\"'; let its name end as what it is, such as .jsonl"),
    packed("gzip with another checksum", PACKED[:-6] + b"\0" + PACKED[-5:], "FILE: is not whole gzip: its checksum is not that of the data; ..."),
    packed("gzip with a bit flipped", PACKED[:40] + bytes([PACKED[40] ^ 255]) + PACKED[41:], "FILE: is not whole gzip: invalid ...; fetch it again, ..."),
    packed("gzip with junk behind it", PACKED + b"junk", "FILE: is not whole gzip: something else follows the packed data; ..."),
    packed("gzip of nothing", gzip.compress(b""), "FILE:1: has no rows; expected one JSON object a line"),
    packed("gzip of a fault", gzip.compress(DEMONSTRATION + b"x\n"), "FILE:2:1: not JSON: found `x`, expected a value"),
    packed("gzip of gzip", gzip.compress(PACKED), "FILE:1:1: is packed twice; unpack it once: gunzip FILE"),
    columnar("Parquet that is cut", TABLE[:-10], f"FILE: is not whole Parquet: its {len(TABLE) - 10:,} bytes do not end with PAR1, so the end is cut off; {AGAIN}"),
    columnar("Parquet that is none", DEMONSTRATION, "FILE: is no Parquet: it begins with b'{\"pr'; let its name end as what it is, such as .jsonl"),
    columnar("Parquet of no bytes", b"", "FILE: is empty; write it again"),
    columnar("Parquet with junk inside", b"PAR1" + b"\xff" * 30 + TABLE[34:], f"FILE: is not whole Parquet: ...; {AGAIN}"),
    columnar("Parquet with another footer", b"PAR1" + bytes(40) + b"PAR1", "FILE: is not whole Parquet: ..."),
    columnar("Parquet without rows", parquet(prompt=pa.array([], pa.string()), completion=pa.array([], pa.string())), "FILE:1: has no rows; expected one JSON object a line"),
    columnar("Parquet with null", parquet(prompt=["a", None], completion=["c", "d"]), "FILE:2: no column `prompt`, found 'completion'; ..."),
    columnar("Parquet of bytes", parquet(prompt=["a", "b"], completion=[b"c", b"d"]), "FILE:1: `completion` holds bytes; leave the column out, or write it as text"),
    columnar("Parquet with NaN", parquet(prompt=["a", "b"], completion=["c", "d"], w=[1.0, float("nan")]), "FILE:2: `w` holds NaN or infinity, which JSON does not have; write null, or leave the column out"),
    array("array that is cut", b'[{"prompt":"a","completion":"b"},', "FILE:1:34: not JSON: ends where a value is expected; is the file cut off?"),
    array("array without a comma", b'[{"prompt":"a","completion":"b"}\n{"prompt":"a"}]', 'FILE:2:1: not JSON: found `{"prompt":"a"}]`, expected `,` or a closing bracket'),
    array("array with a comma at its end", b'[{"prompt":"a","completion":"b"},]', "FILE:1:34: not JSON: a comma with nothing behind it; take it out"),
    array("array of texts", b'["a"]', "FILE:1: expected a JSON object, found text"),
    array("array and more", b'[{"prompt":"a","completion":"b"}]\n[1]', "FILE:2: more than one value in the file: `[1]` follows the array; take it out, or put it into the array"),
    array("empty array", b"[]", "FILE:1: has no rows; expected one JSON object a line"),
    array("array nested deeply", b'[{"prompt":"a","completion":' + b"[" * 9999 + b"]", "FILE:1: an element is nested too deeply; a row has a few levels at most"),
    array("array in GBK", '[{"prompt":"你","completion":"b"}]'.encode("gbk"), "FILE:1: not UTF-8: byte 0xc4 at offset 12 of the line; convert it, such as: iconv -f GBK -t UTF-8 FILE"),
)  # fmt: skip

ROWS = (*LINES, *FILES, *COLUMNS, *DEMONSTRATIONS, *JUDGED, *FORMS)
