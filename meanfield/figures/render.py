"""Token densities as coloured spheres.

One camera, stated once and used by every picture: a parallel projection seen from direction `VIEW` = (1, 1, 1)/√3 with
z up. On paper `RIGHT` = (−1, 1, 0)/√2 points to the right and `UP` = (−1, −1, 2)/√6 up, so +x is at lower left, +y at
lower right, +z at the top, and the frame is right-handed (RIGHT × UP = VIEW). The sphere of radius 1 fills the square.

VTK kills the whole process where it finds no OpenGL library, so a child process opens a window first (`backend`).
Where none opens, Matplotlib paints the same triangles with the same colours and the same light.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.tri import LinearTriInterpolator, Triangulation
from numpy.typing import ArrayLike, NDArray

from meanfield.figures.plots import DOUBLE_COLUMN, SINGLE_COLUMN, checked_path, save, style
from meanfield.keys import InputError, require

Backend = Literal["egl", "osmesa", "native", "matplotlib"]
Paint = Callable[[NDArray], NDArray[np.uint8]]

VIEW: NDArray = np.array([1.0, 1.0, 1.0]) / np.sqrt(3.0)
RIGHT: NDArray = np.array([-1.0, 1.0, 0.0]) / np.sqrt(2.0)
UP: NDArray = np.array([-1.0, -1.0, 2.0]) / np.sqrt(6.0)

COLOUR_MAP = "viridis"
MISSING = "#c8c8c8"  # where the density is not a number
DENSITY_LABEL = "density w.r.t. the uniform measure"

# A headlight: colour × (AMBIENT + DIFFUSE ⟨θ, VIEW⟩). Weak, so that the colours still read off the colour bar.
AMBIENT, DIFFUSE = 0.82, 0.18

LOG_DECADES = 4  # a logarithmic colour range reaches this far below the maximum unless limits are given

_VARIABLE = "VTK_DEFAULT_OPENGL_WINDOW"
_WINDOWS: dict[str, Backend] = {"vtkEGLRenderWindow": "egl", "vtkOSOpenGLRenderWindow": "osmesa"}
_PROBE_SECONDS = 60.0
_PROBE = """
import pyvista
plotter = pyvista.Plotter(off_screen=True, window_size=(32, 32))
plotter.add_mesh(pyvista.Sphere(), color="black")
image = plotter.screenshot(return_img=True)
plotter.close()
raise SystemExit(0 if image.min() < image.max() else 1)
"""


@dataclasses.dataclass(frozen=True)
class Panel:
    """One sphere of a strip.

    `density` maps unit vectors (n, 3) to values (n,) with respect to the uniform probability measure; NaN is drawn
    grey. `title` stands above the sphere, `note` below it. `tokens` (k, 3), of any length but 0, are drawn as dots at
    their directions, where these face the viewer. Raises InputError for tokens of another shape.
    """

    density: Callable[[NDArray], NDArray]
    title: str = ""
    note: str = ""
    tokens: NDArray | None = None

    def __post_init__(self) -> None:
        shape = (0, 3) if self.tokens is None else np.shape(self.tokens)
        require(len(shape) == 2 and shape[1] == 3, "tokens", shape, "must have shape (k, 3)")


@functools.cache
def icosphere(subdivisions: int = 6) -> tuple[NDArray, NDArray]:
    """Vertices (10·4^k + 2, 3) and triangles (20·4^k, 3) of the k times subdivided icosahedron on the unit sphere.

    Closed, without seam or pole; triangles run anticlockwise seen from outside. k = 6 has 40962 vertices, and its
    edges are between 0.0173 and 0.0207 long. The arrays are shared and read-only.
    """
    golden = (1 + 5**0.5) / 2
    corners = [(s, t * golden, 0.0) for s in (-1, 1) for t in (-1, 1)]
    vertices = np.array([np.roll(c, k) for k in range(3) for c in corners])
    # The faces of the icosahedron are its triples of corners at mutual distance 2, turned to face outwards.
    near = np.isclose(np.linalg.norm(vertices[:, None] - vertices, axis=-1), 2.0)
    triples = [
        (i, j, k) for i in range(12) for j in range(i) for k in range(j) if near[i, j] and near[j, k] and near[k, i]
    ]
    triangles = np.array([t if np.linalg.det(vertices[list(t)]) > 0 else t[::-1] for t in triples], dtype=np.int64)
    for _ in range(subdivisions):
        edges = np.sort(triangles[:, [[0, 1], [1, 2], [2, 0]]], axis=-1)
        unique, inverse = np.unique(edges.reshape(-1, 2), axis=0, return_inverse=True)
        a, b, c = triangles.T
        ab, bc, ca = inverse.reshape(-1, 3).T + len(vertices)
        vertices = np.concatenate([vertices, vertices[unique].mean(axis=1)])
        vertices = vertices / np.linalg.norm(vertices, axis=1, keepdims=True)
        triangles = np.stack([a, ab, ca, ab, b, bc, ca, bc, c, ab, bc, ca], axis=1).reshape(-1, 3)
    vertices = vertices / np.linalg.norm(vertices, axis=1, keepdims=True)
    vertices.flags.writeable = triangles.flags.writeable = False
    return vertices, triangles


def projected(points: ArrayLike) -> NDArray:
    """Paper coordinates ⟨·, RIGHT⟩, ⟨·, UP⟩ and ⟨·, VIEW⟩ (positive: facing the viewer) of points (..., 3)."""
    return np.asarray(points, dtype=float) @ np.stack([RIGHT, UP, VIEW], axis=1)


def backend() -> Backend:
    """What paints spheres here: VTK through "egl", "osmesa" or the platform's own window ("native"), or "matplotlib".

    A child process tries each window and renders one picture in it; the answer is kept for the life of the process.
    The environment variable VTK_DEFAULT_OPENGL_WINDOW, where set, is the only window tried. Falling back to Matplotlib
    is said once, in one line of the log.
    """
    return _first_that_opens(_candidates())[0]


def _candidates() -> tuple[str, ...]:
    chosen = os.environ.get(_VARIABLE)
    if chosen:
        return (chosen,)
    return tuple(_WINDOWS) if sys.platform == "linux" else ("",)


@functools.cache
def _first_that_opens(windows: tuple[str, ...]) -> tuple[Backend, str]:
    for window in windows:
        if _opens(window):
            return _WINDOWS.get(window, "native"), window
    logging.getLogger(__name__).warning(
        "no OpenGL window opens here (libegl1 provides one); spheres are drawn by Matplotlib instead"
    )
    return "matplotlib", ""


def _opens(window: str) -> bool:
    """Whether a child process renders a picture in this VTK window class; a child that crashes or hangs says no."""
    with tempfile.TemporaryDirectory() as scratch:  # a core file of a crash goes with it
        try:
            child = subprocess.run(
                [sys.executable, "-c", _PROBE],
                env={**os.environ, _VARIABLE: window},
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_PROBE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return False
    return child.returncode == 0


@contextlib.contextmanager
def _asking_for(window: str) -> Iterator[None]:
    """VTK chooses the class of a new window from the environment, where an empty value counts as none."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = window
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


@contextlib.contextmanager
def sphere_painter(window: int = 600) -> Iterator[Paint]:
    """A function that paints levels at the vertices of `icosphere()` as an image (window, window, 3) of the sphere.

    A level is a place in the colour map, from 0 to 1; NaN is grey. The image spans [−1, 1]² of the camera's paper
    coordinates, first row on top. One VTK plotter serves every call and is closed on leaving the context.

        with sphere_painter(600) as paint:
            images = [paint(levels) for levels in frames]
    """
    name, window_class = _first_that_opens(_candidates())
    if name == "matplotlib":
        yield _matplotlib_painter(window)
    else:
        with _vtk_painter(window, window_class) as paint:
            yield paint


@contextlib.contextmanager
def _vtk_painter(window: int, window_class: str) -> Iterator[Paint]:
    import pyvista

    vertices, triangles = icosphere()
    mesh: Any = pyvista.PolyData.from_regular_faces(vertices.copy(), triangles)
    mesh.point_data.active_normals = vertices.copy()
    mesh.point_data["level"] = np.zeros(len(vertices))
    with _asking_for(window_class):
        plotter: Any = pyvista.Plotter(
            off_screen=True, window_size=[window, window], lighting="none", theme=pyvista.themes.DocumentTheme()
        )
    try:
        actor = plotter.add_mesh(
            mesh,
            scalars="level",
            cmap=COLOUR_MAP,
            clim=(0.0, 1.0),
            nan_color=MISSING,
            interpolate_before_map=True,
            show_scalar_bar=False,
            ambient=AMBIENT,
            diffuse=DIFFUSE,
            specular=0.0,
        )
        actor.prop.interpolation = "Phong"
        plotter.add_light(pyvista.Light(light_type="headlight"))
        plotter.set_background("white")
        plotter.camera_position = [tuple(4 * VIEW), (0.0, 0.0, 0.0), (0.0, 0.0, 1.0)]
        plotter.enable_parallel_projection()
        plotter.camera.parallel_scale = 1.0
        plotter.renderer.ResetCameraClippingRange()

        def paint(levels: NDArray) -> NDArray[np.uint8]:
            mesh.point_data["level"] = np.asarray(levels, dtype=float)
            plotter.render()
            return np.array(plotter.screenshot(return_img=True))

        yield paint
    finally:
        plotter.close()


def _matplotlib_painter(window: int) -> Paint:
    """The triangles that face the viewer, interpolated linearly on the pixels, as VTK does in a parallel projection."""
    vertices, triangles = icosphere()
    x, y, toward = projected(vertices).T
    edge = (np.arange(window) + 0.5) * 2 / window - 1
    px, py = np.meshgrid(edge, -edge)
    radius = np.hypot(px, py)
    inside = radius <= 1
    # The ring between the last whole triangle and the limb is a fraction of a pixel: it takes the colour just inside.
    px, py = (p[inside] * np.minimum(1.0, 0.9995 / radius[inside].clip(1e-9)) for p in (px, py))
    light = AMBIENT + DIFFUSE * np.sqrt(1 - px**2 - py**2)[:, None]
    facing = Triangulation(x, y, triangles[(toward[triangles] > 0).all(axis=1)])
    finder = facing.get_trifinder()
    colour_map = matplotlib.colormaps[COLOUR_MAP].with_extremes(bad=MISSING)

    def paint(levels: NDArray) -> NDArray[np.uint8]:
        on_pixels = LinearTriInterpolator(facing, np.asarray(levels, dtype=float), finder)(px, py)
        image = np.full((window, window, 3), 255, dtype=np.uint8)
        image[inside] = np.rint(255 * light * colour_map(on_pixels)[:, :3])
        return image

    return paint


def sphere_strip(
    panels: Sequence[Sequence[Panel | None]],
    path: str | Path,
    *,
    log: bool = False,
    limits: tuple[float, float] | Literal["robust"] | None = None,
    size: float | None = None,
    row_labels: Sequence[str] = (),
    column_labels: Sequence[str] = (),
    window: int = 600,
) -> Path:
    """Spheres in rows (schemes) and columns (depths), coloured by density in one shared range, with one colour bar.

    Densities are with respect to the uniform probability measure: the uniform density is 1. `None` leaves a place
    empty. The camera is the module's: seen from (1, 1, 1)/√3, z up. `limits` are the ends of the colour range; by
    default the minimum and maximum over all panels and the whole sphere, and "robust" takes the 1st and 99th
    percentile by area instead. With `log` the range starts no lower than 10⁻⁴ of its upper end. The colour bar has a
    pointed end where values lie outside. `size` is the width in inches, `window` the pixels across one sphere. The
    suffix of `path` says PNG, PDF or SVG (raster spheres, vector labels).

    Raises InputError for no panel, rows or labels that do not match, a density of the wrong shape or nowhere finite,
    limits that are no range, and a path that cannot be written. Returns the path.
    """
    path = checked_path(path)
    columns = len(panels[0]) if panels else 0
    cells = [panel for row in panels for panel in row]
    drawn = [panel for panel in cells if panel is not None]
    require(bool(drawn), "panels", len(drawn), "at least one panel is needed")
    require(all(len(row) == columns for row in panels), "panels", [len(r) for r in panels], "rows must be equally long")
    for key, labels, count in (("row_labels", row_labels, len(panels)), ("column_labels", column_labels, columns)):
        require(len(labels) in (0, count), key, len(labels), f"must be none or {count} labels")

    width = size if size is not None else DOUBLE_COLUMN if columns > 2 else SINGLE_COLUMN
    require(width >= 2.5, "size", width, "must be at least 2.5 inches, the room that the colour bar needs")
    left = 0.25 if row_labels else 0.05
    above = 0.17 if any(panel.title for panel in drawn) else 0.0
    below = 0.16 if any(panel.note for panel in drawn) else 0.0
    top, bottom, right = 0.25 if column_labels else 0.05, 0.72, 0.05
    side = (width - left - right) / columns
    require(side > 0.2, "size", width, f"must leave at least 0.2 inches for each of {columns} spheres")
    row_height = side + above + below
    height = top + len(panels) * row_height + bottom

    values = [_density_at(panel, icosphere()[0]) for panel in drawn]
    norm = colour_norm(values, log=log, limits=limits)
    with sphere_painter(window) as paint:
        images = {id(panel): paint(_levels(value, norm)) for panel, value in zip(drawn, values, strict=True)}

    with style():
        figure = Figure(figsize=(width, height))
        for index, panel in enumerate(cells):
            row, column = divmod(index, columns)
            x, y = left + column * side, height - top - (row + 1) * row_height + below
            axes = figure.add_axes((x / width, y / height, side / width, side / height))
            axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal")
            axes.axis("off")
            if row == 0 and column_labels:
                figure.text((x + side / 2) / width, 1 - 0.06 / height, column_labels[column], ha="center", va="top")
            if column == 0 and row_labels:
                figure.text(
                    0.12 / width, (y + side / 2) / height, row_labels[row], rotation=90, ha="center", va="center"
                )
            if panel is not None:
                _draw_panel(axes, panel, images[id(panel)])
        _draw_camera(figure, (left + 0.05, 0.08), 0.5)
        _draw_colour_bar(figure, norm, _extend(values, norm))
    return save(figure, path)


def colour_norm(
    values: Sequence[NDArray], *, log: bool = False, limits: tuple[float, float] | Literal["robust"] | None = None
) -> Normalize:
    """The one colour range of a set of densities, from values at the vertices of `icosphere()` (equal areas).

    A range narrower than 10⁻⁶ of its size, such as that of a uniform density with round-off, is widened to ±10 %, so
    that round-off is never stretched over the whole colour map. Raises InputError as `sphere_strip` does.
    """
    if isinstance(limits, tuple | list):
        ok = len(limits) == 2 and bool(np.isfinite(limits).all()) and limits[0] < limits[1]
        require(ok, "limits", limits, "must be two finite numbers, the lower first")
        low, high = map(float, limits)
    else:
        require(limits in (None, "robust"), "limits", limits, 'must be two numbers, "robust" or None')
        together = np.concatenate(values)
        together = together[np.isfinite(together)]
        require(together.size > 0, "density", np.nan, "must be finite somewhere")
        low, high = map(float, np.percentile(together, (1, 99) if limits == "robust" else (0, 100)))
        if log:
            low = max(low, high * 10.0**-LOG_DECADES)
        if high - low <= 1e-6 * abs(high):
            low, high = low - 0.1 * abs(low), high + 0.1 * abs(high)
    require(not log or low > 0, "limits", (low, high), "must be positive with log")
    require(low < high, "limits", (low, high), "must be two numbers, the lower first")
    return LogNorm(low, high) if log else Normalize(low, high)


def _density_at(panel: Panel, points: NDArray) -> NDArray:
    values = np.asarray(panel.density(points), dtype=float)
    if values.shape != (len(points),):
        raise InputError("density", values.shape, f"must return one value for each of {len(points)} points")
    return values


def _levels(values: NDArray, norm: Normalize) -> NDArray:
    """Places in the colour map; values outside the range (also ≤ 0 under log) take the colour of the nearer end."""
    return np.ma.getdata(norm(np.clip(values, norm.vmin, norm.vmax)))


def _extend(values: Sequence[NDArray], norm: Normalize) -> Literal["neither", "min", "max", "both"]:
    together = np.concatenate(values)
    below, above = bool((together < norm.vmin).any()), bool((together > norm.vmax).any())
    return "both" if below and above else "min" if below else "max" if above else "neither"


def _draw_panel(axes: Axes, panel: Panel, image: NDArray[np.uint8]) -> None:
    limb = Circle((0, 0), 0.998, facecolor="none", edgecolor="0.3", linewidth=0.4)
    axes.add_patch(limb)
    axes.imshow(image, extent=(-1, 1, -1, 1)).set_clip_path(limb)
    axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05))
    if panel.tokens is not None:
        tokens = np.asarray(panel.tokens, dtype=float)
        x, y, toward = projected(tokens / np.linalg.norm(tokens, axis=1, keepdims=True)).T
        front = toward > 0
        axes.scatter(x[front], y[front], s=1.6, c="white", edgecolors="black", linewidths=0.25, rasterized=True)
    axes.text(0, 1.06, panel.title, ha="center", va="bottom", fontsize="small")
    axes.text(0, -1.06, panel.note, ha="center", va="top", fontsize="x-small", color="0.35")


def _draw_camera(figure: Figure, corner: tuple[float, float], side: float) -> None:
    """The three coordinate directions as the camera sees them."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes((corner[0] / width, corner[1] / height, side / width, side / height))
    axes.set(xlim=(-1.3, 1.3), ylim=(-1.1, 1.5), aspect="equal")
    axes.axis("off")
    arrow = {
        "arrowstyle": "-|>,head_width=0.1,head_length=0.2",
        "linewidth": 0.5,
        "color": "0.3",
        "shrinkA": 0,
        "shrinkB": 0,
    }
    for (x, y, _), name in zip(projected(np.eye(3)), "xyz", strict=True):
        axes.annotate("", (x, y), (0, 0), arrowprops=arrow)
        axes.text(1.3 * x, 1.3 * y, name, ha="center", va="center", fontsize="x-small", color="0.3")


def _draw_colour_bar(figure: Figure, norm: Normalize, extend: Literal["neither", "min", "max", "both"]) -> None:
    """The colour bar in the middle of the foot of the figure."""
    width, height = figure.get_size_inches()
    length = min(2.6, width - 1.5)
    axes = figure.add_axes(((width - length) / 2 / width, 0.46 / height, length / width, 0.09 / height))
    bar = figure.colorbar(ScalarMappable(norm, COLOUR_MAP), cax=axes, orientation="horizontal", extend=extend)
    bar.set_label(DENSITY_LABEL)
    bar.outline.set_linewidth(0.5)
