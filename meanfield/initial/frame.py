"""A frame of another run as the beginning of this one, which then goes on under another scheme or temperature."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from .. import store
from ..keys import Key, require
from .law import HEADROOM, Float, Law, Tokens, by_rejection, fine_points

# Coefficients below this may be cut off where the run goes on at a lower degree.
NEGLIGIBLE = 1e-12


class Frame(Law):
    """A kept frame of a run's file: its density, or its tokens with their weights and radii.

    index counts the frames that kept their state, from the end where negative. A density can go on at any degree that loses
    no coefficient above 1e-12, be laid on a quadrature, or be sampled; tokens go on as they are. InputError where the file
    is no run, has another geometry, or no such frame.
    """

    case_name: ClassVar[str] = "frame"
    case_keys: ClassVar[dict[str, Key]] = {
        "file": Key(str, "file of a run, relative to the case file"),
        "index": Key(int, "which of the frames that kept their state; -1 is the last", -1),
    }

    def __init__(self, space: Any, file: str | Path, index: int = -1) -> None:
        self.space, self.file, self.index = space, str(file), index
        stored = store.read(file)
        _refuse_other_geometry(space, stored.attributes.get("case", ""))
        count = len(stored.kept_times)
        require(
            -count <= index < count, "index", index, f"one of the {count} frames of {Path(file).name} that kept a state"
        )
        frame = {name: values[index] for name, values in stored.arrays.items() if not name.startswith("observables/")}
        c, directions = frame.get("density/coefficients"), frame.get("ensemble/direction")
        self._coefficients: Float | None = None
        self._tokens: Tokens | None = None
        if c is not None and np.all(np.isfinite(c)):
            require(c.ndim == 1, "file", self.file, "a run whose density is one of directions alone")
            self._grid = space.grid(int(stored.fixed["density/degree"].max()))
            require(c.size == self._grid.size, "file", self.file, f"a density on {space!r}")
            self._coefficients = c
        else:
            known = directions is not None and bool(np.all(np.isfinite(directions)))
            require(known, "file", self.file, "a run that keeps a density or tokens")
            assert directions is not None
            width = directions.shape[-1]
            require(
                width == space.coordinates, "file", self.file, f"tokens of {space.coordinates} coordinates, not {width}"
            )
            x = frame["ensemble/radius"][..., None] * directions
            weights, coarser = stored.fixed["ensemble/weight"], stored.fixed.get("ensemble/coarser_weight")
            self._tokens = Tokens(x, weights, coarser)

    @classmethod
    def from_case(cls, space: Any, folder: Path, **values: Any) -> Frame:
        """The law that the keys of a case file describe; `file` is relative to the folder of the case."""
        return cls(space, str(folder / values["file"]), values["index"])

    @property
    def smooth(self) -> bool:
        return self._coefficients is not None

    def ensemble(self) -> Tokens | None:
        return self._tokens

    def density(self, points: ArrayLike) -> Float:
        return np.asarray(self._grid.evaluate(self._density(), np.asarray(points, dtype=float)))

    def coefficients(self, grid: Any) -> Float:
        """The coefficients at the degree of `grid`. InputError where that would cut off more than 1e-12."""
        c = self._density()
        lost = float(np.max(np.abs(c[grid.size :]), initial=0.0))
        allowed = (
            f"at least {self._grid.degree}, the degree of the frame, whose coefficients above are up to {lost:.1e}"
        )
        require(lost < NEGLIGIBLE, "degree", grid.degree, allowed)
        return np.asarray(self._grid.resized(c, grid.degree))

    def sample(self, count: int, rng: np.random.Generator) -> Float:
        """Directions of the density, where that is below 0 of its positive part; or of the tokens, by their weights."""
        if self._tokens is not None:
            allowed = "tokens of one trial, laid on no quadrature, where others are to be drawn from them"
            require(self._tokens.x.ndim == 2 and self._tokens.coarser is None, "tokens", count, allowed)
            chosen = self._tokens.x[rng.choice(len(self._tokens.weights), size=count, p=self._tokens.weights)]
            return chosen / np.linalg.norm(chosen, axis=1, keepdims=True)
        highest = float(self.density(fine_points(self.space, self._grid.degree)).max())
        return by_rejection(self.space, self.density, HEADROOM * highest, count, rng)

    def _density(self) -> Float:
        require(
            self._coefficients is not None, "method", "density", "characteristics or particles: the frame holds tokens"
        )
        assert self._coefficients is not None
        return self._coefficients


def _refuse_other_geometry(space: Any, case: str) -> None:
    """Raise InputError unless the case of the stored run, where it has one, is of this space."""
    if not case:
        return
    geometry = tomllib.loads(case).get("geometry", {})
    kind = geometry.get("kind", "sphere")
    dimension = geometry.get("dimension", space.dimension)
    same = kind == space.case_name and dimension == space.dimension
    require(same, "file", f"{kind}, d = {dimension}", f"a run in {space.case_name} geometry, d = {space.dimension}")
