"""The command line: exit statuses, one-line errors, nothing written on bad input, and a light start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import meanfield as mf
from meanfield import store
from meanfield.cli import main
from meanfield.cli.run import parsed_changes
from meanfield.keys import InputError

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

CASE = """
title = "two clouds"
[attention]
beta = 1.0
[initial]
kind = "vmf-mixture"
means = [[1.0, 0.0, 0.2], [0.0, 1.0, 0.3]]
concentrations = [1.0, 1.5]
[solver]
degree = 12
rtol = 1e-6
[time]
final = 0.4
frames = 3
"""
SMALL = ("--set", "solver.degree=12", "--set", "time.frames=2", "--set", "time.final=0.1", "--set", "solver.rtol=1e-6")


def meanfield(*arguments: str) -> int:
    """The exit status of a command, run in this process."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a case in it."""
    (tmp_path / "case.toml").write_text(CASE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the case, run to its end."""
    place = tmp_path_factory.mktemp("cli")
    (place / "case.toml").write_text(CASE)
    assert meanfield("run", str(place / "case.toml"), "-o", str(place / "run.h5"), "--quiet") == 0
    return place / "run.h5"


def assert_one_error_and_nothing_written(folder: Path, capsys: pytest.CaptureFixture, *words: str) -> None:
    output = capsys.readouterr()
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    assert "Traceback" not in output.err
    assert output.out == ""
    for word in words:
        assert word in output.err
    assert [file.name for file in folder.iterdir()] == ["case.toml"]


class TestLightness:
    HEAVY = "jax|jaxlib|vtk|vtkmodules|pyvista|pydantic|scipy|h5py|xarray|matplotlib|numpy"

    @pytest.mark.parametrize(
        "arguments",
        ["--help", "--version", "run --help", "study --help", "info -h", "cases", "theory --help", "theory steady -h"],
    )
    def test_help_and_lists_import_nothing_heavy(self, arguments):
        program = (
            "import sys\n"
            "from meanfield.cli import main\n"
            "try:\n    main(sys.argv[1:])\n"
            "except SystemExit as ended:\n    assert not ended.code\n"
            f"loaded = set('{self.HEAVY}'.split('|')) & set(sys.modules)\n"
            "assert not loaded, loaded\n"
        )
        command = [sys.executable, "-c", program, *arguments.split()]
        subprocess.run(command, env=ENVIRONMENT, check=True, timeout=60, capture_output=True)

    def test_import_meanfield_imports_nothing_heavy(self):
        program = f"import sys, meanfield; assert not set('{self.HEAVY}'.split('|')) & set(sys.modules)"
        subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, check=True, timeout=60)

    def test_python_m_meanfield_is_the_command(self):
        command = [sys.executable, "-m", "meanfield", "--version"]
        done = subprocess.run(command, env=ENVIRONMENT, check=True, timeout=60, capture_output=True, text=True)
        assert done.stdout.strip() == mf.__version__


class TestRun:
    def test_a_run_ends_with_0_and_writes_what_solve_writes(self, finished):
        case = mf.read_case(finished.with_name("case.toml"))
        solution, opened = case.solve(), mf.open(finished)
        assert opened.status == "complete"
        for name, values in solution.observables.items():
            np.testing.assert_array_equal(opened.observables[name], values)

    def test_the_last_line_says_what_came_out(self, folder, capsys):
        assert meanfield("run", "case.toml", *SMALL) == 0
        output = capsys.readouterr()
        assert output.out.startswith("case.h5: complete, t = 0.1, order parameter 0.")
        assert output.err == ""
        assert (folder / "case.h5").exists()

    def test_set_changes_the_case(self, folder):
        assert meanfield("run", "case.toml", *SMALL, "--set", "title=other words", "-o", "x.h5", "--quiet") == 0
        stored = store.read("x.h5")
        np.testing.assert_array_equal(stored.times, [0.0, 0.1])
        assert 'title = "other words"' in stored.attributes["case"]

    def test_a_shipped_case_by_name(self, folder):
        assert meanfield("run", "three_bumps", *SMALL, "-o", "x.h5", "--quiet") == 0
        assert store.read("x.h5").frames_written == 2

    def test_an_existing_file_needs_a_flag(self, folder, capsys):
        (folder / "x.h5").write_text("precious")
        assert meanfield("run", "case.toml", "-o", "x.h5") == 2
        output = capsys.readouterr()
        assert output.err.startswith("error: path = 'x.h5': expected a new file")
        assert (folder / "x.h5").read_text() == "precious"
        assert meanfield("run", "case.toml", *SMALL, "-o", "x.h5", "--overwrite", "--quiet") == 0
        assert store.read("x.h5").frames_written == 2

    def test_resume_without_a_file_starts_afresh(self, folder):
        assert meanfield("run", "case.toml", *SMALL, "-o", "x.h5", "--resume", "--quiet") == 0
        assert store.read("x.h5").attributes["status"] == "complete"

    def test_resume_goes_on_with_the_same_bits(self, folder, finished):
        path = folder / "x.h5"
        path.write_bytes(finished.read_bytes())
        with h5py.File(path, "r+") as file:
            # as a kill after frame 1 leaves it: slot 1 of /restart is whole, slot 0 may hold anything
            file["frames_written"][()] = 2
            file["density/coefficients"][2] = np.nan
            file["restart/moving"][0] = np.nan
        assert meanfield("run", str(finished.with_name("case.toml")), "-o", "x.h5", "--resume", "--quiet") == 0
        resumed, whole = store.read(path), store.read(finished)
        for name, values in {**whole.arrays, **whole.restart}.items():
            np.testing.assert_array_equal({**resumed.arrays, **resumed.restart}[name], values)

    def test_resume_of_another_case_is_refused(self, folder, finished, capsys):
        path = folder / "x.h5"
        path.write_bytes(finished.read_bytes())
        assert meanfield("run", "case.toml", "--set", "attention.beta=2.0", "-o", "x.h5", "--resume") == 2
        assert capsys.readouterr().err == (
            "error: attention.beta = 2.0: expected 1.0, as the file to be resumed was run with\n"
        )
        assert path.read_bytes() == finished.read_bytes()

    def test_a_run_that_stops_early_ends_with_3_and_says_what_to_do(self, folder, capsys):
        assert meanfield("run", "case.toml", "--set", "time.final=20.0", "--set", "time.frames=2") == 3
        output = capsys.readouterr()
        assert output.err.startswith("unresolved: the density is no longer resolved at depth t = ")
        assert "larger solver.degree" in output.err
        assert store.read("case.h5").attributes["status"] == "unresolved"
        assert store.read("case.h5").frames_written == 1

    @pytest.mark.slow
    def test_ctrl_c_ends_with_130_and_the_file_resumes(self, folder):
        options = ["--set", "time.frames=200", "-o", "x.h5"]
        command = [sys.executable, "-m", "meanfield", "run", "case.toml", *options]
        child = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        while not (folder / "x.h5").exists() or store.read("x.h5").frames_written < 2:
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
        assert child.returncode == 130
        assert "Traceback" not in err
        assert "go on with: meanfield run case.toml -o x.h5 --resume" in err
        before = store.read("x.h5")
        assert before.attributes["status"] == "interrupted"
        assert meanfield("run", "case.toml", *options, "--resume", "--quiet") == 0
        assert store.read("x.h5").frames_written == 200


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["run", "no_such_case"], ["case = 'no_such_case'", "three_bumps"]),
            (["run", "three_bump"], ["did you mean three_bumps?"]),
            (["run", "case.toml", "--set", "solver.degre=3"], ["solver.degre", "did you mean degree?"]),
            (["run", "case.toml", "--set", "solver.degree=many"], ["solver.degree = 'many'"]),
            (["run", "case.toml", "--set", "solver.degree"], ["--set = 'solver.degree'", "key.path=value"]),
            (["run", "case.toml", "--set", "=3"], ["--set"]),
            (["run", "case.toml", "--set", "title.x=3"], ["title.x", "title is none"]),
            (["run", "case.toml", "--set", "attention.beta=nan"], ["attention.beta"]),
            (["run", "case.toml", "--set", "normalization.scheme=pre-ln"], ["method", "characteristics"]),
            (["run", "case.toml", "-o", "no/folder/x.h5"], ["a file in a folder that exists"]),
            (["run", "case.toml", "--resume", "--overwrite"], ["--resume", "--overwrite"]),
            (["run"], ["CASE"]),
            (["run", "case.toml", "--fast"], ["--fast"]),
            (["ran"], ["ran"]),
            (["info"], ["FILE"]),
            (["info", "no.h5"], ["a file that exists"]),
            (["info", "case.toml"], ["a whole HDF5 file"]),
            (["study", "case.toml"], ["-o"]),
            (["study", "no_such_case", "-o", "out"], ["no_such_case"]),
        ],
        ids=lambda value: " ".join(value),
    )
    def test_wrong_input_ends_with_2_in_one_line_and_writes_nothing(self, folder, capsys, arguments, words):
        assert meanfield(*arguments) == 2
        assert_one_error_and_nothing_written(folder, capsys, *words)

    def test_a_broken_case_names_the_line(self, folder, capsys):
        (folder / "case.toml").write_text("[attention]\nbeta = = 1")
        assert meanfield("run", "case.toml") == 2
        assert_one_error_and_nothing_written(folder, capsys, "valid TOML", "line 2")

    def test_the_command_as_a_process_prints_no_traceback(self, folder):
        command = [sys.executable, "-m", "meanfield", "run", "case.toml", "--set", "solver.degree=-1"]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2
        assert done.stderr == "error: solver.degree = -1: expected an integer from 1 to 1024\n"
        assert done.stdout == ""

    def test_no_command_shows_the_help(self, capsys):
        assert meanfield() == 2
        assert "meanfield study real_tokens -o out" in "".join(capsys.readouterr())


class TestChanges:
    @pytest.mark.parametrize(
        ("text", "value"),
        [("3", 3), ("0.5", 0.5), ("true", True), ("[1, 2]", [1, 2]), ('"x"', "x"), ("peri-ln", "peri-ln"), ("", "")],
    )
    def test_values_are_toml_and_words_need_no_quotes(self, text, value):
        assert parsed_changes([f"a.b={text}"]) == {"a.b": value}
        assert type(parsed_changes([f"a.b={text}"])["a.b"]) is type(value)

    def test_an_equals_sign_may_stand_in_the_value(self):
        assert parsed_changes(["title=a=b"]) == {"title": "a=b"}

    def test_no_key(self):
        with pytest.raises(InputError, match=r"key\.path=value"):
            parsed_changes(["novalue"])


class TestInfo:
    def test_json(self, finished, capsys):
        assert meanfield("info", str(finished), "--json") == 0
        facts = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert facts["status"] == "complete"
        assert facts["frames_written"] == facts["frames_asked"] == 3
        assert facts["reached_depth"] == 0.4
        assert facts["arrays"]["density/coefficients"] == [3, 169]
        # quadrature_error is no notion of a density: NaN, and null in JSON
        assert facts["last"]["quadrature_error"] is None
        assert facts["last"]["mass"] == pytest.approx(1, abs=1e-13)

    def test_words(self, finished, capsys):
        assert meanfield("info", str(finished)) == 0
        shown = capsys.readouterr().out
        assert f"{finished}: complete, frame 3 of 3" in shown
        assert "3 × 169" in shown
        assert "observables at depth t = 0.4" in shown


class TestCases:
    def test_every_case_with_its_title(self, capsys):
        assert meanfield("cases") == 0
        lines = capsys.readouterr().out.splitlines()
        assert any(line.startswith("three_bumps") and "Three clouds" in line for line in lines)

    def test_json(self, capsys):
        assert meanfield("cases", "--json") == 0
        rows = json.loads(capsys.readouterr().out)
        assert {row["name"] for row in rows} >= {"three_bumps", "real_tokens"}
        assert all(Path(row["path"]).is_file() and row["title"] for row in rows)
