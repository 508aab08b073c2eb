"""What makes an HDF5 file a valid netCDF-4 file as well: dimension scales on every axis, plain attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ..keys import require

# What the netCDF library itself names a dimension that has no coordinate values.
BARE_DIMENSION = "This is a netCDF dimension but not a netCDF variable. {:9d}"


def attach_scales(file: h5py.File, dataset: h5py.Dataset, dims: Sequence[str]) -> None:
    """Name the axes of a dataset; a dimension that no array had before is made."""
    for axis, dim in enumerate(dims):
        if dim not in file:
            bare_dimension(file, dim, dataset.shape[axis])
        found = len(file[dim])
        name = dataset.name.strip("/")
        require(found == dataset.shape[axis], name, list(dataset.shape), f"{found} along {dim}, like other arrays")
        dataset.dims[axis].attach_scale(file[dim])


def early() -> h5py.h5p.PropDCID:
    """Space is taken when a dataset is made: a disk that is too full is found out then."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    return properties


def coordinate(file: h5py.File, name: str, values: NDArray, long_name: str) -> None:
    """A dimension with coordinate values."""
    dataset = file.create_dataset(name, data=values, track_times=False)
    dataset.make_scale(name)
    dataset.attrs["units"], dataset.attrs["long_name"] = "1", long_name


def bare_dimension(file: h5py.File, name: str, size: int) -> None:
    """A dimension without."""
    dataset = file.create_dataset(name, (size,), ">f4", track_times=False)  # never written: it takes no space
    dataset.make_scale(BARE_DIMENSION.format(size))


def plain(value: Any) -> Any:
    """An attribute as Python has it."""
    if isinstance(value, bytes):
        return value.decode(errors="replace").rstrip(" \x00")
    return value.item() if isinstance(value, np.generic) else value


def dimension_names(dataset: h5py.Dataset) -> tuple[str, ...]:
    """The name of each axis, empty where it has none."""
    return tuple(dim[0].name.strip("/") if len(dim) else "" for dim in dataset.dims)
