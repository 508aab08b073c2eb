"""What the README and the usage page tell a reader to run, runs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from meanfield.case import from_document
from meanfield.shipped import shipped_cases

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/usage.md")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    (tmp_path / "cases").symlink_to(ROOT / "cases")
    (tmp_path / "data").symlink_to(ROOT / "data")
    script = "\n".join(blocks)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_pictures_and_pages_that_the_readme_names_are_there():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"\]\(([^)#]+)\)", text)
    assert named
    assert not [name for name in named if not name.startswith("http") and not (ROOT / name).exists()]


def test_the_two_commands_name_a_case_that_ships_and_what_ci_runs():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (case,) = re.findall(r"meanfield study (cases/\S+\.toml)", text)
    assert Path(case).stem in shipped_cases()
    (test_command,) = re.findall(r"(pytest -n 2)\n```", text)
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert f".venv/bin/python -m {test_command}" in ci


@pytest.mark.parametrize("file", sorted((ROOT / "cases").glob("*.toml")), ids=lambda file: file.stem)
def test_a_shipped_case_is_valid_and_has_a_title(file):
    case = from_document(tomllib.loads(file.read_text(encoding="utf-8")), file.parent)
    assert case.title
