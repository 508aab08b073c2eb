"""The token file of data/: what it says it holds is what it holds."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray

DATA = Path(__file__).parent.parent / "data"
FILE = DATA / "minilm_tokens.h5"


@pytest.fixture(scope="module")
def tokens() -> xarray.Dataset:
    with h5py.File(FILE) as file:
        variables = {
            name: ([scale.keys()[0] for scale in file[name].dims], file[name][:].astype(np.float64))
            for name in ("hidden_states", "norm_weight", "norm_bias")
        }
        strings = file["token_strings"]
        variables["token_strings"] = ([scale.keys()[0] for scale in strings.dims], strings.asstr()[:])
        return xarray.Dataset(variables, attrs=dict(file.attrs))


def directions(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def mean_cosine(theta: np.ndarray) -> np.ndarray:
    """Mean of ⟨θ_i, θ_j⟩ over i ≠ j."""
    n = theta.shape[-2]
    gram = theta @ theta.swapaxes(-1, -2)
    return (gram.sum(axis=(-1, -2)) - np.trace(gram, axis1=-2, axis2=-1)) / (n * (n - 1))


def test_one_window_of_at_least_256_tokens_at_seven_depths_in_384_axes(tokens):
    assert tokens.hidden_states.dims == ("layer", "token", "axis")
    assert dict(tokens.sizes) == {"layer": 7, "token": 324, "axis": 384}
    assert np.isfinite(tokens.hidden_states).all()


@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
def test_the_file_is_netcdf(engine, tokens):
    with xarray.open_dataset(FILE, engine=engine) as opened:
        assert set(opened.coords) == {"layer", "token", "axis"}
        assert opened.hidden_states.dtype == np.float32
        for name in tokens.data_vars:
            assert opened[name].dims == tokens[name].dims
            np.testing.assert_array_equal(opened[name], tokens[name])
        assert opened.attrs == tokens.attrs


def test_the_attributes_name_origin_and_licence(tokens):
    attributes = tokens.attrs
    assert attributes["model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert attributes["model_licence"] == "Apache-2.0"
    assert attributes["text_licence"] == "public domain"
    assert attributes["text_author"] == "Abraham Lincoln"
    assert (DATA / attributes["created_by"]).is_file()
    assert attributes["weights_sha256"] == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    assert attributes["vocabulary_sha256"] == "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
    assert {"title", "model_origin", "text_title", "text_origin", "precision"} <= set(attributes)


def test_token_strings_spell_the_text(tokens):
    first, *pieces, last = tokens.token_strings.values
    assert (first, last) == ("[CLS]", "[SEP]")
    text = (DATA / "gettysburg_address.txt").read_text(encoding="utf-8")
    assert "".join(piece.removeprefix("##") for piece in pieces) == "".join(text.lower().split())


def test_every_token_of_every_layer_comes_out_of_a_layer_normalisation(tokens):
    # x = g ⊙ z + b, with z of mean 0 and mean square 1: before g and b the tokens lie on one sphere.
    z = (tokens.hidden_states - tokens.norm_bias) / tokens.norm_weight
    np.testing.assert_allclose(z.mean("axis"), 0.0, atol=2e-8)
    np.testing.assert_allclose((z**2).mean("axis"), 1.0, atol=5e-7)


def test_the_same_word_at_two_places_differs_already_in_the_embedding(tokens):
    # Positions are part of the embedding; without them all occurrences of "that" would coincide.
    that = tokens.hidden_states[0][tokens.token_strings.values == "that"].values
    distances = np.linalg.norm(that[:, None] - that, axis=-1)
    assert len(that) > 10
    assert distances[~np.eye(len(that), dtype=bool)].min() > 0.1


def test_the_table_of_the_readme_is_what_the_file_gives(tokens):
    x = tokens.hidden_states.values
    centre = x[0].mean(axis=0)
    components = np.linalg.svd(x[0] - centre, full_matrices=False)[2][:3]
    projected = directions((x - centre) @ components.T)
    order_parameter = np.linalg.norm(projected.mean(axis=1), axis=-1)
    expected = np.stack([np.arange(7), mean_cosine(directions(x)), mean_cosine(projected), order_parameter], axis=1)

    table = (DATA / "README.md").read_text(encoding="utf-8").partition("| layer | mean cosine")[2].splitlines()[2:9]
    printed = np.array([[float(cell) for cell in row.strip("|").split("|")] for row in table])
    np.testing.assert_allclose(printed, expected, atol=6e-5)


def test_tokens_draw_together_up_to_the_last_layer_but_one(tokens):
    cosines = mean_cosine(directions(tokens.hidden_states.values))
    assert (np.diff(cosines[:6]) > 0.01).all()
    assert cosines[6] < cosines[5]
