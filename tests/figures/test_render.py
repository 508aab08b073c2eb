"""Spheres: the mesh, the camera, the pixels of both painters, and a machine where no window opens."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import LogNorm
from matplotlib.image import imread
from scipy.spatial import cKDTree

from meanfield.figures import render
from meanfield.figures.render import (
    AMBIENT,
    COLOUR_MAP,
    DIFFUSE,
    MISSING,
    RIGHT,
    UP,
    VIEW,
    Panel,
    backend,
    colour_norm,
    icosphere,
    projected,
    sphere_painter,
    sphere_strip,
)
from meanfield.keys import InputError

PIXELS = 200
VARIABLE = "VTK_DEFAULT_OPENGL_WINDOW"
AXES = np.concatenate([np.eye(3), -np.eye(3)])


@pytest.fixture
def forget():
    """What was found out about windows, forgotten before and after."""
    render._first_that_opens.cache_clear()
    yield
    render._first_that_opens.cache_clear()


@pytest.fixture(scope="module", params=["this machine", "matplotlib"])
def paint(request):
    """The painter that this machine uses, and the one that remains where no window opens."""
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            if request.param == "matplotlib":
                patch.setattr(render, "_first_that_opens", lambda windows: ("matplotlib", ""))
            paint = stack.enter_context(sphere_painter(PIXELS))
        yield paint


def paper(pixels: int = PIXELS, radius: float = 0.97):
    """Paper coordinates of the pixel centres, which of them lie within `radius`, and the directions seen there."""
    centre = (np.arange(pixels) + 0.5) * 2 / pixels - 1
    x, y = np.meshgrid(centre, -centre)
    inside = np.hypot(x, y) < radius
    z = np.sqrt(1 - x[inside] ** 2 - y[inside] ** 2)
    return inside, x[inside][:, None] * RIGHT + y[inside][:, None] * UP + z[:, None] * VIEW


def levels_seen(image, inside, directions):
    """The place in the colour map that each pixel shows, once the headlight is divided out."""
    colours = matplotlib.colormaps[COLOUR_MAP](np.linspace(0, 1, 256))[:, :3]
    light = AMBIENT + DIFFUSE * (directions @ VIEW)
    return cKDTree(colours).query(image[inside] / 255 / light[:, None])[1] / 255


def bump(mean, concentration=40.0):
    return lambda x: np.exp(concentration * (x @ mean - 1))


# --- the mesh and the camera ---------------------------------------------------------------------------------------


def test_icosphere_is_a_closed_sphere_turned_outwards():
    vertices, triangles = icosphere()
    assert 10_000 <= len(vertices) <= 41_000
    np.testing.assert_allclose(np.linalg.norm(vertices, axis=1), 1, atol=1e-15)
    edges = np.concatenate([triangles[:, [i, (i + 1) % 3]] for i in range(3)])
    directed = {(int(a), int(b)) for a, b in edges}
    assert len(directed) == len(edges), "an edge runs twice the same way"
    assert all((b, a) in directed for a, b in directed), "an edge has a triangle on one side only: a seam"
    assert len(vertices) - len(edges) // 2 + len(triangles) == 2
    a, b, c = (vertices[triangles[:, i]] for i in range(3))
    assert (np.einsum("ij,ij->i", np.cross(b - a, c - a), a + b + c) > 0).all()


def test_icosphere_has_no_pole():
    vertices, triangles = icosphere()
    lengths = np.concatenate(
        [np.linalg.norm(vertices[triangles[:, i]] - vertices[triangles[:, i - 1]], axis=1) for i in range(3)]
    )
    assert lengths.max() / lengths.min() < 1.25
    assert np.bincount(triangles.ravel()).max() == 6
    np.testing.assert_allclose(vertices.T @ vertices / len(vertices), np.eye(3) / 3, atol=1e-12)


def test_the_camera_looks_from_111_with_z_up_and_keeps_handedness():
    np.testing.assert_allclose(VIEW, np.full(3, 3**-0.5))
    np.testing.assert_allclose(np.cross(RIGHT, UP), VIEW, atol=1e-15)
    x, y, z = projected(np.eye(3))
    assert x[0] < 0 and x[1] < 0, "x at lower left"  # noqa: PT018
    assert y[0] > 0 and y[1] < 0, "y at lower right"  # noqa: PT018
    assert abs(z[0]) < 1e-15 and z[1] > 0, "z at the top"  # noqa: PT018
    np.testing.assert_allclose(projected(VIEW), [0, 0, 1], atol=1e-15)


# --- pixels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [*AXES, VIEW, RIGHT * 0.8 + 0.6 * VIEW, UP * 0.8 + 0.6 * VIEW, -VIEW], ids=str)
def test_a_bump_is_bright_where_the_camera_puts_it_and_nowhere_when_behind(paint, mean):
    inside, directions = paper()
    seen = levels_seen(paint(bump(mean)(icosphere()[0])), inside, directions)
    if mean @ VIEW < 0:
        assert seen.max() < 0.02
    else:
        assert seen.max() > 0.95
        np.testing.assert_allclose(projected(directions[seen.argmax()]), projected(mean), atol=0.05)


@pytest.mark.parametrize("direction", AXES, ids=str)
def test_every_pixel_shows_the_level_of_its_own_direction(paint, direction):
    inside, directions = paper()
    seen = levels_seen(paint((1 + icosphere()[0] @ direction) / 2), inside, directions)
    np.testing.assert_allclose(seen, (1 + directions @ direction) / 2, atol=0.025)


def test_a_constant_density_shows_one_colour_without_seam_or_pole(paint):
    inside, directions = paper()
    image = paint(np.full(len(icosphere()[0]), 0.5))
    colour = np.array(matplotlib.colormaps[COLOUR_MAP](0.5)[:3])
    expected = 255 * colour * (AMBIENT + DIFFUSE * (directions @ VIEW))[:, None]
    assert np.abs(image[inside] - expected).max() <= 2
    assert (image[0, 0] == 255).all(), "the background is white"


def test_what_is_not_a_number_is_grey(paint):
    inside, directions = paper()
    vertices = icosphere()[0]
    image = paint(np.where(vertices[:, 2] > 0.5, np.nan, 0.3))[inside]
    grey = np.ptp(image.astype(int), axis=1) < 3
    np.testing.assert_array_equal(grey[directions[:, 2] > 0.54], True)
    np.testing.assert_array_equal(grey[directions[:, 2] < 0.46], False)
    brightest = image[grey].max()
    assert abs(int(brightest) - int(MISSING[1:3], 16)) < 12


def test_each_picture_shows_its_own_density_whatever_was_painted_before(paint):
    vertices = icosphere()[0]
    first, second = (bump(mean)(vertices) for mean in np.eye(3)[:2])
    images = [paint(first), paint(second), paint(first)]
    np.testing.assert_array_equal(images[0], images[2])
    assert np.abs(images[0].astype(int) - images[1]).max() > 100


def test_both_painters_draw_the_same_picture(monkeypatch):
    levels = 0.6 * bump(np.eye(3)[0], 8.0)(icosphere()[0]) + 0.2 * (1 + icosphere()[0][:, 2])
    with sphere_painter(PIXELS) as paint:
        here = paint(levels).astype(int)
    monkeypatch.setattr(render, "_first_that_opens", lambda windows: ("matplotlib", ""))
    with sphere_painter(PIXELS) as paint:
        fallback = paint(levels).astype(int)
    inside, _ = paper()
    assert np.abs(here - fallback)[inside].max() <= 3


def test_the_one_plotter_is_closed_and_the_environment_restored_even_after_an_error(monkeypatch):
    import pyvista

    opened = []

    class Recorded(pyvista.Plotter):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            opened.append(self)

    monkeypatch.setattr(pyvista, "Plotter", Recorded)
    environment = dict(os.environ)

    def paint_and_fail():
        with sphere_painter(32) as paint:
            paint(np.zeros(len(icosphere()[0])))
            assert dict(os.environ) == environment
            raise KeyError("the caller's own")

    with pytest.raises(KeyError, match="the caller's own"):
        paint_and_fail()
    assert len(opened) == (backend() != "matplotlib")
    assert all(plotter._closed for plotter in opened)
    assert dict(os.environ) == environment


# --- which window --------------------------------------------------------------------------------------------------


def test_osmesa_is_used_where_it_works_and_its_crash_survived_where_it_does_not(monkeypatch, forget, tmp_path):
    monkeypatch.setenv(VARIABLE, "vtkOSOpenGLRenderWindow")
    child = subprocess.run([sys.executable, "-c", render._PROBE], cwd=tmp_path, capture_output=True)
    path = sphere_strip([[Panel(bump(VIEW))]], tmp_path / "sphere.png", window=64)
    assert backend() == ("osmesa" if child.returncode == 0 else "matplotlib")
    assert np.ptp(imread(path)[..., 0]) > 0.5


@pytest.mark.parametrize(
    "probe",
    ["import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "import time; time.sleep(60)", "raise SystemExit(1)"],
    ids=["crashes", "hangs", "draws nothing"],
)
def test_where_no_window_opens_matplotlib_paints_and_says_so_in_one_line(probe, monkeypatch, caplog, forget):
    monkeypatch.setattr(render, "_PROBE", probe)
    monkeypatch.setattr(render, "_PROBE_SECONDS", 1.0)
    with caplog.at_level(logging.WARNING):
        assert backend() == "matplotlib"
        assert backend() == "matplotlib"
    assert len(caplog.records) == 1
    assert "Matplotlib" in caplog.text
    assert "\n" not in caplog.records[0].getMessage()


@pytest.mark.parametrize(("window", "name"), [("vtkEGLRenderWindow", "egl"), ("vtkOSOpenGLRenderWindow", "osmesa")])
def test_the_first_window_that_opens_is_taken(window, name, monkeypatch, caplog, forget):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(render, "_PROBE", f"import os; raise SystemExit(os.environ['{VARIABLE}'] != '{window}')")
    with caplog.at_level(logging.WARNING):
        assert backend() == name
    assert not caplog.records


def test_a_window_named_in_the_environment_is_the_only_one_tried(monkeypatch, forget):
    tried = []
    monkeypatch.setattr(render, "_opens", lambda window: tried.append(window))
    monkeypatch.setenv(VARIABLE, "vtkSomeRenderWindow")
    assert backend() == "matplotlib"
    assert tried == ["vtkSomeRenderWindow"]


def test_importing_the_figures_loads_neither_vtk_nor_pyplot():
    script = (
        "import sys, meanfield.figures; print({'pyvista', 'vtkmodules', 'matplotlib.pyplot', 'jax'} & set(sys.modules))"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "set()"


# --- the colour range ----------------------------------------------------------------------------------------------


def test_the_colour_range_is_that_of_all_panels_together():
    norm = colour_norm([np.array([0.5, 1.0, np.nan]), np.array([2.0, 3.0])])
    assert (norm.vmin, norm.vmax) == (0.5, 3.0)


def test_a_robust_range_leaves_out_one_percent_by_area_at_either_end():
    height = icosphere()[0][:, 2]  # Archimedes: z is uniform on [−1, 1] by area
    norm = colour_norm([height], limits="robust")
    np.testing.assert_allclose((norm.vmin, norm.vmax), (-0.98, 0.98), atol=2e-3)


def test_a_logarithmic_range_reaches_four_decades_down_at_most():
    shallow, deep = colour_norm([np.array([0.1, 7.0])], log=True), colour_norm([np.array([-1e-9, 7.0])], log=True)
    assert isinstance(shallow, LogNorm)
    assert (shallow.vmin, shallow.vmax) == (0.1, 7.0)
    np.testing.assert_allclose((deep.vmin, deep.vmax), (7e-4, 7.0))


@pytest.mark.parametrize("log", [False, True])
def test_round_off_of_the_uniform_density_is_not_stretched_over_the_colour_map(log):
    norm = colour_norm([1 + 1e-13 * icosphere()[0][:, 0]], log=log)
    np.testing.assert_allclose((norm.vmin, norm.vmax), (0.9, 1.1))


@pytest.mark.parametrize(
    ("values", "options", "key"),
    [
        ([1.0, 2.0], {"limits": (2.0, 1.0)}, "limits"),
        ([1.0, 2.0], {"limits": (0.0, np.inf)}, "limits"),
        ([1.0, 2.0], {"limits": "most"}, "limits"),
        ([1.0, 2.0], {"limits": (0.0, 1.0), "log": True}, "limits"),
        ([-1.0, -2.0], {"log": True}, "limits"),
        ([np.nan, np.nan], {}, "density"),
    ],
)
def test_what_is_no_colour_range_is_refused(values, options, key):
    with pytest.raises(InputError) as error:
        colour_norm([np.array(values)], **options)
    assert error.value.key == key


# --- the strip -----------------------------------------------------------------------------------------------------


def sphere_centres(image, columns):
    """Pixels at the centres of the spheres of a strip of one row without labels, from its layout in inches."""
    width = image.shape[1]
    side = (width / 300 - 0.1) / columns
    y = round(300 * (0.05 + side / 2))
    return [image[y, round(300 * (0.05 + (k + 0.5) * side)), :3] for k in range(columns)]


def test_a_strip_shares_one_colour_range_and_keeps_its_panels_apart(tmp_path):
    faint = lambda x: 0.5 * bump(VIEW)(x)  # noqa: E731
    path = sphere_strip(
        [[Panel(bump(VIEW)), Panel(faint), Panel(bump(-VIEW)), None]], tmp_path / "strip.png", window=200
    )
    image = imread(path)
    assert image.shape[1] == 2100
    colours = matplotlib.colormaps[COLOUR_MAP]
    expected = [colours(1.0), colours(0.5), colours(0.0), (1, 1, 1, 1)]
    np.testing.assert_allclose(sphere_centres(image, 4), [colour[:3] for colour in expected], atol=0.03)


def test_tokens_are_drawn_where_they_face_the_viewer(tmp_path):
    def white_pixels_on_the_sphere(tokens):
        path = sphere_strip([[Panel(bump(VIEW, 0.1), tokens=tokens)]], tmp_path / "tokens.png", window=200)
        image = imread(path)
        centre, radius = round(300 * 1.7), 300 * 3.3 / 2.1 * 0.9
        rows, columns = np.indices(image.shape[:2])
        on_sphere = np.hypot(rows - centre, columns - centre) < radius
        return int((image[..., :3].min(axis=-1) > 0.95)[on_sphere].sum())

    front = np.array([[1.0, 0.2, 0.3], [0.1, 1.0, 0.4], [0.3, 0.3, 1.0]])
    assert white_pixels_on_the_sphere(None) == 0
    assert white_pixels_on_the_sphere(front) > 20
    assert white_pixels_on_the_sphere(7 * front) == white_pixels_on_the_sphere(front)
    assert white_pixels_on_the_sphere(-front) == 0


def test_labels_titles_notes_and_the_colour_bar_are_written(tmp_path):
    panels = [[Panel(bump(VIEW), title="a title", note="a note")], [Panel(bump(UP))]]
    path = sphere_strip(
        panels, tmp_path / "strip.svg", window=64, row_labels=["Post-LN", "nGPT"], column_labels=["t = 0"]
    )
    text = path.read_text()
    for words in ("a title", "a note", "Post-LN", "nGPT", "t = 0", "density w.r.t. the uniform measure"):
        assert words in text
    assert text.count("<image") >= 2


def test_the_density_is_asked_once_for_unit_vectors_all_over_the_sphere(tmp_path):
    asked = []

    def density(points):
        asked.append(points)
        return np.ones(len(points))

    sphere_strip([[Panel(density)]], tmp_path / "one.png", window=64)
    assert len(asked) == 1
    np.testing.assert_allclose(asked[0].mean(axis=0), 0, atol=1e-12)


@pytest.mark.parametrize(
    ("panels", "options", "key"),
    [
        ([], {}, "panels"),
        ([[None]], {}, "panels"),
        ([[Panel(bump(VIEW))], []], {}, "panels"),
        ([[Panel(bump(VIEW))]], {"row_labels": ["a", "b"]}, "row_labels"),
        ([[Panel(bump(VIEW))]], {"column_labels": ["a", "b"]}, "column_labels"),
        ([[Panel(bump(VIEW))] * 40], {"size": 3.4}, "size"),
        ([[Panel(bump(VIEW))]], {"size": 2.0}, "size"),
        ([[Panel(lambda x: x)]], {}, "density"),
    ],
)
def test_panels_that_make_no_strip_are_refused_and_nothing_is_written(panels, options, key, tmp_path):
    with pytest.raises(InputError) as error:
        sphere_strip(panels, tmp_path / "strip.png", window=64, **options)
    assert error.value.key == key
    assert not list(tmp_path.iterdir())


def test_a_suffix_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    def density(points):
        raise AssertionError("evaluated")

    with pytest.raises(InputError, match=r"\.png, \.pdf, \.svg"):
        sphere_strip([[Panel(density)]], tmp_path / "strip.jpeg")


def test_tokens_of_another_dimension_are_refused():
    with pytest.raises(InputError, match=r"\(k, 3\)"):
        Panel(bump(VIEW), tokens=np.ones((4, 2)))
