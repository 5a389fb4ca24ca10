"""Started by torchrun: trains each configuration it is given, in its own directory."""

import sys
from pathlib import Path

from trimtab import config as configs
from trimtab.cluster.torchrun import joined
from trimtab.operate import finish
from trimtab.operate.start import train_in
from trimtab.store.run_directory import RunDirectory

if __name__ == "__main__":
    finish.write_report = lambda *_, **__: []  # not what is tested, and slow to import
    with joined():
        for path in map(Path, sys.argv[1:]):
            train_in(configs.load(path), RunDirectory(path.with_suffix("")), fresh=False)
