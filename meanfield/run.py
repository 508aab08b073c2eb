"""A run in progress: compiled calls that take a state from frame to frame, and the judgement on what they return."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from . import integrate, layers, observables
from .attention import Attention
from .density import Density
from .ensemble import Ensemble
from .integrate import Limits, Progress
from .keys import require
from .model import Model
from .precision import float64, float64_leaves
from .settings import Depths

# A density whose spectrum carries more than this in its top tenth of degrees is no longer resolved.
RESOLUTION_LIMIT = 1e-4
# With less than this ratio of the least to the largest Z, sums through moments are off by more than 1e-7.
ACCURACY_LIMIT = 1e-8
# Schemes that divide by ‖A‖ lose smoothness near its zeros; below this ratio of least to largest the loss is felt.
VOID_RATIO = 0.3


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


def _advance(model: Model, template: Any, progress: Progress, end: Any, limits: Limits) -> Progress:
    return integrate.advance_segment(model, template, progress, end, limits)


def _observe(attention: Attention, state: Any, t: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    arrays = {name: value for name, (_, value, _) in state.arrays().items()}
    return observables.observe(attention, state, t), arrays


class Run:
    """A run in progress: the template of the state, where it stands, and how to take it one frame further."""

    def __init__(
        self, model: Model, state: Any, depths: Depths, rtol: float, atol: float, custom: Mapping[str, Callable]
    ) -> None:
        fast = isinstance(state, Ensemble) and state.grid is not None
        limit = RESOLUTION_LIMIT if isinstance(state, Density) else np.inf
        limits = Limits(rtol, atol, limit, ACCURACY_LIMIT if fast else -np.inf)
        self.depths, self.times, self.custom = depths, depths.times, dict(custom)
        self.forewarning = ""  # what is known from the start to limit the accuracy
        self.model, self.template, self.limits = float64_leaves((model, state, limits))
        self.progress: Progress = _to_numpy(float64(integrate.start)(self.template, self.times[0]))

    def to_frame(self, index: int) -> None:
        """Advance to the depth of frame `index`, or to where a judgement stops the run."""
        if self.depths.layer_step is not None:
            return self._through_layers(self.depths.layer(index), np.asarray(self.depths.layer_step))
        target = self.times[index]
        for end, branch in self.model.segments():
            depth = np.asarray(min(float(target), float(end)))
            if self.progress.t < depth and self.progress.status == integrate.COMPLETE:
                self.progress = _to_numpy(_compiled(_advance)(branch, self.template, self.progress, depth, self.limits))

    def _through_layers(self, last: int, step: NDArray) -> None:
        for end, branch in layers.branches(self.model, float(step)):
            until = np.asarray(last if end is None else min(end, last))
            if self.progress.accepted < until and self.progress.status == integrate.COMPLETE:
                arguments = branch, self.template, self.progress, until, step, self.limits
                self.progress = _to_numpy(_compiled(layers.advance)(*arguments))

    @property
    def state(self) -> Any:
        """The state now."""
        return self.template.moved(self.progress.moving)

    def observe(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Observables and named arrays of the state now; judges the state, too."""
        values, arrays = _to_numpy(_compiled(_observe)(self.model.attention, self.state, self.progress.t))
        for name, function in self.custom.items():
            values[name] = np.asarray(float64(function)(self.state))
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
        if code == integrate.UNRESOLVED:
            return "unresolved", (
                f"the density is no longer resolved {depth}: {float(now.max_resolution):.2g} of its spectrum stands in the"
                f" top tenth of degrees at degree {self.template.grid.degree} (limit {float(self.limits.resolution):.2g});"
                ' run again with a larger solver.degree or with solver.method = "characteristics"'
            )
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
        return dict(self.progress._asdict())

    def restore(self, stored: Mapping[str, NDArray]) -> None:
        """Stand where a stored run stood."""
        mine = self.progress._asdict()
        missing = [name for name in mine if name not in stored or stored[name].shape != mine[name].shape]
        require(
            not missing, "restart", missing, "arrays that fit the case; the file was written by another version or case"
        )
        self.progress = Progress(*(np.asarray(stored[name], mine[name].dtype) for name in mine))


def _to_numpy(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)
