"""`trimtab export RUN --to DIR`: the trained policy for other systems."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Precision(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A directory that is new or empty.")],
    checkpoint: Annotated[int | None, typer.Option("--checkpoint", metavar="STEP", help="Default: RUN/final.")] = None,
    dtype: Annotated[Precision | None, typer.Option("--dtype", help="Of the weights; default: as they are.")] = None,
    adapter: Annotated[
        bool, typer.Option("--adapter/--merged", help="Of a LoRA run: the adapter alone, or merged into its base.")
    ] = False,
) -> None:
    """Write a run's policy as a Hugging Face directory: config, safetensors, tokenizer, model card.

    It loads with AutoModelForCausalLM.from_pretrained(DIR) and in vLLM. A checkpoint's checksums are verified first.
    """
    from trimtab.operate import export as operate

    chosen = None if dtype is None else dtype.value
    done = operate.export(run, to, checkpoint=checkpoint, dtype=chosen, as_adapter=adapter)
    kind = "adapter" if done.is_adapter else "model"
    typer.echo(f"{to}: {kind} of {done.source}, {done.dtype}, {done.bytes / 1e6:,.1f} MB")
