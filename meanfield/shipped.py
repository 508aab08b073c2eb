"""The cases that come with the package: found from an installed wheel as well as from the checkout."""

from __future__ import annotations

import difflib
from pathlib import Path

from .keys import InputError


def shipped_cases() -> dict[str, Path]:
    """Name → file of every case that ships. Data that a case names lie where the case says, relative to it."""
    package = Path(__file__).resolve().parent
    for folder in (package / "wheel" / "cases", package.parent / "cases"):
        found = sorted(folder.glob("*.toml"))
        if found:
            return {file.stem: file for file in found}
    return {}


def find_case(name: str) -> Path:
    """The file of a case: a path, or the name of a case that ships, with or without cases/ before and .toml behind it."""
    path = Path(name)
    if path.is_file():
        return path
    shipped = shipped_cases()
    if path.stem in shipped and path.suffix in ("", ".toml") and path.parent in (Path(), Path("cases")):
        return shipped[path.stem]
    near = difflib.get_close_matches(path.stem, shipped, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InputError("case", name, f"a file, or the name of a case that ships ({', '.join(shipped) or 'none'}){hint}")
