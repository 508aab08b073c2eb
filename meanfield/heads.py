"""The matrices Q, K, V of attention heads: given, read from a file, or drawn at random anew for every layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from . import schedule
from .keys import InputError, Key, require
from .precision import float64
from .pytree import pytree, static
from .store import read_arrays

PARTS = ("query", "key", "value")
# Larger matrices are not written out in the case text of a run; they belong in a file.
MOST_NUMBERS_IN_A_CASE = 4096
# Random layers change at depths k·interval; a depth this close to one (in layers) has reached it.
LAYER_SLACK = 1e-9
# Every draw of a run is looked at before it starts, which takes 0.3 ms each.
MOST_LAYERS = 10**6


@pytree
class Heads:
    """H attention heads, averaged: scores ⟨Q_h θ, K_h ω⟩, values V_h ω.

    query, key (head, k, d) with any k; value (head, d, d). A trial axis may lead, one set of heads a trial.
    file: where the matrices were read from, if they were.
    """

    query: Any
    key: Any
    value: Any
    file: str | None = static(default=None)

    def __post_init__(self) -> None:
        traced = any(isinstance(getattr(self, part), jax.core.Tracer) for part in PARTS)
        for part in PARTS:
            matrix = getattr(self, part)
            matrix = jnp.asarray(matrix) if traced else _numbers(part, matrix)
            object.__setattr__(self, part, matrix[None] if matrix.ndim == 2 else matrix)
        if traced:
            return
        for part in PARTS:
            matrix = getattr(self, part)
            fine = matrix.ndim in (3, 4) and matrix.size > 0
            allowed = "matrices (head, row, column), with a trial axis before them or not"
            require(fine, part, list(matrix.shape), allowed)
        *lead, rows, dimension = self.query.shape
        allowed = f"matrices of shape {(*lead, rows, dimension)}, like query"
        require(self.key.shape == self.query.shape, "key", list(self.key.shape), allowed)
        square = (*lead, dimension, dimension)
        require(self.value.shape == square, "value", list(self.value.shape), f"matrices of shape {square}")

    @classmethod
    def from_tables(cls, tables: list[dict[str, ArrayLike]], dimension: int) -> Heads:
        """Heads from one table {query, key, value} each; an absent matrix is the identity, and rows may differ in number.

        InputError for a table that is empty of heads, has another key, or matrices that do not fit `dimension`.
        """
        require(len(tables) > 0, "heads", tables, "a list of at least one table { query, key, value }")
        found: dict[str, list[np.ndarray]] = {part: [] for part in PARTS}
        for index, table in enumerate(tables):
            for name in table:
                require(name in PARTS, f"heads[{index}].{name}", table[name], f"no such key but {', '.join(PARTS)}")
            for part in PARTS:
                name = f"heads[{index}].{part}"
                matrix = np.eye(dimension) if part not in table else _numbers(name, table[part])
                fine = matrix.ndim == 2 and matrix.shape[1] == dimension and len(matrix) > 0
                require(fine, name, table.get(part), f"rows of {dimension} numbers")
                found[part].append(matrix)
            rows, other = len(found["query"][-1]), len(found["key"][-1])
            require(rows == other, f"heads[{index}].key", table.get("key"), f"{rows} rows, as many as query has")
            allowed = f"{dimension} rows of {dimension} numbers"
            require(len(found["value"][-1]) == dimension, f"heads[{index}].value", table.get("value"), allowed)
        most = max(len(matrix) for matrix in found["query"])
        # rows of zeros change no score
        padded = {part: [np.pad(m, [(0, most - len(m)), (0, 0)]) for m in found[part]] for part in ("query", "key")}
        return cls(np.stack(padded["query"]), np.stack(padded["key"]), np.stack(found["value"]))

    @classmethod
    def from_file(cls, path: str | Path) -> Heads:
        """Heads from arrays query, key, value in an .npz file: (head, row, column), or (row, column) for one head.

        InputError for a file that cannot be read, and for arrays that are not of this form.
        """
        arrays = read_arrays(path, PARTS)
        try:
            heads = cls(arrays["query"], arrays["key"], arrays["value"], str(path))
        except InputError as problem:
            raise InputError(f"file: {problem.key}", problem.value, problem.allowed) from None
        shape = list(heads.query.shape)
        require(heads.trials is None, "file: query", shape, "matrices (head, row, column): trials share a file")
        return heads

    def as_case(self) -> Any:
        """The heads as they stand in a case file. TypeError where they are too large to be written out, or differ by trial."""
        if self.file is not None:
            return {"file": str(Path(self.file).resolve())}
        if self.trials is not None:
            raise TypeError("a case file has one set of heads for all trials")
        parts = {part: np.asarray(getattr(self, part)) for part in PARTS}
        if sum(matrix.size for matrix in parts.values()) > MOST_NUMBERS_IN_A_CASE:
            raise TypeError("heads of this size belong in a file")
        return [{part: parts[part][head].tolist() for part in PARTS} for head in range(len(parts["query"]))]

    @property
    def dimension(self) -> int:
        """The dimension d of the tokens that the matrices take."""
        return self.query.shape[-1]

    @property
    def trials(self) -> int | None:
        """The number of trials that have heads of their own; None where all share them."""
        return self.query.shape[0] if np.ndim(self.query) == 4 else None

    def reach(self) -> float:
        """The largest norm of K_hᵀQ_h: e^{β⟨Qθ,Kω⟩} is as narrow as the kernel of β times it."""
        products = np.swapaxes(np.asarray(self.key), -1, -2) @ np.asarray(self.query)
        return float(np.max(np.linalg.norm(products, ord=2, axis=(-2, -1))))


def _numbers(name: str, value: ArrayLike) -> np.ndarray:
    try:
        matrix = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        matrix = np.empty(0)
    require(matrix.ndim >= 2 and bool(np.all(np.isfinite(matrix))), name, value, "a matrix of finite numbers")
    return matrix


Kind = Literal["kaiming", "gaussian", "symmetric"]


@pytree
class RandomHeads:
    """Heads with independent random matrices, drawn by seed and layer where they are needed and never stored: the same bits
    wherever that is.

    kind: "kaiming" has entries N(0, 2/d) (He et al. 2015, fan-in d), "gaussian" N(0, 1/d), each for Q, K and V;
    "symmetric" takes Q = V = S and K = I with S symmetric, entries N(0, 1/d) off and N(0, 2/d) on the diagonal, for which
    unnormalised attention is a gradient flow.
    heads: how many. per_layer: new matrices for every layer, in a flow for every `interval` of depth; else the same
    throughout. per_trial: trials have networks of their own; else they share one. InputError for other values.
    """

    kind: str = static(default="kaiming")
    heads: int = static(default=1)
    seed: Any = 0
    per_layer: bool = static(default=True)
    interval: Any = 0.1
    per_trial: bool = static(default=False)

    case_keys: ClassVar[dict[str, Key]] = {
        "kind": Key(str, "kaiming, gaussian or symmetric"),
        "heads": Key(int, "number of heads", 1),
        "seed": Key(int, "seed of the draws", 0),
        "per_layer": Key(bool, "new matrices for every layer", True),
        "interval": Key(float, "depth that a draw lasts in a flow", 0.1),
        "per_trial": Key(bool, "every trial has a network of its own", False),
    }

    def __post_init__(self) -> None:
        require(self.kind in get_args(Kind), "kind", self.kind, "one of " + ", ".join(get_args(Kind)))
        fine = _is_integer(self.heads) and 1 <= self.heads <= 1024
        require(fine, "heads", self.heads, "an integer from 1 to 1024")
        if not isinstance(self.seed, jax.core.Tracer):
            fine = _is_integer(self.seed) and 0 <= self.seed < 2**63
            require(fine, "seed", self.seed, "an integer from 0 to 2^63 − 1")
            object.__setattr__(self, "seed", np.asarray(self.seed, dtype=np.int64))
        if not isinstance(self.interval, jax.core.Tracer):
            fine = schedule.is_number(self.interval) and self.interval >= 1e-9
            require(fine, "interval", self.interval, "a finite number of at least 1e-9")

    def layer(self, t: Array) -> Array:
        """The layer that a flow is in at depth t, its boundaries belonging to the layer that begins there."""
        interval = jax.lax.stop_gradient(jnp.asarray(self.interval, dtype=float))
        return jnp.floor(t / interval + LAYER_SLACK).astype(int) if self.per_layer else jnp.zeros_like(t, dtype=int)

    def next_break(self, t: Array) -> Array:
        """The depth at which the layer of a flow ends; infinite where all layers are the same."""
        if not self.per_layer:
            return jnp.asarray(jnp.inf)
        return jax.lax.stop_gradient(jnp.asarray(self.interval, dtype=float)) * (self.layer(t) + 1)

    @float64
    def drawn(self, layer: Array | int, dimension: int, trials: int | None = None) -> Heads:
        """The heads of a layer: (head, d, d) each, with a leading trial axis where trials have networks of their own."""
        key = jax.random.fold_in(jax.random.key(self.seed), layer if self.per_layer else 0)
        shape = (*(() if trials is None or not self.per_trial else (trials,)), self.heads, dimension, dimension)
        if self.kind == "symmetric":
            # mirrored, not n + nᵀ: a sum of two products that are computed anew is symmetric up to its last bit only
            normal, upper = _normal(key, shape), np.triu(np.ones((dimension, dimension), dtype=bool))
            deviation = np.sqrt((1 + np.eye(dimension)) / dimension)
            matrix = deviation * jnp.where(upper, normal, jnp.swapaxes(normal, -1, -2))
            return Heads(matrix, jnp.broadcast_to(jnp.eye(dimension), shape), matrix)
        deviation = np.sqrt((2.0 if self.kind == "kaiming" else 1.0) / dimension)
        return Heads(*(deviation * _normal(part, shape) for part in jax.random.split(key, 3)))

    def reach(self, dimension: int, final_time: float, layers: int | None, trials: int | None = None) -> float:
        """The largest norm of KᵀQ over every layer up to a depth, or of so many layers and the one that would follow, as
        whose input the last state is observed. InputError for more than 10⁶ layers.
        """
        last = layers if layers is not None else np.floor(final_time / float(self.interval) + LAYER_SLACK)
        count = int(last) + 1 if self.per_layer else 1
        allowed = f"a depth of layers of which {MOST_LAYERS} at most make up the run"
        require(count <= MOST_LAYERS, "weights.interval", self.interval, allowed)
        with jax.enable_x64(True):
            return max(self.drawn(layer, dimension, trials).reach() for layer in range(count))


def _normal(key: Array, shape: tuple[int, ...]) -> Array:
    # Without the barrier XLA merges the factors behind it with its own, and a compiled draw differs in its last bit.
    return jax.lax.optimization_barrier(jax.random.normal(key, shape))


def _is_integer(value: Any) -> bool:
    whole = isinstance(value, int | np.integer) or (isinstance(value, np.ndarray) and value.dtype.kind in "iu")
    return whole and not isinstance(value, bool) and np.ndim(value) == 0
