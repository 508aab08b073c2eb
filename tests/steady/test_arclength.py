"""Pseudo-arclength continuation on curves that are known."""

import itertools
import math

import numpy as np
import pytest

from meanfield.steady import arclength


def circle(z):
    """x² + y² = 1."""
    return np.array([z @ z - 1.0]), 2.0 * z[None, :]


def test_the_unit_circle_is_followed_all_the_way_round():
    first = np.array([1.0, 0.0])
    second = arclength.corrected(circle, np.array([1.0, 0.01]), np.array([0.0, 1.0]))
    curve = arclength.followed(circle, first, second)
    points = [z for z, _ in itertools.islice(curve, 200)]
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1.0, rtol=1e-14)
    angles = np.unwrap(np.arctan2(*np.transpose(points)[::-1]))
    assert np.all(np.diff(angles) > 0)
    assert angles[-1] > 2 * math.pi


def test_the_tangent_is_that_of_the_circle():
    z = np.array([0.6, 0.8])
    np.testing.assert_allclose(arclength.tangent(circle, z, np.array([1.0, 0.0])), [0.8, -0.6], rtol=1e-15)


def test_a_fold_is_located():
    def slope(z, along):
        return arclength.tangent(circle, z, along)[1]

    top = arclength.located(circle, np.array([0.6, 0.8]), np.array([-0.28, 0.96]), slope)
    np.testing.assert_allclose(top, [0.0, 1.0], atol=1e-14)


def test_a_curve_that_ends_is_not_followed_beyond():
    def half_line(z):  # y = x where x > ½, nothing elsewhere
        return np.array([z[1] - z[0] if z[0] > 0.5 else math.nan]), np.array([[-1.0, 1.0]])

    with pytest.raises(arclength.ContinuationError):
        list(itertools.islice(arclength.followed(half_line, np.ones(2), np.full(2, 0.99)), 1000))
