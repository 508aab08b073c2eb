"""Runs small enough for many tests: two bumps on the sphere, a model, and what it means that two runs are the same."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

import meanfield as mf
from meanfield.initial import Law

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

SPHERE = mf.Sphere()
NORTH = np.array([0.0, 0.0, 1.0])
POINTS = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0], [1.0, 0.0, 0.0], [0.6, 0.0, 0.8]])


def two_bumps() -> Law:
    return mf.vmf_mixture(SPHERE, [[1.0, 0.0, 0.2], [0.0, 1.0, 0.3]], [1.0, 1.5], [0.6, 0.4])


def model(scheme: object = None, beta: float = 1.0) -> mf.Model:
    return mf.Model(mf.Attention(beta), mf.PostLN() if scheme is None else scheme)


def assert_same_bits(first: mf.Solution, second: mf.Solution) -> None:
    np.testing.assert_array_equal(first.times, second.times)
    assert set(first.observables) == set(second.observables)
    for name, values in first.observables.items():
        np.testing.assert_array_equal(values, second.observables[name], err_msg=name)
    assert set(first.arrays) == set(second.arrays)
    for name, values in first.arrays.items():
        np.testing.assert_array_equal(values, second.arrays[name], err_msg=name)
    for name, values in first.fixed.items():
        np.testing.assert_array_equal(values, second.fixed[name], err_msg=name)
