"""The whole job: six schemes beside their particles, files, a table and figures, from a case of real tokens."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import meanfield as mf
from meanfield.case import read
from meanfield.compare import distance
from meanfield.ensemble import Ensemble
from meanfield.geometry import Sphere
from meanfield.keys import InputError
from meanfield.normalization import SCHEMES
from meanfield.study import measured_cosine, study

ROOT = Path(__file__).parent.parent
SMALL = {
    "solver.degree": 16,
    "solver.tokens": 24,
    "solver.trials": 4,
    "solver.rtol": 1e-5,
    "initial.concentration": 4.0,
    "time.final": 0.6,
    "time.frames": 4,
}
NAMES = [scheme.case_name for scheme in SCHEMES]


@pytest.fixture(scope="module")
def small_study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study") / "out"
    return study(read(ROOT / "cases" / "real_tokens.toml", SMALL), folder), folder


@pytest.mark.slow
def test_a_study_leaves_six_files_a_table_and_figures(small_study):
    result, folder = small_study
    assert sorted(file.stem for file in folder.glob("*.h5")) == sorted(NAMES)
    assert sorted(file.stem for file in (folder / "particles").glob("*.h5")) == sorted(NAMES)
    assert all(file.stat().st_size > 0 for file in result.files)
    assert {file.name for file in result.files} >= {"table.json", "mean_cosine.png", "mean_cosine.pdf", "density.png"}
    rows = json.loads((folder / "table.json").read_text())
    assert [row["scheme"] for row in rows] == NAMES
    assert all(row["status"] == "complete" and row["depth"] == 0.6 for row in rows)


@pytest.mark.slow
def test_the_table_says_what_the_files_hold(small_study):
    result, folder = small_study
    for row in result.rows:
        run = mf.open(folder / f"{row.scheme}.h5")
        assert run.observables["order_parameter"][-1] == row.order_parameter
        assert run.observables["mean_radius"][-1] == row.mean_radius
        moves = row.scheme in ("pre-ln", "mix-ln", "peri-ln")
        # radii that are kept are kept to round-off; at these depths moving ones have grown
        assert (
            (abs(row.mean_radius - 1) > 1e-3)
            if moves and row.scheme != "mix-ln"
            else (abs(row.mean_radius - 1) < 1e-12)
        )
        assert 0 < row.particle_distance < 1


@pytest.mark.slow
def test_a_study_refuses_to_replace_an_earlier_one(small_study):
    _, folder = small_study
    before = {file: file.read_bytes() for file in folder.glob("*.h5")}
    with pytest.raises(InputError, match="overwrite"):
        study(read(ROOT / "cases" / "real_tokens.toml", SMALL), folder)
    assert {file: file.read_bytes() for file in folder.glob("*.h5")} == before


def test_the_measured_cosine_is_that_of_the_real_layers():
    curves = measured_cosine(read(ROOT / "cases" / "real_tokens.toml"))
    projected, whole = curves["first 3 components of layer 0"], curves["all 384 dimensions"]
    # the figures of data/README.md
    np.testing.assert_allclose(whole, [0.0868, 0.1365, 0.1599, 0.2083, 0.2725, 0.3122, 0.2057], atol=5e-5)
    np.testing.assert_allclose(projected, [0.0205, 0.0481, 0.0645, 0.1150, 0.0876, 0.2731, 0.8294], atol=5e-5)


def test_the_distance_of_an_ensemble_to_itself_is_zero_and_of_poles_is_that_of_the_odd_degrees():
    pole, weights = np.array([[0.0, 0.0, 1.0]]), np.ones(1)
    north, south = Ensemble(pole, weights), Ensemble(-pole, weights)
    assert distance(north, north, Sphere()) == 0
    odd = np.arange(1, 33, 2)
    # Y_l0(±pole)² = 2l+1, so odd degrees differ by 2√(2l+1)
    expected = np.sqrt(np.sum((1.0 + odd * (odd + 1)) ** -2 * 4 * (2 * odd + 1)))
    np.testing.assert_allclose(distance(north, south, Sphere()), expected, rtol=1e-12)


@pytest.mark.slow
def test_the_wheel_carries_the_cases_and_their_data(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", str(ROOT), "-w", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = (
        "from meanfield.shipped import find_case; from meanfield.case import read;"
        "path = find_case('real_tokens'); print(path); print(len(read(path).law.vectors))"
    )
    environment = {"PYTHONPATH": str(tmp_path / "site"), "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path, tokens = done.stdout.split()
    assert str(tmp_path / "site") in path
    assert tokens == "324"
