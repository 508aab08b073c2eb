"""Runs: exact frame times, how they end, kills and resumption, seeds, and the solution between frames."""

from __future__ import annotations

import signal
import subprocess
import sys
import warnings

import h5py
import jax
import numpy as np
import pytest
import xarray
from small_runs import ENVIRONMENT, NORTH, POINTS, SPHERE, assert_same_bits, model, two_bumps

import meanfield as mf
from meanfield.settings import Settings, asked_depths, kept_frames


@pytest.fixture(scope="session")
def particles(tmp_path_factory: pytest.TempPathFactory) -> mf.Solution:
    """Peri-LN, two trials of eight random tokens."""
    path = tmp_path_factory.mktemp("solve") / "particles.h5"
    return mf.solve(model(mf.PeriLN()), two_bumps(), 0.5, 3, method="particles", tokens=8, trials=2, seed=5, path=path)


@pytest.fixture(scope="session")
def characteristics(tmp_path_factory: pytest.TempPathFactory) -> mf.Solution:
    """Mix-LN by characteristics, its switch inside a frame."""
    path = tmp_path_factory.mktemp("solve") / "characteristics.h5"
    return mf.solve(model(mf.MixLN(0.3)), two_bumps(), 0.8, 3, method="characteristics", degree=12, path=path)


class TestFrames:
    @pytest.mark.parametrize(("final", "frames"), [(1.0, 2), (10.0, 101), (0.7, 8), (3, 4)])
    def test_equal_spacing_is_linspace(self, final, frames):
        np.testing.assert_array_equal(asked_depths(final, frames, None).times, np.linspace(0.0, final, frames))

    def test_given_depths_are_kept_and_zero_is_prepended(self):
        np.testing.assert_array_equal(asked_depths(None, None, [0.1, 0.25, 7.0]).times, [0.0, 0.1, 0.25, 7.0])
        np.testing.assert_array_equal(asked_depths(None, None, [0.0, 1 / 3]).times, [0.0, 1 / 3])

    @pytest.mark.parametrize(
        ("final", "frames", "times", "key"),
        [
            (None, 5, None, "final"),
            (0.0, 5, None, "final"),
            (-1.0, 5, None, "final"),
            (np.nan, 5, None, "final"),
            (np.inf, 5, None, "final"),
            (1.0, 1, None, "frames"),
            (1.0, True, None, "frames"),
            (1.0, 2.5, None, "frames"),
            (1.0, 5, [0.0, 1.0], "final"),
            (None, 5, [], "times"),
            (None, 5, [1.0, 1.0], "times"),
            (None, 5, [2.0, 1.0], "times"),
            (None, 5, [-1.0, 1.0], "times"),
            (None, 5, [0.0, np.nan], "times"),
            (None, 5, [[0.0, 1.0]], "times"),
        ],
    )
    def test_wrong_depths_are_refused_by_name(self, final, frames, times, key):
        with pytest.raises(mf.InputError) as caught:
            asked_depths(final, frames, times)
        assert caught.value.key == key

    def test_kept_frames(self):
        assert kept_frames("all", 4) == [0, 1, 2, 3]
        assert kept_frames("last", 4) == [3]
        assert kept_frames(2, 6) == [0, 2, 4, 5]
        assert kept_frames(9, 3) == [0, 2]
        for wrong in (0, -1, "some", 1.5, True):
            with pytest.raises(mf.InputError, match="state"):
                kept_frames(wrong, 4)

    def test_a_run_ends_on_its_depths_exactly(self, density, characteristics):
        np.testing.assert_array_equal(density.times, np.linspace(0.0, 0.6, 3))
        np.testing.assert_array_equal(characteristics.times, np.linspace(0.0, 0.8, 3))
        assert density.status == characteristics.status == "complete"


class TestPrecision:
    def test_float64_with_x64_off_and_the_flag_stays(self, density, particles):
        assert not jax.config.jax_enable_x64
        for solution in (density, particles):
            for values in (*solution.observables.values(), *solution.arrays.values(), solution.times):
                assert type(values) is np.ndarray
                assert values.dtype == np.float64
        # float32 would leave the mass off by 1e-7
        assert abs(density.observables["mass"] - 1).max() < 1e-13

    def test_the_bits_do_not_depend_on_the_flag(self, particles):
        with jax.enable_x64(True):
            again = mf.solve(model(mf.PeriLN()), two_bumps(), 0.5, 3, method="particles", tokens=8, trials=2, seed=5)
        assert_same_bits(particles, again)

    def test_tracing_is_refused(self):
        def final(beta: jax.Array) -> np.ndarray:
            return mf.solve(model(beta=beta), two_bumps(), 0.1, 2, degree=12).observables["energy"][-1]

        with pytest.raises(mf.PrecisionError, match=r"trace `evolve`.*x64 is off"):
            jax.grad(final)(1.0)
        with jax.enable_x64(True), pytest.raises(mf.PrecisionError, match=r"trace `evolve`(?!; x64)"):
            jax.jit(final)(1.0)


class TestDensity:
    def test_mass_is_conserved_and_energy_never_falls(self, density):
        assert abs(density.observables["mass"] - 1).max() < 1e-13
        assert np.diff(density.observables["energy"]).min() > 0

    def test_the_mean_direction_is_the_first_moments(self, density):
        mean = density.observables["mean_direction"]
        np.testing.assert_allclose(np.linalg.norm(mean, axis=1), density.observables["order_parameter"], rtol=1e-14)
        np.testing.assert_allclose(
            density.observables["mean_cosine"], density.observables["order_parameter"] ** 2, rtol=1e-14
        )


class TestEndings:
    @pytest.fixture(scope="class")
    @staticmethod
    def concentrating(tmp_path_factory: pytest.TempPathFactory) -> mf.Solution:
        """A density that clusters beyond degree 14 between the frames it is asked for."""
        path = tmp_path_factory.mktemp("solve") / "unresolved.h5"
        return mf.solve(model(), two_bumps(), times=[0.0, 0.5, 20.0], degree=14, path=path)

    def test_an_over_concentrating_density_stops_unresolved_and_keeps_its_frames(self, concentrating):
        assert concentrating.status == "unresolved"
        np.testing.assert_array_equal(concentrating.times, [0.0, 0.5])
        assert np.isfinite(concentrating.arrays["density/coefficients"]).all()
        for words in ("at depth t = ", "degree 14", "larger solver.degree", '"characteristics"'):
            assert words in concentrating.message
        depth = float(concentrating.message.split("t = ")[1].split(":")[0])
        # noticed soon after it happened, far before the frame at t = 20
        assert 0.5 < depth < 10

    def test_the_file_of_a_stopped_run_says_the_same(self, concentrating):
        opened = mf.open(concentrating.path)
        assert (opened.status, opened.message) == (concentrating.status, concentrating.message)
        assert_same_bits(opened, concentrating)

    def test_a_stopped_run_stops_again_when_it_is_resumed(self, concentrating, tmp_path):
        path = tmp_path / "again.h5"
        path.write_bytes(concentrating.path.read_bytes())
        again = mf.solve(model(), two_bumps(), times=[0.0, 0.5, 20.0], degree=14, path=path, resume=True)
        assert (again.status, again.message) == (concentrating.status, concentrating.message)
        assert_same_bits(again, concentrating)

    def test_unresolved_is_noticed_between_two_frames(self):
        """Two frames only: every accepted step is judged, not the frames."""
        solution = mf.solve(model(), two_bumps(), 20.0, 2, degree=14)
        assert solution.status == "unresolved"
        assert len(solution.times) == 1

    def test_an_unresolved_start_is_no_frame(self):
        law = mf.vmf_mixture(SPHERE, [[0.0, 0.0, 1.0]], [300.0])
        solution = mf.solve(model(), law, 1.0, 2, degree=14)
        assert solution.status == "unresolved"
        assert "at depth t = 0" in solution.message
        assert len(solution.times) == 0

    def test_a_void_warns_with_the_quadrature_error(self):
        antipodal = mf.vmf_mixture(SPHERE, [[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]], [20.0, 20.0])
        with pytest.warns(mf.AccuracyWarning, match=r"a void.*quadrature error is estimated at \d"):
            solution = mf.solve(
                model(mf.PeriLN(), beta=2.0),
                antipodal,
                0.1,
                2,
                method="characteristics",
                degree=16,
                rtol=1e-3,
                atol=1e-3,
            )
        assert solution.status == "complete"
        assert "peri-ln divides by it" in solution.message

    def test_a_scheme_that_does_not_divide_has_no_void(self):
        antipodal = mf.vmf_mixture(SPHERE, [[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]], [1.0, 1.0])
        with warnings.catch_warnings():
            warnings.simplefilter("error", mf.AccuracyWarning)
            solution = mf.solve(model(beta=0.1), antipodal, 0.1, 2, method="characteristics", degree=12)
        assert solution.message == ""

    def test_beta_1000_runs_with_direct_sums(self):
        with pytest.warns(mf.AccuracyWarning, match="too coarse for the kernel"):
            solution = mf.solve(
                model(beta=1000.0), two_bumps(), 0.01, 2, method="characteristics", degree=12, rtol=1e-5
            )
        assert solution.status == "complete"
        assert solution.state().grid is None
        unknown = {"min_density", "resolution"}
        for name in set(solution.observables) - unknown:
            assert np.isfinite(solution.observables[name]).all(), name
        assert solution.observables["energy"].min() > 0

    @pytest.mark.slow
    def test_moments_too_coarse_for_beta_stop_the_run(self):
        law = mf.vmf_mixture(SPHERE, [[0.0, 0.0, 1.0]], [14.0])
        solution = mf.solve(
            model(beta=14.0), law, 0.5, 2, method="characteristics", degree=20, sums="fast", rtol=1e-4, atol=1e-6
        )
        assert solution.status == "unresolved"
        assert 'solver.sums = "direct"' in solution.message


class TestObservables:
    @pytest.mark.slow
    def test_a_user_s_own_number_and_array(self, tmp_path):
        own = {
            "second_moment": lambda state: np.asarray(state.mean_direction())[:, None] * np.ones(2),
            "first": lambda state: float(np.asarray(state.coefficients)[1]),
        }
        path = tmp_path / "own.h5"
        solution = mf.solve(model(), two_bumps(), 0.2, 2, degree=12, observables=own, path=path)
        assert solution.observables["second_moment"].shape == (2, 3, 2)
        np.testing.assert_array_equal(solution.observables["first"], solution.arrays["density/coefficients"][:, 1])
        assert_same_bits(mf.open(path), solution)
        with xarray.open_datatree(path, engine="h5netcdf") as tree:
            np.testing.assert_array_equal(tree["observables/first"], solution.observables["first"])

    def test_resuming_without_or_with_other_observables_is_refused(self, tmp_path, density):
        path = tmp_path / "run.h5"
        path.write_bytes(density.path.read_bytes())
        with pytest.raises(mf.InputError, match=r"observables/other"):
            mf.solve(
                model(),
                two_bumps(),
                0.6,
                3,
                degree=14,
                rtol=1e-10,
                atol=1e-12,
                path=path,
                resume=True,
                observables={"other": lambda state: 1.0},
            )


class TestAnywhere:
    def test_density_at_the_poles_and_at_t_0(self, density):
        values = density.density(t=0.0)(POINTS)
        # truncation at degree 14 of concentrations ≤ 1.5
        np.testing.assert_allclose(values, two_bumps().density(POINTS), rtol=1e-9)

    @pytest.mark.slow
    def test_between_frames_the_solution_is_that_of_a_run_with_a_frame_there(self, density):
        t = 0.45
        there = mf.solve(model(), two_bumps(), times=[0.0, t], degree=14, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(density.density(t)(POINTS), there.density(t)(POINTS), rtol=1e-8)
        np.testing.assert_allclose(density.attention(t)(POINTS), there.attention(t)(POINTS), rtol=1e-8)

    def test_attention_is_the_mean_under_the_tilted_density(self, density):
        nodes, weights = SPHERE.quadrature(40)
        rho = density.density(t=0.3)(nodes)
        kernel = np.exp(POINTS @ nodes.T) * (rho * weights)
        expected = kernel @ nodes / kernel.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(density.attention(t=0.3)(POINTS), expected, rtol=1e-9, atol=1e-12)

    def test_velocity_is_the_projected_attention_scaled_by_the_radius(self, density):
        A = density.attention(t=0.3)(POINTS)
        tangential = A - np.sum(A * POINTS, axis=1, keepdims=True) * POINTS
        np.testing.assert_allclose(density.velocity(t=0.3)(POINTS), tangential, atol=1e-14)
        np.testing.assert_allclose(density.velocity(t=0.3)(2 * POINTS), 2 * tangential, atol=1e-14)

    @pytest.mark.slow
    def test_velocity_of_mix_ln_changes_at_the_switch(self, characteristics):
        before, after = characteristics.velocity(0.3), characteristics.velocity(0.31)
        np.testing.assert_allclose(np.sum(before(POINTS) * POINTS, axis=1), 0, atol=1e-14)
        np.testing.assert_allclose(after(POINTS), characteristics.attention(0.31)(POINTS), atol=1e-14)

    @pytest.mark.parametrize("t", [-0.1, 0.61, np.nan, np.inf])
    def test_a_depth_outside_is_refused(self, density, t):
        with pytest.raises(mf.InputError, match=r"a depth from 0 to 0.6"):
            density.density(t)

    def test_points_off_the_sphere_are_refused(self, density):
        with pytest.raises(mf.InputError, match="unit vectors"):
            density.density()(2 * POINTS)

    @pytest.mark.slow
    def test_an_ensemble_has_a_density_after_smoothing_only(self, characteristics):
        with pytest.raises(mf.InputError, match="after smoothing"):
            characteristics.density(0.0)
        smooth = characteristics.density(0.0, concentration=8.0)
        nodes, weights = SPHERE.quadrature(40)
        assert weights @ smooth(nodes) == pytest.approx(1, abs=1e-12)


class TestFile:
    @pytest.mark.parametrize("run", ["density", "characteristics", "particles"])
    def test_the_file_equals_the_solution_in_memory(self, run, request):
        solution = request.getfixturevalue(run)
        opened = mf.open(solution.path)
        assert_same_bits(opened, solution)
        assert (opened.status, opened.message) == (solution.status, solution.message)
        np.testing.assert_array_equal(opened.kept_times, solution.kept_times)
        for t in (0.0, 0.25):
            first, second = opened.state(t), solution.state(t)
            assert type(first) is type(second)
            np.testing.assert_array_equal(first.moving, second.moving)
            assert getattr(first, "sampled", None) == getattr(second, "sampled", None)

    @pytest.mark.parametrize("run", ["density", "characteristics", "particles"])
    def test_xarray_has_the_names_of_the_file(self, run, request):
        solution = request.getfixturevalue(run)
        tree = solution.to_xarray()
        with h5py.File(solution.path) as file:
            groups = {group: set(file[group]) for group in ("observables", *({"density", "ensemble"} & set(file)))}
        for group, names in groups.items():
            assert set(tree[group].data_vars) == names
        np.testing.assert_array_equal(tree["observables/energy"], solution.observables["energy"])
        with xarray.open_datatree(solution.path, engine="h5netcdf") as stored:
            assert tree["observables/mean_direction"].dims == stored["observables/mean_direction"].dims
            for group, names in groups.items():
                for name in names:
                    assert tree[f"{group}/{name}"].dims == stored[f"{group}/{name}"].dims, name

    def test_only_the_last_state(self, tmp_path):
        solution = mf.solve(model(), two_bumps(), 0.6, 3, degree=14, state="last", path=tmp_path / "last.h5")
        assert solution.arrays["density/coefficients"].shape[0] == 1
        np.testing.assert_array_equal(solution.kept_times, [0.6])
        assert len(solution.observables["energy"]) == 3
        with pytest.raises(mf.InputError, match=r"a depth from 0.6 to 0.6"):
            solution.density(0.3)
        assert_same_bits(mf.open(tmp_path / "last.h5"), solution)

    def test_a_file_that_holds_no_frame_yet_can_be_opened(self, tmp_path, density):
        path = tmp_path / "young.h5"
        path.write_bytes(density.path.read_bytes())
        with h5py.File(path, "r+") as file:
            file["frames_written"][()] = 0
        young = mf.open(path)
        assert len(young.times) == 0
        with pytest.raises(mf.InputError, match="a run that kept its states"):
            young.density()

    def test_a_file_that_lacks_its_state_is_refused_in_one_sentence(self, tmp_path, density):
        path = tmp_path / "lacks.h5"
        path.write_bytes(density.path.read_bytes())
        with h5py.File(path, "r+") as file:
            del file["density/coefficients"]
        with pytest.raises(mf.InputError, match="density/coefficients"):
            mf.open(path)

    @pytest.mark.slow
    def test_tokens_of_a_relative_file_are_found_from_anywhere(self, tmp_path, monkeypatch):
        (tmp_path / "a").mkdir()
        np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((5, 3)))
        monkeypatch.chdir(tmp_path)
        path = tmp_path / "a" / "run.h5"
        mf.solve(model(), mf.tokens(SPHERE, "x.npy"), 0.1, 2, method="particles", path=path)
        assert mf.open(path).state(0.1).moving.shape == (5, 3)


class TestSeeds:
    def rerun(self, **changes: object) -> mf.Solution:
        options = {"method": "particles", "tokens": 8, "trials": 2, "seed": 5, **changes}
        return mf.solve(model(mf.PeriLN()), two_bumps(), 0.5, 3, **options)

    def test_a_rerun_has_the_same_bits(self, particles):
        assert_same_bits(particles, self.rerun())

    def test_another_seed_draws_other_tokens_and_trials_differ(self, particles):
        other = self.rerun(seed=6)
        x = particles.arrays["ensemble/direction"]
        assert abs(other.arrays["ensemble/direction"][0] - x[0]).min(axis=(-1, -2)).max() > 1e-3
        assert abs(x[0, 0] - x[0, 1]).max() > 0.1

    @pytest.mark.slow
    def test_a_trial_does_not_depend_on_how_many_there_are(self, particles):
        one = self.rerun(trials=1)
        np.testing.assert_array_equal(one.arrays["ensemble/direction"][0], particles.arrays["ensemble/direction"][0, 0])


class TestSettings:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("method", "magic"),
            ("sums", "slow"),
            ("degree", 0),
            ("degree", 1025),
            ("degree", 14.0),
            ("degree", True),
            ("trials", 0),
            ("tokens", 0),
            ("tokens", 1.5),
            ("seed", -1),
            ("rtol", 0.0),
            ("rtol", 1e-15),
            ("rtol", np.nan),
            ("atol", -1e-3),
            ("atol", np.inf),
        ],
    )
    def test_a_wrong_value_is_refused_by_name(self, key, value):
        with pytest.raises(mf.InputError) as caught:
            Settings(**{key: value})
        assert caught.value.key == key

    def test_methods_that_do_not_fit_are_refused(self):
        with pytest.raises(mf.InputError, match='"characteristics" or "particles" for pre-ln'):
            mf.solve(model(mf.PreLN()), two_bumps(), 1.0, degree=12)
        with pytest.raises(mf.InputError, match="one common radius other than a 1"):
            mf.solve(model(), two_bumps(), 1.0, degree=12, radius=mf.ConstantRadius(2.0))
        sharp = mf.vmf_mixture(SPHERE, [NORTH], [1e3])
        with pytest.raises(mf.InputError, match="the quadrature sees mass"):
            mf.solve(model(), sharp, 1.0, degree=12, method="characteristics")

    def test_progress_is_told_after_each_frame(self):
        told = []
        mf.solve(model(), two_bumps(), 0.6, 3, degree=14, rtol=1e-10, atol=1e-12, progress=told.append)
        assert [report.frame for report in told] == [0, 1, 2]
        assert [report.t for report in told] == list(np.linspace(0.0, 0.6, 3))
        assert all(report.frames == 3 for report in told)
        assert told[-1].accepted > 0


def test_a_second_interrupt_would_stop_at_once_and_the_handler_is_given_back():
    before = signal.getsignal(signal.SIGINT)
    during = []
    mf.solve(
        model(), two_bumps(), 0.1, 2, degree=14, progress=lambda report: during.append(signal.getsignal(signal.SIGINT))
    )
    assert signal.getsignal(signal.SIGINT) is before
    during[0](signal.SIGINT, None)
    with pytest.raises(KeyboardInterrupt):
        during[0](signal.SIGINT, None)


@pytest.mark.slow
def test_solve_is_the_function_whatever_was_imported_before():
    imports = ("import meanfield.solve", "from meanfield.case import read", "import meanfield as mf; mf.open")
    for first in imports:
        command = f"{first}; import meanfield; assert meanfield.solve.__name__ == 'solve' and callable(meanfield.solve)"
        subprocess.run([sys.executable, "-c", command], env=ENVIRONMENT, check=True, timeout=120)
