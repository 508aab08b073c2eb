"""The whole job: a case under all six schemes, each compared with particles; files, a table and figures."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .case import Case
from .compare import distance
from .figures import Curve, Panel, cosine_figure, sphere_strip
from .figures.plots import SCHEMES as PRINTED
from .initial import TokenFile, project
from .keys import InputError, require
from .normalization import SCHEMES
from .solution import Solution
from .solve import AccuracyWarning
from .store import read_tokens

TRIALS = 32
# Pictures of ensembles show their moments spread by a von Mises–Fisher kernel of this concentration.
PICTURE_CONCENTRATION = 60.0
# Depths of the pictures, as shares of the last depth: early, while densities are resolved, and late.
PICTURE_DEPTHS = (0.0, 0.15, 0.4, 1.0)
BAND = (5.0, 95.0)


@dataclass(frozen=True)
class Row:
    """One line of the table of a study."""

    scheme: str
    method: str
    status: str
    depth: float
    order_parameter: float
    mean_cosine: float
    mean_radius: float
    particle_distance: float
    note: str


@dataclass(frozen=True)
class Study:
    """What a study leaves: its rows and the files it wrote."""

    rows: tuple[Row, ...]
    files: tuple[Path, ...]


def study(
    case: Case, folder: str | Path, *, overwrite: bool = False, report: Callable[[str], None] | None = None
) -> Study:
    """Run `case` under all six schemes with particles beside, and write SCHEME.h5, particles/SCHEME.h5, table and figures.

    Schemes that keep radii and do not divide by ‖A‖ run by the case's own method; the others, and a density that is no
    longer resolved before the end, by characteristics. InputError where a file exists already, unless `overwrite`.
    """
    say = report or (lambda line: None)
    out = Path(folder)
    _prepare(out, overwrite)
    names = [scheme.case_name for scheme in SCHEMES]
    # Two schemes at a time: while one compiles, which takes one core, the other runs.
    with warnings.catch_warnings(), ThreadPoolExecutor(max_workers=2) as pool:
        warnings.simplefilter("ignore", AccuracyWarning)  # it stands in the table's notes
        futures = [pool.submit(_both, case, name, out, overwrite, say) for name in names]
        try:
            runs = dict(zip(names, (future.result() for future in futures), strict=True))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    solutions = {name: run.solution for name, run in runs.items()}
    particles = {name: run.particles for name, run in runs.items()}
    densities = {name: run.density for name, run in runs.items()}
    rows = [_row(case, name, run.solution, run.particles, run.note) for name, run in runs.items()]
    say("figures")
    files = [out / f"{name}.h5" for name in solutions]
    files += [_table(rows, out)]
    files += _cosine_figure(case, solutions, particles, out)
    if case.law.space.case_name == "sphere":
        files.append(_sphere_figure(solutions, densities, out))
    return Study(tuple(rows), tuple(files))


def table(rows: Sequence[Row]) -> str:
    """The table of a study as text."""
    head = ("scheme", "method", "status", "t", "order parameter", "mean cosine", "mean radius", "distance to particles")
    lines = [head] + [
        (
            row.scheme,
            row.method,
            row.status,
            f"{row.depth:g}",
            f"{row.order_parameter:.6f}",
            f"{row.mean_cosine:.6f}",
            f"{row.mean_radius:.4f}",
            f"{row.particle_distance:.2e}",
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(text + [f"{row.scheme}: {row.note}" for row in rows if row.note])


class _Runs(NamedTuple):
    solution: Solution
    density: Solution | None
    note: str
    particles: Solution


def _both(case: Case, name: str, out: Path, overwrite: bool, say: Callable[[str], None]) -> _Runs:
    """The continuum and the particles of one scheme."""
    under = case.changed({"normalization.scheme": name})
    continuum = _continuum(under, out / f"{name}.h5", overwrite)
    particles = _particles(under, out / "particles" / f"{name}.h5", overwrite)
    say(f"{name}: done")
    return _Runs(*continuum, particles)


def _prepare(out: Path, overwrite: bool) -> None:
    require(out.parent.is_dir(), "output", str(out), "a folder whose parent exists")
    require(not out.exists() or out.is_dir(), "output", str(out), "a folder, not a file")
    existing = [file.name for file in out.glob("*.h5")] if out.is_dir() else []
    allowed = f"a folder without results ({existing[0] if existing else ''} is there); --overwrite replaces them"
    require(overwrite or not existing, "output", str(out), allowed)
    try:
        (out / "particles").mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError("output", str(out), f"a folder that can be written ({problem.strerror})") from None


def _continuum(case: Case, path: Path, overwrite: bool) -> tuple[Solution, Solution | None, str]:
    """The run of the file, the run as a density where there was one (as far as it is resolved), and the note."""
    scheme = case.model.normalization
    smooth = scheme.restores and not scheme.divides_by_attention
    if not smooth or case.settings.method != "density":
        solution = case.changed({"solver.method": "characteristics"}).solve(path, overwrite=overwrite)
        return solution, None, solution.message
    density = case.solve(path, overwrite=overwrite)
    if density.status != "unresolved":
        return density, density, density.message
    reached = f"{density.times[-1]:.3g}" if len(density.times) else "0"
    words = (
        f"the density is resolved up to t = {reached} at degree {case.settings.degree}; the file is by characteristics"
    )
    solution = case.changed({"solver.method": "characteristics"}).solve(path, overwrite=True)
    return solution, density, "; ".join(filter(None, (words, solution.message)))


def _particles(case: Case, path: Path, overwrite: bool) -> Solution:
    law = case.law
    count = case.settings.tokens or (len(law.vectors) if isinstance(law, TokenFile) else 256)
    trials = case.settings.trials if case.settings.trials > 1 else TRIALS
    definite = law.tokens()
    if definite is not None and count == len(definite):
        trials = 1
    changes = {
        "solver.method": "particles",
        "solver.tokens": count,
        "solver.trials": trials,
        "output": {"state": "last"},
    }
    return case.changed(changes).solve(path, overwrite=overwrite)


def _row(case: Case, name: str, solution: Solution, particles: Solution, note: str) -> Row:
    last = {key: float(np.mean(series[-1])) for key, series in solution.observables.items() if key != "mean_direction"}
    apart = np.nan
    if hasattr(case.law.space, "grid") and solution.status == particles.status == "complete":
        apart = float(np.sqrt(np.mean(distance(particles.state(), solution.state(), case.law.space) ** 2)))
    method = "density" if "density/coefficients" in solution.arrays else "characteristics"
    order, cosine, radius = last["order_parameter"], last["mean_cosine"], last["mean_radius"]
    return Row(name, method, solution.status, float(solution.times[-1]), order, cosine, radius, apart, note)


def _table(rows: list[Row], out: Path) -> Path:
    path = out / "table.json"
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps([vars(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def measured_cosine(case: Case) -> dict[str, NDArray]:
    """Mean cosine of each layer of a token file: projected by layer 0's components, and in its full dimension.

    Empty where the case's tokens come from no file of several layers.
    """
    law = case.law
    if not isinstance(law, TokenFile):
        return {}
    layers: list[NDArray] = []
    while True:
        try:
            layers.append(read_tokens(law.file, law.dataset, layer=len(layers)))
        except InputError:
            break
    if len(layers) < 2:
        return {}
    curves = {}
    if law.components is not None:
        d = law.space.dimension
        curves[f"first {d} components of layer 0"] = np.array([_pairs(project(x, *law.components)) for x in layers])
    curves[f"all {layers[0].shape[1]} dimensions"] = np.array([_pairs(x) for x in layers])
    return curves


def _pairs(vectors: NDArray) -> float:
    """Mean cosine over pairs of distinct vectors."""
    directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    n = len(vectors)
    return float((np.sum(directions.sum(axis=0) ** 2) - n) / (n * (n - 1)))


def _cosine_figure(case: Case, solutions: dict[str, Solution], particles: dict[str, Solution], out: Path) -> list[Path]:
    curves = {}
    for name, solution in solutions.items():
        series = particles[name].observables["mean_cosine"]
        trials = series[: len(solution.times)].reshape(min(len(series), len(solution.times)), -1)
        low, high = np.percentile(trials, BAND, axis=1)
        continuum = solution.observables["mean_cosine"]
        curves[name] = Curve(solution.times, continuum, low, high, trials.mean(axis=1))
    measured = measured_cosine(case)
    per_layer = 1.0
    if measured:
        layers = len(next(iter(measured.values())))
        per_layer = float(case.times[-1]) / (layers - 1)
    lines = {label: Curve(per_layer * np.arange(len(value)), value) for label, value in measured.items()}
    note = "measured on the real model" if measured else ""
    return [
        cosine_figure(curves, lines, out / f"mean_cosine{suffix}", note=note, depth_per_layer=per_layer)
        for suffix in (".png", ".pdf")
    ]


def _sphere_figure(solutions: dict[str, Solution], densities: dict[str, Solution | None], out: Path) -> Path:
    """One row a scheme, one column a depth; ensembles show their moments spread by a kernel, and say so."""
    times = max((solution.times for solution in solutions.values()), key=len)
    chosen = [float(times[round(share * (len(times) - 1))]) for share in PICTURE_DEPTHS]
    panels = [[_panel(solution, densities[name], t) for t in chosen] for name, solution in solutions.items()]
    columns = [f"$t$ = {t:.3g}" for t in chosen]
    titles = [PRINTED[name][0] for name in solutions]
    path = out / "density.png"
    return sphere_strip(panels, path, log=True, size=6.0, window=450, row_labels=titles, column_labels=columns)


def _panel(solution: Solution, density: Solution | None, t: float) -> Panel | None:
    if density is not None and len(density.times) and t <= density.times[-1]:
        return Panel(density.density(t), note="density")
    if t > solution.times[-1]:
        return None
    return Panel(
        solution.density(t, concentration=PICTURE_CONCENTRATION), note=f"smoothed, κ = {PICTURE_CONCENTRATION:g}"
    )
