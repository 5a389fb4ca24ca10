"""One thread of mathematics: what CI has, and what makes numbers repeat. Nothing is kept in the home of who tests."""

import atexit
import os
import shutil
import tempfile

import pytest
import torch

from trimtab import secrets

torch.set_num_threads(1)

if "TRIMTAB_CACHE" not in os.environ:
    os.environ["TRIMTAB_CACHE"] = tempfile.mkdtemp(prefix="trimtab-cache-")
    atexit.register(shutil.rmtree, os.environ["TRIMTAB_CACHE"], ignore_errors=True)


@pytest.fixture(autouse=True, scope="module")
def no_secret_of_another_file():
    """What one file of tests has named as a secret is taken out of no text of the next."""
    secrets.forget()
