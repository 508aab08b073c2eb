"""`meanfield run`: solve one case."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .progress import bar

HELP = """Solve one case and stream its frames into a file.

Every frame is on disk before the next is computed. After a kill, the same command with --resume goes on from the last
frame and ends with the same bits. Exit status: 0 done, 2 wrong input, 3 stopped early, 130 interrupted.

\b
Examples:
  meanfield run three_bumps -o run.h5
  meanfield run my_case.toml --set solver.degree=96 --set normalization.scheme=ngpt -o run.h5
  meanfield run my_case.toml -o run.h5 --resume
"""
EXIT_EARLY, EXIT_INTERRUPTED = 3, 130


@click.command("run", help=HELP)
@click.argument("case")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file to write; CASE.h5 here when absent.")
@click.option("--set", "changes", multiple=True, metavar="KEY.PATH=VALUE", help="Change a key of the case; repeatable.")
@click.option("--resume", is_flag=True, help="Go on from the file; start afresh where there is none.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--quiet", is_flag=True, help="No progress bar, no summary.")
def run(case: str, output: Path | None, changes: tuple[str, ...], resume: bool, overwrite: bool, quiet: bool) -> int:
    """Solve one case."""
    import warnings

    from .. import case as cases
    from ..keys import require
    from ..shipped import find_case
    from ..solve import AccuracyWarning

    path = find_case(case)
    chosen = cases.read(path, parsed_changes(changes))
    file = output or Path(f"{path.stem}.h5")
    require(not (resume and overwrite), "--resume", True, "not together with --overwrite")
    inputs = {path.resolve(), Path(getattr(chosen.law, "file", path)).resolve()}
    require(file.resolve() not in inputs, "--output", str(file), "a file other than the case and its data")
    with bar(len(chosen.times), quiet) as tell, warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        solution = chosen.solve(file, overwrite=overwrite, resume=resume, progress=tell)
    if solution.message:
        prefix = "warning" if solution.status == "complete" else solution.status
        print(f"{prefix}: {solution.message}", file=sys.stderr)
    if solution.status == "interrupted":
        print(f"go on with: meanfield run {case} -o {file} --resume", file=sys.stderr)
        return EXIT_INTERRUPTED
    if not quiet and len(solution.times):
        last = solution.observables["order_parameter"][-1]
        for event in solution.events:
            click.echo(f"t = {event.time:.6g}: {event.kind} ({event.value:.6g})")
        click.echo(f"{file}: {solution.status}, t = {solution.times[-1]:g}, order parameter {float(last.mean()):.10g}")
    return 0 if solution.status == "complete" else EXIT_EARLY


def parsed_changes(changes: Sequence[str]) -> dict[str, Any]:
    """--set key.path=value → {"key.path": value}; a value that is no TOML is taken as a string."""
    import tomllib

    from ..keys import require

    parsed: dict[str, Any] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        require(bool(equals) and bool(key.strip()), "--set", change, "key.path=value")
        try:
            parsed[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            parsed[key.strip()] = text.strip()
    return parsed
