"""One process or many, the bits are the same: no scheme runs the code that was compiled for another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent

RUNS = """
import sys
import numpy as np
from meanfield.attention import Attention
from meanfield.ensemble import Ensemble
from meanfield.integrate import evolve
from meanfield.model import Model
from meanfield.normalization import SCHEMES

x = np.random.default_rng(0).standard_normal((8, 4))
tokens = Ensemble(x / np.linalg.norm(x, axis=1, keepdims=True), np.full(8, 1 / 8))
for index in map(int, sys.argv[1:]):
    final = evolve(Model(Attention(2.0), SCHEMES[index]()), tokens, 0.0, 2.0)
    print(index, final.x.tobytes().hex())
"""


def finals(indices: list[int]) -> dict[int, bytes]:
    """The tokens at t = 2 under each of the schemes, computed one after another in one fresh process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", RUNS, *map(str, indices)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return {int(index): bytes.fromhex(bits) for index, bits in lines}


@pytest.mark.slow
def test_six_schemes_in_one_process_are_six_processes():
    alone = {index: finals([index])[index] for index in range(6)}
    assert all(np.isfinite(np.frombuffer(bits)).all() and len(bits) == 8 * 4 * 8 for bits in alone.values())
    assert len(set(alone.values())) == 6
    assert finals([0, 1, 2, 3, 4, 5]) == alone
    assert finals([4, 2, 5, 1, 3, 0, 4, 1]) == alone
