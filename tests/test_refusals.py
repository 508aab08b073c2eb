"""What cannot be right is refused in a sentence, and what cannot be accurate is said."""

from __future__ import annotations

import numpy as np
import pytest
from small_runs import model, two_bumps

import meanfield as mf
from meanfield.cli import main


def test_a_quadrature_coarser_than_the_kernel_warns():
    with pytest.warns(mf.AccuracyWarning, match="too coarse for the kernel at beta = 100"):
        run = mf.solve(model(beta=100.0), two_bumps(), 0.01, 2, method="characteristics", degree=12, rtol=1e-4)
    assert run.status == "complete"
    assert "solver.degree = " in run.message


@pytest.mark.parametrize("depths", [(0.1, 0.0), (0.0, np.nan), (0.0, np.inf)])
def test_depth_only_grows(depths):
    state = mf.Ensemble(np.eye(3), np.full(3, 1 / 3))
    with pytest.raises(mf.InputError, match="depth"):
        mf.evolve(model(), state, *depths)


def test_a_standard_observable_keeps_its_meaning():
    with pytest.raises(mf.InputError, match="energy"):
        mf.solve(model(), two_bumps(), 0.1, 2, degree=12, observables={"energy": lambda state: 42.0})


@pytest.mark.parametrize("beta", ["1", None, 1e7, [1.0]])
def test_beta_is_a_number(beta):
    with pytest.raises(mf.InputError, match=r"^beta = "):
        mf.Attention(beta)


def test_moments_are_trusted_up_to_beta_1000():
    with pytest.raises(mf.InputError, match=r"^beta = 1001.*direct sums"):
        mf.solve(model(beta=1001.0), two_bumps(), 0.1, 2, method="density", degree=12)


def test_a_run_does_not_overwrite_its_own_inputs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("tokens.npy", np.eye(3))
    text = "[attention]\nbeta = 1.0\n[initial]\nkind = 'tokens'\nfile = 'tokens.npy'\n[time]\nfinal = 0.1\n"
    (tmp_path / "case.toml").write_text(text)
    before = (tmp_path / "tokens.npy").read_bytes()
    for output in ("case.toml", "tokens.npy"):
        with pytest.raises(SystemExit) as stop:
            main(["run", "case.toml", "-o", output, "--overwrite", "--set", "solver.method=particles"])
        assert stop.value.code == 2
    assert (tmp_path / "case.toml").read_text() == text
    assert (tmp_path / "tokens.npy").read_bytes() == before
    assert capsys.readouterr().err.count("error: --output") == 2


def test_a_name_that_is_too_long_is_one_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["run", "three_bumps", "-o", str(tmp_path / ("x" * 300 + ".h5")), "--set", "solver.degree=12"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_token_file_with_a_zero_vector_names_the_token(tmp_path):
    np.save(tmp_path / "tokens.npy", np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    with pytest.raises(mf.InputError, match="token 1 is zero"):
        mf.tokens(mf.Sphere(), tmp_path / "tokens.npy")
