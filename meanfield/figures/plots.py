"""Curves against depth, in the one style that every figure shares.

Figures are plain `matplotlib.figure.Figure` objects: pyplot is never imported, so nothing global is left behind and
no display is needed. A function takes the axes to draw on, or makes its own figure, and returns the axes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MultipleLocator
from numpy.typing import NDArray

from meanfield.keys import InputError, require

SINGLE_COLUMN, DOUBLE_COLUMN = 3.4, 7.0  # inches

# The printed name and the colour of each scheme: the Okabe–Ito palette, which colour-blind readers can tell apart.
SCHEMES: dict[str, tuple[str, str]] = {
    "post-ln": ("Post-LN", "#0072B2"),
    "pre-ln": ("Pre-LN", "#D55E00"),
    "mix-ln": ("Mix-LN", "#CC79A7"),
    "peri-ln": ("Peri-LN", "#009E73"),
    "ngpt": ("nGPT", "#E69F00"),
    "sqrt-scaling": ("sqrt-scaling", "#56B4E9"),
}
DASHES = (0, (2, 2))
OTHER_COLOURS = ("#000000", "#777777", "#7F4F24", "#4B3F72")

# What the axis of each recorded observable says; any other name is shown as it is.
AXIS_LABELS = {
    "order_parameter": r"order parameter $|\int\theta\,d\mu|$",
    "mean_cosine": "mean cosine",
    "energy": r"energy $e^{-\beta}E$",
    "entropy": "entropy",
    "mass": "mass",
    "mean_radius": "mean radius",
    "std_radius": "standard deviation of the radius",
    "min_density": "minimum of the density",
    "min_attention": r"minimum of $\|A\|$",
    "resolution": "resolution (spectral tail)",
}

RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "mathtext.fontset": "dejavusans",
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.1,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "white",
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.hashsalt": "meanfield",
}

# A figure's bytes depend on what it shows, not on the clock.
_METADATA: dict[str, dict[str, Any]] = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


@dataclasses.dataclass(frozen=True)
class Curve:
    """A quantity against depth; all arrays are (n,).

    `value` is the continuum, or what was measured. `low` and `high` bound the middle 90 % of the particle trials and
    `particles` is their median or mean, drawn dashed; each may be absent. Raises InputError for shapes that differ,
    and for one bound without the other.
    """

    depth: NDArray
    value: NDArray
    low: NDArray | None = None
    high: NDArray | None = None
    particles: NDArray | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            array = getattr(self, field.name)
            if array is not None:
                object.__setattr__(self, field.name, np.asarray(array, dtype=float))
        require(self.depth.ndim == 1, "depth", self.depth.shape, "must have one axis")
        for name in ("value", "low", "high", "particles"):
            array = getattr(self, name)
            if array is not None and array.shape != self.depth.shape:
                raise InputError(name, array.shape, f"must have the shape {self.depth.shape} of depth")
        both = (self.low is None) == (self.high is None)
        require(both, "low, high", "one alone", "the band needs both its bounds")


def style() -> AbstractContextManager[None]:
    """The style of every figure, as a context; Matplotlib's own settings come back on leaving it."""
    return matplotlib.rc_context(RC)


def scheme_style(names: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The printed name and the colour of each curve: fixed for the six schemes, neutral ones in turn for others."""
    others = itertools.cycle(OTHER_COLOURS)
    return {name: SCHEMES[name] if name in SCHEMES else (name, next(others)) for name in names}


def observable_against_depth(
    curves: Mapping[str, Curve], name: str, *, ax: Axes | None = None, log: bool = False, legend: bool = True
) -> Axes:
    """An observable of several schemes against depth: continuum as lines, 90 % of trials as bands.

    `curves` maps scheme names (or any labels) to curves, `name` is the observable's name in the file. With `log` the
    axis is logarithmic and values ≤ 0 are left out. Raises InputError when there is no curve.
    """
    require(bool(curves), "curves", list(curves), "at least one curve is needed")
    with style():
        ax = _own_axes() if ax is None else ax
        for label, (title, colour) in scheme_style(curves).items():
            _draw_curve(ax, curves[label], colour, title)
        if log:
            ax.set_yscale("log", nonpositive="mask")
        ax.set(xlabel="depth $t$", ylabel=AXIS_LABELS.get(name, name.replace("_", " ")))
        ax.margins(x=0)
        if legend:
            _draw_legend(ax, curves)
    return ax


def cosine_against_depth(curves: Mapping[str, Curve], *, ax: Axes | None = None, legend: bool = True) -> Axes:
    """The mean cosine of several schemes against depth, on a scale that always shows 0 and 1.

    In the continuum |∫θ dμ|²; for particles the mean over pairs of distinct tokens, which may fall below 0.
    """
    ax = observable_against_depth(curves, "mean_cosine", ax=ax, legend=legend)
    _set_cosine_axis(ax, curves)
    return ax


def measured_cosine(
    measured: Mapping[str, Curve], *, ax: Axes | None = None, depth_per_layer: float = 1.0, note: str = ""
) -> Axes:
    """The mean cosine that a real model's layers have, against depth t below and layer above.

    `depth` of each curve is t = `depth_per_layer` · layer; the upper axis reads the layer off it.
    """
    require(bool(measured), "measured", list(measured), "at least one curve is needed")
    require(depth_per_layer > 0, "depth_per_layer", depth_per_layer, "must be positive")
    with style():
        ax = _own_axes() if ax is None else ax
        for (label, curve), colour, marker in zip(
            measured.items(), itertools.cycle(OTHER_COLOURS), itertools.cycle("osD^"), strict=False
        ):
            _draw_curve(ax, curve, colour, label, marker=marker)
        ax.set(xlabel="depth $t$", ylabel=AXIS_LABELS["mean_cosine"])
        _set_cosine_axis(ax, measured)
        ax.spines["top"].set_visible(True)
        layers = ax.secondary_xaxis(
            "top",
            functions=(lambda t: np.asarray(t) / depth_per_layer, lambda layer: np.asarray(layer) * depth_per_layer),
        )
        factor = "" if depth_per_layer == 1 else f"{depth_per_layer:g} × "
        layers.set_xlabel(f"layer  ($t$ = {factor}layer)")
        ax.legend(loc="best", title=note or None, title_fontsize="x-small", alignment="left")
    return ax


def cosine_figure(
    curves: Mapping[str, Curve],
    measured: Mapping[str, Curve],
    path: str | Path,
    *,
    note: str = "",
    depth_per_layer: float = 1.0,
) -> Path:
    """The double-column figure: the mean cosine of each scheme in a panel of its own, and that of a real model beside.

    In each panel the other schemes' continuum curves stand in grey. `measured` maps labels (such as the projection and
    the full space) to curves whose depth is `depth_per_layer` · layer; `note` names the model. Without `measured` the
    schemes take the whole width. Writes `path` (PNG, PDF or SVG) and returns it; raises InputError for no curve or a
    path that cannot be written.
    """
    path = checked_path(path)
    require(bool(curves), "curves", list(curves), "at least one curve is needed")
    columns = min(3, len(curves))
    rows = -(-len(curves) // columns)
    with style():
        layout = ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0.02, hspace=0.02)
        figure = Figure(figsize=(DOUBLE_COLUMN, max(2.2, 1.35 * rows + 0.3)), layout=layout)
        parts = figure.subfigures(1, 2 if measured else 1, squeeze=False, width_ratios=(1.9, 1) if measured else None)
        left = parts[0, 0]
        panels = left.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for ax in panels.flat[len(curves) :]:
            ax.set_axis_off()
        for ax, (name, (title, colour)) in zip(panels.flat, scheme_style(curves).items(), strict=False):
            for other in curves.values():
                ax.plot(other.depth, other.value, color="0.82", linewidth=0.7, zorder=1)
            _draw_curve(ax, curves[name], colour, title)
            ax.set_title(title, color=colour, pad=3)
            ax.margins(x=0)
        _set_cosine_axis(panels[0, 0], curves)
        left.supxlabel("depth $t$", fontsize=8)
        left.supylabel(AXIS_LABELS["mean_cosine"], fontsize=8)
        key = [Line2D([], [], color="0.3", label="continuum"), *_particle_key(curves)]
        left.legend(handles=key, loc="outside upper center", ncols=len(key))
        if measured:
            measured_cosine(measured, ax=parts[0, 1].subplots(), depth_per_layer=depth_per_layer, note=note)
    return save(figure, path)


def checked_path(path: str | Path) -> Path:
    """The path, if a figure can be written there; otherwise InputError names the allowed suffixes or the folder."""
    path = Path(path)
    require(path.suffix.lower() in _METADATA, "path", str(path), f"must end in {', '.join(_METADATA)}")
    require(path.parent.is_dir(), "path", str(path), "must lie in a folder that exists")
    return path


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG, PDF (fonts embedded) or SVG, whichever the suffix says, and return the path.

    The file appears whole or not at all: it is written beside and then renamed. Raises InputError for other suffixes
    and for a folder that does not exist.
    """
    path = checked_path(path)
    suffix = path.suffix.lower()
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with style():
            figure.savefig(partial, format=suffix[1:], metadata=_METADATA[suffix])
        partial.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
    return path


def _own_axes() -> Axes:
    return Figure(figsize=(SINGLE_COLUMN, 2.4), layout="constrained").subplots()


def _draw_curve(ax: Axes, curve: Curve, colour: str, label: str, marker: str = "") -> None:
    if curve.low is not None and curve.high is not None:
        ax.fill_between(curve.depth, curve.low, curve.high, color=colour, alpha=0.25, linewidth=0, zorder=2)
    if curve.particles is not None:
        ax.plot(curve.depth, curve.particles, color=colour, linestyle=DASHES, linewidth=0.8, zorder=3)
    ax.plot(curve.depth, curve.value, color=colour, label=label, marker=marker, markersize=2.5, zorder=4)


def _draw_legend(ax: Axes, curves: Mapping[str, Curve]) -> None:
    handles = [*ax.get_legend_handles_labels()[0], *_particle_key(curves)]
    # Above the axes, where no curve can run through it.
    ax.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0, 1, 0.1), mode="expand", ncols=3, borderaxespad=0
    )


def _particle_key(curves: Mapping[str, Curve]) -> list[Artist]:
    """Neutral legend entries for what the particles add, where they add it."""
    key: list[Artist] = []
    if any(curve.particles is not None for curve in curves.values()):
        key.append(Line2D([], [], color="0.3", linestyle=DASHES, linewidth=0.8, label="particles"))
    if any(curve.low is not None for curve in curves.values()):
        key.append(Patch(facecolor="0.5", alpha=0.35, linewidth=0, label="90 % of trials"))
    return key


def _set_cosine_axis(ax: Axes, curves: Mapping[str, Curve]) -> None:
    together = np.concatenate([a for c in curves.values() for a in (c.value, c.low, c.particles) if a is not None])
    lowest = float(together[np.isfinite(together)].min(initial=0.0))
    ax.set_ylim(lowest - 0.03, 1.03)
    ax.yaxis.set_major_locator(MultipleLocator(0.25))
    ax.yaxis.set_major_formatter("{x:g}")
