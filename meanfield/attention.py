"""Attention: the vector A[μ](θ) that a token in direction θ receives from a measure μ of directions.

A(θ) = (1/Z) ∫ e^{β⟨θ,ω⟩} ω dμ(ω),   Z = ∫ e^{β⟨θ,ω⟩} dμ(ω)   (softmax; unnormalised attention drops 1/Z).

A measure is seen through its moments, or token by token where the space has none. Both forms are shifted, so that
neither Z nor A overflows for softmax at any β.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .geometry import funk_hecke
from .keys import Key, require
from .pytree import pytree, static

# Rows of the pairwise table are formed in blocks of about this many entries: no n × n array, and blocks stay in cache.
BLOCK_ENTRIES = 1 << 20
# e^β itself is needed by unnormalised attention.
LARGEST_UNNORMALIZED_BETA = 700.0
# Beyond, e^{β⟨θ,ω⟩} tells apart only directions closer than the last digits of a unit vector.
LARGEST_BETA = 1e6
# The moment sum for Z carries an absolute error of about this, relative to its largest value.
MOMENT_ROUNDOFF = 1e-15


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
    """What attention gives at points: the vector A (..., point, axis) and e^{−β} Z (..., point)."""

    vector: Array
    partition: Array


@pytree
class Attention:
    """Softmax or unnormalised self-attention with Q = K = V = I at inverse temperature β ≥ 0 (2510.22026, eq. of SA).

    `Attention(beta)(t, source, points)` is the field of `source` at unit vectors `points` (..., point, axis), or at the
    nodes of the source's grid where points is None. Raises InputError unless 0 ≤ β ≤ 1e6, and for β > 700 when
    unnormalised.
    """

    beta: Any
    normalized: bool = static(default=True)

    case_name: ClassVar[str] = "attention"
    case_keys: ClassVar[dict[str, Key]] = {
        "kind": Key(Literal["softmax", "unnormalized"], "softmax divides by Z, unnormalized does not", "softmax"),
        "beta": Key(float, "inverse temperature β ≥ 0"),
    }

    def __post_init__(self) -> None:
        if isinstance(self.beta, jax.core.Tracer):
            return
        number = isinstance(self.beta, int | float | np.number | np.ndarray | jax.Array) and np.ndim(self.beta) == 0
        require(number and bool(np.isfinite(self.beta)), "beta", self.beta, "a finite number of at least 0")
        require(self.beta >= 0, "beta", self.beta, "a number of at least 0")
        require(self.beta <= LARGEST_BETA, "beta", self.beta, f"at most {LARGEST_BETA:g}")
        if not self.normalized:
            allowed = f"at most {LARGEST_UNNORMALIZED_BETA:g} for unnormalized attention, whose e^β would overflow"
            require(self.beta <= LARGEST_UNNORMALIZED_BETA, "beta", self.beta, allowed)

    @classmethod
    def from_case(cls, kind: str, beta: float) -> Attention:
        """The attention that the keys of a case file describe."""
        return cls(beta, normalized=kind == "softmax")

    @property
    def kind(self) -> str:
        """The word of the case file for this attention."""
        return "softmax" if self.normalized else "unnormalized"

    @property
    def largest_beta(self) -> float:
        """The largest β of a run, which decides how many moments attention needs."""
        return float(self.beta)

    def __call__(self, t: Array, source: Moments | Tokens, points: Array | None = None) -> Field:
        """The attention field of `source` at `points`."""
        beta = jnp.asarray(self.beta, dtype=float)
        if isinstance(source, Tokens):
            targets = source.directions if points is None else points
            total, log_shift, vector = _direct(beta, source, targets)
            partition = total * jnp.exp(log_shift - beta)
            unnormalized = jnp.exp(log_shift)[..., None] * vector
        else:
            grid = source.grid
            multipliers = funk_hecke.multipliers(beta, grid.degree, grid.space.dimension)
            total, vector = grid.partition(source.coefficients, multipliers, points)
            # Where Z falls below round-off no mass is within reach, and the floor keeps A of order one there.
            total = jnp.maximum(total, MOMENT_ROUNDOFF * jnp.max(total, axis=-1, keepdims=True))
            log_scaled_a0 = funk_hecke.log_scaled_a0(beta, grid.space.dimension)
            partition = total * jnp.exp(log_scaled_a0)
            unnormalized = vector * jnp.exp(log_scaled_a0 + beta)
        return Field(vector / total[..., None] if self.normalized else unnormalized, partition)

    def energy(self, t: Array, partition: Array, weights: Array, order_parameter: Array) -> Array:
        """e^{−β} E(μ) = (2β)⁻¹ ∬ e^{β(⟨x,y⟩−1)} dμ dμ from e^{−β}Z at weighted points (..., point); ½|∫θdμ|² at β = 0."""
        beta = jnp.asarray(self.beta, dtype=float)
        positive = beta > 0
        mean = jnp.sum(weights * partition, axis=-1)
        return jnp.where(positive, mean / (2 * jnp.where(positive, beta, 1.0)), order_parameter**2 / 2)


def _direct(beta: Array, source: Tokens, points: Array) -> tuple[Array, Array, Array]:
    """Σ_j w_j e^{s_ij − max}, max, Σ_j w_j e^{s_ij − max} θ_j with s = β⟨θ_i, θ_j⟩, in blocks of rows."""
    return jnp.vectorize(_direct_rows, signature="(),(n,d),(n),(p,d)->(p),(p),(p,d)")(
        beta, source.directions, source.weights, points
    )


def _direct_rows(beta: Array, directions: Array, weights: Array, points: Array) -> tuple[Array, Array, Array]:
    count, sources = points.shape[0], directions.shape[0]
    # A token without weight must neither set the shift, or Z could underflow to 0, nor overflow above it: 0 · ∞.
    log_weight = jnp.where(weights > 0, 0.0, -jnp.inf)

    def block(rows: Array) -> tuple[Array, Array, Array]:
        scores = beta * (rows @ directions.T) + log_weight
        shift = jax.lax.stop_gradient(jnp.max(scores, axis=1))
        kernel = jnp.exp(scores - shift[:, None]) * weights
        return kernel.sum(axis=1), shift, kernel @ directions

    size = max(1, min(count, BLOCK_ENTRIES // sources))
    if size == count:
        return block(points)
    return jax.lax.map(lambda row: jax.tree.map(lambda a: a[0], block(row[None])), points, batch_size=size)
