"""The progress bar of long commands: on a terminal only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def bar(frames: int, quiet: bool) -> Iterator[Callable[[Any], None] | None]:
    """A callback for `solve(progress=...)` that draws frames, depth, step and time left; None off a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("compiling", total=frames)

        def tell(report: Any) -> None:
            steps = f"{report.accepted} steps, {report.rejected} rejected"
            words = f"t = {report.t:.4g}, h = {report.step:.2g}, {steps}"
            if report.resolution == report.resolution:
                words += f", resolution {report.resolution:.1e}"
            progress.update(task, completed=report.frame + 1, description=words)

        yield tell
