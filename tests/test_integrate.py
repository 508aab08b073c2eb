"""Stepping in depth: the order, the tolerance, the depths it ends on, and what it refuses to go on with."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meanfield import integrate, runge_kutta
from meanfield.attention import Attention
from meanfield.density import Density
from meanfield.ensemble import Ensemble
from meanfield.geometry import Sphere
from meanfield.integrate import Limits, Progress, evolve
from meanfield.model import Model
from meanfield.normalization import NGPT, SCHEMES, MixLN, PeriLN, PostLN, PreLN, SqrtScaling, _Plain
from meanfield.pytree import pytree

BETA, END = 2.0, 4.0
UNLIMITED = Limits(np.inf, np.inf, np.inf, -np.inf)
start, advance = jax.jit(integrate.start), jax.jit(integrate.advance)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def tokens() -> Ensemble:
    x = np.random.default_rng(0).standard_normal((8, 4))
    return Ensemble(x / np.linalg.norm(x, axis=1, keepdims=True), np.full(8, 1 / 8))


@pytest.fixture(scope="module")
def bump() -> Density:
    """A density with a bump about the north pole, of moments that fall like 0.6^l."""
    grid = Sphere().grid(16)
    return Density(grid, np.where(grid.orders == 0, 0.6**grid.degrees * np.sqrt(2 * grid.degrees + 1), 0.0))


def model(scheme, beta=BETA) -> Model:
    return Model(Attention(beta), scheme)


def exact(scheme, state) -> np.ndarray:
    return np.asarray(evolve(model(scheme), state, 0.0, END, 1e-14, 1e-15).moving)


def run(scheme, state, t1=END, limits=None, step=integrate.FIRST_STEP, t0=0.0) -> Progress:
    limits = Limits(1e-8, 1e-10, np.inf, -np.inf) if limits is None else limits
    return advance(model(scheme), state, start(state, t0, step), t1, limits)


# ------------------------------------------------------------------ order


def in_equal_steps(scheme, state, count: int) -> Progress:
    """`count` equal steps, which a tolerance without limit accepts as they are."""
    progress = start(state, 0.0)
    for k in range(1, count + 1):
        progress = advance(model(scheme), state, progress._replace(step=END / count), k * END / count, UNLIMITED)
    assert int(progress.rejected) == 0
    return progress


def test_the_tableau_integrates_polynomials_up_to_degree_seven():
    degrees = np.arange(8)
    np.testing.assert_allclose(runge_kutta.B @ runge_kutta.C[:, None] ** degrees, 1 / (degrees + 1), rtol=1e-14)
    assert abs(runge_kutta.B @ runge_kutta.C**8 - 1 / 9) > 1e-6
    np.testing.assert_allclose(runge_kutta.A.sum(axis=1), runge_kutta.C, rtol=1e-13, atol=1e-13)


def test_one_step_is_of_order_eight(tokens):
    counts, reference = np.array([8, 10, 12, 16]), exact(PostLN(), tokens)
    errors = [np.abs(in_equal_steps(PostLN(), tokens, n).moving - reference).max() for n in counts]
    order = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert order == pytest.approx(8, abs=0.4)


def test_a_switch_inside_a_step_keeps_the_order(tokens):
    # with an odd number of steps τ = 2 always falls in the middle of one
    scheme, counts = MixLN(END / 2), np.array([13, 15, 17, 21])
    runs = [in_equal_steps(scheme, tokens, n) for n in counts]
    assert [int(progress.accepted) for progress in runs] == [n + 1 for n in counts]
    reference = exact(scheme, tokens)
    errors = [np.abs(progress.moving - reference).max() for progress in runs]
    order = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert order == pytest.approx(8, abs=1)


@pytest.mark.parametrize("cls", SCHEMES)
def test_the_error_follows_the_tolerance(cls, tokens):
    scheme, tolerances = cls(), 10.0 ** -np.arange(6, 13, 2)
    finals = [evolve(model(scheme), tokens, 0.0, END, rtol, rtol / 100).x for rtol in tolerances]
    reference = exact(scheme, tokens)
    errors = np.array([np.abs(x - reference).max() for x in finals])
    assert (errors < 2 * tolerances).all()
    slope = np.polyfit(np.log(tolerances), np.log(errors), 1)[0]
    assert slope == pytest.approx(1, abs=0.35)


def test_a_density_follows_the_tolerance_too(bump):
    finals = {r: evolve(model(PostLN()), bump, 0.0, 1.0, r, r / 100).coefficients for r in (1e-6, 1e-8, 1e-10, 1e-13)}
    for rtol in (1e-6, 1e-8, 1e-10):
        assert np.linalg.norm(finals[rtol] - finals[1e-13]) < 5 * rtol * np.linalg.norm(finals[1e-13])


# ------------------------------------------------------------------ depths


def test_a_run_ends_on_its_depth_exactly(tokens):
    # 0.001 + (0.009 − 0.001) > 0.009 and 0.003 + (0.013 − 0.003) < 0.013 in floating point
    pairs = [(0.001, 0.009), (0.003, 0.013), (0.0, 0.1 + 0.2), (0.0, 1e-9)]
    for t0, t1 in [*pairs, *np.sort(np.random.default_rng(0).uniform(0, 3, (40, 2)))]:
        progress = run(PreLN(), tokens, t1, t0=t0)
        assert float(progress.t) == t1
        assert int(progress.status) == integrate.COMPLETE
    assert int(run(PreLN(), tokens, 0.013, t0=0.003).accepted) == 1


def test_a_run_through_a_switch_ends_on_its_depth_exactly(tokens):
    for t1 in (0.3, 0.7, 10 / 3):
        assert float(run(MixLN(0.7), tokens, t1).t) == t1


def test_a_run_of_no_length_moves_nothing(tokens):
    np.testing.assert_array_equal(evolve(model(PreLN()), tokens, 1.0, 1.0).x, tokens.x)


@pytest.mark.parametrize("cls", SCHEMES)
def test_the_result_does_not_depend_on_how_the_interval_is_cut(cls, tokens):
    rtol, scheme = 1e-9, cls()
    whole = evolve(model(scheme), tokens, 0.0, END, rtol, rtol / 100).x
    for cuts in ([2.0], [0.1, 0.2, 3.99], np.sort(np.random.default_rng(1).uniform(0, END, 9))):
        state = tokens
        for t0, t1 in zip([0.0, *cuts], [*cuts, END], strict=True):
            state = evolve(model(scheme), state, t0, t1, rtol, rtol / 100)
        np.testing.assert_allclose(state.x, whole, atol=20 * rtol)


def test_mix_ln_is_post_ln_followed_by_pre_ln(tokens):
    halfway = evolve(model(PostLN()), tokens, 0.0, 1.3, 1e-12, 1e-14)
    np.testing.assert_allclose(
        evolve(model(MixLN(1.3)), tokens, 0.0, END, 1e-12, 1e-14).x,
        evolve(model(PreLN()), halfway, 1.3, END, 1e-12, 1e-14).x,
        atol=1e-11,
    )
    # a switch at the start, or after the end, is no switch
    np.testing.assert_array_equal(
        evolve(model(MixLN(0.0)), tokens, 0.0, 1.0).x, evolve(model(PreLN()), tokens, 0.0, 1.0).x
    )
    np.testing.assert_array_equal(
        evolve(model(MixLN(9.0)), tokens, 0.0, 1.0).x, evolve(model(PostLN()), tokens, 0.0, 1.0).x
    )


def test_where_the_norm_is_restored_radii_keep_their_values(tokens):
    radii = np.linspace(0.5, 2.0, 8)
    layered = Ensemble(radii[:, None] * tokens.x, tokens.weights)
    for scheme in (PostLN(), NGPT(0.5), SqrtScaling()):
        moved = evolve(model(scheme), layered, 0.0, END, 1e-3, 1e-3)
        np.testing.assert_allclose(moved.radius, radii, rtol=1e-15)
        # and directions do not feel them
        alone = evolve(model(scheme), tokens, 0.0, END, 1e-10, 1e-12)
        fine = evolve(model(scheme), layered, 0.0, END, 1e-10, 1e-12)
        np.testing.assert_allclose(fine.directions, alone.directions, atol=1e-8)


# ------------------------------------------------------------------ judgement


def test_an_unresolved_density_stops_the_run(bump):
    progress = run(PostLN(), bump, 10.0, Limits(1e-8, 1e-10, 0.1, -np.inf))
    assert int(progress.status) == integrate.UNRESOLVED
    assert 0 < float(progress.t) < 10
    assert float(progress.max_resolution) > 0.1
    assert np.isfinite(progress.moving).all()


def test_sums_through_moments_that_lost_their_accuracy_stop_the_run(bump):
    progress = run(PostLN(), bump, 10.0, Limits(1e-8, 1e-10, np.inf, 0.08))
    assert int(progress.status) == integrate.INACCURATE
    assert 0 < float(progress.t) < 10


def test_values_that_are_not_finite_stop_the_run(tokens):
    progress = run(PreLN(), Ensemble(tokens.x, np.where(np.arange(8) == 3, np.nan, 1 / 8)))
    assert int(progress.status) == integrate.NONFINITE
    assert float(progress.t) == 0
    np.testing.assert_array_equal(progress.moving, tokens.x)


def test_a_step_below_round_off_stops_the_run(tokens):
    progress = run(PreLN(), tokens, limits=Limits(1e-30, 1e-30, np.inf, -np.inf))
    assert int(progress.status) == integrate.UNDERFLOW
    assert float(progress.t) < END
    assert float(progress.step) < 1e-14


def test_too_many_rejections_in_a_row_stop_the_run(tokens):
    # each rejection divides the step by 5 at most: from 1e45 there is no way down in 60 of them
    progress = run(PreLN(), tokens, 1e46, step=1e45)
    assert int(progress.status) == integrate.REJECTED
    assert int(progress.rejected) == integrate.MAX_REJECTED_IN_A_ROW
    assert int(progress.accepted) == 0


def test_where_it_cannot_go_on_evolve_returns_nan_and_not_a_state_of_another_depth(tokens):
    stuck = evolve(model(PreLN()), tokens, 0.0, END, 1e-30, 1e-30)
    assert np.isnan(stuck.x).all()


# ------------------------------------------------------------------ energy


@pytest.mark.parametrize("cls", SCHEMES)
def test_the_energy_of_tokens_grows_with_every_accepted_step(cls, tokens):
    progress = run(cls(), tokens)
    before, after = (float(run(cls(), tokens, t).energy) for t in (0.1, END))
    assert int(progress.accepted) > 5
    assert float(progress.energy_drop) == 0
    assert after > before + 0.01


@pytest.mark.parametrize("scheme", [PostLN(), NGPT()])
def test_the_energy_of_a_density_grows_with_every_accepted_step(scheme, bump):
    progress = run(scheme, bump, 0.5)
    assert int(progress.accepted) > 2
    assert float(progress.energy_drop) == 0


@pytree
class Repulsion(_Plain):
    """Tokens flee from what they attend to, so that the energy falls."""

    restores = True

    def push(self, theta, A, t):
        return -A


def test_a_fall_of_the_energy_is_seen(tokens):
    clustered = Ensemble(tokens.x + np.array([2.0, 0, 0, 0]), tokens.weights)
    assert float(run(Repulsion(), clustered).energy_drop) > 0.01


# ------------------------------------------------------------------ bits, compilation, transformations


@pytest.mark.parametrize("cls", SCHEMES)
def test_a_second_run_gives_the_same_bits(cls, tokens):
    first, second = (evolve(model(cls()), tokens, 0.0, END).x for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_numbers_may_change_without_compilation(tokens):
    evolve(Model(Attention(1.0), NGPT(1.0)), tokens, 0.0, 1.0, 1e-6, 1e-8)
    evolve(Model(Attention(1.0), MixLN(1.0)), tokens, 0.0, 1.0, 1e-6, 1e-8)
    compiled = integrate._evolve._cache_size()
    for number in (2, 2.5, np.float32(0.5), np.array(1.5)):
        evolve(Model(Attention(number), NGPT(number)), tokens, 0.0, 1.0, 1e-6, 1e-8)
        evolve(Model(Attention(1.0), MixLN(number)), tokens, 0.0, 1.0, 1e-6, 1e-8)
        evolve(Model(Attention(1.0), NGPT(1.0)), tokens, 0, number, 1e-7, np.float32(1e-3))
    assert integrate._evolve._cache_size() == compiled


def test_a_batch_of_betas_is_each_of_them_alone(tokens):
    betas = jnp.asarray([0.5, 2.0, 5.0])
    batch = jax.vmap(lambda beta: evolve(model(PeriLN(), beta), tokens, 0.0, 1.0).x)(betas)
    for beta, x in zip(betas, batch, strict=True):
        np.testing.assert_allclose(x, evolve(model(PeriLN(), beta), tokens, 0.0, 1.0).x, atol=1e-12)


def test_trials_side_by_side_do_not_see_each_other(tokens):
    x = np.stack([tokens.x, tokens.x[::-1, ::-1], np.roll(tokens.x, 1, axis=1) * [1, -1, 1, 1]])
    together = evolve(model(PeriLN()), Ensemble(x, tokens.weights), 0.0, END, 1e-10, 1e-12).x
    for trial in range(3):
        alone = evolve(model(PeriLN()), Ensemble(x[trial], tokens.weights), 0.0, END, 1e-10, 1e-12).x
        np.testing.assert_allclose(together[trial], alone, atol=1e-9)


def test_the_derivative_in_beta_is_the_limit_of_differences(tokens):
    def final(beta, derivative="reverse"):
        return evolve(model(PreLN(), beta), tokens, 0.0, 1.0, 1e-12, 1e-14, derivative=derivative).x

    _, slope = jax.jvp(lambda beta: final(beta, "forward"), (jnp.asarray(BETA),), (jnp.asarray(1.0),))
    difference = (final(BETA + 1e-4) - final(BETA - 1e-4)) / 2e-4
    np.testing.assert_allclose(slope, difference, atol=1e-8)
