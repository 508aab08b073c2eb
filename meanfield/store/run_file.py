"""The file of a run: HDF5 that is also valid netCDF-4, laid out whole at the start so that a kill loses no finished frame.

Every dataset has its full extent from the beginning, in a file that is renamed into place once it is laid out. After
each frame the data are flushed, and only then is `/frames_written` raised; what a frame needs to go on alternates between
two slots of `/restart`, so the slot of the last counted frame is never the one being written. `docs/file-format.md`
documents the format.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..keys import InputError, require
from .netcdf import attach_scales, coordinate, dimension_names, early, plain

FORMAT, FORMAT_VERSION = "meanfield", 1
# Attributes that change in place have a fixed length, so that changing them moves nothing in the file.
STATUS_LENGTH, MESSAGE_LENGTH = 16, 2000
# Attributes that the store writes itself.
OWN_ATTRIBUTES = ("format", "format_version", "status", "message")


@dataclass(frozen=True)
class Variable:
    """One named array as the file has it: "group/name", its dimensions without time, its shape and meaning.

    A timed variable has a leading `time` dimension; where `frames` lists the frames that are kept, a leading
    `state_time` instead. An untimed one is written once, with `value`.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: Any = np.float64
    units: str = "1"
    long_name: str = ""
    timed: bool = True
    frames: tuple[int, ...] | None = None
    value: NDArray | None = None


@dataclass(frozen=True)
class StoredRun:
    """What a file holds, trimmed to the frames written."""

    times: NDArray
    asked_times: NDArray
    kept_times: NDArray
    arrays: dict[str, NDArray]
    fixed: dict[str, NDArray]
    dims: dict[str, tuple[str, ...]]
    long_names: dict[str, str]
    attributes: dict[str, Any]
    restart: dict[str, NDArray] = field(repr=False)
    events: dict[str, NDArray] = field(default_factory=dict)

    @property
    def frames_written(self) -> int:
        """Number of finished frames."""
        return len(self.times)


class Writer:
    """Writes the frames of one run. Only one writer can hold a file; readers may open it at any time."""

    def __init__(self, path: Path, file: h5py.File) -> None:
        self.path, self._file = path, file
        self._kept = {name: _kept_positions(file, dataset) for name, dataset in _timed(file).items()}

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        times: ArrayLike,
        variables: Sequence[Variable],
        restart: Mapping[str, ArrayLike],
        attributes: Mapping[str, Any],
        overwrite: bool = False,
        events: Mapping[str, ArrayLike] | None = None,
        history: Sequence[Mapping[str, ArrayLike]] = (),
    ) -> Writer:
        """Lay a new file out beside and rename it into place. InputError where that cannot be; an old file then stays.

        history: the values of the frames that are there already. events: named arrays along the events, if there are any.
        """
        path = Path(path)
        require(path.parent.is_dir(), "path", str(path), "a file in a folder that exists")
        if os.path.exists(path):  # unlike Path.exists, no exception for a name that is too long
            require(overwrite, "path", str(path), "a new file; this one exists (resume or overwrite it)")
            require(path.is_file(), "path", str(path), "a file, not a folder")
            _refuse_second_writer(path)
        beside = path.with_name(f".{path.name}.{os.getpid()}.part")
        with _sentences(path, "be created"):
            try:
                file = h5py.File(beside, "w", locking="best-effort")
                _lay_out(file, np.asarray(times, dtype=float), variables, restart, attributes)
                if events:
                    _lay_events(file, events)
                writer = cls(path, file)
                for index, values in enumerate(history):
                    writer._put(index, values, restart if index == len(history) - 1 else {})
                file["frames_written"][()] = len(history)
                file.flush()
                os.replace(beside, path)
            except BaseException:
                with contextlib.suppress(Exception):
                    file.close()
                beside.unlink(missing_ok=True)
                raise
        return writer

    def laid_anew(
        self,
        *,
        times: ArrayLike,
        variables: Sequence[Variable],
        restart: Mapping[str, ArrayLike],
        history: Sequence[Mapping[str, ArrayLike]],
        events: Mapping[str, ArrayLike],
    ) -> Writer:
        """A new file in the place of this one, for arrays of other extents; this one is whole until the new one is."""
        attributes = {name: value for name, value in self._file.attrs.items() if name not in OWN_ATTRIBUTES}
        with _sentences(self.path, "be laid out anew"):
            self._file.flush()
        writer = Writer.create(
            self.path,
            times=times,
            variables=variables,
            restart=restart,
            attributes=attributes,
            overwrite=True,
            events=events,
            history=history,
        )
        self.close()
        return writer

    @classmethod
    def resume(cls, path: str | Path) -> tuple[Writer, StoredRun]:
        """Go on with a file: its writer and what it holds so far. Nothing is changed before `begin`."""
        path = Path(path)
        stored = read(path)
        with _sentences(path, "be opened for writing"):
            file = h5py.File(path, "r+", locking="best-effort")
        return cls(path, file), stored

    def begin(self) -> None:
        """Say that the run goes on."""
        self.finish("running", "")

    def write_frame(self, index: int, values: Mapping[str, ArrayLike], restart: Mapping[str, ArrayLike]) -> None:
        """Put frame `index` on disk: arrays, then what the next frame needs, then the counter."""
        with _sentences(self.path, f"take frame {index}"):
            self._put(index, values, restart)
            self._file.flush()
            self._file["frames_written"][()] = index + 1
            self._file.flush()

    def _put(self, index: int, values: Mapping[str, ArrayLike], restart: Mapping[str, ArrayLike]) -> None:
        for name, value in values.items():
            self._file[name][self._kept[name][index]] = value
        for name, value in restart.items():
            self._file[f"restart/{name}"][index % 2] = value

    def finish(self, status: str, message: str) -> None:
        """Say how the run ended."""
        with _sentences(self.path, "take its status"):
            _set_status(self._file, status, message)
            self._file.flush()

    def close(self) -> None:
        """Let go of the file."""
        with _sentences(self.path, "be closed"):
            self._file.close()


def read(path: str | Path) -> StoredRun:
    """Everything in a file, trimmed to the frames written; works while another process is writing it.

    InputError where it is missing, no HDF5, truncated, not ours, of a newer format, or lacks or misshapes an array.
    """
    path = Path(path)
    with _opened(path) as file:
        written = int(file["frames_written"][()])
        asked = file["time"][()]
        require(0 <= written <= len(asked), "frames_written", written, f"at most the {len(asked)} frames asked")
        timed = _timed(file)
        arrays, dims = {}, {}
        kept_times = asked[:written]
        for name, dataset in timed.items():
            keep = _kept_positions(file, dataset)
            count = sum(index < written for index in keep)
            require(dataset.shape[0] == len(keep), name, dataset.shape, "as many frames as its time axis has")
            arrays[name] = dataset[:count]
            dims[name] = dimension_names(dataset)[1:]
            if dimension_names(dataset)[0] == "state_time":
                kept_times = file["state_time"][:count]
        fixed = {name: dataset[()] for name, dataset in _untimed(file).items()}
        dims |= {name: dimension_names(dataset) for name, dataset in _untimed(file).items()}
        named = _datasets(file).items()
        long_names = {name: str(plain(dataset.attrs.get("long_name", ""))) for name, dataset in named}
        slot = (written - 1) % 2
        restart = {name: dataset[slot] for name, dataset in file["restart"].items()} if written else {}
        attributes = {name: plain(value) for name, value in file.attrs.items()}
        events = {name: _event_values(dataset) for name, dataset in file.get("events", {}).items()}
    return StoredRun(asked[:written], asked, kept_times, arrays, fixed, dims, long_names, attributes, restart, events)


def info(path: str | Path) -> dict[str, Any]:
    """What a file holds, in plain values: attributes, frames, arrays with their shapes, the last observables."""
    stored = read(path)
    last = {
        name.split("/")[1]: values[-1].tolist()
        for name, values in stored.arrays.items()
        if name.startswith("observables/") and len(values)
    }
    shapes = {**stored.arrays, **stored.fixed}
    return {
        "path": str(path),
        **stored.attributes,
        "frames_written": stored.frames_written,
        "frames_asked": len(stored.asked_times),
        "final_depth": float(stored.asked_times[-1]),
        "reached_depth": float(stored.times[-1]) if len(stored.times) else None,
        "events": [dict(zip(stored.events, row, strict=True)) for row in zip(*_listed(stored.events), strict=True)],
        "arrays": {name: list(value.shape) for name, value in sorted(shapes.items())},
        "last": last,
    }


def _listed(events: Mapping[str, NDArray]) -> list[list[Any]]:
    return [values.tolist() for values in events.values()]


def _lay_out(
    file: h5py.File,
    times: NDArray,
    variables: Sequence[Variable],
    restart: Mapping[str, ArrayLike],
    attributes: Mapping[str, Any],
) -> None:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    header = {"format": FORMAT, "format_version": FORMAT_VERSION, "created": now, **attributes}
    for name, value in header.items():
        file.attrs[name] = value
    file.attrs["status"], file.attrs["message"] = np.bytes_(b" " * STATUS_LENGTH), np.bytes_(b" " * MESSAGE_LENGTH)
    _set_status(file, "running", "")
    coordinate(file, "time", times, "depth")
    kept = next((v.frames for v in variables if v.frames is not None), None)
    if kept is not None:
        coordinate(file, "state_time", times[list(kept)], "depth of the frames that keep the state")
    file.create_dataset("frames_written", data=np.int64(0), track_times=False)
    for variable in variables:
        lead = () if not variable.timed else ("time",) if variable.frames is None else ("state_time",)
        shape = tuple(len(file[name]) for name in lead) + tuple(variable.shape)
        fill = np.nan if np.issubdtype(np.dtype(variable.dtype), np.floating) else None
        # Space is taken at once: a disk that is too full is found out now, not in the night.
        dataset = file.create_dataset(
            variable.name, shape, variable.dtype, fillvalue=fill, track_times=False, dcpl=early()
        )
        if variable.value is not None:
            dataset[...] = variable.value
        dataset.attrs["units"], dataset.attrs["long_name"] = variable.units, variable.long_name
        attach_scales(file, dataset, (*lead, *variable.dims))
    file.create_group("restart")
    for name, value in restart.items():
        array = np.asarray(value)
        shape = (2, *array.shape)
        dataset = file.create_dataset(f"restart/{name}", shape, array.dtype, track_times=False, dcpl=early())
        own = (f"restart_{name}_{axis}" for axis in range(array.ndim))
        attach_scales(file, dataset, ("restart_slot", *own))


def _lay_events(file: h5py.File, events: Mapping[str, ArrayLike]) -> None:
    for name, value in events.items():
        array = np.asarray(value)
        words = array.dtype.kind in "OU"
        dataset = file.create_dataset(
            f"events/{name}",
            data=array.astype(object) if words else array,
            dtype=h5py.string_dtype() if words else None,
        )
        attach_scales(file, dataset, ("event", "axis")[: array.ndim])


def _event_values(dataset: h5py.Dataset) -> NDArray:
    return dataset.asstr()[()] if h5py.check_string_dtype(dataset.dtype) else dataset[()]


def _set_status(file: h5py.File, status: str, message: str) -> None:
    for name, value, length in (("status", status, STATUS_LENGTH), ("message", message, MESSAGE_LENGTH)):
        whole = value.encode()[:length].decode(errors="ignore")  # a cut falls between characters
        file.attrs.modify(name, np.bytes_(whole.encode().ljust(length)))


def _datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    found: dict[str, h5py.Dataset] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and "/" in name and name.split("/")[0] not in ("restart", "events"):
            found[name] = item

    file.visititems(note)
    return found


def _is_timed(dataset: h5py.Dataset) -> bool:
    return dataset.ndim > 0 and dimension_names(dataset)[0] in ("time", "state_time")


def _timed(file: h5py.File) -> dict[str, h5py.Dataset]:
    return {name: dataset for name, dataset in _datasets(file).items() if _is_timed(dataset)}


def _untimed(file: h5py.File) -> dict[str, h5py.Dataset]:
    return {name: dataset for name, dataset in _datasets(file).items() if not _is_timed(dataset)}


def _kept_positions(file: h5py.File, dataset: h5py.Dataset) -> dict[int, int]:
    """Frame → position along the leading axis of a timed dataset."""
    times = file["time"][()]
    if dimension_names(dataset)[0] == "time":
        return {index: index for index in range(len(times))}
    return {int(index): position for position, index in enumerate(np.searchsorted(times, file["state_time"][()]))}


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    require(path.exists(), "path", str(path), "a file that exists")
    require(path.is_file(), "path", str(path), "a file, not a folder")
    try:
        file = h5py.File(path, "r", locking=False)
    except OSError as problem:
        reason = str(problem).splitlines()[0]
        raise InputError("path", str(path), f"a whole HDF5 file ({reason})") from None
    with file:
        ours = plain(file.attrs.get("format", ""))
        require(ours == FORMAT, "format", ours, f'"{FORMAT}": {path.name} was written by another program')
        version = int(file.attrs.get("format_version", 0))
        allowed = f"at most {FORMAT_VERSION}: {path.name} needs a newer meanfield"
        require(1 <= version <= FORMAT_VERSION, "format_version", version, allowed)
        content = plain(file.attrs.get("content", "run"))
        require(content == "run", "content", content, f'"run": {path.name} is not the file of a run')
        for name in ("time", "frames_written", "restart"):
            require(name in file, name, None, f"a dataset of {path.name}, which lacks it")
        try:
            yield file
        except (OSError, KeyError, TypeError) as problem:
            raise InputError("path", str(path), f"a whole file ({problem})") from None


def _refuse_second_writer(path: Path) -> None:
    try:
        h5py.File(path, "r+", locking="best-effort").close()
    except BlockingIOError:
        raise InputError("path", str(path), "a file that no other process is writing") from None
    except OSError:
        return  # not HDF5, or read-only: whether it may be replaced is the folder's affair


@contextlib.contextmanager
def _sentences(path: Path, action: str) -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise InputError("path", str(path), "a file that no other process is writing") from None
    except (OSError, RuntimeError) as problem:
        number = getattr(problem, "errno", None)
        reason = os.strerror(number) if number else str(problem).splitlines()[0]
        raise InputError("path", str(path), f"a file that can {action} ({reason})") from problem
