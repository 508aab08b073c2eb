"""A run in progress: compiled calls that take a state from frame to frame, and the judgement on what they return."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from . import integrate, layers, observables, stochastic
from .attention import Attention
from .beginning import Continuation
from .density import Density
from .ensemble import Ensemble
from .events import VOID_RATIO, Event, Fold
from .integrate import Limits, Progress
from .joint_density import JointDensity
from .keys import require
from .model import Model
from .precision import float64, float64_leaves
from .settings import Depths
from .statistics import Statistics
from .stochastic import Walk

# A density whose spectrum carries more than this in its top tenth of degrees is no longer resolved.
RESOLUTION_LIMIT = 1e-4
# With less than this ratio of the least to the largest Z, sums through moments are off by more than 1e-7.
ACCURACY_LIMIT = 1e-8
EPSILON = float(np.finfo(float).eps)


@functools.cache
def _compiler_options() -> dict[str, Any]:
    """XLA's older code generator for the CPU, which compiles a third faster and runs as fast; nothing where it is gone."""
    options = {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda x: x, compiler_options=options)(0.0)
    except Exception:  # an option that this XLA does not know
        return {}
    return options


@functools.cache
def _compiled(function: Callable) -> Callable:
    return float64(jax.jit(function, compiler_options=_compiler_options()))


def _advance(model: Model, template: Any, progress: Progress, end: Any, limits: Limits, marks: tuple) -> Progress:
    return integrate.advance_segment(model, template, progress, end, limits, marks)


def _observe(attention: Attention, state: Any, t: Any, marks: tuple) -> tuple[dict[str, Any], dict[str, Any], Any]:
    arrays = {name: value for name, (_, value, _) in state.arrays().items()}
    return observables.observe(attention, state, t), arrays, _marked(attention, state, t, marks)


def _marked(attention: Attention, state: Any, t: Any, marks: tuple) -> Any:
    field = attention(t, state.source(), state.points)
    tokens = [mark.token(state, field) if hasattr(mark, "token") else -1 for mark in marks]
    return [
        (mark.mark(state, field), mark.place(state, field), mark.value(state, field), token)
        for mark, token in zip(marks, tokens, strict=True)
    ]


class Run:
    """A run in progress: the template of the state, where it stands, and how to take it one frame further.

    marks: of the events to be looked for. continuation: what a density becomes when it is no longer resolved. walk: the
    seed and the step of tokens with noise.
    """

    def __init__(
        self,
        model: Model,
        state: Any,
        depths: Depths,
        rtol: float,
        atol: float,
        custom: Mapping[str, Callable],
        marks: tuple[Any, ...] = (),
        continuation: Continuation | None = None,
        walk: Walk | None = None,
    ) -> None:
        self.depths, self.times, self.custom = depths, depths.times, dict(custom)
        self.tolerances, self.continuation = (rtol, atol), continuation
        self.walk = None if walk is None else Walk(np.asarray(walk.seed), np.asarray(walk.step))
        self.statistics: Statistics | None = None
        self.forewarning = ""  # what is known from the start to limit the accuracy
        self.events: list[Event] = []
        self._torn: int | None = None  # the token at which a void opened
        self.model, self.marks = float64_leaves((model, tuple(marks)))
        self.templates: list[Any] = []
        self._adopt(state)
        begun = float64(integrate.start)(self.template, self.times[0], events=len(self.marks))
        self.progress: Progress = _to_numpy(begun)
        self.judge_start()
        if self.wants_finer():
            self.begin_finer()

    def _adopt(self, state: Any) -> None:
        """Let this be the state that moves."""
        fast = isinstance(state, Ensemble) and state.grid is not None
        limit = RESOLUTION_LIMIT if isinstance(state, Density | JointDensity) else np.inf
        self.limits = float64_leaves(Limits(*self.tolerances, limit, ACCURACY_LIMIT if fast else -np.inf))
        self.template = float64_leaves(state)
        self.templates.append(self.template)

    def judge_start(self) -> None:
        """Judge the state at the start; a density that is not resolved there becomes what continues it."""
        self.observe()
        while self.progress.status == integrate.UNRESOLVED and self._go_on(self.progress):
            self.observe()
        known = {event.kind for event in self.events}
        for index, mark in enumerate(self.marks):
            if mark.only_falling and self._ends[index][0] < 0 and mark.kind not in known:
                self._happened(index, float(self.times[0]), *self._ends[index][1:])

    def to_frame(self, index: int) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Advance to the depth of frame `index`, or to where a judgement stops the run; observables and arrays there.

        A frame in which a density is no longer resolved is discarded and computed again with what continues it.
        """
        while True:
            before = self.progress
            self.progress = self._advanced(before, index)
            seen = self.observe()
            if self.progress.status != integrate.UNRESOLVED or not self._go_on(before):
                break
        if self.progress.status == integrate.COMPLETE:
            self._locate(before, index)
        return seen

    def _advanced(self, progress: Progress, index: int, depth: float | None = None) -> Progress:
        """The run at the depth of a frame, or at `depth`, from where `progress` stands."""
        if self.depths.layer_step is not None:
            return self._through_layers(progress, self.depths.layer(index), np.asarray(self.depths.layer_step))
        target = float(self.times[index]) if depth is None else depth
        for end, branch in self.model.segments():
            until = np.asarray(min(target, float(end)))
            if progress.t < until and progress.status == integrate.COMPLETE:
                if self.walk is None:
                    arguments = branch, self.template, progress, until, self.limits, self.marks
                    progress = _to_numpy(_compiled(_advance)(*arguments))
                else:
                    walked = branch, self.template, progress, until, self.walk, self.limits, self.marks
                    progress = _to_numpy(_compiled(stochastic.advance)(*walked))
        return progress

    def _through_layers(self, progress: Progress, last: int, step: NDArray) -> Progress:
        for end, branch in layers.branches(self.model, float(step)):
            until = np.asarray(last if end is None else min(end, last))
            if progress.accepted < until and progress.status == integrate.COMPLETE:
                arguments = branch, self.template, progress, until, step, self.limits, self.marks
                progress = _to_numpy(_compiled(layers.advance)(*arguments))
        return progress

    def _go_on(self, before: Progress) -> bool:
        """Stand where `before` stood, with what continues the density; False where there is nothing."""
        nowhere = (np.nan,) * np.shape(self.template.directions)[-1]
        kind, value = self._lack()
        self.events.append(Event(kind, float(self.progress.t), nowhere, value))
        following = None
        if self.continuation is not None:
            following = self.continuation.following(self.template.moved(before.moving), begun=bool(before.accepted > 0))
        if following is None:
            return False
        if isinstance(following, Ensemble):
            self.events.append(Event("hand-over", float(before.t), nowhere, float(len(following.weights))))
        self._adopt(following)
        moving = np.asarray(self.template.moving)
        status, zero = np.zeros_like(before.status), np.zeros_like(before.max_resolution)
        self.progress = before._replace(moving=moving, status=status, max_resolution=zero)
        return True

    def _lack(self) -> tuple[str, float]:
        """The event that a density is no longer resolved: its degree, its number of radii, or the end of its interval."""
        state, lack = self.state, "degree"
        if isinstance(state, JointDensity):
            lack = state.lacks()
        if lack in ("low", "high"):
            return "edge", float(state.radius[0 if lack == "low" else -1])
        return "under-resolution", float(state.grid.degree if lack == "degree" else len(state.radius))

    def _locate(self, before: Progress, index: int) -> None:
        """Find the events of the frame that was just reached from `before`."""
        known, now = {event.kind for event in self.events}, self.progress
        for number, mark in enumerate(self.marks):
            if mark.kind in known:
                continue
            end = float(self._ends[number][0])
            if np.isfinite(now.brackets[number, 0]):
                low, high = (float(depth) for depth in now.brackets[number])
            elif end * now.marks[number] < 0 or (end == 0 and now.marks[number] != 0):
                low, high = float(now.marked_at), float(now.t)
            else:
                continue
            # between layers there is nothing, and a path of noise is another one with other steps
            if self.depths.layer_step is not None or self.walk is not None:
                self._happened(number, high, *self._ends[number][1:])
            else:
                self._find(number, before, index, low, high)

    def _find(self, number: int, before: Progress, index: int, low: float, high: float) -> None:
        seen: dict[float, Any] = {}

        def mark(depth: float) -> float:
            state = self.template.moved(self._advanced(before, index, depth).moving)
            seen[depth] = _to_numpy(_compiled(_marked)(self.model.attention, state, np.asarray(depth), self.marks))
            return float(seen[depth][number][0])

        first, last = mark(low), mark(high)
        if self.marks[number].only_falling and first <= 0:
            return
        tolerance = max(float(self.limits.rtol) * max(1.0, high), 1e-13)
        root = high if first * last >= 0 else float(brentq(mark, low, high, xtol=tolerance, rtol=4 * EPSILON))
        if root not in seen:
            mark(root)
        self._happened(number, root, *seen[root][number][1:])

    def wants_finer(self) -> bool:
        """Whether a void has opened among tokens on a quadrature that can be laid anew, finer where those tokens began."""
        return self._torn is not None and not any(event.kind == "refinement" for event in self.events)

    def begin_finer(self) -> bool:
        """Stand at the start again, with more nodes about where the token began at which the void opened; False where the
        run cannot.
        """
        torn, self._torn = self._torn, None
        if torn is None or self.continuation is None:
            return False
        first = self.templates[0]
        shell = len(first.weights) // len(self.continuation.radius.quadrature()[0]) if first.holds_radii else 0
        if not shell:
            return False
        centre = np.asarray(first.directions)[torn]
        finer = self.continuation.finer(centre)
        if finer is None:
            return False
        self._adopt(finer)
        self.templates = [self.template]
        per_shell = len(finer.weights) // (len(first.weights) // shell)
        self.marks = tuple(
            dataclasses.replace(mark, shell=per_shell) if isinstance(mark, Fold) else mark for mark in self.marks
        )
        self.events = [event for event in self.events if event.kind == "void"]
        position = tuple(float(component) for component in centre)
        self.events.append(Event("refinement", float(self.times[0]), position, float(len(finer.weights))))
        self.progress = _to_numpy(float64(integrate.start)(self.template, self.times[0], events=len(self.marks)))
        self.judge_start()
        return True

    def _happened(self, number: int, depth: float, place: NDArray, value: NDArray, token: NDArray) -> None:
        if (
            self.marks[number].kind == "void"
            and isinstance(self.template, Ensemble)
            and self.template.coarser is not None
        ):
            self._torn = int(token)
        position = tuple(float(component) for component in place)
        self.events.append(Event(self.marks[number].kind, depth, position, float(value)))

    @property
    def state(self) -> Any:
        """The state now."""
        return self.template.moved(self.progress.moving)

    def observe(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Observables and named arrays of the state now; judges the state, too."""
        arguments = self.model.attention, self.state, self.progress.t, self.marks
        values, arrays, self._ends = _to_numpy(_compiled(_observe)(*arguments))
        for name, function in self.custom.items():
            values[name] = np.asarray(float64(function)(self.state))
        if self.statistics is not None:
            values |= self.statistics(self.model, self.state, float(self.progress.t))
        unresolved = np.nanmax(values["resolution"], initial=0.0) > float(self.limits.resolution)
        if unresolved and self.progress.status == integrate.COMPLETE:
            self.progress = self.progress._replace(
                status=np.asarray(integrate.UNRESOLVED),
                max_resolution=np.fmax(self.progress.max_resolution, np.max(values["resolution"])),
            )
        return values, arrays

    def verdict(self) -> tuple[str, str]:
        """Status word of the file and the message that goes with it."""
        now = self.progress
        if not np.all(np.isfinite(now.moving)):
            return "failed", f"the state is not finite at depth t = {float(now.t):.6g}"
        code, depth = int(now.status), f"at depth t = {float(now.t):.6g}"
        if code == integrate.UNRESOLVED and self._lack()[0] == "edge":
            end = self._lack()[1]
            return "unresolved", (
                f"mass has come to the end r = {end:.3g} of the interval of radii {depth}, which cannot be widened further;"
                ' run again with solver.method = "auto" or "characteristics"'
            )
        if code == integrate.UNRESOLVED:
            return "unresolved", self._unresolved(depth)
        if code == integrate.INACCURATE:
            return "unresolved", (
                f"sums through moments lost their accuracy {depth}: Z varies by more than {1 / ACCURACY_LIMIT:.0e} between"
                ' tokens; run again with solver.sums = "direct"'
            )
        if code == integrate.NONFINITE:
            return "failed", f"non-finite values {depth}; the last good state is kept"
        if code == integrate.UNDERFLOW:
            return "failed", f"the step size fell below round-off {depth}; run again with a larger rtol or atol"
        if code == integrate.REJECTED:
            return (
                "failed",
                f"{integrate.MAX_REJECTED_IN_A_ROW} steps in a row were rejected {depth}; run again with a larger rtol",
            )
        return "complete", self._caveats()

    def _unresolved(self, depth: str) -> str:
        elsewhere = ', or with solver.method = "auto" or "characteristics"' if self.model.noise is None else ""
        if isinstance(self.template, JointDensity) and self.state.lacks() == "radii":
            return (
                f"{len(self.template.radius)} radii do not resolve the density {depth}; run again with a larger solver.radii"
                f" or a law of radii that spans less{elsewhere}"
            )
        share = (
            float(self.state.shares()[0])
            if isinstance(self.template, JointDensity)
            else float(self.progress.max_resolution)
        )
        return (
            f"the density is no longer resolved {depth}: {share:.2g} of its spectrum stands in the top tenth of degrees at"
            f" degree {self.template.grid.degree} (limit {float(self.limits.resolution):.2g}); run again with a larger"
            f" solver.degree or max_degree{elsewhere}"
        )

    def _caveats(self) -> str:
        now, words = self.progress, [self.forewarning] if self.forewarning else []
        least, ratio = float(now.min_attention), float(now.attention_ratio)
        sampled = isinstance(self.template, Ensemble) and self.template.sampled
        if self.model.normalization.divides_by_attention and ratio < VOID_RATIO and not sampled:
            error = np.max(np.asarray(self.state_quadrature_error()), initial=-np.inf)
            known = f"; its quadrature error is estimated at {error:.1e} at the end" if np.isfinite(error) else ""
            words.append(
                f"the least ‖A‖ fell to {least:.2g}, {ratio:.2g} of the largest:"
                f" {self.model.normalization.case_name} divides by it, so the solution is"
                f" not smooth there (a void) and spectral accuracy is lost{known}"
            )
        scale = float(np.max(np.abs(now.energy), initial=0.0))
        flow = self.depths.layer_step is None
        if (
            flow
            and self.model.dissipates
            and float(now.energy_drop) > 10 * (float(self.limits.rtol) * scale + float(self.limits.atol)) + 1e-13
        ):
            words.append(
                f"the energy decreased by {float(now.energy_drop):.1e} in a step, which the exact flow never does"
            )
        return "; ".join(words)

    def state_quadrature_error(self) -> NDArray:
        """The difference of the mean direction under the embedded coarser rule; NaN where there is none."""
        return float64(lambda state: state.quadrature_error())(self.state)

    def restart(self) -> dict[str, NDArray]:
        """What the next frame needs."""
        values = {name: value for name, value in self.progress._asdict().items() if np.size(value)}
        if isinstance(self.template, JointDensity):
            values["radius"] = np.asarray(self.template.radius)
        return values

    def restore(self, restart: Mapping[str, NDArray], fixed: Mapping[str, NDArray], events: list[Event]) -> None:
        """Stand where a stored run stood, after as many doublings of its degree and a hand-over if there was one."""
        state, shape = self.template, np.shape(restart["moving"])
        self._torn = None
        laid_finer = isinstance(state, Ensemble) and any(event.kind == "refinement" for event in events)
        if laid_finer and np.shape(state.moving) != shape:
            weights, coarser = fixed["ensemble/weight"], fixed["ensemble/coarser_weight"]
            self._adopt(Ensemble(restart["moving"], weights, state.grid, coarser))
            self.templates, state = [self.template], self.template
            shells = len(self.continuation.radius.quadrature()[0]) if self.continuation else 1
            self.marks = tuple(
                dataclasses.replace(mark, shell=len(weights) // shells) if isinstance(mark, Fold) else mark
                for mark in self.marks
            )
        if isinstance(state, JointDensity) and "radius" in restart:
            largest = state.grid.space.grid(int(fixed["density/degree"].max()))
            self._adopt(JointDensity(largest, restart["radius"], restart["moving"], state.moment_grid))
            state = self.template
        while np.shape(state.moving) != shape and isinstance(state, Density) and self.continuation is not None:
            following = self.continuation.following(state, begun=True)
            if following is None:
                break
            if isinstance(following, Ensemble):
                weights, coarser = fixed["ensemble/weight"], fixed["ensemble/coarser_weight"]
                following = Ensemble(following.x, weights, following.grid, coarser)
            self._adopt(following)
            state = self.template
        mine = self.progress._replace(moving=np.asarray(state.moving))._asdict()
        needed = [name for name, value in mine.items() if np.size(value)]
        missing = [name for name in needed if name not in restart or restart[name].shape != mine[name].shape]
        require(
            not missing, "restart", missing, "arrays that fit the case; the file was written by another version or case"
        )
        self.progress = Progress(*(np.asarray(restart.get(name, mine[name]), mine[name].dtype) for name in mine))
        self.events = list(events)


def _to_numpy(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)
