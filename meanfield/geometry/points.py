"""What sums over scattered points share, whatever the space: chunks that stay in cache, series of another length."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

# Points are treated in chunks that stay in cache; larger chunks spill, smaller ones starve the matrix product.
CHUNK = 1024


def chunked(function: Any, arrays: tuple[Array, ...]) -> Any:
    """Apply `function` to chunks of the leading axis; results are stacked along it (zero points pad the last chunk)."""
    count = arrays[0].shape[0]
    if count <= CHUNK:
        return jax.tree.map(lambda a: a[None], function(*arrays))
    number = -(-count // CHUNK)
    padded = [jnp.pad(a, [(0, number * CHUNK - count)] + [(0, 0)] * (a.ndim - 1)) for a in arrays]
    return jax.lax.map(lambda chunk: function(*chunk), tuple(a.reshape(number, CHUNK, *a.shape[1:]) for a in padded))


def resized(c: Array, size: int) -> Array:
    """The first `size` coefficients of each series, zeros where there are fewer: (..., mode) → (..., size)."""
    missing = size - c.shape[-1]
    return jnp.pad(c, [(0, 0)] * (c.ndim - 1) + [(0, missing)]) if missing > 0 else c[..., :size]
