"""Attention heads: any Q, K, V, given, from a file, or drawn at random for every layer."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from small_runs import assert_same_bits, model, two_bumps

import meanfield as mf
from meanfield import integrate
from meanfield.attention import Moments, Tokens
from meanfield.case import from_document, parsed, set_keys
from meanfield.geometry.funk_hecke import attention_degree
from meanfield.heads import RandomHeads
from meanfield.keys import InputError

RNG = np.random.default_rng
SPACES = [mf.Circle(), mf.Sphere()]


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def directions(count: int, d: int, seed: int = 0) -> np.ndarray:
    x = RNG(seed).standard_normal((count, d))
    return x / np.linalg.norm(x, axis=1)[:, None]


def double_sum(attention, directions, weights, points, causal=False):
    """A(θ) = (1/H) Σ_h Σ_j w_j e^{β⟨Q_hθ,K_hω_j⟩} V_hω_j / Z_h, term by term."""
    H = attention.heads
    fields = []
    for i, theta in enumerate(points):
        heads = []
        for Q, K, V in zip(H.query, H.key, H.value, strict=True):
            seen = slice(0, i + 1) if causal else slice(None)
            pairs = zip(weights[seen], directions[seen], strict=True)
            terms = [w * np.exp(attention.beta * (Q @ theta) @ (K @ o)) for w, o in pairs]
            A = sum(term * (V @ o) for term, o in zip(terms, directions[seen], strict=True))
            heads.append(A / sum(terms) if attention.normalized else A)
        fields.append(np.mean(heads, axis=0))
    return np.array(fields)


def some_heads(kind: str, d: int) -> mf.Heads:
    rng = RNG(7)
    if kind == "several":
        return mf.Heads(*(rng.standard_normal((3, d, d)) * 0.7 for _ in range(3)))
    if kind == "rectangular":
        return mf.Heads(rng.standard_normal((2, 1, d)), rng.standard_normal((2, 1, d)), rng.standard_normal((2, d, d)))
    if kind == "rank-deficient":
        outer = np.outer(rng.standard_normal(d), rng.standard_normal(d))
        return mf.Heads(outer, rng.standard_normal((d, d)), outer.T)
    return mf.Heads(np.zeros((d, d)), np.eye(d), np.eye(d))  # every token sees the mean


KINDS = ["several", "rectangular", "rank-deficient", "zero"]


@pytest.mark.parametrize("normalized", [True, False], ids=["softmax", "unnormalized"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_through_moments_and_token_by_token_it_is_the_double_sum(space, kind, normalized):
    d = space.dimension
    attention = mf.Attention(1.2, normalized=normalized, heads=some_heads(kind, d))
    tokens, points = directions(9, d), directions(5, d, 1)
    weights = RNG(2).random(9)
    weights /= weights.sum()
    expected = double_sum(attention, tokens, weights, points)
    grid = space.grid(attention_degree(attention.reach(d, 1.0), d))
    seen = Moments(grid, grid.moments(tokens, weights))
    for source in (Tokens(tokens, weights), seen):
        found = attention(0.0, source, points)
        np.testing.assert_allclose(found.vector, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("d", [2, 7])
def test_one_head_of_identities_is_no_head(d):
    source, points = Tokens(directions(11, d), np.full(11, 1 / 11)), directions(4, d, 1)
    one = mf.Attention(2.0, heads=mf.Heads(np.eye(d), np.eye(d), np.eye(d)))(0.0, source, points)
    none = mf.Attention(2.0)(0.0, source, points)
    for first, second in zip(one, none, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-15)


def test_heads_turn_with_the_measure():
    """Q → QR, K → KR, V → RᵀVR and tokens turned by Rᵀ: the field turns by Rᵀ."""
    R, _ = np.linalg.qr(RNG(3).standard_normal((3, 3)))
    H = some_heads("several", 3)
    turned = mf.Heads(H.query @ R, H.key @ R, R.T @ H.value @ R)
    tokens, points = directions(8, 3), directions(5, 3, 1)
    w = np.full(8, 1 / 8)
    first = mf.Attention(1.0, heads=H)(0.0, Tokens(tokens, w), points).vector
    second = mf.Attention(1.0, heads=turned)(0.0, Tokens(tokens @ R, w), points @ R).vector
    np.testing.assert_allclose(second, first @ R, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("space", "kind"),
    [(mf.Circle(), "several"), (mf.Circle(), "rank-deficient"), (mf.Sphere(), "rectangular")],
    ids=lambda value: str(value),
)
def test_a_density_with_heads_is_its_characteristics_and_their_double_sum(space, kind):
    law = two_bumps() if space.dimension == 3 else mf.vmf_mixture(space, [[1, 0], [0, 1.0]], [1.0, 1.5])
    chosen = mf.Model(mf.Attention(0.8, heads=some_heads(kind, space.dimension)), mf.SqrtScaling())
    tight = {"rtol": 1e-10, "atol": 1e-12}
    density = mf.solve(chosen, law, 0.5, 3, degree=24, **tight)
    assert density.status == "complete"
    for sums in ("fast", "direct"):
        carried = mf.solve(chosen, law, 0.5, 3, method="characteristics", degree=24, sums=sums, **tight)
        difference = carried.observables["mean_direction"] - density.observables["mean_direction"]
        assert np.abs(difference).max() < 1e-9, sums


class TestFiles:
    def test_a_file_and_a_case_give_the_same_heads(self, tmp_path):
        H = some_heads("several", 3)
        np.savez(tmp_path / "heads.npz", query=H.query, key=H.key, value=H.value)
        text = (Path(__file__).parent.parent / "cases" / "three_bumps.toml").read_text()
        tables = H.as_case()
        for heads in ({"file": "heads.npz"}, tables):
            document = set_keys(parsed(text), {"attention.heads": heads})
            case = from_document(document, tmp_path)
            for part in ("query", "key", "value"):
                np.testing.assert_array_equal(getattr(case.model.attention.heads, part), getattr(H, part))
            again = from_document(parsed(case.text), Path("/"))
            np.testing.assert_array_equal(again.model.attention.heads.query, H.query)

    def test_absent_matrices_are_identities_and_rows_may_differ(self):
        H = mf.Heads.from_tables([{"query": [[1, 0, 0.0]], "key": [[0, 1, 0.0]]}, {}], 3)
        np.testing.assert_array_equal(H.query[0], [[1, 0, 0], [0, 0, 0], [0, 0, 0]])
        np.testing.assert_array_equal(H.query[1], np.eye(3))
        np.testing.assert_array_equal(H.value, [np.eye(3)] * 2)

    def test_large_heads_have_no_case_text_unless_they_have_a_file(self, tmp_path):
        big = RNG(0).standard_normal((64, 64))
        law = mf.uniform(mf.Euclidean(64))
        options = {"method": "particles", "tokens": 4}
        run = mf.solve(mf.Model(mf.Attention(0.1, heads=mf.Heads(big, big, big))), law, 0.1, 2, **options)
        assert run.attributes["case"] == ""
        np.savez(tmp_path / "big.npz", query=big, key=big, value=big)
        filed = mf.Heads.from_file(tmp_path / "big.npz")
        same = mf.solve(mf.Model(mf.Attention(0.1, heads=filed)), law, 0.1, 2, **options)
        assert "big.npz" in same.attributes["case"]
        assert_same_bits(run, same)

    @pytest.mark.parametrize(
        ("heads", "words"),
        [
            ([], "attention.heads = []"),
            ([{"query": [[1.0, 0.0]]}], "attention.heads[0].query"),
            ([{"quarry": [[1.0, 0.0, 0.0]]}], "attention.heads[0].quarry"),
            ([{}, {"query": [[1.0, 0.0, 0.0]]}], "attention.heads[1].key"),
            ([{"value": [[1.0, 0.0, 0.0]]}], "attention.heads[0].value"),
            ([{"query": [[np.nan, 0.0, 0.0]]}], "attention.heads[0].query"),
            ({"file": "missing.npz"}, "attention.file"),
        ],
    )
    def test_wrong_heads_are_refused_by_name(self, heads, words):
        with pytest.raises(InputError) as refused:
            mf.read_case("cases/three_bumps.toml", {"attention.heads": heads})
        assert words in str(refused.value)

    def test_heads_and_weights_exclude_each_other_and_rings(self):
        random = {"kind": "gaussian"}
        with pytest.raises(InputError, match=r"attention.weights"):
            mf.read_case("cases/three_bumps.toml", {"attention.heads": [{}], "attention.weights": random})
        rings = mf.vmf_mixture(mf.Zonal(4), [[1, 0]], [1.0])
        for attention in (mf.Attention(1.0, weights=RandomHeads()), mf.Attention(1.0, heads=some_heads("zero", 4))):
            with pytest.raises(InputError, match="zonal"):
                mf.solve(mf.Model(attention), rings, 0.1, 2, degree=8)
        with pytest.raises(InputError, match="heads"):
            mf.solve(mf.Model(mf.Attention(1.0, heads=some_heads("zero", 2))), two_bumps(), 0.1, 2, degree=8)


class TestRandom:
    def test_entries_have_the_variance_that_they_are_said_to_have(self):
        for kind, variance in (("kaiming", 2.0), ("gaussian", 1.0)):
            H = RandomHeads(kind, heads=2).drawn(3, 200)
            for matrix in (H.query, H.key, H.value):
                assert np.var(matrix) == pytest.approx(variance / 200, rel=0.02)
        S = RandomHeads("symmetric").drawn(0, 200)
        np.testing.assert_array_equal(S.query, np.swapaxes(S.query, -1, -2))
        np.testing.assert_array_equal(S.value, S.query)
        off = np.asarray(S.query[0])[np.triu_indices(200, 1)]
        assert np.var(off) == pytest.approx(1 / 200, rel=0.02)
        assert np.var(np.diag(S.query[0])) == pytest.approx(2 / 200, rel=0.25)

    def test_layers_and_seeds_differ_and_a_draw_inside_jit_is_the_same(self):
        draw = lambda seed, layer: RandomHeads(seed=seed).drawn(layer, 3).query  # noqa: E731
        assert not np.array_equal(draw(0, 0), draw(0, 1))
        assert not np.array_equal(draw(0, 0), draw(1, 0))
        inside = jax.jit(lambda layer: RandomHeads().drawn(layer, 3).query)(4)
        np.testing.assert_allclose(inside, draw(0, 4), rtol=1e-14)  # the same draw, fused with its scaling
        fixed = RandomHeads(per_layer=False)
        np.testing.assert_array_equal(fixed.drawn(5, 3).query, fixed.drawn(0, 3).query)

    def test_a_flow_is_a_chain_of_flows_with_the_heads_of_each_layer(self):
        weights = RandomHeads("gaussian", seed=2, interval=0.25)
        state = mf.Ensemble(directions(6, 3), np.full(6, 1 / 6))
        tight = (1e-11, 1e-13)
        whole = mf.evolve(mf.Model(mf.Attention(2.0, weights=weights)), state, 0.0, 0.9, *tight)
        for layer, (t0, t1) in enumerate([(0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 0.9)]):
            heads = weights.drawn(layer, 3)
            state = mf.evolve(mf.Model(mf.Attention(2.0, heads=heads)), state, t0, t1, *tight)
        np.testing.assert_allclose(whole.x, state.x, atol=1e-11)

    def test_no_step_straddles_a_layer(self):
        chosen = mf.Model(mf.Attention(2.0, weights=RandomHeads("gaussian", interval=0.3)))
        state = mf.Ensemble(directions(5, 3), np.full(5, 1 / 5))
        limits = integrate.Limits(1e-3, 1e-5, np.inf, -np.inf)
        done = integrate.advance(chosen, state, integrate.start(state, 0.0), 3.0, limits)
        assert int(done.accepted) >= 10
        assert float(done.t) == 3.0
        assert float(chosen.next_break(np.asarray(0.3 * 3))) == pytest.approx(1.2, abs=1e-15)

    def test_trials_share_a_network_or_have_their_own(self):
        x = np.stack([directions(5, 3)] * 2)
        for per_trial in (False, True):
            weights = RandomHeads("gaussian", per_trial=per_trial)
            end = mf.evolve(mf.Model(mf.Attention(1.0, weights=weights)), mf.Ensemble(x, np.full(5, 0.2)), 0.0, 0.3)
            assert np.array_equal(end.x[0], end.x[1]) != per_trial

    @pytest.mark.slow
    def test_the_density_sees_the_network_of_its_particles(self):
        chosen = mf.Model(mf.Attention(1.0, weights=RandomHeads("gaussian", heads=2, interval=0.2, seed=5)))
        density = mf.solve(chosen, two_bumps(), 0.6, 3, degree=28)
        particles = mf.solve(chosen, two_bumps(), 0.6, 3, method="particles", tokens=4000, sums="fast", rtol=1e-5)
        difference = density.observables["mean_direction"] - particles.observables["mean_direction"]
        assert np.abs(difference).max() < 5 / np.sqrt(4000)
        assert np.abs(density.observables["mean_direction"][-1] - density.observables["mean_direction"][0]).max() > 0.01

    def test_a_run_resumed_in_the_middle_of_its_layers_has_the_same_bits(self, tmp_path):
        chosen = mf.Model(mf.Attention(1.0, weights=RandomHeads("gaussian", interval=0.13)))
        options = {"final_time": 1.0, "frames": 5, "method": "particles", "tokens": 12}
        whole = mf.solve(chosen, two_bumps(), **options)

        def stop(report):
            if report.frame == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            mf.solve(chosen, two_bumps(), **options, path=tmp_path / "run.h5", progress=stop)
        assert_same_bits(mf.solve(chosen, two_bumps(), **options, path=tmp_path / "run.h5", resume=True), whole)

    def test_with_symmetric_matrices_unnormalised_attention_climbs_its_energy(self):
        """(2β)⁻¹ ∬ e^{β⟨Sx,y⟩} dμdμ never falls along dθ/dt = P_θ ∫ e^{β⟨Sθ,ω⟩} Sω dμ."""
        weights = RandomHeads("symmetric", seed=1, per_layer=False)
        chosen = mf.Model(mf.Attention(0.7, normalized=False, weights=weights))
        run = mf.solve(chosen, two_bumps(), 2.0, 21, method="particles", tokens=20)
        assert np.diff(run.observables["energy"]).min() > 0

    @pytest.mark.parametrize(
        ("table", "key"),
        [
            ({"kind": "xavier"}, "kind"),
            ({"kind": "kaiming", "heads": 0}, "heads"),
            ({"kind": "kaiming", "seed": -1}, "seed"),
            ({"kind": "kaiming", "interval": 0.0}, "interval"),
            ({"kind": "kaiming", "sead": 1}, "sead"),
            ({}, "kind"),
        ],
    )
    def test_wrong_weights_are_refused_by_name(self, table, key):
        with pytest.raises(InputError, match=rf"attention\.weights\.{key}"):
            mf.read_case("cases/three_bumps.toml", {"attention.weights": table})

    def test_weights_round_trip_through_the_case_text(self):
        table = {"kind": "gaussian", "heads": 3, "seed": 4, "interval": 0.5, "per_trial": True}
        case = mf.read_case("cases/three_bumps.toml", {"attention.weights": table})
        run = mf.solve(case.model, mf.uniform(mf.Sphere()), 0.05, 2, method="particles", tokens=4)
        again = from_document(parsed(run.attributes["case"]), case.folder).model.attention.weights
        assert (again.kind, again.heads, int(again.seed), again.interval, again.per_trial) == (
            "gaussian",
            3,
            4,
            0.5,
            True,
        )


class TestCausal:
    def test_each_token_sees_those_up_to_it(self):
        attention = mf.Attention(1.5, causal=True, heads=some_heads("several", 4))
        tokens, weights = directions(7, 4), np.full(7, 1 / 7)
        found = attention(0.0, Tokens(tokens, weights)).vector
        np.testing.assert_allclose(found, double_sum(attention, tokens, weights, tokens, causal=True), atol=1e-13)

    def test_in_blocks_of_rows_the_mask_is_the_same(self, monkeypatch):
        attention = mf.Attention(1.5, causal=True)
        source = Tokens(directions(12, 3), np.full(12, 1 / 12))
        whole = attention(0.0, source).vector
        monkeypatch.setattr("meanfield.attention.BLOCK_ENTRIES", 36)
        np.testing.assert_allclose(attention(0.0, source).vector, whole, atol=1e-15)

    def test_the_first_token_stays_and_all_come_to_it(self):
        """Q = K = V = I: the first token sees itself alone, and it is the leader of all (2411.04990)."""
        tokens = directions(6, 3)
        tokens[:, 2] = np.abs(tokens[:, 2])
        end = mf.evolve(mf.Model(mf.Attention(1.0, causal=True)), mf.Ensemble(tokens, np.full(6, 1 / 6)), 0.0, 60.0)
        np.testing.assert_allclose(end.x[0], tokens[0], atol=1e-14)
        np.testing.assert_allclose(end.x, np.tile(tokens[0], (6, 1)), atol=1e-6)

    @pytest.mark.parametrize(
        ("method", "sums"), [("density", "auto"), ("characteristics", "auto"), ("particles", "fast")]
    )
    def test_only_particles_have_an_order(self, method, sums):
        with pytest.raises(InputError, match="causal"):
            mf.solve(mf.Model(mf.Attention(1.0, causal=True)), two_bumps(), 0.1, 2, degree=8, method=method, sums=sums)

    def test_layers_are_masked_too(self):
        tokens = directions(4, 3)
        state = mf.Ensemble(tokens, np.full(4, 0.25))
        end = mf.apply_layers(mf.Model(mf.Attention(1.0, causal=True)), state, 5, 0.2)
        np.testing.assert_allclose(end.x[0], tokens[0], atol=1e-15)
        first_two = mf.apply_layers(
            mf.Model(mf.Attention(1.0, causal=True)), mf.Ensemble(tokens[:2], np.full(2, 0.5)), 5, 0.2
        )
        np.testing.assert_allclose(end.x[:2], first_two.x, atol=1e-14)


def test_the_extremes_of_beta():
    """β = 1000 through moments with a density, β = 0 exactly."""
    run = mf.solve(model(beta=1000.0), mf.vmf_mixture(mf.Circle(), [[1, 0.0]], [0.5]), 0.2, 2, degree=32, rtol=1e-7)
    assert run.status == "complete"
    assert np.isfinite(run.observables["energy"]).all()
    H = some_heads("several", 3)
    tokens = directions(5, 3)
    field = mf.Attention(0.0, heads=H)(0.0, Tokens(tokens, np.full(5, 0.2)), tokens).vector
    np.testing.assert_allclose(field, np.tile(H.value.mean(axis=0) @ tokens.mean(axis=0), (5, 1)), atol=1e-15)
