"""The file of a finished computation that is no run: named arrays with dimensions, HDF5 that is also valid netCDF-4."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ..keys import InputError, require
from .netcdf import attach_scales, plain
from .run_file import FORMAT, FORMAT_VERSION, Variable


def write_tables(
    path: str | Path,
    content: str,
    variables: Sequence[Variable],
    attributes: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write the `value` of untimed variables in one go, beside `path` and then renamed into place.

    `content` says what the file holds and is asked for again on reading. InputError where the file cannot be written, or is
    there already without `overwrite`.
    """
    path = Path(path)
    require(path.parent.is_dir(), "path", str(path), "a file in a folder that exists")
    if os.path.exists(path):  # unlike Path.exists, no exception for a name that is too long
        require(overwrite, "path", str(path), "a new file; this one exists (overwrite it)")
        require(path.is_file(), "path", str(path), "a file, not a folder")
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    header = {"format": FORMAT, "format_version": FORMAT_VERSION, "content": content, "created": created}
    try:
        with h5py.File(beside, "w") as file:
            for name, value in {**header, **attributes}.items():
                file.attrs[name] = value
            for variable in variables:
                dataset = file.create_dataset(variable.name, data=variable.value, track_times=False)
                dataset.attrs["units"], dataset.attrs["long_name"] = variable.units, variable.long_name
                attach_scales(file, dataset, variable.dims)
        os.replace(beside, path)
    except OSError as problem:
        reason = os.strerror(problem.errno) if problem.errno else str(problem).splitlines()[0]
        raise InputError("path", str(path), f"a file that can be created ({reason})") from problem
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def read_tables(path: str | Path, content: str) -> tuple[dict[str, NDArray], dict[str, Any]]:
    """The arrays "group/name" of a file of `write_tables`, and its attributes.

    InputError where it is missing, no HDF5, not ours, of a newer format, or holds something else.
    """
    path = Path(path)
    require(path.is_file(), "path", str(path), "a file that exists")
    try:
        with h5py.File(path, "r", locking=False) as file:
            attributes = {name: plain(value) for name, value in file.attrs.items()}
            arrays: dict[str, NDArray] = {}

            def note(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset) and "/" in name:
                    arrays[name] = np.asarray(item[()])

            file.visititems(note)
    except OSError as problem:
        raise InputError("path", str(path), f"a whole HDF5 file ({str(problem).splitlines()[0]})") from None
    ours = attributes.get("format", "")
    require(ours == FORMAT, "format", ours, f'"{FORMAT}": {path.name} was written by another program')
    version = attributes.get("format_version", 0)
    allowed = f"at most {FORMAT_VERSION}: {path.name} needs a newer meanfield"
    require(1 <= version <= FORMAT_VERSION, "format_version", version, allowed)
    found = attributes.get("content", "run")
    require(found == content, "content", found, f'"{content}": {path.name} holds something else')
    return arrays, attributes
