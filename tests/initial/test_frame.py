"""A run that begins where another one was."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from small_runs import assert_same_bits, model, two_bumps

import meanfield as mf
from meanfield.case import from_document, parsed
from meanfield.keys import InputError

SPHERE = mf.Sphere()
TIGHT = {"rtol": 1e-11, "atol": 1e-13}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Post-LN to t = 1 by each method, states at t = 0, 0.5, 1."""
    folder = tmp_path_factory.mktemp("frames")
    options = {
        "density": {"method": "density", "degree": 20},
        "characteristics": {"method": "characteristics", "degree": 20},
        "particles": {"method": "particles", "tokens": 50, "trials": 3},
    }
    for name, chosen in options.items():
        mf.solve(model(), two_bumps(), 1.0, 3, path=folder / f"{name}.h5", **chosen, **TIGHT)
    return {name: folder / f"{name}.h5" for name in options}


@pytest.mark.parametrize("method", ["density", "characteristics", "particles"])
def test_a_run_from_a_frame_is_the_run_that_was_not_interrupted(files, method):
    whole = mf.open(files[method])
    rest = mf.solve(model(), mf.frame(SPHERE, files[method], index=1), 0.5, 2, method=method, degree=20, **TIGHT)
    for name in ("order_parameter", "mean_cosine", "energy", "mean_direction"):
        np.testing.assert_allclose(rest.observables[name], whole.observables[name][1:], atol=1e-10, err_msg=name)


def test_a_frame_keeps_weights_trials_and_radii(files):
    tokens = mf.frame(SPHERE, files["particles"]).ensemble()
    assert tokens.x.shape == (3, 50, 3)
    laid = mf.frame(SPHERE, files["characteristics"]).ensemble()
    assert laid.coarser is not None
    pre = mf.solve(model(mf.PreLN()), mf.frame(SPHERE, files["characteristics"]), 0.5, 2, method="characteristics")
    assert np.isfinite(pre.observables["quadrature_error"]).all()
    saved = files["density"].with_name("pre.h5")
    options = {"method": "characteristics", "degree": 10}
    first = mf.solve(model(mf.PreLN()), two_bumps(), 0.5, 2, path=saved, **options)
    then = mf.solve(model(), mf.frame(SPHERE, saved), 0.5, 2, **options)
    assert then.observables["mean_radius"][0] == pytest.approx(first.observables["mean_radius"][-1], rel=1e-14)
    assert first.observables["std_radius"][-1] > 1e-3


def test_a_density_goes_on_under_another_scheme_by_every_method(files):
    start = mf.frame(SPHERE, files["density"])
    grid = SPHERE.grid(20)
    np.testing.assert_array_equal(start.coefficients(SPHERE.grid(30))[: grid.size], start.coefficients(grid))
    by = {
        method: mf.solve(model(mf.SqrtScaling(), beta=3.0), start, 0.5, 2, method=method, degree=32, **TIGHT)
        for method in ("density", "characteristics")
    }
    np.testing.assert_allclose(
        by["density"].observables["order_parameter"], by["characteristics"].observables["order_parameter"], atol=1e-8
    )
    drawn = start.sample(20_000, np.random.default_rng(0))
    np.testing.assert_allclose(
        drawn.mean(axis=0), by["density"].observables["mean_direction"][0], atol=5 / np.sqrt(20_000)
    )


def test_a_lower_degree_that_would_lose_something_is_refused(files):
    with pytest.raises(InputError, match=r"degree = 8: expected at least 20"):
        mf.solve(model(), mf.frame(SPHERE, files["density"]), 0.5, 2, degree=8)


def test_the_case_of_such_a_run_names_the_file(files, tmp_path):
    start = mf.frame(SPHERE, files["density"], index=-2)
    direct = mf.solve(model(), start, 0.2, 2, degree=20, path=tmp_path / "next.h5")
    case = from_document(parsed(direct.attributes["case"]), tmp_path)
    assert case.law.case_name == "frame"
    assert_same_bits(case.solve(), direct)
    assert type(mf.open(tmp_path / "next.h5").state()) is mf.Density


@pytest.mark.parametrize(
    ("space", "index", "words"),
    [
        (SPHERE, 3, "one of the 3 frames"),
        (SPHERE, -4, "one of the 3 frames"),
        (mf.Circle(), -1, "circle geometry"),
        (mf.Euclidean(3), -1, "euclidean geometry"),
    ],
)
def test_a_frame_that_is_not_there_or_elsewhere_is_refused(files, space, index, words):
    with pytest.raises(InputError) as refused:
        mf.frame(space, files["density"], index)
    assert words in str(refused.value)


def test_a_file_that_is_no_run_is_refused(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1.0
    for path in (tmp_path / "other.h5", tmp_path / "none.h5"):
        with pytest.raises(InputError):
            mf.frame(SPHERE, path)


def test_tokens_are_no_density_and_keep_their_radii(files):
    start = mf.frame(SPHERE, files["particles"])
    with pytest.raises(InputError, match="method"):
        mf.solve(model(), start, 0.5, 2, method="density", degree=16)
    with pytest.raises(InputError, match="radius"):
        mf.solve(model(), start, 0.5, 2, method="particles", radius=mf.ConstantRadius(2.0))
