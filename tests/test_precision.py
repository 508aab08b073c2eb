"""float64 whatever the flag, and the flag as it was."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meanfield.attention import Attention
from meanfield.ensemble import Ensemble
from meanfield.geometry import Sphere
from meanfield.integrate import evolve
from meanfield.model import Model
from meanfield.precision import PrecisionError, compiled, float64, float64_leaves

THIRD = 1 / 3  # what float32 cannot hold


@compiled
def doubled(x):
    return 2 * x


@pytest.fixture(params=[False, True], ids=["x64 off", "x64 on"])
def flag(request):
    """The flag of the user, checked to be the same afterwards."""
    with jax.enable_x64(request.param):
        yield request.param
        assert jax.config.jax_enable_x64 == request.param


def test_results_are_float64_whatever_the_flag(flag):
    assert np.asarray(doubled(THIRD)).dtype == np.float64
    assert float(doubled(THIRD)) == 2 * THIRD
    assert float(doubled(np.array(THIRD))) == 2 * THIRD


def test_inside_the_flag_is_on(flag):
    inside = float64(lambda x: (jnp.asarray(x), jnp.asarray(jax.config.jax_enable_x64)))
    value, x64 = inside(THIRD)
    assert bool(x64)
    assert value == THIRD


def test_with_x64_off_results_are_numpy_arrays_which_no_later_operation_rounds():
    assert not jax.config.jax_enable_x64
    result = doubled(THIRD)
    assert isinstance(result, np.ndarray)
    assert result + 1 == 2 * THIRD + 1
    # jax itself would round
    assert float(jnp.asarray(THIRD) + 0.0) != THIRD


def test_with_x64_on_results_stay_on_the_device():
    with jax.enable_x64(True):
        assert isinstance(doubled(THIRD), jax.Array)


def test_the_flag_is_restored_after_an_error():
    @float64
    def fails():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert not jax.config.jax_enable_x64


SENTENCE = r"computes in float64 but is traced with x64 off: use `with jax\.enable_x64\(True\):` .*jax_enable_x64"


@pytest.mark.parametrize(
    "transformed",
    [
        pytest.param(lambda f: jax.grad(lambda x: jnp.sum(f(x))), id="grad"),
        pytest.param(jax.jit, id="jit"),
        pytest.param(lambda f: lambda x: jax.vmap(f)(jnp.stack([x, x])), id="vmap"),
    ],
)
def test_tracing_with_x64_off_is_refused_with_the_way_out_and_with_x64_on_it_works(transformed):
    state = Ensemble(np.eye(3), np.full(3, THIRD))

    def moved(beta):
        return evolve(Model(Attention(beta)), state, 0.0, 0.1).x

    with pytest.raises(PrecisionError, match="evolve " + SENTENCE) as refusal:
        transformed(moved)(1.0)
    assert "\n" not in str(refusal.value)
    grid = Sphere().grid(2)
    with pytest.raises(PrecisionError, match="synthesize " + SENTENCE):
        transformed(grid.synthesize)(jnp.ones(9))
    with jax.enable_x64(True):
        assert transformed(grid.synthesize)(jnp.ones(9)).dtype == np.float64


def test_evolve_gives_the_same_bits_whatever_the_flag():
    state, model = Ensemble(np.eye(3), np.full(3, THIRD)), Model(Attention(1.0))
    off = evolve(model, state, 0.0, 1.0).x
    assert isinstance(off, np.ndarray)
    with jax.enable_x64(True):
        on = evolve(model, state, 0.0, 1.0).x
    assert off.dtype == on.dtype == np.float64
    np.testing.assert_array_equal(off, on)
    # one over a float32 is not enough to agree to this
    assert np.abs(np.linalg.norm(off, axis=1) - 1).max() < 1e-15


def test_leaves_become_float64_arrays_so_that_a_float_an_int_and_a_float32_compile_alike():
    for beta in (2, 2.0, np.float32(2), np.array(2.0, np.float32)):
        (leaf,) = jax.tree.leaves(float64_leaves(Attention(beta)))
        assert isinstance(leaf, np.ndarray)
        assert (leaf.dtype, leaf.shape, leaf) == (np.float64, (), 2.0)
    indices = np.arange(3)
    assert float64_leaves({"indices": indices})["indices"] is indices
