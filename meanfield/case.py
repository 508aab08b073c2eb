"""Cases: TOML text ↔ validated objects, and runs made from them.

A section of the file is a table of keys; the classes that may stand in it declare their own (`keys.py`), so this file
knows sections, not classes.
"""

from __future__ import annotations

import copy
import difflib
import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from . import store
from .attention import Attention
from .beginning import density_moment_grid, moment_grid
from .density import Density
from .events import EVENT_KEYS, passing
from .geometry import SPACES
from .heads import RandomHeads
from .initial import LAWS, RADII, Law
from .joint_density import JointDensity
from .keys import REQUIRED, InputError, Key, require
from .model import Model
from .noise import Noise
from .normalization import SCHEMES, PostLN
from .record import events_of
from .settings import Depths, Settings, asked_depths, kept_frames
from .solution import STATES, Solution
from .solve import solve
from .statistics import Statistics

TIME_KEYS = {
    "final": Key(float, "last depth; frames are equally spaced from 0 to it", None),
    "frames": Key(int, "number of frames, both ends included: 101, or one a layer, when absent", None),
    "times": Key(list[float], "depths of the frames instead, increasing", None),
    "layers": Key(int, "number of layers of a network instead of a flow", None),
    "step": Key(float, "step of a layer", None),
}
OUTPUT_KEYS = {
    "state": Key(str | int, 'which frames keep the state: "all", "last" or every k-th', "all"),
    "statistics": Key(
        bool, "particles: quantiles of cosines and radii, speed, clusters and rank at every frame", False
    ),
    **Statistics.case_keys,
}
SECTIONS = ("title", "geometry", "attention", "normalization", "noise", "initial", "solver", "time", "output", "events")
LARGEST_FILE = 16 * 1024**2


@dataclass(frozen=True)
class Case:
    """A validated case: the document it was read from and the objects that it describes."""

    document: Mapping[str, Any]
    folder: Path
    title: str
    model: Model
    law: Law
    radius: Any
    settings: Settings
    depths: Depths
    state: str | int
    events: Mapping[str, tuple[str, float]]
    statistics: Statistics | None = None

    @property
    def times(self) -> NDArray:
        """The depths of the frames."""
        return self.depths.times

    @property
    def text(self) -> str:
        """The case as TOML, with absolute paths, as it is kept in the file of a run."""
        return tomli_w.dumps(_absolute(self.document, self.folder))

    def changed(self, changes: Mapping[str, Any]) -> Case:
        """The case with other values, {"solver.degree": 96, …}; None removes a key."""
        return from_document(set_keys(self.document, changes), self.folder)

    def solve(self, path: str | Path | None = None, **options: Any) -> Solution:
        """Run the case: `solve` with the case's own settings."""
        try:
            return solve(
                self.model,
                self.law,
                **self._asked(),
                radius=self.radius,
                state=self.state,
                path=path,
                case=self.text,
                events=self.events,
                statistics=self.statistics,
                **vars(self.settings),
                **options,
            )
        except InputError as problem:
            raise _placed(problem) from None

    def _asked(self) -> dict[str, Any]:
        layers, step = self.depths.layers, self.depths.layer_step
        frames = {"frames": len(self.times), "layers": layers, "layer_step": step}
        return {"times": self.times} if layers is None else frames


def _placed(problem: InputError) -> InputError:
    """The error of a run with the section in which its key stands."""
    own = {"solver": Settings.case_keys, "attention": Attention.case_keys, "time": TIME_KEYS, "output": OUTPUT_KEYS}
    section = next((name for name, keys in own.items() if problem.key.split(".")[0] in keys), None)
    return problem if section is None else problem.under(section)


def read(path: str | Path, changes: Mapping[str, Any] | None = None) -> Case:
    """The case in a TOML file, with `changes` {"section.key": value} made first. InputError says what is wrong and where."""
    file = Path(path)
    try:
        require(file.stat().st_size <= LARGEST_FILE, "case", str(path), f"a file of at most {LARGEST_FILE} bytes")
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        if isinstance(problem, InputError):
            raise
        reason = getattr(problem, "strerror", None) or "not UTF-8 text"
        raise InputError("case", str(path), f"a readable TOML file ({reason})") from None
    return from_document(set_keys(parsed(text, str(path)), changes or {}), file.resolve().parent)


def parsed(text: str, name: str = "text") -> dict[str, Any]:
    """The document in a TOML text. InputError with the line where it is not TOML."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise InputError("case", name, f"valid TOML ({problem})") from None


def set_keys(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the document with {"section.key": value} set; None removes a key."""
    new = copy.deepcopy(dict(document))
    for dotted, value in changes.items():
        *tables, key = dotted.split(".")
        table = new
        for name in tables:
            table = table.setdefault(name, {})
            require(isinstance(table, dict), dotted, value, f"a key of a table; {name} is none")
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return new


def from_document(document: Mapping[str, Any], folder: Path) -> Case:
    """The case that a parsed document describes. InputError for unknown keys, wrong types, wrong values."""
    _refuse_unknown("", document, SECTIONS)
    for section in SECTIONS[1:]:
        require(isinstance(document.get(section, {}), dict), section, document.get(section), "a table")
    title = _checked("title", document.get("title", ""), str)
    space = _build("geometry", "kind", SPACES, document, "sphere")
    attention = _attention(document, space, folder)
    noise = _build_one("noise", Noise, document["noise"]) if document.get("noise") else None
    scheme = _scheme(document)
    initial = dict(document.get("initial", {}))
    radius_table = initial.pop("radius", None)
    law = _build("initial", "kind", LAWS, {"initial": initial}, "uniform", space=space, folder=folder)
    radius = None
    if radius_table is not None:
        require(isinstance(radius_table, dict), "initial.radius", radius_table, "a table")
        radius = _build("initial.radius", "kind", RADII, {"initial.radius": radius_table}, "constant")
    solver = _values("solver", Settings.case_keys, document.get("solver", {}))
    settings = _constructed("solver", Settings, solver)
    time = _values("time", TIME_KEYS, document.get("time", {}))
    asked = {"final_time": time["final"], "layer_step": time["step"]}
    depths = _constructed("time", asked_depths, {**asked, **{key: time[key] for key in ("frames", "times", "layers")}})
    output = _values("output", OUTPUT_KEYS, document.get("output", {}))
    _constructed("output", kept_frames, {"state": output["state"], "count": len(depths.times)})
    chosen = _constructed("output", Statistics, {"cluster_threshold": output["cluster_threshold"]})
    return Case(
        document,
        folder,
        title,
        Model(attention, scheme, noise),
        law,
        radius,
        settings,
        depths,
        output["state"],
        _events(document.get("events", {})),
        chosen if output["statistics"] else None,
    )


def _attention(document: Mapping[str, Any], space: Any, folder: Path) -> Attention:
    """The attention, with the random heads of its table `weights`."""
    values = _values("attention", Attention.case_keys, document.get("attention", {}))
    if values["weights"] is not None:
        values["weights"] = _build_one("attention.weights", RandomHeads, values["weights"])
    make = functools.partial(Attention.from_case, folder=folder, dimension=space.dimension)
    return _constructed("attention", make, values)


def _events(tables: Mapping[str, Any]) -> dict[str, tuple[str, float]]:
    """The user's events: name → (observable, level)."""
    events = {}
    for name, table in tables.items():
        section = f"events.{name}"
        require(isinstance(table, dict), section, table, "a table { observable, passes }")
        values = _values(section, EVENT_KEYS, table)
        _constructed(
            section, functools.partial(passing, name), {"observable": values["observable"], "level": values["passes"]}
        )
        events[name] = (values["observable"], values["passes"])
    return events


def _scheme(document: Mapping[str, Any]) -> Any:
    """The scheme; keys of the other schemes may stand beside its own, checked, so that one case serves all six."""
    table = dict(document.get("normalization", {}))
    every = {name: key for cls in SCHEMES for name, key in cls.case_keys.items()}
    _values("normalization", every, table, "scheme")
    own = {cls: {name: table[name] for name in cls.case_keys if name in table} for cls in SCHEMES}
    schemes = {cls.case_name: _build_one("normalization", cls, values) for cls, values in own.items()}
    name = table.get("scheme", PostLN.case_name)
    near = difflib.get_close_matches(str(name), schemes, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    require(name in list(schemes), "normalization.scheme", name, f"one of {', '.join(schemes)}{hint}")
    return schemes[name]


def open_run(path: str | Path) -> Solution:
    """The run in a file, finished or still being written: every frame so far, with the model that the file's case names.

    InputError where the file is missing, foreign, truncated or of a newer format.
    """
    stored = store.read(path)
    text = stored.attributes.get("case", "")
    model, templates = None, ()
    if text:
        case = from_document(parsed(text, str(path)), Path(path).resolve().parent)
        step = case.depths.layer_step
        model, templates = case.model if step is None else case.model.of_layers(step), _templates(case, stored)
    observables = {name.split("/")[1]: a for name, a in stored.arrays.items() if name.startswith("observables/")}
    states = {cls.name for cls in STATES}
    fixed = {name: a for name, a in stored.fixed.items() if name.split("/")[0] in {*states, "observables", "bands"}}
    arrays = {name: a for name, a in stored.arrays.items() if name.split("/")[0] in states}
    return Solution(
        times=stored.times,
        observables=observables,
        kept_times=stored.kept_times,
        arrays=arrays,
        fixed=fixed,
        status=stored.attributes["status"],
        message=stored.attributes["message"],
        attributes=stored.attributes,
        model=model,
        templates=templates,
        events=tuple(events_of(stored.events)),
        dims=stored.dims,
        long_names=stored.long_names,
        layer_step=case.depths.layer_step if text else None,
        path=Path(path),
    )


def _templates(case: Case, stored: store.StoredRun) -> tuple[Any, ...]:
    """The states that the arrays of a file fit into; none where it holds no frame yet."""
    held = {*stored.arrays, *stored.fixed}
    states = [cls for cls in STATES if any(name.startswith(f"{cls.name}/") for name in held)] or [STATES[-1]]
    joint = "density/radius" in held
    states = [cls for cls in states if cls is not (Density if joint else JointDensity)]
    for state in states:
        for name in state.needed:
            require(name in held, name, None, "an array of the file, which lacks it")
    if len(stored.kept_times) == 0:
        return ()
    frame = {name: values[-1] for name, values in stored.arrays.items()}
    space, depths = case.law.space, case.depths

    def grid(state: Any, count: int) -> Any:
        if state in (Density, JointDensity):
            return density_moment_grid(case.model, space, depths)
        return moment_grid(case.model, space, count, case.settings, depths)

    return tuple(cls.from_arrays(space, frame, stored.fixed, functools.partial(grid, cls)) for cls in states)


def _absolute(document: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    changed = copy.deepcopy(dict(document))
    for table in (changed.get("initial", {}), changed.get("attention", {}).get("heads", {})):
        if isinstance(table, dict) and "file" in table:
            table["file"] = str((folder / table["file"]).resolve())
    return changed


def _refuse_unknown(section: str, table: Mapping[str, Any], allowed: Sequence[str]) -> None:
    for key in table:
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            name = f"{section}.{key}" if section else key
            raise InputError(name, table[key], f"no such key but {', '.join(allowed)}{hint}")


def _checked(name: str, value: Any, kind: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as problem:
        # of a union the member that got furthest into the value is the one that was meant
        first = max(problem.errors(include_url=False), key=lambda error: len(error["loc"]))
        place = _place(value, first["loc"])
        raise InputError(name + place, first["input"], first["msg"].removeprefix("Input should be ")) from None


def _place(value: Any, loc: Sequence[str | int]) -> str:
    """The keys and indices of pydantic's loc as TOML has them, without the names of types that stand between."""
    place = ""
    for part in loc:
        if isinstance(part, str) and isinstance(value, dict) and part in value:
            place, value = f"{place}.{part}", value[part]
        elif isinstance(part, int) and isinstance(value, list):
            place, value = f"{place}[{part}]", value[part]
    return place


def _values(
    section: str, keys: Mapping[str, Key], table: Mapping[str, Any], chooser: str | None = None
) -> dict[str, Any]:
    """Every declared key with its checked value or default."""
    _refuse_unknown(section, table, [*([chooser] if chooser else []), *keys])
    values = {}
    for name, key in keys.items():
        if name in table:
            values[name] = _checked(f"{section}.{name}", table[name], key.type)
        elif key.default is REQUIRED:
            raise InputError(f"{section}.{name}", None, f"a value: {key.meaning}")
        else:
            values[name] = key.default
    return values


def _constructed(section: str, make: Any, values: Mapping[str, Any]) -> Any:
    try:
        return make(**values)
    except InputError as problem:
        raise problem.under(section) from None


def _build_one(section: str, cls: Any, table: Mapping[str, Any], chooser: str | None = None, **context: Any) -> Any:
    values = _values(section, cls.case_keys, table, chooser)
    return _constructed(section, getattr(cls, "from_case", cls), {**context, **values})


def _build(
    section: str, chooser: str, classes: Sequence[Any], document: Mapping[str, Any], default: str, **context: Any
) -> Any:
    """An object of the class that `section.chooser` names."""
    table = document.get(section, {})
    names = [cls.case_name for cls in classes]
    chosen = table.get(chooser, default)
    near = difflib.get_close_matches(str(chosen), names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    require(chosen in names, f"{section}.{chooser}", chosen, f"one of {', '.join(names)}{hint}")
    return _build_one(section, classes[names.index(chosen)], table, chooser, **context)
