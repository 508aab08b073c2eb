"""Solutions that several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import model, two_bumps

import meanfield as mf


@pytest.fixture(scope="session")
def density_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("solve") / "density.h5"


@pytest.fixture(scope="session")
def density(density_file: Path) -> mf.Solution:
    """Post-LN at degree 14, three frames to t = 0.6, streamed into a file."""
    return mf.solve(model(), two_bumps(), 0.6, 3, degree=14, rtol=1e-10, atol=1e-12, path=density_file)
