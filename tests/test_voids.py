"""Voids of nGPT and Peri-LN: located, answered with more nodes where they opened, with an error estimate that is honest."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from small_runs import assert_same_bits

import meanfield as mf
from meanfield import store
from meanfield.refinement import plain, refined, window

SPHERE = mf.Sphere()
BUMPS = mf.vmf_mixture(SPHERE, [[1, 0, 0], [0, 1, 0], [0.3, -0.4, 0.6]], [2.0, 3.0, 1.5], [0.5, 0.3, 0.2])

pytestmark = pytest.mark.filterwarnings("ignore::meanfield.AccuracyWarning")


def run(scheme=None, degree: int = 31, law=BUMPS, **options) -> mf.Solution:
    settings = {"final_time": 1.0, "frames": 5, "method": "characteristics", "degree": degree, **options}
    return mf.solve(mf.Model(mf.Attention(2.0), scheme or mf.NGPT()), law, **settings)


def kinds(solution: mf.Solution) -> list[str]:
    return [event.kind for event in solution.events]


@pytest.mark.parametrize("space", [mf.Circle(), SPHERE, mf.Zonal(5)], ids=repr)
def test_a_refined_rule_integrates_what_the_plain_one_does(space):
    """Moments of degree ≤ 6, to 1e-7 at degree 31; its first nodes are those of the plain rule."""
    rule, coarse = refined(space, 31, space.axis), plain(space, 31)
    np.testing.assert_array_equal(rule.nodes[: len(coarse.nodes)], coarse.nodes)
    assert len(rule.nodes) > len(coarse.nodes)
    grid = space.grid(6)
    for weights in (rule.weights,):
        exact = np.where(grid.degrees == 0, 1.0, 0.0)
        np.testing.assert_allclose(grid.moments(rule.nodes, weights), exact, atol=1e-7)
    np.testing.assert_allclose(grid.moments(rule.nodes, rule.coarser), exact, atol=1e-3)


def test_the_window_is_a_partition_of_unity():
    angle = np.linspace(0, np.pi, 400)
    points = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    chi = window(points, np.array([1.0, 0.0]))
    assert np.all(np.diff(chi) <= 1e-15)
    np.testing.assert_allclose(chi[angle < 0.4], 1, atol=1e-15)
    np.testing.assert_allclose(chi[angle > 1.3], 0, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [mf.NGPT(), mf.PeriLN()], ids=lambda scheme: scheme.case_name)
def test_nodes_where_the_void_opened_are_worth_more_than_nodes_everywhere(scheme):
    """Against 131,072 nodes: about as many nodes, less than a third of the error, which the estimate bounds."""
    many = run(scheme, 255, refine=False, state="last").observables["mean_direction"][-1]
    finer, everywhere, few = (
        run(scheme, degree, refine=refine) for degree, refine in ((31, True), (63, False), (31, False))
    )
    errors = [np.abs(r.observables["mean_direction"][-1] - many).max() for r in (finer, everywhere, few)]
    assert len(finer.fixed["ensemble/weight"]) < 1.1 * len(everywhere.fixed["ensemble/weight"])
    assert errors[0] < errors[1] / 3
    assert errors[0] < errors[2] / 20
    for r, error in zip((finer, everywhere, few), errors, strict=True):
        assert error <= r.observables["quadrature_error"][-1]


class TestRefinement:
    @pytest.fixture(scope="class")
    def file(self, tmp_path_factory):
        return tmp_path_factory.mktemp("voids") / "run.h5"

    @pytest.fixture(scope="class")
    def whole(self, file):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mf.AccuracyWarning)
            return run(degree=23, path=file)

    def test_it_is_an_event_where_the_torn_tokens_began(self, whole):
        assert kinds(whole) == ["void", "refinement"]
        void, refinement = whole.events
        assert refinement.time == 0.0
        assert refinement.value == len(whole.fixed["ensemble/weight"])
        # the void opens early, so its tokens have not gone far
        assert void.time < 0.1
        assert np.dot(void.position, refinement.position) > 0.99
        # A is least there, of all directions at that depth
        sizes = np.linalg.norm(whole.attention(void.time)(whole.state(void.time).directions), axis=-1)
        assert void.value == pytest.approx(sizes.min(), rel=0.05)

    def test_the_file_is_that_of_the_refined_run_alone(self, whole, file):
        stored = store.read(file)
        assert stored.frames_written == 5
        assert_same_bits(mf.open(file), whole)
        assert repr(mf.open(file).events) == repr(whole.events)

    @pytest.mark.parametrize("frames", [1, 3])
    def test_a_resumed_run_has_the_same_bits(self, whole, tmp_path, frames):
        begun: list[int] = []

        def stop(report):
            begun.extend([0] if report.frame == 0 else [])
            if len(begun) == 2 and report.frame + 1 == frames:  # the run has begun again with more nodes
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(degree=23, path=tmp_path / "run.h5", progress=stop)
        resumed = run(degree=23, path=tmp_path / "run.h5", resume=True)
        assert_same_bits(resumed, whole)
        assert repr(resumed.events) == repr(whole.events)

    def test_where_no_void_opens_nothing_is_refined(self):
        cloud = mf.vmf_mixture(SPHERE, [[0, 0, 1.0]], [4.0])
        assert kinds(run(degree=15, law=cloud)) == []

    def test_it_can_be_left_alone(self):
        assert kinds(run(degree=15, refine=False, final_time=0.2, frames=2)) == ["void"]

    def test_radii_and_folds_go_with_it(self):
        circle = mf.Circle()
        law = mf.vmf_mixture(circle, [[1.0, 0.0], [-0.8, 0.6]], [3.0, 3.0])
        radius = mf.NormalRadius(2.0, 0.1)
        found = mf.solve(
            mf.Model(mf.Attention(2.0), mf.PeriLN()), law, 3.0, 4, radius=radius, method="characteristics", degree=48
        )
        assert kinds(found)[:2] == ["void", "refinement"]
        assert found.status == "complete"
        assert found.observables["mean_radius"][0] == pytest.approx(2.0, rel=1e-10)
