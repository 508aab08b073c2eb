"""Statistics of random tokens against slow oracles and closed forms, and bands over trials in the file."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import xarray
from small_runs import assert_same_bits, two_bumps

import meanfield as mf
from meanfield import bands, statistics
from meanfield.keys import InputError
from meanfield.statistics import QUANTILES, Statistics, clusters, gram_rank


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def units(count: int, dimension: int, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((count, dimension))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def of(x: np.ndarray, threshold: float = 0.9, model: mf.Model | None = None, t: float = 0.0) -> dict[str, np.ndarray]:
    chosen = model or mf.Model(mf.Attention(1.0))
    return Statistics(threshold)(chosen, mf.Ensemble(x, np.full(x.shape[-2], 1 / x.shape[-2]), sampled=True), t)


def slow_clusters(cosines: np.ndarray, threshold: float) -> list[set[int]]:
    """Clusters merged pair by pair, as long as two of them hold tokens above the threshold."""
    groups = [{i} for i in range(len(cosines))]
    for i in range(len(cosines)):
        for j in range(i):
            if cosines[i, j] > threshold:
                first, second = (next(g for g in groups if k in g) for k in (i, j))
                if first is not second:
                    groups.remove(second)
                    first |= second
    return groups


def test_a_chain_of_near_tokens_is_one_cluster_though_its_ends_are_far_apart():
    angle = np.concatenate([0.1 * np.arange(12), [3.0, 4.0]])
    x = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    assert (x @ x.T).min() < -0.9
    assert clusters(x @ x.T, np.cos(0.11)) == (3, 12 / 14)
    # without the link in the middle there are two chains of six
    assert clusters(np.delete(x, 6, axis=0) @ np.delete(x, 6, axis=0).T, np.cos(0.11)) == (4, 6 / 13)


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95])
def test_clusters_are_those_of_a_slow_merge(threshold):
    x = units(80, 3)
    slow = slow_clusters(x @ x.T, threshold)
    seen = of(x, threshold)
    assert seen["cluster_count"] == len(slow)
    assert seen["largest_cluster"] == max(map(len, slow)) / 80


def test_quantiles_are_those_over_all_pairs_and_all_tokens():
    x = units(30, 7) * np.linspace(1, 3, 30)[:, None]
    theta = units(30, 7)
    pairs = [theta[i] @ theta[j] for i in range(30) for j in range(i)]
    seen = of(x)
    np.testing.assert_allclose(seen["cosine_quantiles"], np.quantile(pairs, QUANTILES), atol=1e-15)
    np.testing.assert_allclose(seen["radius_quantiles"], np.quantile(np.linspace(1, 3, 30), QUANTILES), rtol=1e-14)


def test_equiangular_tokens_have_one_cosine_full_rank_and_one_cluster_beyond_it():
    x = mf.equiangular(mf.Euclidean(16), 0.4, 8).tokens()
    seen = of(x, 0.39)
    np.testing.assert_allclose(seen["cosine_quantiles"], 0.4, atol=1e-14)
    assert (seen["gram_rank"], seen["cluster_count"], of(x, 0.41)["cluster_count"]) == (8, 1, 8)


@pytest.mark.parametrize(("count", "dimension", "rank"), [(40, 10, 3), (5, 10, 5), (40, 10, 10), (4, 4, 1)])
def test_the_rank_is_the_dimension_of_what_the_tokens_span(count, dimension, rank):
    basis = np.linalg.qr(np.random.default_rng(1).standard_normal((dimension, rank)))[0]
    theta = units(count, rank) @ basis.T
    assert gram_rank(theta) == rank == np.linalg.matrix_rank(theta)


@pytest.mark.parametrize(
    "scheme", [mf.PostLN(), mf.PreLN(), mf.PeriLN(), mf.NGPT(0.7), mf.SqrtScaling(), mf.MixLN(1.0)]
)
def test_the_speed_of_two_tokens_is_that_of_the_closed_form(scheme):
    """(w sin φ/(1 + w))/s with w = e^{−β(1−cos φ)}, radius 2, at t = 3 (Mix-LN: Pre-LN then, Post-LN at its switch)."""
    phi, beta, r, t = 0.8, 2.0, 2.0, 3.0
    x = r * np.array([[1.0, 0.0], [np.cos(phi), np.sin(phi)]])
    w = np.exp(-beta * (1 - np.cos(phi)))
    size = np.sqrt(1 + w**2 + 2 * w * np.cos(phi)) / (1 + w)
    s = {mf.PreLN: r, mf.MixLN: r, mf.PeriLN: r * size, mf.NGPT: size / 0.7, mf.SqrtScaling: 2.0}.get(type(scheme), 1.0)
    model = mf.Model(mf.Attention(beta), scheme)
    assert float(of(x, model=model, t=t)["mean_speed"]) == pytest.approx(np.sin(phi) * w / (1 + w) / s, rel=1e-13)
    if isinstance(scheme, mf.MixLN):
        assert float(of(x, model=model, t=1.0)["mean_speed"]) == pytest.approx(np.sin(phi) * w / (1 + w), rel=1e-13)


def test_of_many_tokens_pairs_are_formed_among_some_spread_evenly():
    count = 3 * statistics.MOST_PAIRED
    chosen = statistics.paired(count)
    assert len(chosen) == statistics.MOST_PAIRED
    assert set(np.diff(chosen)) <= {2, 3, 4}
    assert (chosen[0], chosen[-1]) == (0, count - 1)
    x = units(count, 3)
    x[: count // 2] = np.eye(3)[0]
    seen = of(x, 0.9999999)
    assert seen["largest_cluster"] == pytest.approx(0.5, abs=1e-3)
    # the cosine of a uniform pair is uniform on [−1, 1]: quarter of the pairs have cosine 1
    assert seen["cosine_quantiles"][-1] == pytest.approx(1.0, abs=1e-12)
    assert seen["cosine_quantiles"][0] == pytest.approx(2 * 0.05 / 0.75 - 1, abs=0.03)


RUN = {"method": "particles", "tokens": 24, "trials": 6, "state": "last"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("statistics") / "run.h5"
    chosen = mf.Model(mf.Attention(2.0), mf.MixLN(0.4))
    return mf.solve(chosen, two_bumps(), 0.9, 4, path=path, statistics=Statistics(0.95), **RUN), path


def test_a_run_keeps_statistics_of_every_trial_at_every_frame(recorded):
    run, _ = recorded
    assert run.observables["cosine_quantiles"].shape == (4, 6, 5)
    assert run.observables["cluster_count"].shape == (4, 6)
    state = run.state()
    for trial in range(6):
        alone = of(state.x[trial], 0.95, run.model, 0.9)
        for name, value in alone.items():
            np.testing.assert_allclose(run.observables[name][-1, trial], value, rtol=1e-12, err_msg=name)


def test_bands_are_the_quantiles_over_trials(recorded):
    run, _ = recorded
    assert {"mean_cosine", "cosine_quantiles", "mean_direction", "largest_cluster"} <= set(run.bands)
    assert not {"min_density", "resolution", "quadrature_error"} & set(run.bands)
    for name, band in run.bands.items():
        low, median, high = np.quantile(run.observables[name], [0.05, 0.5, 0.95], axis=1)
        np.testing.assert_array_equal(band, np.stack([low, median, high], axis=1))


@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
def test_xarray_finds_bands_and_quantiles_by_their_coordinates(recorded, engine):
    run, path = recorded
    with xarray.open_datatree(path, engine=engine) as tree:
        band = tree["bands/mean_cosine"]
        assert band.dims == ("time", "band")
        np.testing.assert_array_equal(band.sel(band=0.5), run.bands["mean_cosine"][:, 1])
        median = tree["observables/cosine_quantiles"].sel(quantile=0.5)
        np.testing.assert_array_equal(median, run.observables["cosine_quantiles"][..., 2])
        np.testing.assert_array_equal(tree["bands"].coords["time"], run.times)


def test_an_opened_run_and_a_saved_one_have_the_same_bands(recorded, tmp_path):
    run, path = recorded
    opened = mf.open(path)
    assert_same_bits(opened, run)
    opened.save(tmp_path / "again.h5")
    for tree in (opened.to_xarray(), xarray.open_datatree(tmp_path / "again.h5", engine="h5netcdf")):
        np.testing.assert_array_equal(tree["bands/energy"].sel(band=0.05), run.bands["energy"][:, 0])
        np.testing.assert_array_equal(tree["observables"].coords["quantile"], QUANTILES)


def test_a_resumed_run_has_the_same_statistics(recorded, tmp_path):
    run, _ = recorded

    def stop(report):
        if report.frame == 1:
            raise KeyboardInterrupt

    options = {**RUN, "path": tmp_path / "run.h5", "statistics": Statistics(0.95)}
    with pytest.raises(KeyboardInterrupt):
        mf.solve(run.model, two_bumps(), 0.9, 4, progress=stop, **options)
    with pytest.raises(InputError, match="cluster_threshold"):
        mf.solve(run.model, two_bumps(), 0.9, 4, resume=True, **{**options, "statistics": Statistics(0.9)})
    assert_same_bits(mf.solve(run.model, two_bumps(), 0.9, 4, resume=True, **options), run)
    again = mf.open(tmp_path / "run.h5").bands
    for name, band in run.bands.items():
        np.testing.assert_array_equal(again[name], band)


def test_one_trial_has_no_bands(tmp_path):
    case = mf.read_case(
        "cases/three_bumps.toml",
        {
            "solver.method": "particles",
            "solver.tokens": 8,
            "time.final": 0.1,
            "time.frames": 2,
            "output.statistics": True,
        },
    )
    run = case.solve(tmp_path / "run.h5")
    assert run.bands == {}
    assert run.observables["gram_rank"].tolist() == [3, 3]
    assert case.statistics == Statistics(0.999)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"output.statistics": True}, r"output\.statistics = True: expected false but for"),
        ({"output.cluster_threshold": 1.0}, r"output\.cluster_threshold = 1.0: expected a number above -1"),
        ({"output.statistics": 3}, r"output\.statistics"),
    ],
)
def test_wrong_statistics_are_refused_by_name(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        mf.read_case("cases/three_bumps.toml", {"solver.degree": 8, **changes}).solve()


def test_quantiles_over_trials_stand_where_the_trials_stood():
    values = np.random.default_rng(0).standard_normal((5, 9, 2))
    assert bands.of_trials(values, axis=1).shape == (5, 3, 2)
    np.testing.assert_array_equal(bands.of_trials(values, axis=1)[:, 1], np.median(values, axis=1))
