"""Heads: A(θ) = H⁻¹ Σ_h Z_h⁻¹ ∫ e^{β⟨Q_hθ,K_hω⟩} V_hω dμ(ω) for any Q, K, V, against a slow double sum; files and cases."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.stats import ortho_group
from small_runs import SPHERE, two_bumps

import meanfield as mf
from meanfield.attention import Attention, Field, Tokens
from meanfield.case import Case, from_document, set_keys
from meanfield.document import case_text
from meanfield.geometry.funk_hecke import attention_degree
from meanfield.heads import PARTS, Heads
from meanfield.keys import InputError
from meanfield.settings import Depths, Settings

BETA = 1.5
field = jax.jit(lambda attention, source, points=None: attention(0.0, source, points))
SPACES = {2: mf.Circle(), 3: SPHERE}
KINDS = pytest.mark.parametrize("normalized", [True, False], ids=["softmax", "unnormalized"])


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def scaled(tables: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Keys of such a size that no ‖KᵀQ‖ exceeds 1.2: the kernels are as wide as that of 1.2 β."""
    for table in tables:
        norm = np.linalg.norm(table["key"].T @ table["query"], ord=2)
        table["key"] = table["key"] * min(1.0, 1.2 / norm) if norm else table["key"]
    return tables


def general(dimension: int) -> list[dict[str, np.ndarray]]:
    """Three heads without any symmetry, with 1, 2 and 5 rows."""
    rng = np.random.default_rng(dimension)
    shapes = [((rows, dimension), (rows, dimension), (dimension, dimension)) for rows in (1, 2, 5)]
    return scaled([{part: rng.standard_normal(s) for part, s in zip(PARTS, shape, strict=True)} for shape in shapes])


def degenerate(dimension: int) -> list[dict[str, np.ndarray]]:
    """Heads of rank one; that look at nothing, Q = 0; whose values are nothing, V = 0."""
    rng = np.random.default_rng(dimension)
    one, nothing, mute = [{part: rng.standard_normal((dimension,) * 2) for part in PARTS} for _ in range(3)]
    one = {part: np.outer(matrix[0], matrix[1]) for part, matrix in one.items()}
    return scaled([one, nothing | {"query": np.zeros((dimension,) * 2)}, mute | {"value": np.zeros((dimension,) * 2)}])


def single(dimension: int) -> list[dict[str, np.ndarray]]:
    """One head, given by its values alone: Q = K = I."""
    return [{"value": np.random.default_rng(dimension).standard_normal((dimension, dimension))}]


SETS = {"general": general, "degenerate": degenerate, "single": single}
EVERY_SET = pytest.mark.parametrize("tables", SETS.values(), ids=SETS)


def double_sum(
    tables: list[dict[str, np.ndarray]], directions: Any, weights: Any, points: Any, normalized: bool = True
) -> np.ndarray:
    """A at points, slowly and readably."""
    identity = np.eye(np.shape(directions)[1])
    vectors = []
    for theta in np.asarray(points):
        mean = np.zeros(len(theta))
        for table in tables:
            query, key, value = (table.get(part, identity) for part in PARTS)
            kernel = np.array(
                [
                    w * np.exp(BETA * (query @ theta) @ (key @ omega))
                    for omega, w in zip(directions, weights, strict=True)
                ]
            )
            total = sum(k * value @ omega for k, omega in zip(kernel, directions, strict=True))
            mean += total / (kernel.sum() if normalized else 1.0) / len(tables)
        vectors.append(mean)
    return np.array(vectors)


def units(count: int, dimension: int, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((count, dimension))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def measure(count: int, dimension: int) -> Tokens:
    return Tokens(units(count, dimension), np.random.default_rng(1).dirichlet(np.full(count, 5.0)))


def rough_density(dimension: int, degree: int, moment_degree: int) -> mf.Density:
    """A density with some of every degree, not far from uniform."""
    grid = SPACES[dimension].grid(degree)
    c = 0.3 * np.random.default_rng(2).standard_normal(grid.size) * 0.5**grid.degrees
    c[0] = 1.0
    return mf.Density(grid, c, SPACES[dimension].grid(moment_degree))


# ------------------------------------------------------------------ the field


@KINDS
@EVERY_SET
@pytest.mark.parametrize("dimension", [2, 3, 9])
def test_token_by_token_it_is_the_double_sum(dimension, tables, normalized):
    given, source, points = tables(dimension), measure(20, dimension), units(4, dimension, 3)
    attention = Attention(BETA, normalized, Heads.from_tables(given, dimension))
    exact = double_sum(given, source.directions, source.weights, points, normalized)
    np.testing.assert_allclose(field(attention, source, points).vector, exact, atol=1e-13 * np.abs(exact).max())


@pytest.mark.parametrize(
    ("tables", "normalized"), [(general, True), (general, False), (degenerate, True), (single, True)]
)
@pytest.mark.parametrize("dimension", [2, 3])
def test_of_tokens_through_moments_it_is_the_double_sum(dimension, tables, normalized):
    given, tokens, points = tables(dimension), measure(80, dimension), units(4, dimension, 3)
    heads = Heads.from_tables(given, dimension)
    grid = SPACES[dimension].grid(attention_degree(BETA * heads.reach(), dimension))
    source = mf.Ensemble(tokens.directions, tokens.weights, grid).source()
    exact = double_sum(given, tokens.directions, tokens.weights, points, normalized)
    np.testing.assert_allclose(field(Attention(BETA, normalized, heads), source, points).vector, exact, atol=1e-12)


@EVERY_SET
@pytest.mark.parametrize("degree", [6, 40])  # coarser and finer than the grid of the moments, of degree 24
@pytest.mark.parametrize("dimension", [2, 3])
def test_of_a_density_it_is_the_double_integral(dimension, degree, tables):
    given, density, points = tables(dimension), rough_density(dimension, degree, 24), units(2, dimension, 3)
    nodes, weights = SPACES[dimension].quadrature(32)
    exact = double_sum(given, nodes, weights * density.grid.evaluate(density.coefficients, nodes), points)
    attention = Attention(BETA, heads=Heads.from_tables(given, dimension))
    np.testing.assert_allclose(field(attention, density.source(), points).vector, exact, atol=1e-12)


@pytest.mark.parametrize(("dimension", "normalized"), [(2, True), (3, False)])
def test_one_head_of_identities_is_no_head(dimension, normalized):
    identity = Heads(*[np.eye(dimension)] * 3)
    density, points = rough_density(dimension, 6, 24), units(4, dimension)
    for source in (measure(20, dimension), density.source()):
        with_head, plain = (field(Attention(BETA, normalized, heads), source, points) for heads in (identity, None))
        for name in ("vector", "partition"):
            np.testing.assert_allclose(getattr(with_head, name), getattr(plain, name), atol=2e-13)


@pytest.mark.parametrize("dimension", [2, 3, 7])
def test_the_field_turns_with_the_measure_and_the_heads(dimension):
    R = ortho_group.rvs(dimension, random_state=1)
    heads = Heads.from_tables(general(dimension), dimension)
    turned = Heads(heads.query @ R.T, heads.key @ R.T, R @ heads.value @ R.T)
    source, points = measure(20, dimension), units(4, dimension, 3)
    seen, seen_turned = source, Tokens(source.directions @ R.T, source.weights)
    if dimension in SPACES:
        grid = SPACES[dimension].grid(24)
        seen, seen_turned = (mf.Ensemble(s.directions, s.weights, grid).source() for s in (seen, seen_turned))
    A = field(Attention(BETA, heads=heads), seen, points).vector
    np.testing.assert_allclose(
        field(Attention(BETA, heads=turned), seen_turned, points @ R.T).vector, A @ R.T, atol=1e-12
    )


def test_trials_may_have_heads_of_their_own():
    sets = [Heads.from_tables(tables(3), 3) for tables in (general, general)]
    sets[1] = Heads(sets[1].value[:, [0, 1, 2, 0, 0]], sets[1].key, -sets[1].value)
    together = Heads(*(np.stack([getattr(heads, part) for heads in sets]) for part in PARTS))
    assert (together.trials, sets[0].trials) == (2, None)
    assert together.reach() == max(heads.reach() for heads in sets)
    x, weights = np.stack([units(40, 3, seed) for seed in range(2)]), np.full(40, 1 / 40)
    for grid in (None, SPHERE.grid(32)):
        vector = field(Attention(BETA, heads=together), mf.Ensemble(x, weights, grid).source(), x).vector
        for trial, heads in enumerate(sets):
            alone = field(Attention(BETA, heads=heads), mf.Ensemble(x[trial], weights, grid).source(), x[trial]).vector
            np.testing.assert_allclose(vector[trial], alone, atol=1e-13)


def test_energy_is_the_mean_over_heads_of_the_double_integral():
    given, source = general(3), measure(12, 3)
    attention = Attention(BETA, heads=Heads.from_tables(given, 3))
    exact = 0.0
    for table in given:
        scores = (source.directions @ table["query"].T) @ (source.directions @ table["key"].T).T
        exact += source.weights @ np.exp(BETA * (scores - 1)) @ source.weights / (2 * BETA) / len(given)
    seen: Field = field(attention, source)
    assert float(attention.energy(0.0, seen.partition, source.weights, np.nan)) == pytest.approx(exact, rel=1e-13)
    assert np.isnan(Attention(0.0, heads=attention.heads).energy(0.0, seen.partition, source.weights, 0.5))


# ------------------------------------------------------------------ runs


def solved(space: Any, scheme: Any, **settings: Any) -> mf.Solution:
    means = np.eye(space.dimension)[:2] + 0.2
    law = mf.vmf_mixture(space, means, [1.0, 1.5], [0.6, 0.4])
    heads = Heads.from_tables(general(space.dimension), space.dimension)
    numbers = {"rtol": 1e-11, "atol": 1e-13, "state": "last"}
    return mf.solve(mf.Model(Attention(BETA, heads=heads), scheme), law, 0.5, 2, **numbers, **settings)


@pytest.mark.parametrize("dimension", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_density_moves_as_its_characteristics_do(dimension):
    space = SPACES[dimension]
    density = solved(space, mf.PostLN(), method="density", degree=32)
    tokens = solved(space, mf.PostLN(), method="characteristics", degree=32, sums="direct")
    assert density.status == tokens.status == "complete"
    for name in ("mean_direction", "order_parameter", "energy"):
        np.testing.assert_allclose(density.observables[name], tokens.observables[name], atol=1e-11, err_msg=name)
    np.testing.assert_allclose(
        density.attention(0.5)(np.eye(dimension)), tokens.attention(0.5)(np.eye(dimension)), atol=1e-10
    )


def test_fast_sums_are_direct_sums():
    fast, direct = (
        solved(SPACES[2], mf.PreLN(), method="characteristics", degree=32, sums=s) for s in ("fast", "direct")
    )
    np.testing.assert_allclose(fast.arrays["ensemble/direction"], direct.arrays["ensemble/direction"], atol=1e-11)
    np.testing.assert_allclose(fast.arrays["ensemble/radius"], direct.arrays["ensemble/radius"], atol=1e-11)


def test_tokens_follow_the_equation():
    # Pre-LN: dx/dt = A(x/‖x‖), by another method and with the slow sum
    given, x, weights = general(3), units(4, 3), np.array([0.1, 0.2, 0.3, 0.4])

    def speed(t, flat):
        theta = flat.reshape(4, 3) / np.linalg.norm(flat.reshape(4, 3), axis=1, keepdims=True)
        return double_sum(given, theta, weights, theta).ravel()

    reference = solve_ivp(speed, (0.0, 1.0), x.ravel(), rtol=1e-10, atol=1e-12).y[:, -1]
    model = mf.Model(Attention(BETA, heads=Heads.from_tables(given, 3)), mf.PreLN())
    moved = mf.evolve(model, mf.Ensemble(x, weights), 0.0, 1.0, 1e-11, 1e-13)
    np.testing.assert_allclose(moved.x, reference.reshape(4, 3), atol=1e-9)


# ------------------------------------------------------------------ cases and files

DOCUMENT = {
    "attention": {"beta": 1.0},
    "geometry": {"kind": "sphere"},
    "solver": {"method": "characteristics", "degree": 12},
    "time": {"final": 0.1, "frames": 2},
}
SQUARE, ROW = np.eye(3).tolist(), [[1.0, 2.0, 3.0]]


def case(changes: dict[str, Any], folder: Path = Path()) -> Case:
    return from_document(set_keys(DOCUMENT, changes), folder)


def assert_same_heads(first: Heads, second: Heads) -> None:
    for part in PARTS:
        np.testing.assert_array_equal(getattr(first, part), getattr(second, part), err_msg=part)


def test_tables_of_a_case():
    tables = [{"query": ROW, "key": [[0.0, 1.0, 0.0]]}, {"value": (2 * np.eye(3)).tolist()}]
    chosen = case({"attention.heads": tables})
    heads = chosen.model.attention.heads
    np.testing.assert_array_equal(heads.query[0], [[1, 2, 3], [0, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(heads.key[1], np.eye(3))
    np.testing.assert_array_equal(heads.value, [np.eye(3), 2 * np.eye(3)])
    assert heads.dimension == 3
    assert tomllib.loads(chosen.text)["attention"]["heads"] == tables
    assert_same_heads(Heads.from_tables(heads.as_case(), 3), heads)
    text = case_text(chosen.model, chosen.law, None, Settings(), Depths(np.array([0.0, 1.0])), "all")
    assert_same_heads(from_document(tomllib.loads(text), Path()).model.attention.heads, heads)


def test_heads_in_a_file(tmp_path, monkeypatch):
    heads = Heads.from_tables(general(3), 3)
    (tmp_path / "cases").mkdir()
    np.savez(tmp_path / "heads.npz", **{part: getattr(heads, part) for part in PARTS})
    chosen = case({"attention.heads": {"file": "../heads.npz"}}, tmp_path / "cases")
    assert_same_heads(chosen.model.attention.heads, heads)
    # the run names the file from wherever it is opened, and what Python writes does too
    path = str(tmp_path / "heads.npz")
    assert tomllib.loads(chosen.text)["attention"]["heads"] == {"file": path}
    monkeypatch.chdir(tmp_path)
    assert Heads.from_file("heads.npz").as_case() == {"file": path}
    solution = chosen.solve(tmp_path / "run.h5")
    again = mf.open(tmp_path / "run.h5")
    np.testing.assert_array_equal(again.attention(0.1)(np.eye(3)), solution.attention(0.1)(np.eye(3)))
    assert chosen.solve(tmp_path / "run.h5", resume=True).status == "complete"
    # one head needs no axis of heads
    np.savez(tmp_path / "one.npz", **{part: np.eye(3) for part in PARTS})
    assert Heads.from_file(tmp_path / "one.npz").query.shape == (1, 3, 3)


def test_heads_too_large_for_a_case_have_no_text(tmp_path):
    large, x = Heads(*[np.eye(64)] * 3), mf.equiangular(mf.Euclidean(64), 0.1, 3)
    with pytest.raises(TypeError, match="belong in a file"):
        large.as_case()
    for heads in (large, Heads(*[np.zeros((2, 1, 64, 64))] * 3)):
        model = mf.Model(Attention(1.0, heads=heads), mf.PreLN())
        assert case_text(model, x, None, Settings(), Depths(np.array([0.0, 1.0])), "all") == ""
    model = mf.Model(Attention(1.0, heads=large), mf.PreLN())
    mf.solve(model, x, 0.1, 2, method="particles", path=tmp_path / "run.h5")
    with pytest.raises(InputError, match="cannot be resumed"):
        mf.solve(model, x, 0.1, 2, method="particles", path=tmp_path / "run.h5", resume=True)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"heads": []}, r"attention.heads = \[\]: expected a list of at least one table"),
    ({"heads": 3}, "attention.heads = 3"),
    ({"heads": [3]}, r"attention.heads\[0\] = 3"),
    ({"heads": [{"query": 3.0}]}, r"attention.heads\[0\].query = 3.0"),
    ({"heads": [{"query": SQUARE}, {"query": [["a", 1.0, 2.0]]}]}, r"attention.heads\[1\].query\[0\]\[0\] = 'a'"),
    ({"heads": [{"query": SQUARE}, {"query": [[1.0, 2.0]]}]}, r"attention.heads\[1\].query = .*rows of 3 numbers"),
    ({"heads": [{"query": [[1.0, 2.0, np.nan]]}]}, r"attention.heads\[0\].query = .*finite"),
    ({"heads": [{"key": [[1.0, 2.0, 3.0], [1.0]]}]}, r"attention.heads\[0\].key = .*a matrix"),
    ({"heads": [{"value": []}]}, r"attention.heads\[0\].value = \[\]"),
    ({"heads": [{"value": [[]]}]}, r"attention.heads\[0\].value = \[\[\]\]"),
    ({"heads": [{"querry": SQUARE}]}, r"attention.heads\[0\].querry = .*query, key, value"),
    ({"heads": [{"query": ROW, "key": SQUARE}]}, r"attention.heads\[0\].key = .*as many as query has"),
    ({"heads": [{"query": ROW}]}, r"attention.heads\[0\].key = None: expected 1 rows"),
    ({"heads": [{"value": ROW}]}, r"attention.heads\[0\].value = .*3 rows of 3 numbers"),
    ({"heads": {"file": "none.npz"}}, "attention.heads.file = 'none.npz': expected an .npz file that exists"),
    ({"heads": {"file": 3}}, "attention.heads.file = 3"),
    ({"heads": {"files": "x"}}, r"attention.heads = .*\{ file = … \}"),
    ({"heads": {"file": "flat.npz"}}, r"attention.heads.file: query = \[1, 2, 2\]: .*dimension 3"),
    ({"heads": {"file": "unlike.npz"}}, r"attention.heads.file: key = \[1, 2, 2\]: .*like query"),
    ({"heads": {"file": "nan.npz"}}, r"attention.heads.file: value = .*finite"),
    ({"heads": {"file": "lacking.npz"}}, "attention.heads.file = 'lacking.npz': .*key is missing"),
    ({"heads": {"file": "trials.npz"}}, r"attention.heads.file: query = \[2, 1, 3, 3\]: .*trials share a file"),
    ({"heads": {"file": "words.npz"}}, "attention.heads.file: query = "),
    ({"heads": {"file": "cut.npz"}}, "attention.heads.file = 'cut.npz': expected a readable .npz file"),
    ({"weights": {"kind": "kaiming"}, "heads": [{}]}, "attention.weights = 'given': expected absent"),
    ({"weights": {}}, "attention.weights.kind = None"),
    ({"weights": {"kind": "he"}}, "attention.weights.kind = 'he': expected one of kaiming, gaussian, symmetric"),
    ({"weights": {"kind": "kaiming", "head": 2}}, "attention.weights.head = 2: .*did you mean heads"),
    ({"weights": {"kind": "kaiming", "heads": 0}}, "attention.weights.heads = 0"),
    ({"weights": {"kind": "kaiming", "seed": 1.5}}, "attention.weights.seed = 1.5"),
    ({"weights": {"kind": "kaiming", "seed": -1}}, "attention.weights.seed = -1"),
    ({"weights": {"kind": "kaiming", "interval": 0.0}}, "attention.weights.interval = 0.0"),
    ({"weights": {"kind": "kaiming", "per_layer": "no"}}, "attention.weights.per_layer = 'no'"),
    ({"weights": 3}, "attention.weights = 3"),
]


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("heads")
    three, two = np.eye(3), np.eye(2)
    np.savez(folder / "flat.npz", query=two, key=two, value=two)
    np.savez(folder / "unlike.npz", query=three, key=two, value=three)
    np.savez(folder / "nan.npz", query=three, key=three, value=np.nan * three)
    np.savez(folder / "lacking.npz", query=three, value=three)
    np.savez(folder / "trials.npz", **{part: np.stack([[three]] * 2) for part in PARTS})
    np.savez(folder / "words.npz", query=np.array([["a"]]), key=three, value=three)
    (folder / "cut.npz").write_bytes((folder / "flat.npz").read_bytes()[:100])
    return folder


@pytest.mark.parametrize(
    ("keys", "sentence"), REFUSED, ids=lambda value: None if isinstance(value, str) else str(value)[:50]
)
def test_what_is_no_set_of_heads_is_refused_under_its_key(keys, sentence, bad_files, monkeypatch):
    monkeypatch.chdir(bad_files)
    with pytest.raises(InputError, match=f"^{sentence}") as caught:
        case({f"attention.{key}": value for key, value in keys.items()})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("keys", [{"heads": [{}]}, {"weights": {"kind": "symmetric"}}], ids=["heads", "weights"])
def test_zonal_geometry_has_no_heads(keys):
    changes = {"geometry": {"kind": "zonal", "dimension": 5}, **{f"attention.{key}": v for key, v in keys.items()}}
    with pytest.raises(
        InputError, match=rf"^attention\.{next(iter(keys))} = 'given': expected absent in zonal geometry"
    ):
        case(changes).solve()
    # nor does the traceable core have them there
    density = mf.Density(mf.Zonal(5).grid(6), np.eye(7)[0])
    with pytest.raises(TypeError, match="zonal"):
        mf.evolve(case(changes).model, density, 0.0, 0.1)


def test_heads_do_not_fit_other_tokens_or_other_trials():
    model = mf.Model(Attention(1.0, heads=Heads(*[np.eye(4)] * 3)))
    with pytest.raises(InputError, match=r"^heads = \[1, 4, 4\]: expected matrices for d = 3"):
        mf.solve(model, two_bumps(), 0.1, 2, degree=12)
    model = mf.Model(Attention(1.0, heads=Heads(*[np.ones((2, 1, 3, 3))] * 3)))
    for settings in ({"method": "density"}, {"method": "particles", "trials": 3}, {"method": "particles"}):
        with pytest.raises(InputError, match=r"^heads = \[2, 1, 3, 3\]: expected .*as many of them as trials"):
            mf.solve(model, two_bumps(), 0.1, 2, degree=12, **settings)


def test_a_kernel_too_narrow_for_moments_or_for_e_to_its_power_is_refused():
    narrow = [{"query": (30 * np.eye(3)).tolist(), "key": (40 * np.eye(3)).tolist()}]
    with pytest.raises(InputError, match=r"^attention\.beta = 1200\.0: .*β times the norm of KᵀQ.*at most 1000"):
        case({"attention.heads": narrow, "solver.method": "density"}).solve()
    with pytest.raises(InputError, match=r"^attention\.beta = 1\.0: .*norm of KᵀQ, 1\.2e\+03, for unnormalized"):
        case({"attention.heads": narrow, "attention.kind": "unnormalized"})


@pytest.mark.parametrize("wrong", [{"heads": [[1.0]]}, {"weights": "kaiming"}])
def test_heads_are_heads(wrong):
    with pytest.raises(InputError, match=f"^{next(iter(wrong))} = "):
        Attention(1.0, **wrong)
