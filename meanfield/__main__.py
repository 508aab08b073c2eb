"""`python -m meanfield` is the command `meanfield`."""

from .cli import main

if __name__ == "__main__":
    main()
