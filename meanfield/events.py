"""Events of a run: the first depth at which something happens, detected on accepted steps and located by root finding.

A mark is a number of a state whose change of sign is the event. It is evaluated on every accepted state; where its sign
has changed, the run goes back to the frame before and finds the root.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from .attention import Field
from .keys import Key, require
from .observables import norm, order_parameter
from .pytree import pytree, static

# Schemes that divide by ‖A‖ lose smoothness near its zeros; below this ratio of least to largest the loss is felt.
VOID_RATIO = 0.3
# A cell counts as turned over once its area is this much below zero, relative to its area at the start.
FOLD_SLACK = 1e-9
# Kinds that a run records by itself.
OWN_KINDS = ("under-resolution", "edge", "hand-over", "void", "refinement", "fold")


@dataclass(frozen=True)
class Event:
    """Something that happened first at depth `time`: where (a direction, NaN where it has no place), and a number."""

    kind: str
    time: float
    position: tuple[float, ...]
    value: float


@pytree
class Void:
    """‖A‖ comes close to 0 somewhere: its least value falls below 0.3 of its largest, for schemes that divide by it."""

    kind: ClassVar[str] = "void"
    only_falling: ClassVar[bool] = True

    def mark(self, state: Any, field: Field) -> Array:
        """The least ratio of the smallest ‖A‖ to the largest, less its limit."""
        size = norm(field.vector)
        return jnp.min(jnp.min(size, axis=-1) / jnp.maximum(jnp.max(size, axis=-1), 1e-300)) - VOID_RATIO

    def place(self, state: Any, field: Field) -> Array:
        """The direction in which ‖A‖ is least: (axis,)."""
        directions = jnp.asarray(state.directions)
        size = jnp.broadcast_to(norm(field.vector), directions.shape[:-1])
        return directions.reshape(-1, directions.shape[-1])[jnp.argmin(size.reshape(-1))]

    def token(self, state: Any, field: Field) -> Array:
        """The index of the point at which ‖A‖ is least, in its own trial."""
        size = norm(field.vector)
        return jnp.argmin(jnp.min(size.reshape(-1, size.shape[-1]), axis=0))

    def value(self, state: Any, field: Field) -> Array:
        """The least ‖A‖."""
        return jnp.min(norm(field.vector))


@pytree
class Fold:
    """The direction map of free radii folds: a cell between neighbouring nodes turns over, so its Jacobian vanishes.

    cells (cell, corner): indices of the nodes at the corners of each cell; nodes (node, axis): where they began. Every shell of
    radii has `shell` tokens, the nodes first; all of them are nodes when None.
    """

    cells: Any
    nodes: Any
    shell: int | None = static(default=None)

    kind: ClassVar[str] = "fold"
    only_falling: ClassVar[bool] = True

    def mark(self, state: Any, field: Field) -> Array:
        """The least area of a cell, with its sign, over its area at the start."""
        return jnp.min(self._areas(state)) + FOLD_SLACK

    def place(self, state: Any, field: Field) -> Array:
        """The direction of the first cell that turns over: (axis,)."""
        first = jnp.argmin(jnp.min(self._areas(state), axis=0))
        centre = jnp.sum(self._shells(state)[0][jnp.asarray(self.cells)[first]], axis=0)
        return centre / norm(centre)

    def value(self, state: Any, field: Field) -> Array:
        """The least radius of the tokens."""
        return jnp.min(state.radius)

    def _shells(self, state: Any) -> Array:
        directions = jnp.asarray(state.directions)
        count, width = jnp.shape(self.nodes)
        return directions.reshape(-1, self.shell or count, width)[:, :count]

    def _areas(self, state: Any) -> Array:
        cells, nodes = jnp.asarray(self.cells), jnp.asarray(self.nodes)
        return jnp.linalg.det(self._shells(state)[:, cells]) / jnp.linalg.det(nodes[cells])


@pytree
class Crossing:
    """A user's event: the first depth at which a number of the state passes a level, from either side.

    function: state ↦ a number, made of jax.numpy; its mean where there are trials. name: what the file calls the event.
    """

    name: str = static()
    function: Callable[[Any], Any] = static()
    level: Any = 0.0

    only_falling: ClassVar[bool] = False

    @property
    def kind(self) -> str:
        """The name."""
        return self.name

    def mark(self, state: Any, field: Field) -> Array:
        """The number less its level."""
        value = jnp.asarray(self.function(state), dtype=float)
        fine = value.shape in ((), jnp.shape(state.mass()))
        require(
            fine, f"events.{self.name}", list(value.shape), "a function that returns one number, or one for each trial"
        )
        return jnp.mean(value) - self.level

    def place(self, state: Any, field: Field) -> Array:
        """No place: NaN."""
        return jnp.full(jnp.shape(state.directions)[-1], jnp.nan)

    def value(self, state: Any, field: Field) -> Array:
        """The number."""
        return self.mark(state, field) + self.level


# What an event of a case file may watch.
WATCHED: dict[str, Callable[[Any], Array]] = {
    "order_parameter": order_parameter,
    "mean_cosine": lambda state: state.mean_cosine(order_parameter(state)),
    "mean_radius": lambda state: state.radii()[0],
    "std_radius": lambda state: state.radii()[1],
    "min_density": lambda state: state.min_density(),
}
EVENT_KEYS = {
    "observable": Key(str, "one of " + ", ".join(WATCHED)),
    "passes": Key(float, "the level whose first passing is the event"),
}


def passing(name: str, observable: str, level: float) -> Crossing:
    """The first depth at which a standard observable passes a level. InputError for one that cannot be watched."""
    require(observable in WATCHED, "observable", observable, "one of " + ", ".join(WATCHED))
    require(bool(np.isfinite(level)), "passes", level, "a finite number")
    require(name not in OWN_KINDS, "name", name, f"a name other than {', '.join(OWN_KINDS)}, which runs use themselves")
    return Crossing(name, WATCHED[observable], level)
