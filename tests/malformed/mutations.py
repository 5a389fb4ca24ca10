"""Random damage to files, by a seed: of bytes, as disks and copies do it, and of what the bytes mean, as people do it."""

import json
import random

import yaml

CHUNKS = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\n", b"\t", b"\\", b'"', b"'", b"{", b"}", b"[", b"]", b",", b":",
    b": ", b"- ", b"#", b"&a ", b"*a", b"!!python/object:os.system ", b"<<: ", b"---\n", b"...\n", b"%YAML 9\n", b"|\n", b">",
    b"\xc4\xe3", b"\xed\xa0\x80", b"\\ud800", b"\\u", b"NaN", b"-Infinity", b"1e999", b"9" * 400, b"[" * 300, b"{a: " * 200,
    b"null", b"true", b"~", b"\xe2\x80\xa8", b"\xf0\x9f\x8e\xb2", b"extends: ", b"@", b"`", b"%", b"auto", b"1:30", b"0x",
)  # fmt: skip
VALUES = (
    None, True, False, 0, -1, 1, 7, 2**62, 2**70, 0.5, -0.0, 1e-300, 1e300, "", " ", "auto", "null", "1e-6", "no", "a" * 300,
    "\0", "\ud800", "你好", [], {}, [[]], [None], {"": 1}, {"schedule": "linear"}, {"from": 1}, [1, 2], ["a"], {"name": 3},
    {"role": "user", "content": "a"}, [{"role": "user", "content": "a"}], "builtin:tiny", "../x", "${env:HOME}", "hf:",
)  # fmt: skip


def of_bytes(data: bytes, draw: random.Random) -> bytes:
    """Up to four of: a byte flipped, a piece taken out, put in, doubled, moved; the end cut off."""
    found = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(found) + 1)
        end = min(len(found), place + draw.choice((1, 1, 2, 5, 40)))
        match draw.randrange(6):
            case 0 if place < len(found):
                found[place] ^= 1 << draw.randrange(8)
            case 1:
                del found[place:end]
            case 2:
                found[place:place] = draw.choice(CHUNKS)
            case 3:
                found[place:place] = found[place:end]
            case 4:
                piece = found[place:end]
                del found[place:end]
                other = draw.randrange(len(found) + 1)
                found[other:other] = piece
            case 5:
                if draw.random() < 0.3:
                    del found[place:]
    return bytes(found)


def of_value(value, draw: random.Random):
    """A value with up to three of its parts replaced, renamed, taken out or doubled."""
    for _ in range(draw.randint(1, 3)):
        value = _once(value, draw)
    return value


def _once(value, draw):
    if isinstance(value, dict) and value and draw.random() < 0.9:
        name = draw.choice(list(value))
        match draw.randrange(5):
            case 0:
                return {k: v for k, v in value.items() if k != name}
            case 1:
                return {(_misspelt(str(k), draw) if k == name else k): v for k, v in value.items()}
            case 2:
                return {
                    **value,
                    draw.choice(("x", "prompt", "messages", "label", "policy", "", "a.b")): draw.choice(VALUES),
                }
            case _:
                return {**value, name: _once(value[name], draw)}
    if isinstance(value, list) and value and draw.random() < 0.8:
        place = draw.randrange(len(value))
        if draw.random() < 0.3:
            return [*value[:place], *value[place + 1 :]]
        return [*value[:place], _once(value[place], draw), *value[place + draw.randrange(2) :]]
    return draw.choice(VALUES)


def _misspelt(word: str, draw: random.Random) -> str:
    place = draw.randrange(len(word) + 1)
    return draw.choice((word[:place] + word[place + 1 :], word[:place] + "x" + word[place:], word.upper(), word + " "))


def rows(data: bytes, draw: random.Random) -> bytes:
    """A file of JSON lines, spoilt."""
    if draw.random() < 0.5:
        return of_bytes(data, draw)
    lines = data.splitlines()
    place = draw.randrange(len(lines))
    lines[place] = json.dumps(of_value(json.loads(lines[place]), draw)).encode()
    return b"\n".join(lines) + b"\n"


def settings(data: bytes, draw: random.Random) -> bytes:
    """A configuration, spoilt."""
    if draw.random() < 0.5:
        return of_bytes(data, draw)
    changed = of_value(yaml.safe_load(data), draw)
    return yaml.safe_dump(changed, allow_unicode=draw.random() < 0.5, default_flow_style=draw.random() < 0.3).encode(
        "utf-8", "surrogatepass"
    )
