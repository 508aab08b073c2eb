"""`meanfield theory`: printed values through the command, JSON alone on stdout, one-line errors."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from meanfield import steady
from meanfield.cli import main
from meanfield.theory import SCHEMES

TOPICS = (
    "growth", "amplification", "equiangular", "phase", "kuramoto", "clusters", "long-context", "noise", "finite-n", "steady"
)  # fmt: skip


def status(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(("theory", *arguments))
    return int(ended.value.code or 0)


@pytest.fixture
def rows(capsys: pytest.CaptureFixture):
    """The document that a command prints with --json, which is all it prints."""

    def run(text: str) -> dict:
        assert status(*text.split(), "--json") == 0
        output = capsys.readouterr()
        assert output.err == ""
        return json.loads(output.out)

    return run


def near(values, digits):
    return pytest.approx(values, abs=0.51 * 10.0**-digits)


class TestPrintedValues:
    def test_growth_rates_and_the_fastest_mode(self, rows):
        document = rows("growth --dimension 2 --beta 5,7 --degrees 5")
        assert document["rows"][0]["sigma"][:4] == near([0.178677, 0.514117, 0.682678, 0.600089], 6)
        assert [row["fastest_degree"] for row in document["rows"]] == [3, 4]
        assert document["fastest_steps_up_at_beta"][:2] == near([1.04446, 3.16543], 5)
        assert document["fastest_steps_up_at_beta"][2:] == near([6.2113, 10.2285, 15.2363], 4)

    def test_noise_lowers_every_rate_and_the_fastest_degree(self, rows):
        quiet, noisy = (rows(f"growth --dimension 3 --beta 5 {extra}")["rows"][0] for extra in ("", "--kappa 10"))
        l = np.arange(1, 5)
        np.testing.assert_allclose(np.subtract(quiet["sigma"], noisy["sigma"]), l * (l + 1) / 10, rtol=1e-13)
        assert (quiet["fastest_degree"], noisy["fastest_degree"]) == (3, 1)

    def test_amplification_under_every_scheme(self, rows):
        found = {
            row["scheme"]: row["factor"][0] for row in rows("amplification --dimension 2 --beta 2 --times 3")["rows"]
        }
        printed = {"post-ln": 2.848128, "pre-ln": 1.758785, "peri-ln": 2.0, "ngpt": 4.481689, "sqrt-scaling": 2.009276}
        assert set(found) == set(SCHEMES)
        for name, value in printed.items():
            assert found[name] == near(value, 6)

    def test_equiangular_flow(self, rows):
        document = rows("equiangular --scheme peri-ln,ngpt --beta 5 --tokens 256 --times 1,5,10")
        peri, ngpt = document["rows"]
        assert peri["cosine"] == near([0.03904774, 0.67423703, 0.90923118], 8)
        assert ngpt["cosine"] == near([0.11608112, 0.99917937, 0.99999996], 8)
        assert peri["initial_speed"] == pytest.approx(2 / math.sqrt(math.exp(10) + 255), rel=1e-13)
        assert ngpt["radius"] == [1.0, 1.0, 1.0]
        np.testing.assert_allclose(np.add(peri["cosine"], peri["distance"]), 1.0, rtol=1e-15)

    def test_phase_curve(self, rows):
        times = [row["time"] for row in rows("phase --tokens 32 --beta 1,5,9")["rows"]]
        assert times[:2] == near([5.270284, 9.544329], 6)
        assert times[2] == near(178.73093, 5)

    @pytest.mark.parametrize(
        ("dimension", "printed"), [(2, [0.3189650, 0.4851828, 0.8334562]), (3, [0.4747501, 0.7347274, 0.9809040])]
    )
    def test_kuramoto_family(self, rows, dimension, printed):
        document = rows(f"kuramoto --dimension {dimension} --parameter 0.2 --times 1,2,4")
        assert [row["order_parameter"] for row in document["rows"]] == near(printed, 7)

    def test_merging_clusters(self, rows):
        assert [row["time"] for row in rows("clusters --beta 0,5")["rows"]] == near([2.994898, 18.615308], 6)

    def test_long_contexts(self, rows):
        document = rows("long-context --cosine 0.5 --gamma 1.9,2,2.1")
        assert [row["cosine_after"] for row in document["rows"]] == [1.0, 0.8, 0.5]
        assert document["critical_gamma"] == 2.0

    @pytest.mark.parametrize(("dimension", "printed"), [(2, 2.44691831), (3, 1.81615453), (8, 1.26655302)])
    def test_thresholds_of_the_noise(self, rows, dimension, printed):
        document = rows(f"noise --dimension {dimension} --beta 1,5 --kappa 3")
        assert document["continuous_up_to_beta"] == near(printed, 8)
        assert [row["transition"] for row in document["rows"]] == ["continuous", "discontinuous"]
        if dimension == 2:
            assert [row["critical_kappa"] for row in document["rows"]] == near([1.769413, 0.205460], 6)
            assert document["order_parameter_at_beta_0"] == near([0.72415872], 8)
        if dimension == 3:
            assert document["rows"][0]["critical_kappa"] == pytest.approx(math.e, rel=1e-14)

    def test_constants_of_finitely_many_tokens(self, rows):
        document = rows("finite-n --dimension 3 --beta 2 --tokens 1,10")
        assert document["velocity_variance_unnormalized"] == near(2.56072, 5)
        assert document["velocity_variance_softmax"] == near(0.77868, 5)
        one, ten = (row["squared_distance"] for row in document["rows"])
        assert one == pytest.approx(10 * ten, rel=1e-14)

    def test_a_sum_that_diverges_is_null(self, rows):
        assert rows("finite-n --dimension 8 --tokens 4")["rows"][0]["squared_distance"] is None

    def test_the_bifurcation_diagram_on_both_sides_of_beta_star(self, rows, tmp_path):
        path = tmp_path / "branches.h5"
        below, above = rows(f"steady --dimension 2 --beta 1,5 -o {path}")["rows"]
        assert below["fold_kappa"] == below["crossing_kappa"] == []
        assert (below["critical_kappa"], above["critical_kappa"]) == near((1.769413, 0.205460), 6)
        assert above["fold_kappa"] == near([0.184301], 6)
        assert (above["crossing_kappa"][0], above["crossing_order_parameter"][0]) == near((0.1879758, 0.7480310), 7)
        stored = steady.read_branches(path)
        for row, branch in zip((below, above), stored, strict=True):
            assert row["states"]["kappa"] == list(branch.states.kappa)
            assert row["states"]["order_parameter"] == list(branch.order_parameter())
            assert row["states"]["stable"] == list(branch.states.stable)


class TestTables:
    def test_a_table_has_a_heading_and_the_numbers_of_the_whole(self, capsys):
        assert status("growth", "--dimension", "2", "--beta", "2,5", "--degrees", "2") == 0
        heading, two, five, steps = capsys.readouterr().out.splitlines()
        assert heading.split() == ["beta", "fastest_degree", "sigma_1", "sigma_2"]
        assert two.split() == ["2", "2", "0.348887329", "0.6044506841"]
        assert five.startswith("5 ")
        assert steps == "fastest_steps_up_at_beta: 1.044456862, 3.165434443"

    @pytest.mark.parametrize("topic", TOPICS)
    def test_every_topic_works_as_it_stands_and_its_help_names_a_source(self, topic, capsys):
        assert status(topic) == 0
        assert len(capsys.readouterr().out.splitlines()) >= 2
        assert status(topic, "--help") == 0
        text = capsys.readouterr().out
        assert "Source" in text
        assert f"meanfield theory {topic}" in text

    def test_the_help_of_the_group_lists_every_topic(self, capsys):
        assert status("--help") == 0
        text = capsys.readouterr().out
        for topic in TOPICS:
            assert f"\n  {topic} " in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("growth --beta -1", ("beta", "-1", "zero or more")),
        ("growth --beta nan", ("beta",)),
        ("growth --beta 1,x", ("--beta", "1,x")),
        ("growth --dimension 1", ("dimension", "at least 2")),
        ("growth --kind linear", ("kind", "softmax")),
        ("growth --beta 800 --kind unnormalized", ("beta", "overflows")),
        ("amplification --scheme rms-ln", ("scheme", "rms-ln", "peri-ln")),
        ("amplification --beta 0 --scheme ngpt", ("beta", "more than zero")),
        ("equiangular --times 1,-2", ("times", "zero or more")),
        ("equiangular --tokens 1", ("tokens", "at least 2")),
        ("phase --cosine 1", ("cosine",)),
        ("kuramoto --scheme pre-ln", ("scheme", "pre-ln", "post-ln, ngpt, sqrt-scaling")),
        ("kuramoto --parameter 1", ("parameter",)),
        ("clusters --mass 0", ("mass",)),
        ("clusters --final-angle 3", ("final_angle", "at most initial_angle")),
        ("long-context --gamma -1", ("gamma",)),
        ("long-context --cosine 1", ("cosine",)),
        ("noise --kappa 0", ("kappa", "positive")),
        ("finite-n --tokens 1.5", ("--tokens", "1.5")),
        ("finite-n --order nan", ("order", "finite")),
        ("steady --beta 5 --largest-kappa 0.1", ("largest_kappa", "0.1")),
        ("steady --beta 5 -o here/branch.h5", ("path", "folder")),
        ("steady --beta 5 -o there.h5", ("there.h5", "--overwrite")),
        ("nothing", ("nothing",)),
    ],
)
def test_wrong_input_ends_with_2_and_one_line(
    arguments: str,
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.h5").write_text("precious")
    assert status(*arguments.split()) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    for word in words:
        assert word in output.err
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("there.h5", "precious")]


def test_overwrite_replaces_a_file(tmp_path, capsys):
    path = tmp_path / "branch.h5"
    for extra, expected in (((), 0), ((), 2), (("--overwrite",), 0)):
        assert status("steady", "--dimension", "2", "--beta", "1", "-o", str(path), *extra) == expected
    assert len(steady.read_branches(path)) == 1
