"""Attention: the vector A[μ](θ) that a token in direction θ receives from a measure μ of directions.

A(θ) = (1/H) Σ_h (1/Z_h) ∫ e^{β⟨Q_hθ,K_hω⟩} V_hω dμ(ω),   Z_h = ∫ e^{β⟨Q_hθ,K_hω⟩} dμ(ω)

(softmax; unnormalised attention drops 1/Z, and without heads Q = K = V = I). A measure is seen through its moments, or
token by token where the space has none. Both forms are shifted, so that neither Z nor A overflows for softmax at any β.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from . import schedule
from .geometry import funk_hecke
from .heads import Heads, RandomHeads
from .keys import InputError, Key, require
from .pytree import pytree, static
from .schedule import NUMBER_OR_SCHEDULE

# Rows of the pairwise table are formed in blocks of about this many entries: no n × n array, and blocks stay in cache.
BLOCK_ENTRIES = 1 << 20
# e^β itself is needed by unnormalised attention.
LARGEST_UNNORMALIZED_BETA = 700.0
# Beyond, e^{β⟨θ,ω⟩} tells apart only directions closer than the last digits of a unit vector.
LARGEST_BETA = 1e6
# The moment sum for Z carries an absolute error of about this, relative to its largest value.
MOMENT_ROUNDOFF = 1e-15
# e to this power is still a float64, with room for sums.
LARGEST_EXPONENT = 690.0


@pytree
class Moments:
    """A measure of directions seen through ∫Y_k dμ: coefficients (..., mode) on `grid`."""

    grid: Any
    coefficients: Any


@pytree
class Tokens:
    """A measure of directions seen token by token: directions (..., token, axis), weights (token,) with sum 1."""

    directions: Any
    weights: Any


class Field(NamedTuple):
    """What attention gives at points, and how far it can be trusted.

    vector: A (..., point, axis). partition: e^{−β} Z, for heads its mean (..., point). accuracy: by how much sums through
    moments cancel, least Z over the largest, (...); 1 for sums token by token.
    """

    vector: Array
    partition: Array
    accuracy: Array


@pytree
class Attention:
    """Softmax or unnormalised self-attention at inverse temperature β ≥ 0 (2510.22026, eq. of SA).

    `Attention(beta)(t, source, points)` is the field of `source` at unit vectors `points` (..., point, axis); where points is
    None, at the nodes of the source's grid or at the source's own tokens.
    beta: a number or a Schedule of depth. heads: matrices Q, K, V, or weights: random ones; Q = K = V = I without both.
    causal: token k attends to tokens j ≤ k (2411.04990); points other than the tokens attend to all. A token that sees no
    weight at all receives 0. TypeError for a source of moments, which have no order.
    InputError unless 0 ≤ β ≤ 1e6, for β‖KᵀQ‖ > 700 when unnormalised, and where both heads and weights are given.
    """

    beta: Any
    normalized: bool = static(default=True)
    heads: Heads | None = None
    weights: RandomHeads | None = None
    causal: bool = static(default=False)

    case_name: ClassVar[str] = "attention"
    case_keys: ClassVar[dict[str, Key]] = {
        "kind": Key(Literal["softmax", "unnormalized"], "softmax divides by Z, unnormalized does not", "softmax"),
        "beta": Key(NUMBER_OR_SCHEDULE, "inverse temperature β ≥ 0, or a schedule of it"),
        "causal": Key(bool, "token k attends to tokens j ≤ k only; for particles", False),
        "heads": Key(
            list[dict[str, list[list[float]]]] | dict[str, str],
            'heads { query, key, value }, averaged; or { file = "heads.npz" }; the identity when absent',
            None,
        ),
        "weights": Key(dict[str, Any], "random heads instead: kind, heads, seed, per_layer, interval, per_trial", None),
    }

    def __post_init__(self) -> None:
        require(isinstance(self.heads, Heads | None), "heads", self.heads, "Heads, or None")
        require(isinstance(self.weights, RandomHeads | None), "weights", self.weights, "RandomHeads, or None")
        require(self.heads is None or self.weights is None, "weights", "given", "absent where heads are given")
        if schedule.is_traced(self.beta):
            return
        known = isinstance(self.beta, schedule.Schedule) or schedule.is_number(self.beta)
        require(known, "beta", self.beta, "a finite number of at least 0, or a Schedule")
        name = "beta.values" if isinstance(self.beta, schedule.Schedule) else "beta"
        low, high = float(np.min(schedule.values(self.beta))), float(np.max(schedule.values(self.beta)))
        require(low >= 0, name, low, "a number of at least 0")
        require(high <= LARGEST_BETA, name, high, f"at most {LARGEST_BETA:g}")
        if not self.normalized:
            allowed = f"at most {LARGEST_UNNORMALIZED_BETA:g} for unnormalized attention, whose e^β would overflow"
            require(high <= LARGEST_UNNORMALIZED_BETA, name, high, allowed)
            if self.heads is not None and not schedule.is_traced(self.heads):
                norm = self.heads.reach()
                allowed = f"at most {LARGEST_UNNORMALIZED_BETA:g} times the norm of KᵀQ, {norm:.3g}, for unnormalized attention"
                require(high * norm <= LARGEST_UNNORMALIZED_BETA, name, high, allowed)

    @classmethod
    def from_case(
        cls, kind: str, beta: Any, causal: bool, heads: Any, weights: Any, folder: Path, dimension: int
    ) -> Attention:
        """The attention that the keys of a case file describe; `heads.file` is relative to the folder of the case."""
        given = None
        if isinstance(heads, dict):
            require(set(heads) == {"file"}, "heads", heads, "a list of tables, or { file = … }")
            given = _heads_from_file(folder / heads["file"], dimension)
        elif heads is not None:
            given = Heads.from_tables(heads, dimension)
        beta = schedule.from_case("beta", beta)
        return cls(beta, kind == "softmax", given, weights, causal)

    @property
    def kind(self) -> str:
        """The word of the case file for this attention."""
        return "softmax" if self.normalized else "unnormalized"

    @property
    def is_gradient(self) -> bool:
        """Whether the energy is known to grow along the exact flow: Q = K = V = I, at one β, unmasked."""
        plain = self.heads is None and self.weights is None and not self.causal
        return plain and not isinstance(self.beta, schedule.Schedule)

    def reach(self, dimension: int, final_time: float, layers: int | None = None, trials: int | None = None) -> float:
        """The largest β‖KᵀQ‖ of a run: the β of the narrowest kernel, which decides how many moments attention needs."""
        beta = float(np.max(schedule.values(self.beta)))
        if self.weights is not None:
            return beta * self.weights.reach(dimension, final_time, layers, trials)
        return beta if self.heads is None else beta * self.heads.reach()

    def drawn(self, layer: Array, dimension: int, trials: int | None = None) -> Attention:
        """The attention in one layer, with its random matrices drawn."""
        if self.weights is None:
            return self
        heads = self.weights.drawn(layer, dimension, trials)
        return Attention(self.beta, self.normalized, heads, None, self.causal)

    def at_depth(self, t: Array, dimension: int, trials: int | None = None) -> Attention:
        """The attention in the layer that a flow is in at depth t."""
        return self if self.weights is None else self.drawn(self.weights.layer(t), dimension, trials)

    def __call__(self, t: Array, source: Moments | Tokens, points: Array | None = None) -> Field:
        """The attention field of `source` at `points`."""
        beta = schedule.at(self.beta, t)
        if self.causal and isinstance(source, Moments):
            raise TypeError("causal attention follows the order of tokens, which moments do not have: use a direct sum")
        if self.weights is not None:
            width, trials = _widths(source)
            return self.at_depth(t, width, trials)(t, source, points)
        if self.heads is not None:
            return self._through_heads(self.heads, beta, source, points)
        if isinstance(source, Tokens):
            targets = source.directions if points is None else points
            sums = _direct(
                beta * targets, source.directions, source.directions, source.weights, self._mask(points), False
            )
            return self._field(beta, sums)
        grid = source.grid
        multipliers = funk_hecke.multipliers(beta, grid.degree, grid.space.dimension)
        total, vector = grid.partition(source.coefficients, multipliers, points)
        largest = jnp.max(total, axis=-1, keepdims=True)
        accuracy = jnp.min(total / largest, axis=-1)
        # Where Z falls below round-off no mass is within reach, and the floor keeps A of order one there.
        total = jnp.maximum(total, MOMENT_ROUNDOFF * largest)
        log_scaled_a0 = funk_hecke.log_scaled_a0(beta, grid.space.dimension)
        vector = vector / total[..., None] if self.normalized else vector * jnp.exp(log_scaled_a0 + beta)
        return Field(vector, total * jnp.exp(log_scaled_a0), accuracy)

    def _mask(self, points: Array | None) -> bool:
        return self.causal and points is None

    def _through_heads(self, heads: Heads, beta: Array, source: Moments | Tokens, points: Array | None) -> Field:
        """The mean of the heads' fields. Moments are seen as signed weights on the nodes of their grid, which integrate
        every harmonic of the kernel against every moment exactly, so that Q, K and V of any kind need nothing else.
        """
        signed = isinstance(source, Moments)
        if isinstance(source, Tokens):
            seen, weights = jnp.asarray(source.directions), source.weights
        else:
            grid = source.grid
            if grid.space.rings:
                raise TypeError("heads turn rings into other sets of directions: zonal geometry has Q = K = V = I only")
            seen, weights = jnp.asarray(grid.nodes), grid.synthesize(source.coefficients) * grid.weights
        targets = seen if points is None else points

        def one(head: tuple[Array, Array, Array]) -> Field:
            query, key, value = (jnp.swapaxes(jnp.asarray(matrix), -1, -2) for matrix in head)
            sums = _direct(beta * (targets @ query), seen @ key, seen @ value, weights, self._mask(points), signed)
            return self._field(beta, sums)

        stacked = tuple(jnp.moveaxis(jnp.asarray(matrix), -3, 0) for matrix in (heads.query, heads.key, heads.value))
        fields = jax.lax.map(one, stacked)
        return Field(fields.vector.mean(axis=0), fields.partition.mean(axis=0), fields.accuracy.min(axis=0))

    def _field(self, beta: Array, sums: _Sums) -> Field:
        # Signed weights may leave nothing but round-off where no mass is within reach.
        total = jnp.maximum(sums.total, MOMENT_ROUNDOFF * sums.magnitude)
        sees = sums.magnitude > 0
        share = sums.vector / jnp.where(sees, total, 1.0)[..., None]
        vector = share if self.normalized else jnp.exp(sums.shift)[..., None] * sums.vector
        accuracy = jnp.min(jnp.where(sees, sums.total / jnp.where(sees, sums.magnitude, 1.0), 1.0), axis=-1)
        return Field(vector, total * jnp.exp(sums.shift - beta), accuracy)

    def energy(self, t: Array, partition: Array, weights: Array, order_parameter: Array) -> Array:
        """e^{−β} E(μ) = (2β)⁻¹ ∬ e^{β(⟨Qx,Ky⟩−1)} dμ dμ from e^{−β}Z at weighted points (..., point), the mean over heads.

        Causal: over pairs in which y does not follow x. At β = 0 it is ½|∫θdμ|², the limit of E − 1/2β, and NaN with heads
        or a mask.
        """
        beta = schedule.at(self.beta, t)
        positive = beta > 0
        mean = jnp.sum(weights * partition, axis=-1)
        plain = self.heads is None and self.weights is None and not self.causal
        limit = order_parameter**2 / 2 if plain else jnp.nan
        return jnp.where(positive, mean / (2 * jnp.where(positive, beta, 1.0)), limit)


def _heads_from_file(path: Path, dimension: int) -> Heads:
    try:
        heads = Heads.from_file(path)
        shape = list(heads.query.shape)
        require(heads.dimension == dimension, "file: query", shape, f"matrices for tokens of dimension {dimension}")
    except InputError as problem:
        raise problem.under("heads") from None
    return heads


def _widths(source: Moments | Tokens) -> tuple[int, int | None]:
    """The length of a token vector, and the number of trials where there is an axis of them."""
    if isinstance(source, Tokens):
        shape = np.shape(source.directions)
        return shape[-1], shape[0] if len(shape) == 3 else None
    shape = np.shape(source.coefficients)
    return np.shape(source.grid.nodes)[-1], shape[0] if len(shape) == 2 else None


class _Sums(NamedTuple):
    """With s_ij = ⟨query_i, key_j⟩: Σ_j w_j e^{s_ij − shift}, Σ_j |w_j| e^{s_ij − shift}, shift, Σ_j w_j e^{s_ij − shift} v_j."""

    total: Array
    magnitude: Array
    shift: Array
    vector: Array


def _direct(queries: Array, keys: Array, values: Array, weights: Array, causal: bool, signed: bool) -> _Sums:
    """The sums of every query over every key, in blocks of rows; leading axes broadcast."""
    rows = functools.partial(_direct_rows, causal, signed)
    signature = "(p,k),(n,k),(n,d),(n)->(p),(p),(p),(p,d)"
    return _Sums(*jnp.vectorize(rows, signature=signature)(queries, keys, values, weights))


def _direct_rows(
    causal: bool, signed: bool, queries: Array, keys: Array, values: Array, weights: Array
) -> tuple[Array, ...]:
    count, sources = queries.shape[0], keys.shape[0]
    # A token without weight must neither set the shift, or Z could underflow to 0, nor overflow above it: 0 · ∞. Its
    # kernel stays, as the derivative in its weight.
    log_weight = jnp.where(weights != 0, 0.0, -jnp.inf)

    def block(rows: Array, index: Array) -> tuple[Array, ...]:
        scores = rows @ keys.T
        if causal:
            scores = jnp.where(np.arange(sources) <= index[:, None], scores, -jnp.inf)
        shift = jax.lax.stop_gradient(jnp.max(scores + log_weight, axis=1))
        shift = jnp.where(jnp.isfinite(shift), shift, 0.0)  # a token that sees no weight at all
        kernel = jnp.exp(jnp.minimum(scores - shift[:, None], LARGEST_EXPONENT)) * weights
        total = kernel.sum(axis=1)
        return total, jnp.abs(kernel).sum(axis=1) if signed else total, shift, kernel @ values

    size = max(1, min(count, BLOCK_ENTRIES // sources))
    index = jnp.arange(count)
    if size == count:
        return block(queries, index)
    one = lambda row: jax.tree.map(lambda a: a[0], block(row[0][None], row[1][None]))  # noqa: E731
    return jax.lax.map(one, (queries, index), batch_size=size)
