"""A run killed or interrupted goes on to the same bits; another case is refused by name."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from small_runs import ENVIRONMENT, assert_same_bits, model, two_bumps

import meanfield as mf
from meanfield import store


def runs(kind: str) -> str:
    """A run that prints one line a frame: Python text that solves `kind` into sys.argv[1]."""
    calls = {
        "density": "mf.PostLN()), law, 1.5, 16, degree=14, rtol=1e-9",
        "mix-ln": "mf.MixLN(0.75)), law, 1.5, 16, method='characteristics', degree=12",
        "particles": "mf.PeriLN()), law, 1.5, 16, method='particles', tokens=8, trials=2, seed=1",
    }
    return f"""
import sys, time
import meanfield as mf
law = mf.vmf_mixture(mf.Sphere(), [[1.0, 0.0, 0.2], [0.0, 1.0, 0.3]], [1.0, 1.5], [0.6, 0.4])
def tell(report):
    print(report.frame, flush=True)
    time.sleep(float(sys.argv[2]))
solution = mf.solve(mf.Model(mf.Attention(1.0), {calls[kind]}, path=sys.argv[1], resume=True, progress=tell)
print(solution.status)
"""


def start(kind: str, path: Path, pause: float = 0.0) -> subprocess.Popen:
    command = [sys.executable, "-c", runs(kind), str(path), str(pause)]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(kind: str, path: Path) -> list[str]:
    child = start(kind, path)
    out, err = child.communicate(timeout=300)
    assert child.returncode == 0, err
    return out.split()


def wait_for(child: subprocess.Popen, frame: int) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if line.strip() == str(frame):
            return
    raise AssertionError(f"the run ended before frame {frame}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["density", "mix-ln", "particles"])
def test_a_run_killed_and_resumed_has_the_bits_of_one_that_was_not(kind, tmp_path):
    assert finish(kind, tmp_path / "whole.h5")[-1] == "complete"
    # frame 7 of mix-ln lies before its switch, and the next after it
    child = start(kind, tmp_path / "killed.h5", pause=0.05)
    wait_for(child, 7)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    killed = store.read(tmp_path / "killed.h5")
    assert 8 <= killed.frames_written < 16
    assert killed.attributes["status"] == "running"
    assert mf.open(tmp_path / "killed.h5").status == "running"
    told = finish(kind, tmp_path / "killed.h5")
    assert told[0] == str(killed.frames_written)  # nothing is computed twice
    whole, resumed = store.read(tmp_path / "whole.h5"), store.read(tmp_path / "killed.h5")
    assert whole.frames_written == resumed.frames_written == 16
    for name, values in {**whole.arrays, **whole.restart}.items():
        np.testing.assert_array_equal({**resumed.arrays, **resumed.restart}[name], values, err_msg=name)
    assert resumed.attributes["status"] == "complete"


@pytest.mark.slow
def test_an_interrupted_run_finishes_its_frame_and_resumes_to_the_same_bits(tmp_path):
    finish("density", tmp_path / "whole.h5")
    child = start("density", tmp_path / "run.h5", pause=0.2)
    wait_for(child, 3)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert out.split()[-1] == "interrupted"
    stored = store.read(tmp_path / "run.h5")
    assert stored.attributes["status"] == "interrupted"
    assert 4 <= stored.frames_written <= 6
    assert f"interrupted after frame {stored.frames_written - 1} at depth" in stored.attributes["message"]
    finish("density", tmp_path / "run.h5")
    whole, resumed = mf.open(tmp_path / "whole.h5"), mf.open(tmp_path / "run.h5")
    assert resumed.status == "complete"
    assert resumed.message == ""
    assert_same_bits(whole, resumed)


class TestResume:
    def same(self, path: Path, **changes: object) -> mf.Solution:
        options = {"final_time": 0.6, "frames": 3, "degree": 14, "rtol": 1e-10, "atol": 1e-12, **changes}
        return mf.solve(changes.pop("model", model()), two_bumps(), path=path, resume=True, **options)

    def test_a_finished_run_stays_finished(self, tmp_path, density):
        path = tmp_path / "run.h5"
        path.write_bytes(density.path.read_bytes())
        again = self.same(path)
        assert again.status == "complete"
        assert_same_bits(again, density)
        assert mf.open(path).status == "complete"

    @pytest.mark.parametrize(
        ("changes", "key"),
        [
            ({"degree": 15}, "solver.degree"),
            ({"rtol": 1e-9}, "solver.rtol"),
            ({"final_time": 0.7}, "time.final"),
            ({"frames": 4}, "time.frames"),
            ({"state": "last"}, "output.state"),
        ],
    )
    def test_another_case_is_refused_by_name_and_the_file_is_left_alone(self, tmp_path, density, changes, key):
        path = tmp_path / "run.h5"
        path.write_bytes(density.path.read_bytes())
        with pytest.raises(mf.InputError, match="as the file to be resumed was run with") as caught:
            self.same(path, **changes)
        assert caught.value.key == key
        assert path.read_bytes() == density.path.read_bytes()

    def test_another_model_is_refused(self, tmp_path, density):
        path = tmp_path / "run.h5"
        path.write_bytes(density.path.read_bytes())
        for other, key in ((model(beta=2.0), "attention.beta"), (model(mf.SqrtScaling()), "normalization.scheme")):
            with pytest.raises(mf.InputError) as caught:
                mf.solve(other, two_bumps(), 0.6, 3, degree=14, rtol=1e-10, atol=1e-12, path=path, resume=True)
            assert caught.value.key == key

    def test_other_versions_are_told(self, tmp_path, density):
        path = tmp_path / "run.h5"
        path.write_bytes(density.path.read_bytes())
        with h5py.File(path, "r+") as file:
            file.attrs["cores"] = 1000
        with pytest.warns(mf.AccuracyWarning, match="begun with cores = 1000"):
            self.same(path)

    def test_without_a_file_it_starts_afresh(self, tmp_path, density):
        assert_same_bits(self.same(tmp_path / "new.h5"), density)
