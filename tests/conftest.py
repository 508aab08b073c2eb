"""Solutions that several test files share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from small_runs import model, two_bumps

import meanfield as mf

# Compiled code is mapped into memory piece by piece, and a process may have 65,530 maps; the whole suite would need more.
MOST_MAPS = 30_000
MAPS = Path("/proc/self/maps")


@pytest.fixture(autouse=True)
def room_for_compiled_code() -> Iterator[None]:
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


@pytest.fixture(scope="session")
def density_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("solve") / "density.h5"


@pytest.fixture(scope="session")
def density(density_file: Path) -> mf.Solution:
    """Post-LN at degree 14, three frames to t = 0.6, streamed into a file."""
    return mf.solve(model(), two_bumps(), 0.6, 3, degree=14, rtol=1e-10, atol=1e-12, path=density_file)
