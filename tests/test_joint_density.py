"""Densities of directions and radii: against characteristics, converging in radii and degree, on an interval that follows."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from small_runs import assert_same_bits, two_bumps

import meanfield as mf
from meanfield import store
from meanfield.initial import Law
from meanfield.joint_density import JointDensity, joint_density
from meanfield.keys import InputError

CIRCLE, RADII = mf.Circle(), mf.NormalRadius(2.5, 0.25)
TIGHT = {"rtol": 1e-10, "atol": 1e-12}
SEEN = ("order_parameter", "mean_radius", "std_radius", "energy")


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def bumps(space) -> Law:
    return (
        two_bumps()
        if space.dimension == 3
        else mf.vmf_mixture(space, [space.axis, -space.axis], [1.5, 1.0], [0.7, 0.3])
    )


def hemisphere(space) -> Law:
    """A cloud in which A stays away from 0."""
    return mf.vmf_mixture(space, [space.axis], [4.0])


def model(scheme, beta: float = 1.0) -> mf.Model:
    return mf.Model(mf.Attention(beta), scheme)


def both(scheme, law, t: float, degree: int, nodes: int, radius=RADII, **options):
    density = mf.solve(model(scheme), law, t, 3, radius=radius, degree=degree, **TIGHT, **options)
    carried = mf.solve(model(scheme), law, t, 3, radius=radius, method="characteristics", degree=nodes, **TIGHT)
    assert density.status == "complete", density.message
    assert isinstance(density.state(t), JointDensity)
    return density, carried


@pytest.mark.parametrize("scheme", [mf.PreLN(), mf.MixLN(0.7), mf.PostLN()], ids=lambda scheme: scheme.case_name)
def test_it_agrees_with_characteristics_on_the_circle(scheme):
    density, carried = both(scheme, bumps(CIRCLE), 1.5, 24, 128, max_degree=48)
    for name in SEEN:
        np.testing.assert_allclose(density.observables[name], carried.observables[name], atol=1e-9, err_msg=name)
    np.testing.assert_allclose(density.observables["mass"], 1, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("space", "scheme", "law"),
    [
        (mf.Sphere(), mf.PreLN(), bumps),
        (mf.Sphere(), mf.MixLN(0.5), bumps),
        (mf.Sphere(), mf.PeriLN(), hemisphere),
        (mf.Zonal(8), mf.PreLN(), bumps),
        (CIRCLE, mf.PeriLN(), hemisphere),
    ],
    ids=["S2 pre-ln", "S2 mix-ln", "S2 peri-ln", "zonal pre-ln", "S1 peri-ln"],
)
def test_it_agrees_with_characteristics_everywhere(space, scheme, law):
    degree, nodes = (24, 32) if space.dimension > 2 else (32, 200)
    density, carried = both(scheme, law(space), 1.0, degree, nodes, max_degree=2 * degree)
    for name in SEEN:
        np.testing.assert_allclose(density.observables[name], carried.observables[name], atol=1e-9, err_msg=name)


def test_where_the_norm_is_restored_the_directions_are_those_of_a_density_and_radii_stay():
    joint = mf.solve(
        model(mf.SqrtScaling()), bumps(CIRCLE), 1.0, 3, radius=mf.LogNormalRadius(2.0, 0.2), degree=24, **TIGHT
    )
    alone = mf.solve(model(mf.SqrtScaling()), bumps(CIRCLE), 1.0, 3, degree=24, **TIGHT)
    np.testing.assert_allclose(joint.observables["order_parameter"], alone.observables["order_parameter"], atol=1e-11)
    np.testing.assert_allclose(joint.observables["std_radius"], joint.observables["std_radius"][0], atol=1e-13)
    points = CIRCLE.quadrature(20)[0]
    np.testing.assert_allclose(joint.density(1.0)(points), alone.density(1.0)(points), atol=1e-10)


def test_zonal_rings_of_dimension_three_are_the_sphere():
    law = [mf.vmf_mixture(space, [space.axis, -space.axis], [2.0, 1.0]) for space in (mf.Zonal(3), mf.Sphere())]
    runs = [mf.solve(model(mf.PreLN()), start, 0.5, 2, radius=RADII, degree=14, radii=32, **TIGHT) for start in law]
    for name in SEEN:
        np.testing.assert_allclose(runs[0].observables[name], runs[1].observables[name], atol=1e-11, err_msg=name)


def test_the_mean_radius_grows_by_what_the_push_says():
    """d⟨r⟩/dt = ∫⟨θ,p⟩ dμ, and mass does not change at all."""
    grid = CIRCLE.grid(20)
    state = joint_density(bumps(CIRCLE), RADII, grid, 128)
    chosen = model(mf.PreLN())
    field = chosen.field(state, 0.0)
    rate = np.asarray(chosen.rate(state, 0.0))
    weights = np.asarray(state.spacing * rate[:, 0])
    expected = np.sum(np.asarray(state.weights) * np.sum(grid.nodes * np.asarray(field.vector), axis=1))
    assert weights @ state.radius == pytest.approx(expected, abs=1e-12)
    assert abs(weights.sum()) < 1e-14


@pytest.mark.slow
@pytest.mark.parametrize("what", ["degree", "radii"])
def test_errors_fall_exponentially(what):
    """log error against the degree, or the number of radii, is a line; characteristics are the reference."""
    exact = mf.solve(
        model(mf.PreLN()), bumps(CIRCLE), 0.8, 2, radius=RADII, method="characteristics", degree=128, **TIGHT
    )
    sizes = {"degree": [4, 6, 8, 10], "radii": [12, 16, 20, 24]}[what]
    errors = []
    for size in sizes:
        grid = CIRCLE.grid(size if what == "degree" else 24)
        start = joint_density(bumps(CIRCLE), RADII, grid, 64 if what == "degree" else size)
        end = mf.evolve(model(mf.PreLN()), start, 0.0, 0.8, 1e-11, 1e-13)
        errors.append(abs(float(end.radii()[1]) - exact.observables["std_radius"][-1]))
    slope, _ = np.polyfit(sizes, np.log10(errors), 1)
    assert slope < -0.15
    assert errors[-1] < 1e-2 * errors[0]


class TestInterval:
    """Under Pre-LN radii of a cloud grow like t: far beyond where they began."""

    @pytest.fixture(scope="class")
    def file(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("joint") / "run.h5"

    def run(self, path=None, **options):
        settings = {"final_time": 3.0, "frames": 7, "radius": mf.NormalRadius(4.5, 0.2), "degree": 16, "max_degree": 64}
        return mf.solve(
            model(mf.PreLN()), hemisphere(CIRCLE), **{**settings, "radii": 32, "path": path, **options}, **TIGHT
        )

    @pytest.fixture(scope="class")
    def whole(self, file):
        return self.run(file)

    def test_it_follows_the_mass(self, whole):
        assert whole.status == "complete"
        assert "edge" in [event.kind for event in whole.events]
        first, last = whole.state(0.0), whole.state(3.0)
        assert last.radius[-1] > first.radius[-1] + 1
        assert float(last.spacing) <= float(first.spacing) * (1 + 1e-12)
        np.testing.assert_allclose(whole.observables["mass"], 1, atol=1e-13)

    def test_on_it_the_run_is_that_by_characteristics(self, whole):
        carried = self.run(method="characteristics", degree=200, max_degree=None)
        for name in SEEN:
            np.testing.assert_allclose(whole.observables[name], carried.observables[name], atol=1e-8, err_msg=name)

    def test_the_file_has_the_radii_of_every_frame(self, whole, file):
        stored = store.read(file)
        used = (stored.arrays["density/radius"] > 0).sum(axis=1)
        assert used[0] < used[-1]
        assert_same_bits(mf.open(file), whole)
        for t in whole.times:
            np.testing.assert_array_equal(mf.open(file).state(t).radius, whole.state(t).radius)

    def test_a_run_resumed_after_it_was_widened_has_the_same_bits(self, whole, tmp_path):
        def stop(report):
            if report.frame == 4:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.run(tmp_path / "run.h5", progress=stop)
        resumed = self.run(tmp_path / "run.h5", resume=True)
        assert_same_bits(resumed, whole)
        assert repr(resumed.events) == repr(whole.events)

    def test_finer_radii_and_wider_intervals_are_the_same_density(self):
        state = joint_density(bumps(CIRCLE), RADII, CIRCLE.grid(8), 41)
        for other in (state.of_finer_radii(), state.on_wider_interval(3, 5), state.of_degree(CIRCLE.grid(12))):
            for name in ("mass", "radii", "mean_direction"):
                np.testing.assert_allclose(getattr(other, name)(), getattr(state, name)(), atol=1e-13)
        np.testing.assert_allclose(state.of_finer_radii().coefficients[::2], state.coefficients, atol=1e-14)


class TestTowardsTheOrigin:
    """With V = −I every token of a cloud is pushed back to r = 0, where no density of radii goes on."""

    def run(self, method: str, **options):
        back = mf.Model(mf.Attention(1.0, heads=mf.Heads(np.eye(2), np.eye(2), -np.eye(2))), mf.PreLN())
        settings = {"degree": 24, "max_degree": 48, "radii": 32, **options}
        return mf.solve(back, hemisphere(CIRCLE), 1.0, 11, radius=mf.NormalRadius(1.0, 0.05), method=method, **settings)

    def test_the_run_stops_and_says_where(self):
        run = self.run("density")
        assert run.status == "unresolved"
        assert run.events[-1].kind == "edge"
        assert run.events[-1].value < 0.4
        assert "end r = " in run.message
        assert "characteristics" in run.message

    @pytest.mark.slow
    def test_auto_goes_on_as_tokens(self):
        run = self.run("auto")
        assert run.status == "complete"
        assert [event.kind for event in run.events if event.kind == "hand-over"] == ["hand-over"]
        assert isinstance(run.state(0.0), JointDensity)
        assert isinstance(run.state(), mf.Ensemble)
        carried = self.run("characteristics", degree=200, max_degree=None)
        for name in ("order_parameter", "mean_radius"):
            np.testing.assert_allclose(run.observables[name], carried.observables[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize("scheme", [mf.PreLN(), mf.PeriLN(), mf.MixLN()], ids=lambda scheme: scheme.case_name)
def test_one_common_radius_is_refused_and_told_what_will_do(scheme):
    with pytest.raises(InputError) as refused:
        mf.solve(model(scheme), bumps(CIRCLE), 0.5, 2, degree=16)
    assert "characteristics" in str(refused.value)
    assert "normal" in str(refused.value)


def test_a_run_turned_is_the_turned_run():
    """Rotation on the sphere; the radii do not notice."""
    turn, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
    means = np.array([[1.0, 0.0, 0.2], [0.0, 1.0, 0.3]])
    runs = []
    for R in (np.eye(3), turn):
        law = mf.vmf_mixture(mf.Sphere(), means @ R, [1.0, 1.5])
        runs.append(mf.solve(model(mf.PreLN()), law, 0.4, 2, radius=RADII, degree=12, radii=24, **TIGHT))
    turned = runs[0].observables["mean_direction"] @ turn
    np.testing.assert_allclose(runs[1].observables["mean_direction"], turned, atol=1e-11)
    np.testing.assert_allclose(runs[1].observables["std_radius"], runs[0].observables["std_radius"], atol=1e-11)
