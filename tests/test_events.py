"""Events: folds, voids and a user's own, found on accepted steps and located to the step tolerance."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import i0, i1
from small_runs import model, two_bumps

import meanfield as mf
from meanfield.events import Event
from meanfield.keys import InputError

CONCENTRATION = 1.5


def event(solution: mf.Solution, kind: str) -> Event:
    (found,) = (event for event in solution.events if event.kind == kind)
    return found


def fold_at_beta_zero(dimension: int) -> float:
    """The first depth at which |∫M dt| = r₀ = 1.

    At β = 0 Pre-LN moves all tokens alike, x = θ₀ + D e with dD/dt = M(D) = ∫⟨e, x/|x|⟩ dμ₀; the origin leaves the
    sphere of tokens, and the direction map folds, when D = 1.
    """
    u, w = np.polynomial.legendre.leggauss(400)
    if dimension == 2:
        angle, weight = (
            np.pi * u,
            np.pi * w * np.exp(CONCENTRATION * np.cos(np.pi * u)) / (2 * np.pi * i0(CONCENTRATION)),
        )
        cosine = np.cos(angle)
        assert weight @ cosine == pytest.approx(i1(CONCENTRATION) / i0(CONCENTRATION), abs=1e-13)
    else:
        cosine, weight = u, w * np.exp(CONCENTRATION * u) * CONCENTRATION / (2 * np.sinh(CONCENTRATION))
        assert weight.sum() == pytest.approx(1, abs=1e-13)

    def rate(t, D):
        return [weight @ ((cosine + D[0]) / np.sqrt(1 + 2 * D[0] * cosine + D[0] ** 2))]

    reached = lambda t, D: D[0] - 1  # noqa: E731
    reached.terminal = True
    found = solve_ivp(rate, (0, 10), [0.0], events=reached, rtol=1e-11, atol=1e-13, method="DOP853")
    return float(found.t_events[0][0])


@pytest.mark.parametrize(("space", "degree", "accuracy"), [(mf.Circle(), 256, 1e-4), (mf.Sphere(), 48, 3e-3)], ids=repr)
def test_the_fold_of_pre_ln_at_beta_zero_is_where_the_origin_leaves_the_surface(space, degree, accuracy):
    bump = mf.vmf_mixture(space, [space.axis], [CONCENTRATION])
    depth = fold_at_beta_zero(space.dimension)
    found = []
    for times in ([4.0], [0.5, 1.0, 4.0]):
        run = mf.solve(
            model(mf.PreLN(), beta=0.0),
            bump,
            times=times,
            method="characteristics",
            degree=degree,
            rtol=1e-9,
            atol=1e-11,
        )
        found.append(event(run, "fold"))
    assert found[0].time == pytest.approx(depth, abs=accuracy)
    assert found[1].time == pytest.approx(found[0].time, abs=1e-7)  # whatever the frames
    assert found[0].value < 10 * accuracy + 0.1  # the token that passes the origin


def test_the_fold_converges_with_the_nodes():
    space, depth = mf.Circle(), fold_at_beta_zero(2)
    bump = mf.vmf_mixture(space, [space.axis], [CONCENTRATION])
    errors = []
    for degree in (32, 128):
        run = mf.solve(model(mf.PreLN(), beta=0.0), bump, 4.0, 2, method="characteristics", degree=degree, rtol=1e-10)
        errors.append(abs(event(run, "fold").time - depth))
    assert errors[1] < errors[0] / 8


def test_where_norms_are_restored_the_direction_map_never_folds():
    run = mf.solve(model(mf.PostLN()), two_bumps(), 3.0, 2, method="characteristics", degree=12)
    assert run.events == ()


@pytest.mark.filterwarnings("ignore::meanfield.AccuracyWarning")
def test_a_void_is_located_where_the_attention_is_least():
    law = mf.vmf_mixture(mf.Sphere(), [[1, 0, 0], [0, 1, 0], [0.3, -0.4, 0.6]], [6.0, 6.0, 6.0])
    run = mf.solve(model(mf.NGPT(), beta=2.0), law, 1.0, 2, method="characteristics", degree=24, refine=False)
    void = event(run, "void")
    assert void.time == 0.0  # three bumps leave directions that see them cancel from the start
    sizes = np.linalg.norm(run.attention(0.0)(run.state(0.0).directions), axis=-1)
    assert void.value == pytest.approx(sizes.min(), rel=1e-12)
    np.testing.assert_allclose(void.position, run.state(0.0).directions[sizes.argmin()], atol=1e-12)


class TestCrossings:
    TIMES = (0.0, 0.4, 3.0)

    def run(self, **options):
        settings = {"times": self.TIMES, "degree": 16, "rtol": 1e-10, "atol": 1e-12, **options}
        return mf.solve(model(), two_bumps(), **settings)

    def test_the_depth_at_which_the_mean_cosine_passes_a_level(self):
        run = self.run(events={"half": ("mean_cosine", 0.2), "never": ("mean_cosine", 0.9999)}, times=(0.0, 0.4, 1.6))
        (half,) = run.events
        assert half.kind == "half"
        assert 0.4 < half.time < 1.6
        state = run.state(half.time)
        m = np.asarray(state.mean_direction())
        assert m @ m == pytest.approx(0.2, abs=1e-8)
        assert half.value == pytest.approx(0.2, abs=1e-9)
        assert np.isnan(half.position).all()

    def test_a_number_that_comes_and_goes_within_a_frame_is_caught(self):
        """A tokens' component that turns over under a switch of sign of the push: seen on steps, not on frames."""
        spread = lambda state: state.radii()[1] - 0.05  # noqa: E731
        cloud = mf.vmf_mixture(mf.Sphere(), [[1.0, 0.0, 0.0]], [3.0])
        fine = mf.solve(
            model(mf.PreLN()), cloud, 12.0, 121, method="characteristics", degree=12, events={"spread": spread}
        )
        coarse = mf.solve(
            model(mf.PreLN()), cloud, 12.0, 2, method="characteristics", degree=12, events={"spread": spread}
        )
        assert event(coarse, "spread").time == pytest.approx(event(fine, "spread").time, abs=1e-6)

    def test_trials_are_judged_by_their_mean(self):
        tilt = lambda state: jnp.mean(state.mean_direction()[..., 0]) - 0.3  # noqa: E731
        run = self.run(method="particles", tokens=64, trials=3, events={"tilt": tilt})
        time = event(run, "tilt").time
        assert np.mean(run.state(time).mean_direction()[..., 0]) == pytest.approx(0.3, abs=1e-7)

    def test_layers_have_the_first_layer_after_it(self):
        run = mf.solve(
            model(),
            two_bumps(),
            layers=30,
            layer_step=0.1,
            method="characteristics",
            degree=12,
            events={"c": ("mean_cosine", 0.3)},
        )
        found = event(run, "c")
        first = int(np.argmax(run.observables["mean_cosine"] > 0.3))
        assert found.time == pytest.approx(run.times[first], abs=1e-12)

    @pytest.mark.parametrize(
        ("events", "words"),
        [
            ({"a": ("cosine", 0.1)}, "events.a.observable = 'cosine'"),
            ({"a": ("mean_cosine", np.nan)}, "events.a.passes = nan"),
            ({"fold": ("mean_cosine", 0.1)}, "events.fold.name = 'fold'"),
        ],
    )
    def test_wrong_events_are_refused(self, events, words):
        with pytest.raises(InputError, match="events") as refused:
            self.run(events=events)
        assert words in str(refused.value)

    def test_a_function_of_several_numbers_is_refused(self):
        with pytest.raises(InputError, match=r"events\.x.*one number"):
            self.run(events={"x": lambda state: state.mean_direction()})

    def test_a_case_names_them(self, tmp_path):
        changes = {
            "events.half": {"observable": "mean_cosine", "passes": 0.3},
            "time": {"times": [0.4, 1.6]},
            "solver.degree": 48,
        }
        case = mf.read_case("cases/three_bumps.toml", changes)
        solution = case.solve(tmp_path / "run.h5")
        assert [e.kind for e in solution.events] == ["half"]
        assert repr(mf.open(tmp_path / "run.h5").events) == repr(solution.events)
        with pytest.raises(InputError, match=r"events.half.passes"):
            mf.read_case("cases/three_bumps.toml", {"events.half": {"observable": "mean_cosine"}})
        with pytest.raises(InputError, match=r"events.half.level"):
            mf.read_case("cases/three_bumps.toml", {"events.half": {"observable": "energy", "passes": 1.0, "level": 2}})
