"""`trimtab import-weights FILE --like HF_DIR --to DIR`: a pickled checkpoint made into a directory that is safe to read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_weights(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .pt, .pth or .bin file.", show_default=False)],
    like: Annotated[str, typer.Option("--like", metavar="HF_DIR", help="Whose configuration and tokenizer fit it.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A directory that is new or empty.")],
) -> None:
    """Make a Hugging Face directory of a pickled checkpoint.

    The file is read in a process of its own, and only weights are taken from it: one that would run code is refused.
    Names and shapes must be those of the model in HF_DIR; what wrappers put before the names is taken away.
    """
    from trimtab.operate import import_weights as operate

    operate.refuse_safe_file(file)
    done = operate.import_weights(file, like, to)
    typer.echo(f"{to}: {done.architecture}, {done.weights} weights, {done.dtype}")
    if done.path:
        typer.echo(f"  taken from       {'.'.join(done.path)}")
    if done.prefix:
        typer.echo(f"  prefix removed   {done.prefix}")
    if done.beside:
        typer.echo(f"  left out         {', '.join(done.beside[:10])}")
