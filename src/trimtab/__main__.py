"""`python -m trimtab`, which is also what `torchrun -m trimtab` starts."""

from trimtab.cli import main

if __name__ == "__main__":
    main()
