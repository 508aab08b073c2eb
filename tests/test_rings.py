"""A run in zonal geometry is the run on the whole sphere: every observable, by every method."""

import numpy as np
import pytest

from meanfield.attention import Attention, Tokens
from meanfield.ensemble import Ensemble
from meanfield.geometry import Sphere, Zonal
from meanfield.initial import vmf_mixture
from meanfield.keys import InputError
from meanfield.model import Model
from meanfield.normalization import PreLN
from meanfield.solve import solve

SPHERE = vmf_mixture(Sphere(), [[0, 0, 1], [0, 0, -1]], [2.0, 3.0], [0.6, 0.4])
RINGS = vmf_mixture(Zonal(3), [[1, 0], [-1, 0]], [2.0, 3.0], [0.6, 0.4])
COMPARED = ("order_parameter", "mean_cosine", "energy", "mass", "mean_radius", "std_radius")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "degree"), [("density", 40), ("characteristics", 30)])
def test_observables_of_rings_are_those_of_the_sphere(method, degree):
    model = Model(Attention(2.0)) if method == "density" else Model(Attention(2.0), PreLN())
    options = {"method": method, "degree": degree, "rtol": 1e-10, "atol": 1e-12}
    sphere, rings = (solve(model, law, 1.0, 3, **options) for law in (SPHERE, RINGS))
    for name in COMPARED:
        np.testing.assert_allclose(rings.observables[name], sphere.observables[name], atol=1e-9, err_msg=name)
    direction = rings.observables["mean_direction"]
    np.testing.assert_array_equal(direction[:, 1], 0)
    np.testing.assert_allclose(direction[:, 0], sphere.observables["mean_direction"][:, 2], atol=1e-9)


def test_mean_cosine_of_sampled_rings_is_that_of_their_directions():
    """⟨x_i,x_j⟩ averaged over both rings is u_i u_j for i ≠ j."""
    u = np.array([0.3, -0.8, 0.5, 0.9])
    x = np.stack([u, np.sqrt(1 - u**2)], axis=-1)
    rings = Ensemble(x, np.full(4, 0.25), Zonal(5).grid(8), sampled=True)
    pairs = [u[i] * u[j] for i in range(4) for j in range(4) if i != j]
    order = np.linalg.norm(np.asarray(rings.mean_direction()))
    assert abs(float(rings.mean_cosine(order)) - np.mean(pairs)) < 1e-6


def test_rings_never_meet_the_direct_sum():
    run = solve(Model(Attention(9.0)), RINGS, 0.1, 2, method="particles", tokens=20)
    assert not isinstance(run.state().source(), Tokens)
    with pytest.raises(InputError, match="sums"):
        solve(Model(Attention(1.0)), RINGS, 0.1, 2, method="particles", tokens=20, sums="direct")
