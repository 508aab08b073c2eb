"""β → 0 and β = 1000: the field through moments and token by token, its derivative, and runs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import SPHERE

import meanfield as mf
from meanfield.attention import Attention, Moments, Tokens
from meanfield.geometry.funk_hecke import attention_degree

field = jax.jit(lambda attention, source, points=None: attention(0.0, source, points))
CIRCLE = mf.Circle()


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def units(count: int, dimension: int) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((count, dimension))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def smooth(space: Any) -> mf.Density:
    """A positive density of degree 4."""
    grid = space.grid(4)
    c = 0.3 * np.random.default_rng(1).standard_normal(grid.size) * 0.5**grid.degrees
    c[0] = 1.0
    return mf.Density(grid, c)


@pytest.mark.parametrize("space", [CIRCLE, pytest.param(SPHERE, marks=pytest.mark.slow)], ids=["circle", "sphere"])
def test_at_beta_1000_moments_give_the_integral(space):
    density, points, beta = smooth(space), units(3, space.dimension), 1000.0
    # the kernel is as wide as 1/√β: this many nodes integrate it to round-off
    nodes, weights = space.quadrature(300)
    measure = weights * np.asarray(density.grid.evaluate(density.coefficients, nodes))
    kernel = np.exp(beta * (points @ nodes.T - 1)) * measure
    found = field(Attention(beta), density.source(), points)
    np.testing.assert_allclose(found.partition, kernel.sum(axis=1), rtol=1e-11)
    np.testing.assert_allclose(found.vector, kernel @ nodes / kernel.sum(axis=1, keepdims=True), atol=1e-12)
    # a head sees it through signed weights on the nodes of a grid that resolves the kernel
    seen = mf.Density(density.grid, density.coefficients, space.grid(attention_degree(beta, space.dimension))).source()
    head = mf.Heads(*[np.eye(space.dimension)] * 3)
    np.testing.assert_allclose(field(Attention(beta, heads=head), seen, points).vector, found.vector, atol=1e-12)


@pytest.mark.parametrize("space", [CIRCLE, SPHERE, mf.Zonal(6)], ids=["circle", "sphere", "zonal"])
def test_unnormalised_attention_at_its_largest_beta_is_that_of_softmax_times_z(space):
    density = smooth(space)
    unnormalised, softmax = (field(Attention(700.0, normalized), density.source()) for normalized in (False, True))
    Z = np.asarray(softmax.partition)[:, None] * np.exp(700.0)
    assert np.isfinite(Z).all()
    np.testing.assert_allclose(unnormalised.vector, softmax.vector * Z, rtol=1e-11)


def test_at_beta_1000_a_density_moves_as_its_characteristics_by_direct_sums_do():
    # where the kernel is narrow A ≈ θ + ∇log ρ/β: the flow is a slow heat flow backwards in time
    law = mf.perturbed_uniform(CIRCLE, [[1, 1, 0.2], [2, -2, 0.1]])
    numbers = {"rtol": 1e-9, "atol": 1e-11, "state": "last"}
    model = mf.Model(Attention(1000.0))
    density = mf.solve(model, law, 1.0, 2, method="density", degree=16, **numbers)
    carried = mf.solve(model, law, 1.0, 2, method="characteristics", degree=200, sums="direct", **numbers)
    assert density.status == carried.status == "complete"
    assert carried.message == ""
    for name in ("mean_direction", "energy"):
        np.testing.assert_allclose(density.observables[name], carried.observables[name], atol=1e-9, err_msg=name)
    moved = np.diff(density.observables["order_parameter"])[0]
    assert moved / density.observables["order_parameter"][0] == pytest.approx(1e-3, rel=0.1)  # σ_1 ≈ Λ_1/β


def one_sided(function: Any, h: float = 1e-3) -> float:
    """The slope at 0 by differences of fourth order from values at β ≥ 0."""
    f = [float(function(k * h)) for k in range(5)]
    return (-25 * f[0] + 48 * f[1] - 36 * f[2] + 16 * f[3] - 3 * f[4]) / (12 * h)


@pytest.mark.parametrize(
    "kind", ["tokens", "zonal", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("head", "circle", "sphere"))]
)
def test_at_beta_zero_a_flow_has_the_slope_of_those_beside_it(kind):
    spaces = {"circle": CIRCLE, "sphere": SPHERE, "zonal": mf.Zonal(6)}
    state = smooth(spaces[kind]) if kind in spaces else mf.Ensemble(units(4, 3), np.full(4, 0.25))
    head = mf.Heads(*np.random.default_rng(3).standard_normal((3, 1, 3, 3))) if kind == "head" else None

    @jax.jit
    def end(beta: Any) -> Any:
        moved = mf.evolve(mf.Model(Attention(beta, heads=head)), state, 0.0, 0.5, 1e-13, 1e-14, max_steps=64).moving
        return jnp.sum(jnp.ravel(moved) * jnp.cos(jnp.arange(moved.size)))

    slope = float(jax.jit(jax.grad(end))(0.0))
    assert abs(slope) > 1e-4
    assert slope == pytest.approx(one_sided(end), rel=1e-7)


def test_the_field_of_ever_smaller_beta_tends_to_the_mean():
    source, points = Tokens(units(9, 3), np.full(9, 1 / 9)), units(4, 3)
    grid = SPHERE.grid(8)
    moments = Moments(grid, grid.moments(source.directions, source.weights))
    mean = np.broadcast_to(source.weights @ source.directions, (4, 3))
    for beta in (0.0, 5e-324, 1e-300, 1e-16):
        for seen in (source, moments):
            np.testing.assert_allclose(field(Attention(beta), seen, points).vector, mean, atol=1e-15)
