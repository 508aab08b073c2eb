"""`python -m meanfield` is the command `meanfield`."""

from .cli import main

main()
