"""Vectors and matrices from files of other programs: .h5, .npy, .npz and .csv."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from ..keys import InputError, require


def read_tokens(path: str | Path, dataset: str | None = None, *, layer: int = 0) -> NDArray[np.float64]:
    """Vectors (token, axis) from .h5, .npy, .npz or .csv, as float64; of a (layer, token, axis) array, one layer.

    InputError where the file or the dataset is missing, or it holds no finite vectors of numbers.
    """
    path = Path(path)
    require(path.is_file(), "file", str(path), "a file that exists")
    readers = {".h5": _from_hdf5, ".hdf5": _from_hdf5, ".nc": _from_hdf5, ".npy": _from_npy, ".npz": _from_npz}
    readers[".csv"] = _from_csv
    suffix = path.suffix.lower()
    require(suffix in readers, "file", str(path), f"a file that ends in {', '.join(readers)}")
    try:
        array = readers[suffix](path, dataset, layer)
    except InputError:
        raise
    except Exception as problem:
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise InputError("file", str(path), f"a readable {suffix} file of numbers ({reason})") from None
    if array.ndim == 3:
        require(-len(array) <= layer < len(array), "layer", layer, f"one of the {len(array)} layers of {path.name}")
        array = array[layer]
    numeric = np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)
    require(numeric, "dataset", dataset or path.name, f"real numbers, not {array.dtype}")
    require(
        array.ndim == 2 and array.size > 0, "dataset", list(array.shape), "an array (token, axis) that is not empty"
    )
    vectors = np.asarray(array, dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    require(
        bad.size == 0, "dataset", dataset or path.name, f"finite numbers; token {bad[0] if bad.size else ''} has others"
    )
    return vectors


def read_arrays(path: str | Path, names: Sequence[str]) -> dict[str, NDArray]:
    """The arrays of these names in an .npz file. InputError where the file or one of them is missing or cannot be read."""
    path = Path(path)
    require(path.is_file() and path.suffix == ".npz", "file", str(path), "an .npz file that exists")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in names if name in arrays}
    except Exception as problem:
        raise InputError("file", str(path), f"a readable .npz file of numbers ({problem})") from None
    for name in names:
        require(name in found, "file", str(path), f"a file with arrays {', '.join(names)}; {name} is missing")
    return found


def _from_hdf5(path: Path, dataset: str | None, layer: int) -> NDArray:
    with h5py.File(path, "r", locking=False) as file:
        names: list[str] = []
        file.visititems(
            lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) and item.ndim in (2, 3) else None
        )
        chosen = file[_chosen(dataset, names, path)]
        # one layer is read, not the whole array
        return chosen[layer] if chosen.ndim == 3 and -len(chosen) <= layer < len(chosen) else chosen[()]


def _from_npy(path: Path, dataset: str | None, layer: int) -> NDArray:
    return np.load(path, allow_pickle=False)


def _from_npz(path: Path, dataset: str | None, layer: int) -> NDArray:
    with np.load(path, allow_pickle=False) as arrays:
        return arrays[_chosen(dataset, list(arrays), path)]


def _from_csv(path: Path, dataset: str | None, layer: int) -> NDArray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an empty file is refused by its shape
        return np.loadtxt(path, delimiter=",", ndmin=2)


def _chosen(dataset: str | None, names: Sequence[str], path: Path) -> str:
    if dataset is None:
        require(len(names) == 1, "dataset", None, f"one of those in {path.name}: {', '.join(names) or 'none'}")
        return names[0]
    name = dataset.strip("/")
    require(name in names, "dataset", dataset, f"one of those in {path.name}: {', '.join(names) or 'none'}")
    return name
