"""The table of docs/accuracy.md: geometry × attention × method, each cell against an independent value.

`python tests/accuracy.py` measures every cell and writes the table; tests/test_accuracy.py measures again and holds every cell to
the bound that is printed.
"""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

import meanfield as mf
from meanfield.compare import moments
from meanfield.geometry import Space
from meanfield.normalization import SCHEMES
from meanfield.theory import equiangular, growth, kuramoto, noise
from meanfield.theory.schemes import Scheme

PAGE = Path(__file__).parent.parent / "docs" / "accuracy.md"
TIGHT = {"rtol": 1e-12, "atol": 1e-14}
SPACES = {"circle": mf.Circle(), "sphere": mf.Sphere(), "zonal, d = 8": mf.Zonal(8), "zonal, d = 512": mf.Zonal(512)}
METHODS = ("density", "characteristics", "particles")
TOKENS, TRIALS = 1000, 64
SCHEME = {scheme.case_name: scheme for scheme in SCHEMES}

Cell = Callable[[], float]


def family(space: Space, method: str) -> float:
    """β = 0: the order parameter at t = 1 against the Kuramoto family in closed form."""
    parameter = 0.2 if space.dimension < 100 else 0.02
    law, exact = mf.kuramoto(space, parameter), Scheme("post-ln")
    expected = kuramoto.order_parameter_at(exact, [1.0], parameter, space.dimension)[0]
    run = mf.solve(mf.Model(mf.Attention(0.0)), law, 1.0, 2, method=method, degree=32, **TIGHT)
    return abs(float(run.observables["order_parameter"][-1]) - expected)


def mode(space: Space, method: str, kind: str) -> float:
    """Growth of a harmonic of degree 1 and amplitude 1e-8 to t = 1, relative, against the linear theory."""
    beta = 2.0 if space.dimension < 100 else 20.0
    order = 1 if space == mf.Circle() else 0
    law, grid = mf.perturbed_uniform(space, [[1, order, 1e-8]]), space.grid(4)
    (index,) = np.flatnonzero((grid.degrees == 1) & (grid.orders == order))
    model = mf.Model(mf.Attention(beta, normalized=kind == "softmax"))
    run = mf.solve(model, law, 1.0, 2, method=method, degree=16, **TIGHT)
    grown = moments(run.state(), grid)[index] / 1e-8
    return abs(grown / float(growth.amplification(Scheme("post-ln"), [1.0], space.dimension, beta, 1, kind)[0]) - 1)


def scatter(space: Space, attention: mf.Attention) -> float:
    """Particles: |mean over 64 trials of the mean direction − that of the density|, in standard errors of that mean."""
    law = mf.vmf_mixture(space, [space.axis], [1.0 if space.dimension < 100 else 20.0])
    model = mf.Model(attention)
    run = mf.solve(model, law, 0.5, 2, degree=24, max_degree=96, rtol=1e-9, atol=1e-11)
    assert run.status == "complete", run.message
    density = run.observables["mean_direction"][-1]
    options = {"method": "particles", "tokens": TOKENS, "trials": TRIALS, "rtol": 1e-6, "state": "last"}
    drawn = mf.solve(model, law, 0.5, 2, **options).observables["mean_direction"][-1]
    along = drawn @ space.axis
    return abs(along.mean() - density @ space.axis) / (along.std(ddof=1) / math.sqrt(TRIALS))


def heads(space: Space, weights: bool) -> mf.Attention:
    rng, d = np.random.default_rng(1), space.dimension
    if weights:
        return mf.Attention(1.0, weights=mf.RandomHeads("gaussian", heads=2, interval=0.2))
    return mf.Attention(1.0, heads=mf.Heads(*(0.6 * rng.standard_normal((2, d, d)) for _ in range(3))))


def oracle(space: Space, method: str, attention: mf.Attention) -> float:
    """The order parameter at t = 0.5 against tokens on a quadrature that see each other by the direct double sum."""
    law = mf.vmf_mixture(space, [space.axis], [1.0])
    tight = {"rtol": 1e-10, "atol": 1e-12}
    model = mf.Model(attention)
    exact = mf.solve(model, law, 0.5, 2, method="characteristics", sums="direct", degree=22, **tight)
    found = mf.solve(model, law, 0.5, 2, method=method, degree=24, **tight)
    return abs(float(found.observables["order_parameter"][-1] - exact.observables["order_parameter"][-1]))


def steady(space: Space) -> float:
    """β = 0 with noise: the order parameter after depth 5 in the steady state, against the root of its equation."""
    d = space.dimension
    kappa = 1.5 * d if d < 100 else 1.1 * d
    m = float(noise.order_parameter(d, [kappa])[0])
    law = mf.vmf_mixture(space, [space.axis], [kappa * m])
    model = mf.Model(mf.Attention(0.0, normalized=False), noise=mf.Noise(kappa))
    degree = 24 if d < 100 else 96
    run = mf.solve(model, law, 5.0, 2, degree=degree, rtol=1e-10, atol=1e-12)
    return abs(float(run.observables["order_parameter"][-1]) - m)


def orthogonal(name: str) -> float:
    """n = 256 orthogonal tokens in d = 256, β = 5: the cosine at t = 1, 5 against its equation, the worse of the two."""
    law = mf.orthogonal(mf.Euclidean(256))
    run = mf.solve(
        mf.Model(mf.Attention(5.0), SCHEME[name]()), law, times=[1.0, 5.0], method="particles", rtol=1e-10, atol=1e-12
    )
    exact = equiangular.flow(Scheme(name), 5.0, 256, [1.0, 5.0]).cosine
    return float(np.max(np.abs(run.observables["mean_cosine"][1:] - exact)))


def leader() -> float:
    """Causal, Q = K = V = I, n = 8 in d = 4: how far the first token has moved at t = 5; by theory not at all."""
    x = mf.uniform(mf.Euclidean(4)).sample(8, np.random.default_rng(0))
    end = mf.evolve(mf.Model(mf.Attention(2.0, causal=True)), mf.Ensemble(x, np.full(8, 1 / 8)), 0.0, 5.0)
    return float(np.linalg.norm(np.asarray(end.x)[0] - x[0]))


def joint(name: str) -> float:
    """Directions and radii, S¹, β = 1, radii N(2.5, 0.25²): order parameter and mean radius at t = 1 against characteristics."""
    law = mf.vmf_mixture(mf.Circle(), [[0.0, 1.0]], [4.0])
    model, tight = mf.Model(mf.Attention(1.0), SCHEME[name]()), {"rtol": 1e-10, "atol": 1e-12}
    radius = mf.NormalRadius(2.5, 0.25)
    found = mf.solve(model, law, 1.0, 2, radius=radius, degree=32, max_degree=64, **tight).observables
    exact = mf.solve(model, law, 1.0, 2, radius=radius, method="characteristics", degree=200, **tight).observables
    return max(abs(float(found[key][-1] - exact[key][-1])) for key in ("order_parameter", "mean_radius"))


def amplified(name: str) -> float:
    """Growth of a harmonic of degree 1 and amplitude 1e-8 on S¹ to t = 1.5 from radius 1, relative, against the linear theory."""
    law, grid = mf.perturbed_uniform(mf.Circle(), [[1, 1, 1e-8]]), mf.Circle().grid(2)
    run = mf.solve(
        mf.Model(mf.Attention(2.0), SCHEME[name]()), law, 1.5, 2, method="characteristics", degree=16, **TIGHT
    )
    grown = moments(run.state(), grid)[2] / 1e-8
    return abs(grown / float(growth.amplification(Scheme(name), [1.5], 2, 2.0)[0]) - 1)


def cells() -> dict[tuple[str, str, str], Cell | str]:
    """(geometry, attention, method) → how to measure the cell, or why it is empty."""
    table: dict[tuple[str, str, str], Cell | str] = {}
    for name, space in SPACES.items():
        for method in METHODS[:2]:
            table[name, "β = 0", method] = lambda s=space, m=method: family(s, m)
            for kind in ("softmax", "unnormalised"):
                word = kind.replace("normalised", "normalized")
                table[name, kind, method] = lambda s=space, m=method, k=word: mode(s, m, k)
        table[name, "β = 0", "particles"] = lambda s=space: scatter(s, mf.Attention(0.0))
        beta = 1.0 if space.dimension < 100 else 20.0
        table[name, "softmax", "particles"] = lambda s=space, b=beta: scatter(s, mf.Attention(b))
        table[name, "unnormalised", "particles"] = lambda s=space, b=beta: scatter(s, mf.Attention(b, normalized=False))
        for words, random in (("two heads", False), ("random heads per layer", True)):
            for method in METHODS:
                if space.rings:
                    table[name, words, method] = "Q, K, V break the symmetry"
                elif method == "particles":
                    table[name, words, method] = lambda s=space, r=random: scatter(s, heads(s, r))
                else:
                    table[name, words, method] = lambda s=space, m=method, r=random: oracle(s, m, heads(s, r))
        table[name, "with noise", "density"] = lambda s=space: steady(s)
        table[name, "with noise", "characteristics"] = "noise has no characteristics"
    for name in SCHEME:
        table["scheme", name, "density"] = lambda n=name: joint(n)
        table["scheme", name, "characteristics"] = lambda n=name: amplified(n)
        table["scheme", name, "particles"] = lambda n=name: orthogonal(n)
    table["euclidean, d = 4", "causal", "particles"] = leader
    return table


def measured(cell: Cell) -> float:
    """The error of a cell."""
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore", mf.AccuracyWarning)
        return cell()


HEAD = """# Accuracy

Every cell is a measured error against an independent value, and the bound that is printed is held by `tests/test_accuracy.py`.
`python tests/accuracy.py` measures the table again.

* **β = 0**: the order parameter at t = 1 against the Kuramoto family in closed form (the mathematics page, 3.1).
* **softmax, unnormalised**: relative error of the growth of a small harmonic of degree 1 to t = 1 against the linear theory
  (3.2); β = 2, in d = 512 β = 20.
* **heads**: the order parameter at t = 0.5 against tokens on a quadrature that see each other by the direct double sum.
* **with noise**: the order parameter after depth 5 in the steady state at β = 0 against the root of its equation (3.5).
* **particles** in a geometry with densities: the distance between the mean over 64 trials of 1,000 tokens and the density, in
  standard errors of that mean (σ). A biased simulation would show many.
* **scheme** (each under its name): densities of directions and radii on the circle, radii N(2.5, 0.25²), at t = 1 against
  characteristics; characteristics from radius 1 against the linear theory at t = 1.5 (3.2); 256 orthogonal tokens in d = 256,
  β = 5, at t = 1 and 5 against the equation of the equiangular flow (3.3).
* **causal**: how far the first token, which sees itself alone, has moved at t = 5.

| geometry | attention | density | characteristics | particles |
|---|---|---|---|---|
"""


def bound(value: float, method: str, geometry: str) -> str:
    """A measured error as the table has it: the next power of ten above twice it, or 4 standard errors."""
    if method == "particles" and geometry in SPACES:
        return "< 4σ"
    return f"< 1e{max(math.ceil(math.log10(2 * max(value, 1e-16))), -13)}"


def write() -> None:
    """Measure every cell and write the page."""
    table = cells()
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for (geometry, attention, method), cell in table.items():
        text = cell if isinstance(cell, str) else bound(measured(cell), method, geometry)
        print(geometry, attention, method, text, flush=True)
        rows.setdefault((geometry, attention), {})[method] = text
    lines = [
        f"| {geometry} | {attention} | " + " | ".join(row.get(method, "—") for method in METHODS) + " |"
        for (geometry, attention), row in rows.items()
    ]
    PAGE.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


def printed() -> dict[tuple[str, str, str], str]:
    """(geometry, attention, method) → what the page says."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        parts = [part.strip() for part in line.strip("|").split("|")]
        if len(parts) == 5 and not re.match(r"geometry|-+", parts[0]):
            found |= {(parts[0], parts[1], method): text for method, text in zip(METHODS, parts[2:], strict=True)}
    return found


if __name__ == "__main__":
    sys.exit(write())
