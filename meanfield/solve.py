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
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import store
from .beginning import Continuation, coarse_quadrature, fold_mark, initial_state
from .document import case_text, refuse_other_case
from .ensemble import Ensemble
from .events import OWN_KINDS, Crossing, Void, passing
from .initial import ConstantRadius, Law
from .keys import InputError, require
from .model import Model
from .observables import STANDARD
from .precision import TURN_ON, PrecisionError, float64
from .record import Record, event_arrays, events_of
from .run import Run
from .settings import Depths, Settings, asked_depths, kept_frames
from .solution import Solution
from .statistics import NAMES as STATISTICS
from .statistics import Statistics, refuse_statistics
from .stochastic import Walk
from .version import __version__

VERSIONS_RECORDED = ("jax", "jaxlib", "numpy", "scipy", "h5py")


class AccuracyWarning(UserWarning):
    """A run that finished, but less accurately than its tolerance says."""


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
    frames: int | None = None,
    *,
    times: ArrayLike | None = None,
    layers: int | None = None,
    layer_step: float | None = None,
    radius: Any = None,
    state: str | int = "all",
    path: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    observables: Mapping[str, Callable[[Any], ArrayLike]] | None = None,
    events: Mapping[str, tuple[str, float] | Callable[[Any], Any]] | None = None,
    statistics: Statistics | None = None,
    progress: Callable[[FrameReport], None] | None = None,
    case: str | None = None,
    **settings: Any,
) -> Solution:
    """Solve the continuum limit (or simulate particles) from `initial` under `model`, to frames at exact depths.

    final_time, frames: equally spaced frames from t = 0, 101 when not told; or `times`, increasing depths; or `layers`
    and `layer_step`: the layers of a network instead of the flow, each a frame unless `frames` says how many.
    settings: method ("density", "characteristics", "particles", "auto"), degree, max_degree, tokens, trials, sums, step,
    seed, rtol, atol: see `Settings`.
    radius: law of the starting radii; the constant 1 when absent, and for tokens of a file in their own dimension their own.
    state: which frames keep the whole state: "all", "last", or every k-th; observables are kept for every frame.
    path: a file to stream frames into, each on disk before the next is computed; `resume` goes on from it.
    observables: a user's own, name → function of the state (`Density` or `Ensemble`) returning a number or array.
    events: a user's own, name → (standard observable, level), or a function of the state made of jax.numpy whose first zero
    is the event: located to the step tolerance, in `Solution.events` and in the file.
    statistics: particles: quantiles, speed, clusters and rank at every frame, as observables: see `Statistics`.

    Returns a Solution of NumPy float64 arrays, whatever the JAX settings. Raises InputError for input that is wrong, and
    PrecisionError where it is traced. A run that stops early returns what it has, and says why in `status` and `message`.
    """
    _refuse_tracing(model)
    chosen = Settings(**settings)
    depths = asked_depths(final_time, frames, times, layers, layer_step)
    kept = kept_frames(state, len(depths.times))
    if case is None:
        named = {name: what for name, what in (events or {}).items() if not callable(what)}
        case = case_text(model, initial, radius, chosen, depths, state, named, statistics)
    for name in observables or {}:
        fine = name not in STANDARD and name not in STATISTICS
        require(fine, "observables", name, "names other than those of the standard observables")
    crossings = [_crossing(name, what) for name, what in (events or {}).items()]
    run = _start(model, initial, radius, depths, chosen, observables or {}, crossings)
    if statistics is not None:
        refuse_statistics(run.template, initial.space)
        run.statistics = statistics
    with _interruptible() as interrupted:
        return _frames(run, chosen, case, kept, path, overwrite, resume, progress, interrupted)


def _crossing(name: str, what: tuple[str, float] | Callable[[Any], Any]) -> Crossing:
    try:
        if callable(what):
            require(name not in OWN_KINDS, "name", name, f"a name other than {', '.join(OWN_KINDS)}")
            return Crossing(name, what)
        return passing(name, *what)
    except InputError as problem:
        raise problem.under(f"events.{name}") from None


def _refuse_tracing(model: Model) -> None:
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(model)):
        hint = "" if jax.config.read("jax_enable_x64") else f"; x64 is off, too: {TURN_ON}"
        raise PrecisionError(f"solve runs frame by frame and cannot be traced: trace `evolve`{hint}")


@float64
def _start(
    model: Model, law: Law, radius: Any, depths: Depths, settings: Settings, custom: Mapping, events: list[Crossing]
) -> Run:
    own_radii = (law.tokens() is not None or law.ensemble() is not None) and radius is None
    radius = radius if radius is not None or own_radii else ConstantRadius()
    if depths.layer_step is not None:
        model = model.of_layers(depths.layer_step)
    start = initial_state(model, law, radius, settings, depths)
    fold = fold_mark(model, law, start, settings)
    marks = (*([Void()] if model.normalization.divides_by_attention else []), *([fold] if fold else []), *events)
    continuation = Continuation(model, law, radius, settings, depths)
    noisy = model.noise is not None and isinstance(start, Ensemble)
    walk = Walk(settings.seed, settings.step) if noisy else None
    run = Run(model, start, depths, settings.rtol, settings.atol, custom, marks, continuation, walk)
    if settings.method in ("characteristics", "auto") and law.smooth:
        run.forewarning = coarse_quadrature(model, law.space, settings.degree, depths)
    return run


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
    file = _File(writer, run, record)
    try:
        # what holds where every frame is there already
        status, message = run.verdict()
        index = first - 1
        while index + 1 < len(run.times):
            index += 1
            if index:
                values, arrays = run.to_frame(index)
            if run.wants_finer() and run.begin_finer():
                values, arrays = run.observe()
                record = file.record = Record(run, kept, values, arrays)
                index = 0
            status, message = run.verdict()
            if status != "complete":
                break
            record.adopt(run.template)
            record.add(index, values, arrays)
            file.add(index)
            if progress is not None:
                progress(_report(run, index, values))
            if interrupted() and index + 1 < len(run.times):
                status = "interrupted"
                message = f"interrupted after frame {index} at depth t = {run.times[index]:.6g}; the run can be resumed"
                break
        file.finish(status, message)
    finally:
        file.close()
    if message and status == "complete":
        warnings.warn(message, AccuracyWarning, stacklevel=4)
    return record.solution(status, message, _attributes(settings, case), None if path is None else Path(path))


class _File:
    """The file of a run, if it has one: laid out anew where arrays have changed their extents, or events have come."""

    def __init__(self, writer: store.Writer | None, run: Run, record: Record) -> None:
        self.writer, self.run, self.record = writer, run, record
        self.restart = run.restart()
        self.layout = self._layout()

    def _layout(self) -> Any:
        return dict(self.record.shapes), len(self.run.events)

    def add(self, index: int) -> None:
        """Put the frame that was added last to the record on disk."""
        self.restart = self.run.restart()
        if self.writer is None:
            return
        if self._layout() == self.layout:
            self.writer.write_frame(index, self.record.frame(index), self.restart)
        else:
            self._lay_anew()

    def _lay_anew(self) -> None:
        assert self.writer is not None
        self.writer = self.writer.laid_anew(
            times=self.run.times,
            variables=self.record.variables(),
            restart=self.restart,
            history=self.record.history(),
            events=event_arrays(self.run.events),
        )
        self.layout = self._layout()

    def finish(self, status: str, message: str) -> None:
        """Say how the run ended, with events that came after the last frame."""
        if self.writer is not None:
            if self._layout() != self.layout:
                self._lay_anew()
            self.writer.finish(status, message)

    def close(self) -> None:
        """Let go of the file."""
        if self.writer is not None:
            self.writer.close()


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
            if stored.frames_written:
                run.restore(stored.restart, stored.fixed, events_of(stored.events))
                for template in run.templates:
                    record.adopt(template)
            record.refuse_other_arrays(stored)
            if stored.frames_written:
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
        events=event_arrays(run.events),
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
