"""The case of a run as a TOML document: written from objects, and compared with another."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from .keys import InputError, described, shown
from .settings import Depths


def case_text(
    model: Any,
    law: Any,
    radius: Any,
    settings: Any,
    depths: Depths,
    state: str | int,
    events: Mapping[str, tuple[str, float]] | None = None,
    statistics: Any = None,
) -> str:
    """The TOML text of a run made from Python; empty where a part of it cannot be written as TOML."""
    try:
        initial = {"kind": law.case_name, **described(law)}
        if "file" in initial:
            initial["file"] = str(Path(initial["file"]).resolve())  # the run may be opened from another folder
        if radius is not None:
            initial["radius"] = {"kind": radius.case_name, **described(radius)}
        defaults = type(settings)()
        changed = {key: value for key, value in vars(settings).items() if value != getattr(defaults, key)}
        document = {
            "geometry": {"kind": law.space.case_name, "dimension": law.space.dimension},
            "attention": described(model.attention),
            "noise": {} if model.noise is None else described(model.noise),
            "normalization": {"scheme": model.normalization.case_name, **described(model.normalization)},
            "initial": initial,
            "solver": {key: value for key, value in changed.items() if value is not None},
            "time": described_depths(depths),
            "events": {name: {"observable": seen, "passes": level} for name, (seen, level) in (events or {}).items()},
            "output": ({} if state == "all" else {"state": state}) | described_statistics(statistics),
        }
        return tomli_w.dumps({section: table for section, table in document.items() if table})
    except (AttributeError, TypeError):
        return ""


def described_statistics(statistics: Any) -> dict[str, Any]:
    """What the [output] section says of statistics."""
    return {} if statistics is None else {"statistics": True, **described(statistics)}


def described_depths(depths: Depths) -> dict[str, Any]:
    """The [time] section: layers and step, final and frames where they give the same bits, or else the list."""
    times = depths.times
    if depths.layers is not None:
        assert depths.layer_step is not None
        return {"layers": depths.layers, "step": depths.layer_step, "frames": len(times)}
    if len(times) >= 2 and np.array_equal(times, np.linspace(0.0, times[-1], len(times))):
        return {"final": float(times[-1]), "frames": len(times)}
    return {"times": times.tolist()}


def flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} → {"a.b": 1}."""
    leaves: dict[str, Any] = {}
    for key, value in document.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return leaves


def refuse_other_case(stored: str, asked: str) -> None:
    """Raise InputError, naming the first key that differs, unless both texts say the same; the title may differ."""
    if not stored:
        raise InputError(
            "case", stored, "the text of a case: this file was written by a run that has none and cannot be resumed"
        )
    before, now = flat(tomllib.loads(stored)), flat(tomllib.loads(asked))
    for key in sorted(before.keys() | now.keys()):
        if key != "title" and before.get(key) != now.get(key):
            allowed = f"{shown(before.get(key))}, as the file to be resumed was run with"
            raise InputError(key, now.get(key), allowed)
