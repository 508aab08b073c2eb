"""Depth without limit: a density that is no longer resolved goes on at twice its degree, and then as tokens."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from small_runs import assert_same_bits, model, two_bumps

import meanfield as mf
from meanfield import store
from meanfield.initial import Law
from meanfield.normalization import SCHEMES

CIRCLE = mf.Circle()
DEPTHS = {"final_time": 6.0, "frames": 13}


def bump() -> Law:
    return mf.vmf_mixture(CIRCLE, [[1.0, 0.0], [0.0, 1.0]], [1.5, 1.0], [0.7, 0.3])


def run(path: Path | None = None, **options: object) -> mf.Solution:
    settings = {**DEPTHS, "method": "auto", "degree": 12, "max_degree": 48, "path": path, **options}
    return mf.solve(model(beta=2.0), bump(), **settings)


@pytest.fixture(scope="module")
def auto_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("auto") / "auto.h5"


@pytest.fixture(scope="module")
def auto(auto_file: Path) -> mf.Solution:
    """Post-LN on the circle at β = 2: degree 12, doubled twice, then tokens."""
    return run(auto_file)


@pytest.fixture(scope="module")
def reference() -> mf.Solution:
    return run(method="characteristics", degree=1024, max_degree=None)


def kinds(solution: mf.Solution) -> list[str]:
    return [event.kind for event in solution.events]


class TestAuto:
    def test_it_starts_as_a_density_and_hands_over_after_its_last_degree(self, auto):
        assert auto.status == "complete"
        assert kinds(auto) == ["under-resolution"] * 3 + ["hand-over"]
        assert [event.value for event in auto.events[:3]] == [12, 24, 48]
        handed = auto.events[-1].time
        assert handed in auto.times
        assert isinstance(auto.state(handed), mf.Density)
        assert isinstance(auto.state(handed + 0.5), mf.Ensemble)
        assert auto.state(handed).grid.degree == 48

    def test_on_either_side_of_the_hand_over_it_is_the_run_by_characteristics(self, auto, reference):
        difference = np.abs(auto.observables["order_parameter"] - reference.observables["order_parameter"])
        density = auto.times <= auto.events[-1].time
        assert difference[density].max() < 1e-7
        assert difference[~density].max() < 1e-6

    def test_every_frame_before_the_hand_over_is_resolved(self, auto):
        resolution = auto.observables["resolution"]
        density = auto.times <= auto.events[-1].time
        assert resolution[density].max() < 1e-4
        assert np.isnan(resolution[~density]).all()

    def test_the_discarded_frame_is_that_of_a_run_at_the_larger_degree(self, auto):
        larger = run(method="density", degree=24, max_degree=None)
        doubled = [frame for frame, t in enumerate(larger.times) if auto.state(t).grid.degree == 48]
        assert doubled  # coefficients of every frame are stored at the largest degree
        np.testing.assert_allclose(
            larger.observables["order_parameter"],
            auto.observables["order_parameter"][: len(larger.times)],
            atol=1e-8,
        )

    def test_an_unresolved_start_is_doubled_before_the_first_frame(self):
        sharp = mf.vmf_mixture(CIRCLE, [[1.0, 0.0]], [60.0])
        solution = mf.solve(model(), sharp, 0.1, 2, degree=12, max_degree=100)
        assert solution.status == "complete"
        state = solution.state(0.0)
        assert state.grid.degree == 48
        assert solution.events[0].time == 0.0
        np.testing.assert_allclose(state.coefficients, sharp.coefficients(state.grid), atol=1e-15)

    def test_without_auto_it_stops_after_the_last_degree_and_says_so(self):
        solution = run(method="density")
        assert solution.status == "unresolved"
        assert kinds(solution) == ["under-resolution"] * 3
        assert "degree 48" in solution.message
        assert "max_degree" in solution.message

    def test_where_radii_move_from_one_radius_auto_is_characteristics_from_the_start(self):
        solution = mf.solve(model(mf.PreLN()), bump(), 0.2, 2, method="auto", degree=16)
        assert isinstance(solution.state(0.0), mf.Ensemble)


class TestFile:
    def test_what_is_opened_is_what_was_returned(self, auto, auto_file):
        opened = mf.open(auto_file)
        assert_same_bits(opened, auto)
        assert repr(opened.events) == repr(auto.events)
        for t in (0.0, auto.events[-1].time, 4.0, 6.0):
            assert type(opened.state(t)) is type(auto.state(t))
            np.testing.assert_array_equal(opened.state(t).mean_direction(), auto.state(t).mean_direction())

    def test_it_holds_both_kinds_of_state_each_where_it_was(self, auto, auto_file):
        stored = store.read(auto_file)
        density = auto.times <= auto.events[-1].time
        assert np.isfinite(stored.arrays["density/coefficients"][density]).all()
        assert np.isnan(stored.arrays["density/coefficients"][~density]).all()
        assert np.isnan(stored.arrays["ensemble/direction"][density]).all()
        assert np.isfinite(stored.arrays["ensemble/direction"][~density]).all()

    def test_xarray_and_netcdf_read_the_events(self, auto, auto_file):
        import netCDF4
        import xarray

        with xarray.open_datatree(auto_file, engine="h5netcdf") as tree:
            assert list(tree["events/kind"].values) == kinds(auto)
            events = tree["events"].to_dataset(inherit=False)  # the depths of events, not those of frames
            np.testing.assert_array_equal(events["time"], [event.time for event in auto.events])
        with netCDF4.Dataset(auto_file) as file:
            assert list(file["events/kind"][:]) == kinds(auto)
        assert list(auto.to_xarray()["events/kind"].values) == kinds(auto)

    def test_no_file_is_left_beside_it(self, auto, auto_file):
        assert [file.name for file in auto_file.parent.iterdir() if file.name.endswith(".part")] == []


def resumed_after(frames: int, folder: Path, whole: mf.Solution, **options: object) -> mf.Solution:
    """The run of `whole`, stopped after so many frames by an exception, and resumed."""
    path = folder / f"stopped_{frames}.h5"

    class StoppedError(Exception):
        pass

    def stop(report) -> None:
        if report.frame + 1 == frames:
            raise StoppedError

    with pytest.raises(StoppedError):
        run(path, progress=stop, **options)
    assert store.read(path).frames_written == frames
    return run(path, resume=True, **options)


class TestResume:
    @pytest.mark.parametrize("place", ["before", "doubled", "after the hand-over"])
    def test_a_resumed_run_has_the_same_bits_and_events(self, auto, tmp_path, place):
        handed = int(np.searchsorted(auto.times, auto.events[-1].time))
        frames = {"before": 2, "doubled": handed + 1, "after the hand-over": handed + 2}[place]
        resumed = resumed_after(frames, tmp_path, auto)
        assert_same_bits(resumed, auto)
        assert repr(resumed.events) == repr(auto.events)

    def test_the_resumed_file_is_the_whole_file(self, auto, auto_file, tmp_path):
        handed = int(np.searchsorted(auto.times, auto.events[-1].time))
        resumed_after(handed + 2, tmp_path, auto)
        with h5py.File(auto_file) as whole, h5py.File(tmp_path / f"stopped_{handed + 2}.h5") as other:
            names: list[str] = []
            whole.visit(names.append)
            for name in names:
                if isinstance(whole[name], h5py.Dataset) and whole[name].dtype.kind == "f" and whole[name].ndim:
                    np.testing.assert_array_equal(whole[name][()], other[name][()], err_msg=name)


# Depths of the fit, and the quantity that 1 − |∫θdμ|² is a power of. Laws that are powers of depth need great depths.
LATE = {
    "post-ln": (np.linspace(9.0, 12.0, 6), np.exp, -2),
    "ngpt": (np.linspace(9.0, 12.0, 6), np.exp, -2),
    "sqrt-scaling": (np.linspace(16.0, 25.0, 6), lambda t: np.exp(np.sqrt(t + 1)), -4),
    "pre-ln": (np.geomspace(1000.0, 3000.0, 6), lambda t: t, -2),
    "mix-ln": (np.geomspace(1000.0, 3000.0, 6), lambda t: t, -2),
    "peri-ln": (np.geomspace(1000.0, 3000.0, 6), lambda t: t, -2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LATE)
def test_clouds_collapse_by_the_late_laws(name):
    """1 − |∫θdμ|² falls like e^{−2t}, e^{−2∫α}, e^{−4√(t+1)} and t^{−2} (mathematics page, 3.4).

    The cloud leaves the far side empty: mass there would arrive late, and on S² add a factor t to e^{−2t}.
    """
    times, clock, power = LATE[name]
    scheme = next(scheme for scheme in SCHEMES if scheme.case_name == name)()
    cloud = mf.vmf_mixture(mf.Sphere(), [[1.0, 0.0, 0.0], [0.8, 0.6, 0.0]], [20.0, 20.0])
    solution = mf.solve(model(scheme, 0.5), cloud, times=times, method="auto", degree=32, rtol=1e-11, atol=1e-13)
    assert solution.status == "complete"
    assert ("hand-over" in kinds(solution)) == scheme.restores
    spread = 1 - solution.observables["order_parameter"][1:] ** 2
    fitted = np.polyfit(np.log(clock(times)), np.log(spread), 1)[0]
    assert fitted == pytest.approx(power, rel=0.01)


@pytest.mark.slow
def test_a_run_goes_on_to_depth_50():
    solution = mf.solve(model(beta=1.0), two_bumps(), 50.0, 51, method="auto", degree=16, max_degree=32)
    assert solution.status == "complete"
    assert solution.observables["order_parameter"][-1] == pytest.approx(1, abs=1e-12)
    assert (np.diff(solution.observables["energy"]) > -1e-12).all()
