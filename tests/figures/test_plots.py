"""Curves: what is drawn is what was given, in the one style, and a file appears whole or not at all."""

from __future__ import annotations

import itertools
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread

from meanfield.figures.plots import (
    SCHEMES,
    Curve,
    cosine_against_depth,
    cosine_figure,
    measured_cosine,
    observable_against_depth,
    save,
    style,
)
from meanfield.keys import InputError

T = np.linspace(0.0, 5.0, 21)


def curve(rate=1.0, particles=True):
    value = 1 - np.exp(-rate * T)
    return Curve(T, value, value - 0.1, value + 0.05, value - 0.02) if particles else Curve(T, value)


def all_six():
    return {name: curve(0.2 + 0.3 * k) for k, name in enumerate(SCHEMES)}


def line_of(ax, label):
    return next(line for line in ax.get_lines() if line.get_label() == label)


# --- curves --------------------------------------------------------------------------------------------------------


def test_the_continuum_is_the_line_and_the_trials_are_the_band():
    given = curve()
    ax = observable_against_depth({"peri-ln": given}, "order_parameter")
    np.testing.assert_array_equal(line_of(ax, "Peri-LN").get_xydata(), np.stack([T, given.value], axis=1))
    dashed = next(line for line in ax.get_lines() if line.is_dashed())
    np.testing.assert_array_equal(dashed.get_ydata(), given.particles)
    (band,) = ax.collections
    outline = band.get_paths()[0].vertices
    for edge in (given.low, given.high):
        for point in zip(T, edge, strict=True):
            assert np.abs(outline - point).sum(axis=1).min() < 1e-12


def test_a_curve_without_particles_has_neither_band_nor_dashes():
    ax = observable_against_depth({"peri-ln": curve(particles=False)}, "energy")
    assert len(ax.get_lines()) == 1
    assert not ax.collections
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["Peri-LN"]


def test_a_scheme_keeps_its_colour_whatever_else_is_drawn():
    for names in (list(SCHEMES), list(SCHEMES)[::-1], ["ngpt"], ["mine", "ngpt", "yours"]):
        ax = observable_against_depth({name: curve() for name in names}, "energy")
        assert to_hex(line_of(ax, "nGPT").get_color()) == SCHEMES["ngpt"][1].lower()
    colours = {to_hex(line_of(ax, name).get_color()) for name in ("mine", "nGPT", "yours")}
    assert len(colours) == 3


# Severity 1 of Machado, Oliveira and Fernandes (2009), on linear RGB.
DICHROMACIES = {
    "none": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


@pytest.mark.parametrize("vision", DICHROMACIES)
def test_the_six_colours_stay_apart_for_colour_blind_readers(vision):
    def lab(colour):
        rgb = np.array(to_rgb(colour))
        linear = np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
        linear = np.clip(np.array(DICHROMACIES[vision]) @ linear, 0, 1)
        to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        x, y, z = np.cbrt(to_xyz @ linear / [0.9505, 1.0, 1.089])
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    distances = [np.linalg.norm(lab(a) - lab(b)) for (_, a), (_, b) in itertools.combinations(SCHEMES.values(), 2)]
    assert min(distances) > 15  # six colours of Matplotlib's own cycle come down to 4.6


def test_given_axes_are_drawn_on_and_returned():
    ax = Figure().subplots()
    assert observable_against_depth({"ngpt": curve()}, "mean_radius", ax=ax) is ax
    assert cosine_against_depth({"ngpt": curve()}, ax=ax) is ax
    assert measured_cosine({"model": curve()}, ax=ax) is ax


@pytest.mark.parametrize(
    ("name", "words"),
    [("order_parameter", "order parameter"), ("resolution", "resolution"), ("my_own", "my own"), ("energy", "energy")],
)
def test_the_axis_says_what_is_drawn(name, words):
    ax = observable_against_depth({"ngpt": curve()}, name)
    assert words in ax.get_ylabel()
    assert "depth" in ax.get_xlabel()
    assert ax.get_yscale() == "linear"


def test_a_logarithmic_axis_leaves_out_what_is_not_positive():
    value = np.array([0.0, 1e-8, 1e-4, -1.0, 1e-2])
    ax = observable_against_depth({"ngpt": Curve(np.arange(5.0), value)}, "resolution", log=True)
    assert ax.get_yscale() == "log"
    low, high = ax.get_ylim()
    assert 1e-10 < low <= 1e-8
    assert 1e-2 <= high < 1
    assert not np.isfinite(ax.yaxis.get_transform().transform(np.array([0.0, -1.0]))).any()


def test_the_cosine_axis_shows_zero_and_one_and_a_band_below_zero():
    low, high = cosine_against_depth({"ngpt": Curve(T, 0.5 + 0 * T)}).get_ylim()
    assert low < 0
    assert high > 1
    below = Curve(T, 0 * T, 0 * T - 0.3, 0 * T + 0.1)
    assert cosine_against_depth({"ngpt": below}).get_ylim()[0] < -0.3


def test_layers_above_are_depths_below_over_the_depth_of_a_layer():
    ax = measured_cosine(
        {"full": Curve(0.5 * np.arange(13), np.linspace(0, 1, 13))}, depth_per_layer=0.5, note="MiniLM"
    )
    figure = ax.figure
    figure.draw_without_rendering()
    (layers,) = ax.child_axes
    np.testing.assert_allclose(layers.get_xlim(), np.array(ax.get_xlim()) / 0.5)
    assert "layer" in layers.get_xlabel()
    assert "0.5" in layers.get_xlabel()
    assert ax.get_legend().get_title().get_text() == "MiniLM"


@pytest.mark.parametrize(
    ("arrays", "key"),
    [
        ((T, T[:-1]), "value"),
        ((T, T, T), "low, high"),
        ((T, T, T[1:], T), "low"),
        ((np.ones((2, 2)), np.ones((2, 2))), "depth"),
        ((T, T, None, None, T[1:]), "particles"),
    ],
)
def test_arrays_that_make_no_curve_are_refused(arrays, key):
    with pytest.raises(InputError) as error:
        Curve(*arrays)
    assert error.value.key == key


@pytest.mark.parametrize(
    "draw",
    [
        lambda path: observable_against_depth({}, "energy"),
        lambda path: cosine_against_depth({}),
        lambda path: measured_cosine({}),
        lambda path: cosine_figure({}, {}, path),
    ],
)
def test_no_curve_is_refused(draw, tmp_path):
    with pytest.raises(InputError, match="at least one curve"):
        draw(tmp_path / "empty.png")


def test_a_layer_without_depth_is_refused():
    with pytest.raises(InputError, match="depth_per_layer"):
        measured_cosine({"full": curve()}, depth_per_layer=0.0)


# --- the cosine figure ---------------------------------------------------------------------------------------------


def shares(path):
    """For each scheme's colour, the share of pixels that show it."""
    image = np.rint(255 * imread(path)[..., :3]).astype(int)
    rgb = {name: np.rint(255 * np.array(to_rgb(colour))).astype(int) for name, (_, colour) in SCHEMES.items()}
    return {name: float((np.abs(image - colour).max(axis=-1) <= 2).mean()) for name, colour in rgb.items()}


def test_the_cosine_figure_is_two_columns_wide_and_shows_every_scheme(tmp_path):
    path = cosine_figure(all_six(), {"full": curve()}, tmp_path / "cosine.png")
    assert imread(path).shape[1] == 2100
    assert min(shares(path).values()) > 2e-4


def test_the_cosine_figure_shows_only_the_schemes_it_was_given(tmp_path):
    path = cosine_figure({"ngpt": curve()}, {}, tmp_path / "cosine.png")
    seen = shares(path)
    assert seen.pop("ngpt") > 2e-4
    assert max(seen.values()) == 0


def test_the_cosine_figure_names_its_curves_axes_and_model(tmp_path):
    measured = {"three components": curve(), "full space": curve(0.5)}
    text = cosine_figure(
        all_six(), measured, tmp_path / "cosine.svg", note="a small model", depth_per_layer=0.25
    ).read_text()
    titles = [title for title, _ in SCHEMES.values()]
    for words in (*titles, *measured, "a small model", "layer", "0.25", "continuum", "90 % of trials", "mean cosine"):
        assert words in text
    alone = cosine_figure(all_six(), {}, tmp_path / "alone.svg").read_text()
    assert "layer" not in alone


# --- style and files -----------------------------------------------------------------------------------------------


def test_drawing_and_saving_leave_no_trace_in_matplotlib(tmp_path):
    before = dict(matplotlib.rcParams)
    cosine_figure(all_six(), {"full": curve()}, tmp_path / "cosine.pdf")
    assert dict(matplotlib.rcParams) == before
    with style():
        assert matplotlib.rcParams["pdf.fonttype"] == 42
    assert dict(matplotlib.rcParams) == before


def test_pyplot_is_never_imported(tmp_path):
    script = (
        "import sys, numpy as np\n"
        "from meanfield.figures.plots import Curve, cosine_figure\n"
        f"cosine_figure({{'ngpt': Curve(np.arange(3), np.ones(3))}}, {{}}, {str(tmp_path / 'a.png')!r})\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")]
)
def test_the_suffix_says_the_format_and_the_bytes_do_not_depend_on_the_clock(suffix, start, tmp_path, monkeypatch):
    def written(name, epoch):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
        ax = cosine_against_depth({"ngpt": curve()})
        return save(ax.figure, tmp_path / f"{name}{suffix}").read_bytes()

    first, second = written("first", "0"), written("second", "1000000000")
    assert first.startswith(start)
    assert first == second


def test_fonts_are_embedded_as_truetype(tmp_path):
    data = save(cosine_against_depth({"ngpt": curve()}).figure, tmp_path / "figure.pdf").read_bytes()
    assert b"/FontFile2" in data
    assert b"/Type3" not in data


@pytest.mark.parametrize("name", ["figure.jpg", "figure", "figure.eps"])
def test_an_unknown_suffix_is_refused_and_the_allowed_ones_named(name, tmp_path):
    with pytest.raises(InputError, match=r"\.png, \.pdf, \.svg"):
        save(Figure(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(InputError, match="folder"):
        save(Figure(), tmp_path / "nowhere" / "figure.png")


def test_a_failed_save_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    class Failing(Figure):
        def savefig(self, fname, **options):
            fname.write_bytes(b"half")
            raise OSError("disk full")

    path = tmp_path / "figure.png"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="disk full"):
        save(Failing(), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
