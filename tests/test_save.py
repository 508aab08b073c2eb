"""A solution saved, opened and turned into xarray is the same solution."""

from __future__ import annotations

import numpy as np
import pytest
import xarray

import meanfield as mf
from meanfield.keys import InputError


@pytest.fixture(scope="module", params=["all", "last", 2])
def solution(request):
    law = mf.vmf_mixture(mf.Sphere(), [[0.0, 0.6, 0.8]], [2.0])
    model = mf.Model(mf.Attention(1.0), mf.PostLN())
    return mf.solve(model, law, final_time=0.4, frames=4, degree=12, state=request.param)


def test_a_saved_solution_opens_as_itself(solution, tmp_path):
    path = solution.save(tmp_path / "run.h5")
    opened = mf.open(path)
    assert opened.status == "complete"
    np.testing.assert_array_equal(opened.times, solution.times)
    np.testing.assert_array_equal(opened.kept_times, solution.kept_times)
    for name, values in solution.observables.items():
        np.testing.assert_array_equal(opened.observables[name], values)
    np.testing.assert_array_equal(opened.arrays["density/coefficients"], solution.arrays["density/coefficients"])
    pole = np.array([[0.0, 0.0, 1.0]])
    np.testing.assert_array_equal(opened.density()(pole), solution.density()(pole))


def test_xarray_reads_from_the_file_what_the_solution_gives(solution, tmp_path):
    path = solution.save(tmp_path / "run.h5")
    tree = solution.to_xarray()
    with xarray.open_datatree(path, engine="h5netcdf") as stored:
        for group in ("observables", "density"):
            for name, variable in tree[group].data_vars.items():
                xarray.testing.assert_identical(variable.variable, stored[group][name].load().variable)


def test_saving_replaces_nothing_unasked(solution, tmp_path):
    path = solution.save(tmp_path / "run.h5")
    before = path.read_bytes()
    with pytest.raises(InputError, match="exists"):
        solution.save(path)
    assert path.read_bytes() == before
    solution.save(path, overwrite=True)
    assert mf.open(path).status == "complete"
