"""What a run returns: frames, observables, and the solution anywhere: density, attention and velocity at any points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import bands, store
from .density import Density
from .ensemble import Ensemble
from .events import Event
from .geometry import funk_hecke
from .integrate import evolve
from .joint_density import JointDensity
from .keys import require
from .model import Model
from .precision import float64, float64_leaves

Float = NDArray[np.float64]
STATES = (Density, JointDensity, Ensemble)


@dataclass(frozen=True)
class Solution:
    """Frames of a run as NumPy float64 arrays.

    times: depths of the frames reached. observables: name → (time, ...). arrays: name → (kept frame, ...), the state at
    `kept_times`, NaN where another kind of state was kept. fixed: arrays that no frame changes. events: what happened first
    at which depth. status: "complete", "unresolved", "failed", "interrupted" or "running".
    """

    times: Float
    observables: Mapping[str, Float]
    kept_times: Float
    arrays: Mapping[str, Float]
    fixed: Mapping[str, NDArray]
    status: str
    message: str
    attributes: Mapping[str, Any]
    model: Model | None = None
    templates: tuple[Any, ...] = field(default=(), repr=False)
    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    long_names: Mapping[str, str] = field(default_factory=dict, repr=False)
    events: tuple[Event, ...] = ()
    layer_step: float | None = None
    path: Path | None = None

    def state(self, t: float | None = None) -> Density | JointDensity | Ensemble:
        """The state at depth t (the last when None): a kept frame, or the one before it carried on to t.

        InputError where t lies outside the kept frames, or where the file does not say what model made it.
        """
        require(len(self.templates) > 0 and len(self.kept_times) > 0, "state", None, "a run that kept its states")
        t = float(self.kept_times[-1]) if t is None else float(t)
        low, high = float(self.kept_times[0]), float(self.times[-1])
        require(low <= t <= high, "t", t, f"a depth from {low:g} to {high:g}")
        index = int(np.searchsorted(self.kept_times, t * (1 + 1e-14), side="right")) - 1
        state = self._frame(index)
        if abs(self.kept_times[index] - t) <= 1e-13 * max(1.0, t):
            return state
        allowed = f"the depth of a kept frame, {self.kept_times.tolist()}, of a run through layers"
        require(self.layer_step is None, "t", t, allowed)
        noisy = self.model is not None and self.model.noise is not None and isinstance(state, Ensemble)
        allowed = f"the depth of a kept frame, {self.kept_times.tolist()}, of tokens with noise"
        require(not noisy, "t", t, allowed)
        assert self.model is not None
        return evolve(self.model, state, self.kept_times[index], t)

    def _frame(self, index: int) -> Any:
        frame = {name: values[index] for name, values in self.arrays.items()}
        held = [t for t in self.templates if not all(np.isnan(frame[name]).all() for name in frame if _of(t, name))]
        return (held or self.templates)[-1].framed(frame)

    def density(self, t: float | None = None, concentration: float | None = None) -> Callable[[ArrayLike], Float]:
        """θ ↦ ρ(t, θ) with respect to the uniform probability measure, at unit vectors (point, axis).

        With a concentration κ, and always for an ensemble, the measure spread by a von Mises–Fisher kernel:
        degree-l moments times a_l(κ)/a_0(κ). InputError for an ensemble without one.
        """
        state = self.state(t)
        state = state.marginal() if isinstance(state, JointDensity) else state
        if isinstance(state, Density):
            grid, c = state.grid, np.asarray(state.coefficients)
        else:
            allowed = "a number above 0: an ensemble has a density only after smoothing"
            require(concentration is not None, "concentration", concentration, allowed)
            grid = _smoothing_grid(state, float(concentration or 0))
            c = np.asarray(grid.moments(_directions(state), np.asarray(state.weights)))
        if concentration is not None:
            require(0 < concentration <= 1e4, "concentration", concentration, "a number above 0 and at most 10000")
            spread = np.asarray(float64(funk_hecke.spreading)(concentration, grid.degree, grid.space.dimension))
            c = c * spread[grid.degrees]
        return lambda points: np.asarray(grid.evaluate(c, _unit_points(points)))

    def attention(self, t: float | None = None) -> Callable[[ArrayLike], Float]:
        """θ ↦ A[μ_t](θ) (point, axis) at unit vectors, poles included."""
        model, state = self._model(), self.state(t)
        depth = float(self.kept_times[-1]) if t is None else float(t)
        return lambda points: np.asarray(_field(model, state, depth, _unit_points(points)))

    def velocity(self, t: float | None = None) -> Callable[[ArrayLike], Float]:
        """X ↦ dx/dt (point, axis) of a token at x = rθ at depth t: p, or r P_θ p where the norm is restored."""
        model, state = self._model(), self.state(t)
        depth = float(self.kept_times[-1]) if t is None else float(t)
        branch = next(branch for end, branch in model.segments() if depth <= float(end))

        def at(points: ArrayLike) -> Float:
            x = np.asarray(points, dtype=float)
            width = np.shape(state.directions)[-1]
            fine = x.ndim == 2 and x.shape[1] == width and bool(np.all(np.linalg.norm(x, axis=-1) > 0))
            require(fine, "points", points, f"tokens (point, {width}) other than zero")
            probe = Ensemble(x, np.full(len(x), 1 / max(len(x), 1)))
            A = _field(model, state, depth, x / np.linalg.norm(x, axis=-1, keepdims=True))
            return np.asarray(_velocity(branch, probe, depth, A))

        return at

    @property
    def bands(self) -> dict[str, Float]:
        """Every observable that has trials: name → its quantiles 0.05, 0.5, 0.95 over them, (time, band, ...)."""
        names = [
            name.removeprefix("bands/") for name in self.dims if name.startswith("bands/") and name != "bands/band"
        ]
        return {name: bands.of_trials(self.observables[name], axis=1) for name in names}

    def to_xarray(self) -> Any:
        """The whole run as an xarray.DataTree with the names, dimensions and attributes of the file."""
        import xarray

        groups: dict[str, dict[str, Any]] = {}
        for variable in self._variables():
            group, leaf = variable.name.split("/")
            lead = () if not variable.timed else ("time",) if variable.frames is None else ("state_time",)
            meaning = {"units": variable.units, "long_name": variable.long_name}
            groups.setdefault(group, {})[leaf] = ((*lead, *variable.dims), self._values(variable.name), meaning)
        depth = {"units": "1", "long_name": "depth"}
        nodes: dict[str, Any] = {
            "/": xarray.Dataset(coords={"time": ("time", self.times, depth)}, attrs=dict(self.attributes))
        }
        for group, variables in groups.items():
            dataset = xarray.Dataset(variables)
            if "state_time" in dataset.dims:
                dataset = dataset.assign_coords(state_time=self.kept_times)
            nodes[f"/{group}"] = dataset
        if self.events:
            nodes["/events"] = xarray.Dataset(
                {
                    "kind": ("event", [event.kind for event in self.events]),
                    "time": ("event", [event.time for event in self.events]),
                    "position": (("event", "axis"), [event.position for event in self.events]),
                    "value": ("event", [event.value for event in self.events]),
                }
            )
        return xarray.DataTree.from_dict(nodes)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the solution to a file of the same format; it can be opened but, without its step size, not resumed.

        InputError where the file exists (unless `overwrite`), its folder does not, or there is no frame.
        """
        require(len(self.times) > 0, "times", [], "a solution of at least one frame")
        own = ("format", "format_version", "created", "status", "message")
        attributes = {name: value for name, value in self.attributes.items() if name not in own}
        variables = self._variables()
        writer = store.Writer.create(
            path, times=self.times, variables=variables, restart={}, attributes=attributes, overwrite=overwrite
        )
        try:
            for index in range(len(self.times)):
                frame = {}
                for variable in variables:
                    if variable.timed and (variable.frames is None or index in variable.frames):
                        position = index if variable.frames is None else variable.frames.index(index)
                        frame[variable.name] = self._values(variable.name)[position]
                writer.write_frame(index, frame, {})
            writer.finish(self.status, self.message)
        finally:
            writer.close()
        return Path(path)

    def _values(self, name: str) -> NDArray:
        if name in self.fixed:
            return self.fixed[name]
        if name.startswith("observables/"):
            return self.observables[name.removeprefix("observables/")]
        if name.startswith("bands/"):
            return bands.of_trials(self.observables[name.removeprefix("bands/")], axis=1)
        return self.arrays[name]

    def _variables(self) -> list[store.Variable]:
        """Every array of the solution as the file has it."""
        whole = np.array_equal(self.kept_times, self.times)
        kept = None if whole else tuple(int(i) for i in np.searchsorted(self.times, self.kept_times))
        variables = []
        shown = [f"observables/{name}" for name in self.observables] + [f"bands/{name}" for name in self.bands]
        for name in [*shown, *self.arrays, *self.fixed]:
            value, timed = self._values(name), name not in self.fixed
            lead = 1 if timed else 0
            bare = tuple(f"{name.split('/')[-1]}_{axis}" for axis in range(value.ndim - lead))
            variables.append(
                store.Variable(
                    name,
                    self.dims.get(name, bare),
                    value.shape[lead:],
                    value.dtype,
                    long_name=self.long_names.get(name, ""),
                    timed=timed,
                    frames=kept if name in self.arrays else None,
                    value=None if timed else value,
                )
            )
        return variables

    def _model(self) -> Model:
        require(self.model is not None, "model", None, "known: this file was written without a case text")
        assert self.model is not None
        return self.model


def _of(template: Any, name: str) -> bool:
    return name.split("/")[0] == template.name


def _directions(state: Ensemble) -> Float:
    x = np.asarray(state.x)
    require(x.ndim == 2, "trial", x.shape[0], "one trial: select one before asking for a density")
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _smoothing_grid(template: Ensemble, concentration: float) -> Any:
    from .geometry import Circle, Sphere

    known = Circle() if np.shape(template.x)[-1] == 2 else Sphere()
    space = template.grid.space if template.grid is not None else known
    require(
        np.shape(template.x)[-1] == space.coordinates,
        "density",
        np.shape(template.x)[-1],
        "tokens on the circle or the sphere",
    )
    return space.grid(funk_hecke.attention_degree(concentration, space.dimension))


def _unit_points(points: ArrayLike) -> Float:
    array = np.asarray(points, dtype=float)
    lengths = np.linalg.norm(array, axis=-1)
    require(bool(np.all(np.abs(lengths - 1) < 1e-9)), "points", points, "unit vectors (point, axis)")
    return array


@float64
def _field(model: Model, state: Any, t: float, points: Float) -> Any:
    return _field_compiled(*float64_leaves((model, state, t, points)))


@jax.jit
def _field_compiled(model: Model, state: Any, t: Any, points: Any) -> Any:
    return model.attention(t, state.source(), points).vector


@float64
def _velocity(branch: Model, probe: Ensemble, t: float, A: Any) -> Any:
    return probe.transport(branch.normalization.push(probe.directions, A, t), branch.restores)
