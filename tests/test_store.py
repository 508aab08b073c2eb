"""The file of a run: its layout, what a kill leaves of it, what is refused, and token files."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
import xarray

from meanfield import store
from meanfield.keys import InputError
from meanfield.store import Variable, Writer

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
TIMES = np.linspace(0.0, 1.0, 6)
MODES = 9

DEGREE = Variable("density/degree", ("mode",), (MODES,), np.int64, timed=False, value=np.arange(MODES))


def variables(frames: tuple[int, ...] | None = None) -> list[Variable]:
    return [
        Variable("observables/energy", (), (), long_name="interaction energy"),
        Variable("observables/mean_direction", ("axis",), (3,)),
        Variable("density/coefficients", ("mode",), (MODES,), frames=frames),
        DEGREE,
    ]


def frame(index: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(index)
    return {
        "observables/energy": rng.standard_normal(),
        "observables/mean_direction": rng.standard_normal(3),
        "density/coefficients": rng.standard_normal(MODES),
    }


def restart(index: int) -> dict[str, np.ndarray]:
    return {"moving": np.random.default_rng([7, index]).standard_normal(4), "t": np.asarray(float(index))}


def written(path: Path, count: int = 6, frames: tuple[int, ...] | None = None, status: str = "complete") -> Path:
    """A file of six frames, of which `count` are written."""
    writer = Writer.create(
        path, times=TIMES, variables=variables(frames), restart=restart(0), attributes={"case": "", "seed": 3}
    )
    for index in range(count):
        values = frame(index)
        if frames is not None and index not in frames:
            del values["density/coefficients"]
        writer.write_frame(index, values, restart(index))
    writer.finish(status, "")
    writer.close()
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("store") / "whole.h5")


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        store.read(path)
    return str(caught.value)


class TestLayout:
    def test_root_attributes(self, whole):
        with h5py.File(whole) as file:
            assert file.attrs["format"] == "meanfield"
            assert file.attrs["format_version"] == store.FORMAT_VERSION
            assert file.attrs["seed"] == 3
            assert file.attrs["status"].decode().rstrip() == "complete"
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", file.attrs["created"])
            assert file["frames_written"][()] == 6
            assert file["frames_written"].shape == ()

    def test_every_axis_has_a_dimension_scale(self, whole):
        with h5py.File(whole) as file:
            names = {}
            file.visititems(lambda name, item: names.update({name: item}) if isinstance(item, h5py.Dataset) else None)
            arrays = {name: item for name, item in names.items() if "/" in name}
            assert set(arrays) == {
                "observables/energy",
                "observables/mean_direction",
                "density/coefficients",
                "density/degree",
                "restart/moving",
                "restart/t",
            }
            for item in arrays.values():
                assert all(len(dim) == 1 for dim in item.dims)
            assert [dim[0].name for dim in arrays["density/coefficients"].dims] == ["/time", "/mode"]
            assert arrays["observables/energy"].attrs["long_name"] == "interaction energy"

    @pytest.mark.filterwarnings("error")  # h5netcdf warns of axes without a dimension
    @pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
    def test_xarray_reads_values_names_and_the_time_coordinate(self, whole, engine):
        with xarray.open_datatree(whole, engine=engine) as tree:
            coefficients = tree["density/coefficients"]
            assert coefficients.dims == ("time", "mode")
            np.testing.assert_array_equal(coefficients.coords["time"], TIMES)
            np.testing.assert_array_equal(coefficients[4], frame(4)["density/coefficients"])
            assert tree["observables/energy"].dims == ("time",)
            assert tree["observables/mean_direction"].dims == ("time", "axis")
            np.testing.assert_array_equal(tree["density/degree"], np.arange(MODES))
            assert tree.attrs["format"] == "meanfield"

    def test_netcdf4_sees_dimensions_and_values(self, whole):
        with netCDF4.Dataset(whole) as file:
            sizes = {name: len(dim) for name, dim in file.dimensions.items()}
            assert (sizes["time"], sizes["mode"], sizes["axis"]) == (6, MODES, 3)
            assert file["density/coefficients"].dimensions == ("time", "mode")
            np.testing.assert_array_equal(file["density/coefficients"][2], frame(2)["density/coefficients"])
            # a dimension without coordinate values is no variable
            assert "mode" not in file.variables

    def test_read_gives_back_what_was_written_bit_for_bit(self, whole):
        stored = store.read(whole)
        np.testing.assert_array_equal(stored.times, TIMES)
        for name in frame(0):
            np.testing.assert_array_equal(stored.arrays[name], [frame(index)[name] for index in range(6)])
        np.testing.assert_array_equal(stored.fixed["density/degree"], np.arange(MODES))
        assert stored.dims["density/coefficients"] == ("mode",)
        assert stored.attributes["status"] == "complete"
        assert stored.restart["t"] == 5.0

    def test_frames_not_reached_are_nan_in_the_file_and_trimmed_by_read(self, tmp_path):
        path = written(tmp_path / "part.h5", count=2)
        with h5py.File(path) as file:
            assert file["density/coefficients"].shape == (6, MODES)
            assert np.isnan(file["density/coefficients"][2:]).all()
            np.testing.assert_array_equal(file["time"], TIMES)
        stored = store.read(path)
        assert stored.frames_written == len(stored.arrays["density/coefficients"]) == 2
        np.testing.assert_array_equal(stored.asked_times, TIMES)

    def test_no_frame_at_all_is_readable(self, tmp_path):
        stored = store.read(written(tmp_path / "none.h5", count=0, status="failed"))
        assert stored.frames_written == 0
        assert stored.restart == {}
        assert store.info(tmp_path / "none.h5")["reached_depth"] is None

    def test_nothing_but_created_depends_on_the_clock(self, tmp_path):
        first = written(tmp_path / "a.h5").read_bytes()
        time.sleep(1.1)
        second = written(tmp_path / "b.h5").read_bytes()
        stamp = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"
        assert re.search(stamp, first)
        assert re.sub(stamp, b"", first) == re.sub(stamp, b"", second)

    def test_the_part_file_is_gone_once_the_file_is_laid_out(self, tmp_path):
        written(tmp_path / "a.h5")
        assert [file.name for file in tmp_path.iterdir()] == ["a.h5"]


class TestThinnedState:
    @pytest.mark.parametrize("frames", [(5,), (0, 2, 4, 5), (0, 5)])
    def test_only_the_kept_frames_have_a_state_and_all_have_observables(self, tmp_path, frames):
        path = written(tmp_path / "thin.h5", frames=frames)
        stored = store.read(path)
        np.testing.assert_array_equal(stored.kept_times, TIMES[list(frames)])
        np.testing.assert_array_equal(
            stored.arrays["density/coefficients"], [frame(index)["density/coefficients"] for index in frames]
        )
        assert len(stored.arrays["observables/energy"]) == 6
        with xarray.open_datatree(path, engine="h5netcdf") as tree:
            assert tree["density/coefficients"].dims == ("state_time", "mode")
            np.testing.assert_array_equal(tree["density/coefficients"].coords["state_time"], TIMES[list(frames)])

    def test_a_part_written_thinned_file_is_trimmed_to_the_kept_frames_reached(self, tmp_path):
        stored = store.read(written(tmp_path / "thin.h5", count=3, frames=(0, 2, 4, 5)))
        np.testing.assert_array_equal(stored.kept_times, TIMES[[0, 2]])
        assert len(stored.arrays["density/coefficients"]) == 2
        assert len(stored.arrays["observables/energy"]) == 3


# A child that writes frames without pause: frame k of every array is filled from the generator seeded with k.
RUSH = """
import sys
import numpy as np
from meanfield.store import Variable, Writer

count = 200_000
make = lambda index: {"density/coefficients": np.random.default_rng(index).standard_normal(40)}
writer = Writer.create(
    sys.argv[1], times=np.arange(count, dtype=float),
    variables=[Variable("density/coefficients", ("mode",), (40,))],
    restart={"moving": np.zeros(40)}, attributes={"case": "", "seed": 0},
)
print("ready", flush=True)
for index in range(count):
    values = make(index)
    writer.write_frame(index, values, {"moving": values["density/coefficients"] + 1})
"""


def rushing(path: Path) -> subprocess.Popen:
    child = subprocess.Popen(
        [sys.executable, "-c", RUSH, str(path)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def assert_every_counted_frame_is_whole(stored: store.StoredRun) -> None:
    expected = [np.random.default_rng(index).standard_normal(40) for index in range(stored.frames_written)]
    np.testing.assert_array_equal(stored.arrays["density/coefficients"], np.reshape(expected, (-1, 40)))


@pytest.mark.slow
def test_a_killed_writer_loses_no_counted_frame(tmp_path):
    instants = random.Random(0)
    counts = []
    for trial in range(20):
        path = tmp_path / f"{trial}.h5"
        child = rushing(path)
        time.sleep(instants.uniform(0.0, 0.2))
        child.send_signal(signal.SIGKILL)
        child.wait()
        stored = store.read(path)
        counts.append(stored.frames_written)
        assert stored.attributes["status"] == "running"
        assert_every_counted_frame_is_whole(stored)
        if stored.frames_written:
            np.testing.assert_array_equal(stored.restart["moving"], stored.arrays["density/coefficients"][-1] + 1)
            # and the file can be gone on with
            writer, again = Writer.resume(path)
            writer.begin()
            values = {"density/coefficients": np.random.default_rng(again.frames_written).standard_normal(40)}
            writer.write_frame(again.frames_written, values, {"moving": values["density/coefficients"] + 1})
            writer.close()
            assert_every_counted_frame_is_whole(store.read(path))
            assert store.read(path).frames_written == stored.frames_written + 1
        path.unlink()
    assert max(counts) > min(counts) + 10  # the kills fell on different frames


@pytest.mark.slow
def test_a_file_is_readable_while_another_process_writes_it_and_has_one_writer(tmp_path):
    path = tmp_path / "run.h5"
    child = rushing(path)
    try:
        counts = []
        for _ in range(10):
            stored = store.read(path)
            assert_every_counted_frame_is_whole(stored)
            counts.append(stored.frames_written)
        assert counts == sorted(counts)
        assert counts[-1] > counts[0]
        for attempt in (
            lambda: Writer.resume(path),
            lambda: Writer.create(path, times=TIMES, variables=[], restart={}, attributes={}, overwrite=True),
        ):
            with pytest.raises(InputError, match="a file that no other process is writing"):
                attempt()
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


class TestRefusals:
    def test_an_existing_file_is_kept_unless_overwritten(self, tmp_path):
        path = tmp_path / "run.h5"
        path.write_text("precious")
        options = {"times": TIMES, "variables": variables(), "restart": restart(0), "attributes": {}}
        with pytest.raises(InputError, match="a new file; this one exists"):
            Writer.create(path, **options)
        assert path.read_text() == "precious"
        Writer.create(path, **options, overwrite=True).close()
        assert store.read(path).frames_written == 0

    def test_a_missing_folder(self, tmp_path):
        with pytest.raises(InputError, match="a file in a folder that exists"):
            Writer.create(tmp_path / "no" / "run.h5", times=TIMES, variables=[], restart={}, attributes={})

    def test_a_layout_that_fails_leaves_the_old_file_and_no_part(self, tmp_path):
        path = written(tmp_path / "run.h5")
        before = path.read_bytes()
        disagreeing = [Variable("a/x", ("mode",), (3,)), Variable("a/y", ("mode",), (4,))]
        with pytest.raises(InputError, match="3 along mode"):
            Writer.create(path, times=TIMES, variables=disagreeing, restart={}, attributes={}, overwrite=True)
        assert path.read_bytes() == before
        assert [file.name for file in tmp_path.iterdir()] == ["run.h5"]

    def test_a_folder_and_a_missing_file(self, tmp_path):
        assert "a file that exists" in refusal(tmp_path / "no.h5")
        assert "a file, not a folder" in refusal(tmp_path)

    def test_another_program_s_hdf5(self, tmp_path):
        with h5py.File(tmp_path / "foreign.h5", "w") as file:
            file["x"] = np.ones(3)
        assert "written by another program" in refusal(tmp_path / "foreign.h5")

    @pytest.mark.parametrize("content", [b"", b"not HDF5 at all", b"\x89HDF\r\n\x1a\n"])
    def test_no_hdf5(self, tmp_path, content):
        (tmp_path / "text.h5").write_bytes(content)
        assert "a whole HDF5 file" in refusal(tmp_path / "text.h5")

    @pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
    def test_a_truncated_file(self, tmp_path, whole, share):
        content = whole.read_bytes()
        (tmp_path / "cut.h5").write_bytes(content[: int(share * len(content))])
        assert "a whole HDF5 file" in refusal(tmp_path / "cut.h5")

    def test_a_newer_format(self, tmp_path):
        path = written(tmp_path / "new.h5")
        with h5py.File(path, "r+") as file:
            file.attrs["format_version"] = store.FORMAT_VERSION + 1
        assert "needs a newer meanfield" in refusal(path)

    @pytest.mark.parametrize("name", ["time", "frames_written", "restart"])
    def test_a_missing_dataset(self, tmp_path, name):
        path = written(tmp_path / "lacks.h5")
        with h5py.File(path, "r+") as file:
            del file[name]
        assert re.search(rf"{name} = .*which lacks it", refusal(path))

    def test_a_counter_beyond_the_frames(self, tmp_path):
        path = written(tmp_path / "run.h5")
        with h5py.File(path, "r+") as file:
            file["frames_written"][()] = 7
        assert "at most the 6 frames asked" in refusal(path)


class TestStatus:
    def test_a_long_message_is_cut_at_a_whole_character(self, tmp_path):
        path = written(tmp_path / "run.h5", count=1)
        writer, _ = Writer.resume(path)
        message = "a" * (store.MESSAGE_LENGTH - 1) + "‖A‖"
        writer.finish("unresolved", message)
        writer.close()
        stored = store.read(path).attributes
        assert stored["status"] == "unresolved"
        assert message.startswith(stored["message"])

    def test_info_says_what_the_file_holds(self, whole):
        facts = store.info(whole)
        assert facts["frames_written"] == facts["frames_asked"] == 6
        assert facts["reached_depth"] == facts["final_depth"] == 1.0
        assert facts["arrays"]["density/coefficients"] == [6, MODES]
        assert facts["last"]["energy"] == frame(5)["observables/energy"]


VECTORS = np.random.default_rng(0).standard_normal((5, 3))


class TestTokenFiles:
    def write(self, path: Path, array: np.ndarray) -> Path:
        if path.suffix == ".npy":
            np.save(path, array)
        elif path.suffix == ".npz":
            np.savez(path, x=array)
        elif path.suffix == ".csv":
            np.savetxt(path, array, delimiter=",", fmt="%.17g")
        else:
            with h5py.File(path, "w") as file:
                file["hidden/x"] = array
        return path

    @pytest.mark.parametrize("name", ["x.h5", "x.hdf5", "x.nc", "x.npy", "x.npz", "x.csv", "X.NPY"])
    def test_the_vectors_come_back_bit_for_bit(self, tmp_path, name):
        path = tmp_path / name
        if name == "X.NPY":
            with path.open("wb") as stream:
                np.save(stream, VECTORS)
        else:
            self.write(path, VECTORS)
        found = store.read_tokens(path)
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, VECTORS)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.int64])
    def test_any_real_numbers_become_float64(self, tmp_path, dtype):
        found = store.read_tokens(self.write(tmp_path / "x.npy", (10 * VECTORS).astype(dtype)))
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, (10 * VECTORS).astype(dtype))

    @pytest.mark.parametrize("suffix", [".h5", ".npz"])
    def test_a_dataset_is_chosen_by_name_and_must_be_named_where_there_are_two(self, tmp_path, suffix):
        path = tmp_path / f"x{suffix}"
        if suffix == ".npz":
            np.savez(path, a=VECTORS, b=2 * VECTORS)
        else:
            with h5py.File(path, "w") as file:
                file["a"], file["b"] = VECTORS, 2 * VECTORS
        np.testing.assert_array_equal(store.read_tokens(path, "b"), 2 * VECTORS)
        with pytest.raises(InputError, match=r"one of those in x.*: a, b"):
            store.read_tokens(path)
        with pytest.raises(InputError, match="dataset = 'c': expected one of those"):
            store.read_tokens(path, "c")

    @pytest.mark.parametrize("suffix", [".h5", ".npy"])
    def test_one_layer_of_many(self, tmp_path, suffix):
        layers = np.stack([VECTORS, VECTORS + 1])
        path = self.write(tmp_path / f"x{suffix}", layers)
        for layer in (0, 1, -1):
            np.testing.assert_array_equal(store.read_tokens(path, layer=layer), layers[layer])
        for layer in (2, -3):
            with pytest.raises(InputError, match=rf"layer = {layer}: expected one of the 2 layers"):
                store.read_tokens(path, layer=layer)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("suffix", [".h5", ".npy", ".npz", ".csv"])
    def test_non_finite_values_are_refused_with_the_token(self, tmp_path, suffix, bad):
        array = VECTORS.copy()
        array[3, 1] = bad
        with pytest.raises(InputError, match="finite numbers; token 3"):
            store.read_tokens(self.write(tmp_path / f"x{suffix}", array))

    @pytest.mark.parametrize(
        "array",
        [np.zeros((0, 3)), np.zeros((5, 0)), np.zeros(5), np.zeros((2, 2, 2, 2)), np.array(1.0)],
        ids=["no tokens", "no axes", "1-d", "4-d", "0-d"],
    )
    def test_shapes_that_are_no_vectors_are_refused(self, tmp_path, array):
        with pytest.raises(InputError, match="not empty"):
            store.read_tokens(self.write(tmp_path / "x.npy", array))

    @pytest.mark.parametrize(
        "array",
        [np.array([["a", "b"]]), np.ones((2, 3), complex), np.ones((2, 3), bool)],
        ids=["strings", "complex", "booleans"],
    )
    def test_what_is_no_real_number_is_refused(self, tmp_path, array):
        with pytest.raises(InputError, match="real numbers, not"):
            store.read_tokens(self.write(tmp_path / "x.npy", array))

    @pytest.mark.parametrize("suffix", [".npy", ".npz"])
    def test_pickled_objects_are_never_loaded(self, tmp_path, suffix):
        path = tmp_path / f"x{suffix}"
        objects = np.array([[{}, 1.0]], dtype=object)
        if suffix == ".npz":
            np.savez(path, x=objects)
        else:
            np.save(path, objects, allow_pickle=True)
        with pytest.raises(InputError, match="a readable"):
            store.read_tokens(path)

    def test_a_missing_file_an_unknown_suffix_and_a_broken_file(self, tmp_path):
        with pytest.raises(InputError, match="a file that exists"):
            store.read_tokens(tmp_path / "no.npy")
        (tmp_path / "x.txt").write_text("1,2,3")
        with pytest.raises(InputError, match=r"a file that ends in \.h5"):
            store.read_tokens(tmp_path / "x.txt")
        for suffix in (".h5", ".npy", ".npz", ".csv"):
            (tmp_path / f"broken{suffix}").write_text("one,two\nthree")
            with pytest.raises(InputError, match=r"a readable|one of those|real numbers"):
                store.read_tokens(tmp_path / f"broken{suffix}")

    @pytest.mark.filterwarnings("error")
    def test_an_empty_table(self, tmp_path):
        (tmp_path / "x.csv").write_text("")
        with pytest.raises(InputError, match="not empty"):
            store.read_tokens(tmp_path / "x.csv")

    @pytest.mark.parametrize("dataset", ["", "/", "hidden"])
    def test_a_group_is_no_dataset(self, tmp_path, dataset):
        with pytest.raises(InputError, match="one of those in"):
            store.read_tokens(self.write(tmp_path / "x.h5", VECTORS), dataset)
