"""The command `meanfield`: one file a subcommand; heavy modules are imported when a command runs, not before."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from .cases import cases
from .info import info
from .run import run
from .study import study
from .theory import theory

EXIT_INPUT, EXIT_INTERRUPTED = 2, 130


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Continuum limits of attention dynamics on the sphere, under every normalisation scheme.

    \b
    Start with
      meanfield cases                        the cases that ship
      meanfield study real_tokens -o out     the whole job
    """,
)
@click.version_option(package_name="meanfield", message="%(version)s")
def app() -> None:
    """The group of all commands."""


for _command in (study, run, info, cases, theory):
    app.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits 0 done, 1 a verdict is no, 2 wrong input, 3 stopped early, 130 interrupted."""
    sys.exit(_status(arguments))


def _status(arguments: Sequence[str] | None) -> int:
    from ..keys import InputError

    try:
        result = app(args=None if arguments is None else list(arguments), prog_name="meanfield", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as problem:
        if type(problem).__name__ == "NoArgsIsHelpError":
            problem.show()
            return EXIT_INPUT
        return _fail(problem.format_message())
    except InputError as problem:
        return _fail(str(problem))
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _fail(message: str) -> int:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return EXIT_INPUT
