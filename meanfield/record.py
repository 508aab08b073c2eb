"""The frames of a run as they come: in memory, and what the file must know of their arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import store
from .keys import require
from .observables import STANDARD
from .run import Run
from .solution import Solution


class Record:
    """The frames of a run in memory, and what the store must know of their arrays."""

    def __init__(self, run: Run, kept: list[int], values: Mapping[str, NDArray], arrays: Mapping[str, NDArray]) -> None:
        self.run, self.kept = run, kept
        self.dims: dict[str, tuple[str, ...]] = {}
        self.long_names: dict[str, str] = {}
        for name, (dims, _, meaning) in {**run.template.arrays(), **run.template.fixed_arrays()}.items():
            self.dims[name], self.long_names[name] = dims, meaning
        trial = ("trial",) * (np.ndim(run.template.moving) - 2) if run.template.holds_radii else ()
        for name, value in values.items():
            own = (
                ("axis",) if name == "mean_direction" else tuple(f"{name}_{i}" for i in range(value.ndim - len(trial)))
            )
            self.dims[f"observables/{name}"] = (*trial, *own)[: value.ndim] if value.ndim else ()
            self.long_names[f"observables/{name}"] = STANDARD.get(name, f"{name}, given by the user")
        self.shapes = {f"observables/{name}": np.shape(value) for name, value in values.items()}
        self.shapes |= {name: np.shape(value) for name, value in arrays.items()}
        self.fixed = {name: np.asarray(value) for name, (_, value, _) in run.template.fixed_arrays().items()}
        self.observables: dict[str, list[NDArray]] = {name: [] for name in values}
        self.arrays: dict[str, list[NDArray]] = {name: [] for name in arrays}
        self.depths: list[float] = []
        self.kept_depths: list[float] = []

    def add(self, index: int, values: Mapping[str, NDArray], arrays: Mapping[str, NDArray]) -> None:
        """Keep frame `index`."""
        self.depths.append(float(self.run.times[index]))
        for name, value in values.items():
            self.observables[name].append(np.asarray(value, dtype=float))
        if index in self.kept:
            self.kept_depths.append(float(self.run.times[index]))
            for name, value in arrays.items():
                self.arrays[name].append(np.asarray(value, dtype=float))

    def frame(self, index: int) -> dict[str, NDArray]:
        """The values of the frame added last, by their names in the file."""
        values = {f"observables/{name}": series[-1] for name, series in self.observables.items()}
        if index in self.kept:
            values |= {name: series[-1] for name, series in self.arrays.items()}
        return values

    def variables(self) -> list[store.Variable]:
        """What the file must make room for."""
        kept = None if len(self.kept) == len(self.run.times) else tuple(self.kept)
        timed = [
            store.Variable(
                name,
                self.dims[name],
                shape,
                long_name=self.long_names[name],
                frames=kept if not name.startswith("observables/") else None,
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
        self.kept_depths = list(stored.kept_times)
        for name in self.observables:
            self.observables[name] = list(stored.arrays[f"observables/{name}"])
        for name in self.arrays:
            self.arrays[name] = list(stored.arrays[name])

    def solution(self, status: str, message: str, attributes: Mapping[str, Any], path: Path | None) -> Solution:
        """The frames so far."""
        return Solution(
            times=np.asarray(self.depths),
            observables={
                name: _stacked(series, self.shapes[f"observables/{name}"]) for name, series in self.observables.items()
            },
            kept_times=np.asarray(self.kept_depths),
            arrays={name: _stacked(series, self.shapes[name]) for name, series in self.arrays.items()},
            fixed=self.fixed,
            status=status,
            message=message,
            attributes={**attributes, "status": status, "message": message},
            model=self.run.model,
            template=self.run.template,
            dims=self.dims,
            long_names=self.long_names,
            layer_step=self.run.depths.layer_step,
            path=path,
        )


def _stacked(series: list[NDArray], shape: tuple[int, ...]) -> NDArray:
    return np.stack(series) if series else np.empty((0, *shape))
