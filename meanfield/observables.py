"""What is measured on a state: order parameter, mean cosine, energy, radii, resolution, least attention."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from .attention import Attention, Field

# name → long name; the order is that of the file.
STANDARD = {
    "order_parameter": "norm of the mean direction",
    "mean_cosine": "mean cosine over pairs of distinct tokens",
    "energy": "interaction energy times exp(-beta)",
    "mass": "total mass",
    "mean_radius": "mean radius",
    "std_radius": "standard deviation of the radius",
    "min_density": "least nodal value of the density with respect to the uniform probability measure",
    "min_attention": "least norm of the attention vector over the points of the state",
    "resolution": "share of the spectrum in the top tenth of degrees",
    "quadrature_error": "difference of the mean direction under an embedded coarser quadrature",
    "mean_direction": "mean direction",
}


class Watch(NamedTuple):
    """What is judged on every accepted step: worst over trials."""

    resolution: Array
    min_attention: Array
    attention_ratio: Array  # least ‖A‖ over largest
    energy: Array
    accuracy: Array
    marks: Array  # whose changes of sign are events: (event,)


def norm(vector: Array) -> Array:
    """Euclidean norm over the last axis, with gradient 0 at the origin."""
    square = jnp.sum(vector**2, axis=-1)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


def order_parameter(state: Any) -> Array:
    """|∫θ dμ|."""
    return norm(state.mean_direction())


def observe(attention: Attention, state: Any, t: Array) -> dict[str, Array]:
    """Every standard observable of a state at depth t; leading axes of an ensemble stay. No scheme has a say in them."""
    field = attention(t, state.source(), state.points)
    order = order_parameter(state)
    mean_radius, std_radius = state.radii()
    return {
        "order_parameter": order,
        "mean_cosine": state.mean_cosine(order),
        "energy": attention.energy(t, field.partition, state.weights, order),
        "mass": state.mass(),
        "mean_radius": mean_radius,
        "std_radius": std_radius,
        "min_density": state.min_density(),
        "min_attention": jnp.min(norm(field.vector), axis=-1),
        "resolution": state.resolution(),
        "quadrature_error": state.quadrature_error(),
        "mean_direction": state.mean_direction(),
    }


def watch(attention: Attention, state: Any, t: Array, field: Field, marks: tuple[Any, ...] = ()) -> Watch:
    """What an accepted step is judged by, from the field already at hand."""
    order = order_parameter(state)
    energy = attention.energy(t, field.partition, state.weights, order)
    size = norm(field.vector)
    return Watch(
        resolution=jnp.max(state.resolution()),
        min_attention=jnp.min(size),
        attention_ratio=jnp.min(jnp.min(size, axis=-1) / jnp.maximum(jnp.max(size, axis=-1), 1e-300)),
        energy=energy,
        accuracy=jnp.min(field.accuracy),
        marks=jnp.asarray([mark.mark(state, field) for mark in marks], dtype=float),
    )
