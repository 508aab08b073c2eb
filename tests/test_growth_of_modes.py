"""Small harmonics about the uniform density grow as the linear theory says: six schemes, both attentions, d = 2, 3, 8."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import meanfield as mf
from meanfield.compare import moments
from meanfield.normalization import SCHEMES
from meanfield.theory import growth
from meanfield.theory.schemes import Scheme

# The first mode is the smaller one: its square must not reach the second.
AMPLITUDES, BETA, DEPTH = np.array([1e-8, 1e-7]), 2.0, 1.5
SPACES = {2: (mf.Circle(), [[1, 1], [2, -2]]), 3: (mf.Sphere(), [[1, 0], [2, 1]]), 8: (mf.Zonal(8), [[1, 0], [2, 0]])}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["softmax", "unnormalized"])
@pytest.mark.parametrize("cls", SCHEMES, ids=lambda cls: cls.case_name)
@pytest.mark.parametrize("d", SPACES)
def test_modes_grow_by_their_amplification(d, cls, kind):
    """Degrees 1 and 2 at once, relative 1e-5; Mix-LN across its switch at τ = 1."""
    space, modes = SPACES[d]
    law = mf.perturbed_uniform(space, [[*mode, a] for mode, a in zip(modes, AMPLITUDES, strict=True)])
    grid = space.grid(4)
    index = [int(np.flatnonzero((grid.degrees == l) & (grid.orders == m))[0]) for l, m in modes]
    chosen = mf.Model(mf.Attention(BETA, normalized=kind == "softmax"), cls())
    method = "density" if cls.restores else "characteristics"
    with warnings.catch_warnings():
        warnings.simplefilter("error", mf.AccuracyWarning)
        run = mf.solve(chosen, law, DEPTH, 2, method=method, degree=12, rtol=1e-13, atol=1e-15)
    grown = moments(run.state(), grid)[index] / AMPLITUDES
    scheme = Scheme(cls.case_name)
    expected = [float(growth.amplification(scheme, [DEPTH], d, BETA, degree, kind)[0]) for degree in (1, 2)]
    np.testing.assert_allclose(grown, expected, rtol=1e-5)
