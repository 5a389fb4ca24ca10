"""A run over rows of another program says so, and knows them again by their fingerprint."""

import hashlib
import json
from types import SimpleNamespace

import pytest

from trimtab import config as configs
from trimtab.assemble import inputs, reading
from trimtab.data import rows
from trimtab.data.files import Opened, Stored
from trimtab.data.preferences import PAIR
from trimtab.models import builtin

TEXT = {"chosen": "\n\nHuman: 1+1\n\nAssistant: 2", "rejected": "\n\nHuman: 1+1\n\nAssistant: 3"}
PLAIN = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([PLAIN, PLAIN], []),
        ([TEXT], ["data.train: the rows are of the format 1 dialogues as text"]),
        (
            [PLAIN, TEXT, PLAIN],
            ["data.train: the rows are of the format 2 prompt/chosen/rejected, 1 dialogues as text"],
        ),
    ],
)
def test_the_start_says_which_forms_were_met(records, expected):
    found = rows.parse("\n".join(map(json.dumps, records)).encode(), "a.jsonl", {}, PAIR)
    config = configs.from_mapping({"algorithm": "dpo"})
    models, ranks, said = SimpleNamespace(tokenizer=builtin.tokenizer()), SimpleNamespace(rank=0, size=1), []
    reading.source_of(found, config.need, config, models, frozenset(), ranks, said.append, rows_per_step=1)
    assert said == expected


def test_a_data_set_has_the_fingerprint_of_its_rows(monkeypatch):
    stored = Stored.of_bytes("hf:a", b'{"prompt": "a"}\n{"prompt": "b"}\n')
    monkeypatch.setattr("trimtab.data.files.opened", lambda source, first=None: Opened(stored=stored))
    config = configs.from_mapping({"algorithm": "dpo"})
    assert inputs.fingerprint(config, "hf:a") == hashlib.sha256(b'{"prompt": "a"}\n{"prompt": "b"}\n').hexdigest()
