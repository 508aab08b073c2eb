"""Every case that ships runs to its end by `meanfield run`, and shows what its title says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import meanfield as mf
from meanfield.cli import main
from meanfield.shipped import shipped_cases
from meanfield.theory import kuramoto
from meanfield.theory.schemes import Scheme


def kinds(run: mf.Solution) -> list[str]:
    return [event.kind for event in run.events]


def kuramoto_circle(run):
    exact = kuramoto.order_parameter_at(Scheme("post-ln"), run.times, 0.2, 2)
    handed = run.times <= next(event.time for event in run.events if event.kind == "hand-over")
    np.testing.assert_allclose(run.observables["order_parameter"][handed], exact[handed], atol=1e-9)
    np.testing.assert_allclose(run.observables["order_parameter"], exact, atol=2e-6)


def modes_on_the_circle(run):
    assert kinds(run)[-1] == "hand-over"
    c = run.arrays["density/coefficients"][run.times == 30.0][0]
    amplitudes = np.hypot(c[1:13:2], c[2:13:2])
    assert 1 + np.argmax(amplitudes) == 4  # the fastest mode of 3.2


def caustics_of_pre_ln(run):
    assert kinds(run) == ["fold"]
    assert run.observables["std_radius"][-1] > 0.1


def rings_in_512_dimensions(run):
    assert np.diff(run.observables["order_parameter"]).min() > 0
    np.testing.assert_allclose(run.observables["mean_radius"], 1, atol=1e-12)


def two_heads(run):
    assert kinds(run) == ["under-resolution"]
    assert run.state().grid.degree == 48
    assert np.abs(run.observables["mean_direction"][:, 2]).max() > 0.05


def random_layers(run):
    assert len(run.times) == 41
    before = run.times <= 2.0 + 1e-9
    np.testing.assert_allclose(run.observables["mean_radius"][before], 1, atol=1e-12)
    assert np.abs(run.observables["mean_radius"][~before] - 1).max() > 1e-3


def noisy_clustering(run):
    np.testing.assert_allclose(run.observables["mass"], 1, atol=1e-14)
    assert run.observables["order_parameter"][-1] > 0.5  # κ = 4 lies above κ_# = e
    assert abs(np.diff(run.observables["order_parameter"])[-1]) < 0.02


def causal_leaders(run):
    first = run.arrays["ensemble/direction"][:, :, 0]
    np.testing.assert_allclose(first, np.broadcast_to(first[0], first.shape), atol=1e-12)
    assert (run.observables["mean_cosine"][-1] > 0.2).all()


def void_of_peri_ln(run):
    assert kinds(run)[:2] == ["void", "refinement"]
    assert run.observables["quadrature_error"][-1] < 1e-3


def radii_of_mix_ln(run):
    before = run.times <= 1.0
    np.testing.assert_allclose(run.observables["mean_radius"][before], 2.5, atol=1e-12)
    assert run.observables["mean_radius"][-1] > 2.6
    np.testing.assert_allclose(run.observables["mass"], 1, atol=1e-12)


def real_tokens(run):
    assert run.observables["mean_cosine"][-1] > run.observables["mean_cosine"][0]


def three_bumps(run):
    assert np.diff(run.observables["energy"]).min() > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::meanfield.AccuracyWarning")
@pytest.mark.parametrize("name", list(shipped_cases()))
def test_a_shipped_case_runs_to_its_end(name, tmp_path: Path):
    early = name == "real_tokens"  # its density is resolved up to t = 2 of 6: `study` goes on by characteristics
    options = ["--set", "time.final=2.0"] if early else []
    with pytest.raises(SystemExit) as ended:
        main(["run", name, "-o", str(tmp_path / "run.h5"), "--quiet", *options])
    assert ended.value.code == 0
    run = mf.open(tmp_path / "run.h5")
    assert run.status == "complete"
    globals()[name](run)


def test_the_cases_cover_the_schemes_and_geometries():
    cases = [mf.read_case(path) for path in shipped_cases().values()]
    assert {case.model.normalization.case_name for case in cases} == {
        "post-ln", "pre-ln", "mix-ln", "peri-ln", "ngpt", "sqrt-scaling",
    }  # fmt: skip
    assert {case.law.space.case_name for case in cases} == {"circle", "sphere", "zonal", "euclidean"}
