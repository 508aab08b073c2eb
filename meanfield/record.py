"""The frames of a run as they come: in memory, and what the file must know of their arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import bands, statistics, store
from .events import Event
from .keys import require
from .observables import STANDARD
from .run import Run
from .solution import Solution

# Groups that hold every frame, whichever keep the state.
EVERY_FRAME = ("observables/", "bands/")


class Record:
    """The frames of a run in memory, and what the store must know of them.

    Arrays may grow and others appear while a run goes on (a doubled degree, a hand-over): earlier frames then have zeros
    or NaN there.
    """

    def __init__(self, run: Run, kept: list[int], values: Mapping[str, NDArray], arrays: Mapping[str, NDArray]) -> None:
        self.run, self.kept = run, kept
        self.dims: dict[str, tuple[str, ...]] = {}
        self.long_names: dict[str, str] = {}
        self.shapes = {f"observables/{name}": np.shape(value) for name, value in values.items()}
        self.fixed: dict[str, NDArray] = {}
        self.templates: dict[str, Any] = {}
        trial = ("trial",) * (np.ndim(run.template.moving) - 2) if run.template.holds_radii else ()
        for name, value in values.items():
            known = {"mean_direction": ("axis",), **{other: own for other, (own, _) in statistics.NAMES.items()}}
            own = known.get(name, tuple(f"{name}_{i}" for i in range(value.ndim - len(trial))))
            self.dims[f"observables/{name}"] = (*trial, *own)[: value.ndim] if value.ndim else ()
            meanings = {**STANDARD, **{other: meaning for other, (_, meaning) in statistics.NAMES.items()}}
            self.long_names[f"observables/{name}"] = meanings.get(name, f"{name}, given by the user")
        if run.statistics is not None:
            self._coordinate(
                "observables/quantile", statistics.QUANTILES, "probability of a quantile over tokens or pairs"
            )
        self.banded = list(bands.layout(self.dims, values))
        for name, (dims, shape) in bands.layout(self.dims, values).items():
            self.dims[f"bands/{name}"], self.shapes[f"bands/{name}"] = dims, shape
            self.long_names[f"bands/{name}"] = f"{self.long_names[f'observables/{name}']}: {bands.MEANING}"
        if self.banded:
            self._coordinate("bands/band", bands.BANDS, "probability of a quantile over trials")
        self.depths: list[float] = []
        self.observables: list[dict[str, NDArray]] = []
        self.states: dict[int, dict[str, NDArray]] = {}
        self.adopt(run.template)

    def _coordinate(self, name: str, values: NDArray, meaning: str) -> None:
        """A fixed array that names the places along the dimension of its name."""
        self.dims[name], self.long_names[name], self.fixed[name] = (name.split("/")[1],), meaning, values

    def adopt(self, template: Any) -> None:
        """Make room for the arrays of another state."""
        self.templates[template.name] = template
        for name, (dims, value, meaning) in template.arrays().items():
            self.dims[name], self.long_names[name], self.shapes[name] = dims, meaning, np.shape(value)
        for name, (dims, value, meaning) in template.fixed_arrays().items():
            self.dims[name], self.long_names[name], self.fixed[name] = dims, meaning, np.asarray(value)

    def add(self, index: int, values: Mapping[str, NDArray], arrays: Mapping[str, NDArray]) -> None:
        """Keep frame `index`."""
        self.depths.append(float(self.run.times[index]))
        self.observables.append({name: np.asarray(value, dtype=float) for name, value in values.items()})
        if index in self.kept:
            self.states[index] = {name: np.asarray(value, dtype=float) for name, value in arrays.items()}

    def frame(self, index: int) -> dict[str, NDArray]:
        """The values of a frame by their names in the file, in the shapes that the file has now."""
        seen = self.observables[index]
        values = {f"observables/{name}": value for name, value in seen.items()}
        values |= {f"bands/{name}": bands.of_trials(seen[name]) for name in self.banded}
        if index in self.states:
            values |= {name: self._array(index, name) for name in self._arrays()}
        return values

    def history(self) -> list[dict[str, NDArray]]:
        """Every frame so far."""
        return [self.frame(index) for index in range(len(self.depths))]

    def _arrays(self) -> list[str]:
        return [name for name in self.shapes if not name.startswith(EVERY_FRAME)]

    def _array(self, index: int, name: str) -> NDArray:
        """An array of a frame: with zeros for degrees that it did not have, NaN where another kind of state held it."""
        shape, value = self.shapes[name], self.states[index].get(name)
        if value is None:
            return np.full(shape, np.nan)
        return np.pad(value, [(0, size - had) for size, had in zip(shape, value.shape, strict=True)])

    def variables(self) -> list[store.Variable]:
        """What the file must make room for."""
        kept = None if len(self.kept) == len(self.run.times) else tuple(self.kept)
        timed = [
            store.Variable(
                name,
                self.dims[name],
                shape,
                long_name=self.long_names[name],
                frames=None if name.startswith(EVERY_FRAME) else kept,
            )
            for name, shape in self.shapes.items()
        ]
        fixed = [
            store.Variable(
                name,
                self.dims[name],
                value.shape,
                value.dtype,
                long_name=self.long_names[name],
                timed=False,
                value=value,
            )
            for name, value in self.fixed.items()
        ]
        return timed + fixed

    def refuse_other_arrays(self, stored: store.StoredRun) -> None:
        """Raise InputError, naming the array, unless the stored run has the arrays of this one in the same shapes."""
        for name in self.shapes.keys() | {name for name in stored.arrays if name.startswith("observables/")}:
            mine = self.shapes.get(name)
            theirs = stored.arrays[name].shape[1:] if name in stored.arrays else None
            allowed = (
                f"shape {theirs}, as in the file to be resumed"
                if theirs is not None
                else "absent, as in the file to be resumed"
            )
            require(mine == theirs, name, mine, allowed)

    def take(self, stored: store.StoredRun) -> None:
        """Begin with the frames of a stored run."""
        self.depths = list(stored.times)
        names = [name.removeprefix("observables/") for name in self.shapes if name.startswith("observables/")]
        self.observables = [
            {name: stored.arrays[f"observables/{name}"][index] for name in names} for index in range(len(self.depths))
        ]
        kept = [index for index in self.kept if index < len(self.depths)]
        self.states = {
            index: {name: stored.arrays[name][position] for name in self._arrays()}
            for position, index in enumerate(kept)
        }

    def solution(self, status: str, message: str, attributes: Mapping[str, Any], path: Path | None) -> Solution:
        """The frames so far."""
        names = [name.removeprefix("observables/") for name in self.shapes if name.startswith("observables/")]
        return Solution(
            times=np.asarray(self.depths),
            observables={
                name: _stacked([frame[name] for frame in self.observables], self.shapes[f"observables/{name}"])
                for name in names
            },
            kept_times=np.asarray([self.depths[index] for index in self.states]),
            arrays={
                name: _stacked([self._array(index, name) for index in self.states], self.shapes[name])
                for name in self._arrays()
            },
            fixed=self.fixed,
            status=status,
            message=message,
            attributes={**attributes, "status": status, "message": message},
            model=self.run.model,
            templates=tuple(self.templates.values()),
            dims=self.dims,
            long_names=self.long_names,
            events=tuple(self.run.events),
            layer_step=self.run.depths.layer_step,
            path=path,
        )


def event_arrays(events: Sequence[Event]) -> dict[str, NDArray]:
    """Events as the file has them: kind, time, position and value along the events; nothing where there are none."""
    if not events:
        return {}
    return {
        "kind": np.asarray([event.kind for event in events], dtype=object),
        "time": np.asarray([event.time for event in events]),
        "position": np.asarray([event.position for event in events]),
        "value": np.asarray([event.value for event in events]),
    }


def events_of(arrays: Mapping[str, NDArray]) -> list[Event]:
    """Events from their arrays in a file."""
    names = ("kind", "time", "position", "value")
    if not arrays:
        return []
    rows = zip(*(arrays[name] for name in names), strict=True)
    return [
        Event(str(kind), float(time), tuple(position.tolist()), float(value)) for kind, time, position, value in rows
    ]


def _stacked(series: list[NDArray], shape: tuple[int, ...]) -> NDArray:
    return np.stack(series) if series else np.empty((0, *shape))
