"""One verb: `solve` carries an initial law through depth under a model, frame by frame, and returns a Solution."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import integrate, store
from .density import Density
from .document import case_text, refuse_other_case
from .ensemble import Ensemble
from .geometry.funk_hecke import attention_degree
from .initial import ConstantRadius, Law
from .keys import Key, require
from .model import Model
from .observables import STANDARD
from .precision import TURN_ON, PrecisionError, float64
from .record import Record
from .run import Run
from .solution import Solution
from .version import __version__

Method = Literal["density", "characteristics", "particles"]
Sums = Literal["auto", "fast", "direct"]

# Moments lose e^{2β} of relative accuracy where Z is least; up to here that leaves 1e-9.
FAST_SUMS_LARGEST_BETA = 7.0
# Below this many tokens the direct sum is as quick as moments of the usual degree.
FAST_SUMS_FEWEST_TOKENS = 256
# The recurrence of the Bessel ratios is verified up to here.
LARGEST_MOMENT_BETA = 1000.0
DEFAULT_TOKENS = 4096
LARGEST_DEGREE = 1024
VERSIONS_RECORDED = ("jax", "jaxlib", "numpy", "scipy", "h5py")


class AccuracyWarning(UserWarning):
    """A run that finished, but less accurately than its tolerance says."""


@dataclass(frozen=True)
class Settings:
    """How a run is computed: the [solver] section of a case. InputError for a value out of range."""

    method: Method = "density"
    degree: int = 64
    tokens: int | None = None
    trials: int = 1
    sums: Sums = "auto"
    seed: int = 0
    rtol: float = 1e-8
    atol: float = 1e-10

    case_keys: ClassVar[dict[str, Key]] = {
        "method": Key(str, "density, characteristics (tokens on a quadrature) or particles (random tokens)", "density"),
        "degree": Key(int, "degree of the density, or of the quadrature of characteristics", 64),
        "tokens": Key(int, "particles: number of random tokens; all of a token file, else 4096, when absent", None),
        "trials": Key(int, "particles: independent draws of the random tokens", 1),
        "sums": Key(str, "auto, fast (through moments) or direct (token by token)", "auto"),
        "seed": Key(int, "seed of the random draws", 0),
        "rtol": Key(float, "relative tolerance of a step", 1e-8),
        "atol": Key(float, "absolute tolerance of a step", 1e-10),
    }

    def __post_init__(self) -> None:
        for key, kind in (("method", Method), ("sums", Sums)):
            allowed = get_args(kind)
            require(getattr(self, key) in allowed, key, getattr(self, key), "one of " + ", ".join(allowed))
        for key, low, high in (("degree", 1, LARGEST_DEGREE), ("trials", 1, 10**6), ("seed", 0, 2**63 - 1)):
            value = getattr(self, key)
            require(_is_integer(value) and low <= value <= high, key, value, f"an integer from {low} to {high}")
        if self.tokens is not None:
            fine = _is_integer(self.tokens) and 1 <= self.tokens <= 10**8
            require(fine, "tokens", self.tokens, "an integer from 1 to 100000000")
        require(0 < self.rtol <= 0.1 and self.rtol >= 1e-14, "rtol", self.rtol, "a number from 1e-14 to 0.1")
        require(0 < self.atol <= 0.1, "atol", self.atol, "a number above 0 and at most 0.1")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def frame_times(final_time: float | None, frames: int, times: ArrayLike | None) -> NDArray:
    """The asked depths: equally spaced from 0 to final_time, or the given increasing ones from 0 on."""
    if times is not None:
        require(final_time is None, "final", final_time, "absent where times are given")
        depths = np.asarray(times, dtype=float)
        fine = depths.ndim == 1 and depths.size >= 1 and bool(np.all(np.isfinite(depths)))
        require(fine and bool(np.all(np.diff(depths) > 0)), "times", times, "a list of increasing finite numbers")
        require(depths[0] >= 0, "times", times, "depths of at least 0")
        return depths if depths[0] == 0 else np.concatenate([[0.0], depths])
    require(final_time is not None, "final", final_time, "the last depth, where no times are given")
    assert final_time is not None
    fine = bool(np.isfinite(final_time)) and 0 < final_time <= 1e9
    require(fine, "final", final_time, "a number above 0 and at most 1e9")
    require(_is_integer(frames) and 2 <= frames <= 10**6, "frames", frames, "an integer from 2 to 1000000")
    return np.linspace(0.0, final_time, frames)


def initial_state(model: Model, law: Law, radius: Any, settings: Settings) -> Density | Ensemble:
    """The state at t = 0 that `settings.method` asks for. InputError where the law, the scheme and the method do not fit."""
    space, method = law.space, settings.method
    if method == "density":
        require(law.smooth, "method", method, "characteristics or particles for a law that is a set of tokens")
        require(hasattr(space, "grid"), "method", method, f'"particles": {space!r} has no harmonics')
        name = model.normalization.case_name
        allowed = (
            f'"characteristics" or "particles" for {name}: its radii move, and one common radius is no smooth density'
        )
        require(model.restores, "method", method, allowed)
        require(_is_unit(radius), "method", method, '"characteristics" or "particles" for radii other than 1')
        _refuse_moments(model)
        grid = space.grid(settings.degree)
        return Density(grid, law.coefficients(grid))
    if method == "characteristics" and law.smooth:
        require(hasattr(space, "quadrature"), "method", method, f'"particles": {space!r} has no quadrature')
        return _characteristics(model, law, radius, settings)
    return _particles(model, law, radius, settings)


def _is_unit(radius: Any) -> bool:
    return isinstance(radius, ConstantRadius) and radius.value == 1


def _refuse_moments(model: Model) -> None:
    allowed = f"at most {LARGEST_MOMENT_BETA:g} where attention goes through moments; direct sums take more"
    require(model.attention.largest_beta <= LARGEST_MOMENT_BETA, "beta", model.attention.largest_beta, allowed)


def _characteristics(model: Model, law: Law, radius: Any, settings: Settings) -> Ensemble:
    nodes, weights = law.space.quadrature(settings.degree)
    density = law.density(nodes)
    mass = float(weights @ density)
    allowed = (
        f"larger: the quadrature sees mass {mass:.6g} instead of 1, so the initial density is not resolved"
        " (or a smaller concentration)"
    )
    require(abs(mass - 1) < 1e-6, "degree", settings.degree, allowed)
    radii, radius_weights = radius.quadrature()
    x = (radii[:, None, None] * nodes).reshape(-1, nodes.shape[1])
    coarser = law.space.coarser(settings.degree) * density
    each = weights * density / mass
    return Ensemble(
        x,
        np.outer(radius_weights, each).reshape(-1),
        moment_grid(model, law.space, len(x), settings.sums),
        np.outer(radius_weights, coarser / coarser.sum()).reshape(-1),
    )


def _particles(model: Model, law: Law, radius: Any, settings: Settings) -> Ensemble:
    definite = law.tokens()
    if definite is not None and settings.tokens in (None, len(definite)):
        require(settings.trials == 1, "trials", settings.trials, "1: the law is a set of definite tokens")
        lengths = np.linalg.norm(definite, axis=1, keepdims=True)
        require(bool(np.all(lengths > 0)), "tokens", settings.tokens, "tokens other than the zero vector")
        x = definite if radius is None else definite / lengths
        if radius is not None:
            x = x * radius.sample(len(x), np.random.default_rng(settings.seed))[:, None]
    else:
        count = DEFAULT_TOKENS if settings.tokens is None else settings.tokens
        trials = []
        for trial in range(settings.trials):
            rng = np.random.default_rng([settings.seed, trial])
            directions = law.sample(count, rng)
            radii = np.ones(count) if radius is None else radius.sample(count, rng)
            trials.append(directions * radii[:, None])
        x = np.stack(trials) if settings.trials > 1 else trials[0]
    count = x.shape[-2]
    grid = moment_grid(model, law.space, count, settings.sums)
    return Ensemble(x, np.full(count, 1 / count), grid, None, sampled=True)


def moment_grid(model: Model, space: Any, count: int, sums: Sums) -> Any:
    """The grid of the moments through which tokens see each other, or None for the direct sum."""
    beta = model.attention.largest_beta
    if not hasattr(space, "grid"):
        require(sums != "fast", "sums", sums, f'"auto" or "direct": {space!r} has no harmonics')
        return None
    if space.rings or sums == "fast":
        _refuse_moments(model)
    if space.rings:
        require(sums != "direct", "sums", sums, '"auto" or "fast" in zonal geometry, where tokens are rings')
        return space.grid(attention_degree(beta, space.dimension))
    worth = count >= FAST_SUMS_FEWEST_TOKENS and beta <= FAST_SUMS_LARGEST_BETA
    if sums == "direct" or (sums == "auto" and not worth):
        return None
    return space.grid(attention_degree(beta, space.dimension))


@dataclass(frozen=True)
class FrameReport:
    """What a progress callback is told after each frame."""

    frame: int
    frames: int
    t: float
    step: float
    accepted: int
    rejected: int
    resolution: float


def solve(
    model: Model,
    initial: Law,
    final_time: float | None = None,
    frames: int = 101,
    *,
    times: ArrayLike | None = None,
    radius: Any = None,
    state: str | int = "all",
    path: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    observables: Mapping[str, Callable[[Any], ArrayLike]] | None = None,
    progress: Callable[[FrameReport], None] | None = None,
    case: str | None = None,
    **settings: Any,
) -> Solution:
    """Solve the continuum limit (or simulate particles) from `initial` under `model`, to frames at exact depths.

    final_time, frames: equally spaced frames from t = 0; or `times`, increasing depths.
    settings: method ("density", "characteristics", "particles"), degree, tokens, trials, sums, seed, rtol, atol: see `Settings`.
    radius: law of the starting radii; the constant 1 when absent, and for tokens of a file in their own dimension their own.
    state: which frames keep the whole state: "all", "last", or every k-th; observables are kept for every frame.
    path: a file to stream frames into, each on disk before the next is computed; `resume` goes on from it.
    observables: a user's own, name → function of the state (`Density` or `Ensemble`) returning a number or array.

    Returns a Solution of NumPy float64 arrays, whatever the JAX settings. Raises InputError for input that is wrong, and
    PrecisionError where it is traced. A run that stops early returns what it has, and says why in `status` and `message`.
    """
    _refuse_tracing(model)
    chosen = Settings(**settings)
    depths = frame_times(final_time, frames, times)
    kept = kept_frames(state, len(depths))
    if case is None:
        case = case_text(model, initial, radius, chosen, depths, state)
    for name in observables or {}:
        require(name not in STANDARD, "observables", name, "names other than those of the standard observables")
    run = _start(model, initial, radius, depths, chosen, observables or {})
    with _interruptible() as interrupted:
        return _frames(run, chosen, case, kept, path, overwrite, resume, progress, interrupted)


def _refuse_tracing(model: Model) -> None:
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(model)):
        hint = "" if jax.config.read("jax_enable_x64") else f"; x64 is off, too: {TURN_ON}"
        raise PrecisionError(f"solve runs frame by frame and cannot be traced: trace `evolve`{hint}")


def kept_frames(state: str | int, count: int) -> list[int]:
    """Indices of the frames that keep the whole state: "all", "last", or every k-th from the first, and always the last."""
    if state == "all":
        return list(range(count))
    if state == "last":
        return [count - 1]
    allowed = '"all", "last" or an integer k of at least 1 (every k-th frame)'
    require(_is_integer(state) and int(state) >= 1, "state", state, allowed)
    return sorted({*range(0, count, int(state)), count - 1})


@float64
def _start(model: Model, law: Law, radius: Any, depths: NDArray, settings: Settings, custom: Mapping) -> Run:
    own_radii = law.tokens() is not None and radius is None
    radius = radius if radius is not None or own_radii else ConstantRadius()
    start = initial_state(model, law, radius, settings)
    run = Run(model, start, depths, settings.rtol, settings.atol, custom)
    if settings.method == "characteristics" and law.smooth:
        run.forewarning = _coarse_quadrature(model, law.space, settings.degree)
    return run


def _coarse_quadrature(model: Model, space: Any, degree: int) -> str:
    """A warning where the kernel is narrower than the spacing of the nodes, which no coarser rule on them can see."""
    beta = model.attention.largest_beta
    needed = attention_degree(beta, space.dimension, tolerance=1e-8)
    if needed <= 2 * degree + 1:
        return ""
    return (
        f"the quadrature of degree {degree} is too coarse for the kernel at beta = {beta:g}, which reaches degree {needed}:"
        f" the run is not accurate; use solver.degree = {-(-needed // 2)} or more"
    )


def _frames(
    run: Run,
    settings: Settings,
    case: str,
    kept: list[int],
    path: str | Path | None,
    overwrite: bool,
    resume: bool,
    progress: Callable[[FrameReport], None] | None,
    interrupted: Callable[[], bool],
) -> Solution:
    values, arrays = run.observe()
    record = Record(run, kept, values, arrays)
    first = 0
    writer = None
    if path is not None:
        writer, first = _open(Path(path), run, settings, case, record, overwrite, resume)
    try:
        # what holds where every frame is there already
        status, message = run.verdict()
        for index in range(first, len(run.times)):
            if index:
                run.to_frame(index)
                if run.progress.status == integrate.COMPLETE:
                    values, arrays = run.observe()
            status, message = run.verdict()
            if status != "complete":
                break
            record.add(index, values, arrays)
            if writer is not None:
                writer.write_frame(index, record.frame(index), run.restart())
            if progress is not None:
                progress(_report(run, index, values))
            if interrupted() and index + 1 < len(run.times):
                status = "interrupted"
                message = f"interrupted after frame {index} at depth t = {run.times[index]:.6g}; the run can be resumed"
                break
        if writer is not None:
            writer.finish(status, message)
    finally:
        if writer is not None:
            writer.close()
    if message and status == "complete":
        warnings.warn(message, AccuracyWarning, stacklevel=4)
    return record.solution(status, message, _attributes(settings, case), None if path is None else Path(path))


def _report(run: Run, index: int, values: Mapping[str, NDArray]) -> FrameReport:
    now = run.progress
    resolution = float(np.max(values["resolution"]))
    counts = int(now.accepted), int(now.rejected)
    return FrameReport(index, len(run.times), float(now.t), float(now.step), *counts, resolution)


def _open(
    path: Path, run: Run, settings: Settings, case: str, record: Record, overwrite: bool, resume: bool
) -> tuple[store.Writer, int]:
    """The file of the run, and the index of the first frame that is still to be computed."""
    if resume and os.path.exists(path):
        writer, stored = store.Writer.resume(path)
        try:
            refuse_other_case(stored.attributes["case"], case)
            record.refuse_other_arrays(stored)
            if stored.frames_written:
                run.restore(stored.restart)
                record.take(stored)
            writer.begin()
            _warn_of_other_versions(stored.attributes)
        except BaseException:
            writer.close()
            raise
        return writer, stored.frames_written
    writer = store.Writer.create(
        path,
        times=run.times,
        variables=record.variables(),
        restart=run.restart(),
        attributes=_attributes(settings, case),
        overwrite=overwrite,
    )
    return writer, 0


def _attributes(settings: Settings, case: str) -> dict[str, Any]:
    """Root attributes of the file that say what was run, and on what."""
    return {
        "case": case,
        "seed": settings.seed,
        "cores": os.cpu_count() or 1,
        "platform": platform.platform(),
        "meanfield_version": __version__,
        "versions": ", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS_RECORDED),
    }


def _warn_of_other_versions(stored: Mapping[str, Any]) -> None:
    now = _attributes(Settings(), "")
    for name in ("cores", "platform", "meanfield_version", "versions"):
        if str(stored.get(name)) != str(now[name]):
            message = f"the run was begun with {name} = {stored.get(name)!r} and goes on with {now[name]!r}: its bits may differ"
            warnings.warn(message, AccuracyWarning, stacklevel=6)


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C finish the frame: yields a function that says whether it was pressed. A second one stops at once."""
    pressed: list[int] = []

    def note(signum: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(signum)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
