"""`meanfield study`: the whole job."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .run import parsed_changes

HELP = """Run a case under all six schemes, compare each with particles, and write files, a table and figures.

\b
Example:
  meanfield study real_tokens -o out
leaves out/SCHEME.h5 for each scheme, out/particles/SCHEME.h5, out/table.json, out/mean_cosine.png and .pdf,
out/density.png. A run that stopped early is marked in the table.
"""


@click.command("study", help=HELP)
@click.argument("case")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The folder to write into.")
@click.option("--set", "changes", multiple=True, metavar="KEY.PATH=VALUE", help="Change a key of the case; repeatable.")
@click.option("--overwrite", is_flag=True, help="Replace the results of an earlier study.")
@click.option("--quiet", is_flag=True, help="Print the table only.")
def study(case: str, output: Path, changes: tuple[str, ...], overwrite: bool, quiet: bool) -> int:
    """The whole job."""
    from .. import case as cases
    from .. import study as job
    from ..shipped import find_case

    chosen = cases.read(find_case(case), parsed_changes(changes))
    talk = not quiet and sys.stderr.isatty()
    say = (lambda line: print(line, file=sys.stderr)) if talk else None
    result = job.study(chosen, output, overwrite=overwrite, report=say)
    click.echo(job.table(result.rows))
    if not quiet:
        for file in result.files:
            click.echo(str(file))
    return 0
