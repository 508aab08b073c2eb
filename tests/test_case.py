"""Case files: every wrong key and value is one sentence that names it; text → case → text."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meanfield as mf
from meanfield.case import SECTIONS, TIME_KEYS, Case, from_document, parsed, read, set_keys
from meanfield.document import case_text, described_depths, refuse_other_case
from meanfield.initial import LAWS, ConstantRadius, Law
from meanfield.keys import InputError
from meanfield.normalization import SCHEMES
from meanfield.settings import Depths, Settings
from meanfield.shipped import find_case, shipped_cases

HERE = Path(__file__).parent

DOCUMENT: dict[str, Any] = {
    "title": "two clouds",
    "geometry": {"kind": "sphere"},
    "attention": {"kind": "softmax", "beta": 2.0},
    "normalization": {"scheme": "ngpt", "alpha": 0.5, "switch_time": 2.0},
    "initial": {
        "kind": "vmf-mixture",
        "means": [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]],
        "concentrations": [2.0, 3.0],
        "radius": {"kind": "constant", "value": 1.0},
    },
    "solver": {"method": "density", "degree": 12, "rtol": 1e-6},
    "time": {"final": 1.0, "frames": 3},
    "output": {"state": 2},
}


def case(changes: dict[str, Any] | None = None) -> Case:
    return from_document(set_keys(DOCUMENT, changes or {}), HERE)


class TestShippedCases:
    def test_there_are_some_and_each_has_its_own_title(self):
        titles = [read(path).title for path in shipped_cases().values()]
        assert len(titles) >= 2
        assert len(set(titles)) == len(titles)
        assert all(titles)

    @pytest.mark.parametrize("name", sorted(shipped_cases()))
    def test_every_one_parses_and_round_trips(self, name):
        chosen = read(find_case(name))
        assert isinstance(chosen.model, mf.Model)
        assert from_document(tomllib.loads(chosen.text), Path("/nowhere")).text == chosen.text

    def test_names_with_and_without_folder_and_suffix(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        expected = shipped_cases()["three_bumps"]
        for name in ("three_bumps", "three_bumps.toml", "cases/three_bumps", "cases/three_bumps.toml", str(expected)):
            assert find_case(name).samefile(expected)

    def test_a_misspelt_name_is_answered_with_the_nearest(self):
        with pytest.raises(InputError, match=r"did you mean three_bumps\?"):
            find_case("three_bump")


class TestWhatACaseSays:
    def test_objects(self):
        chosen = case()
        assert chosen.title == "two clouds"
        assert chosen.model.attention.beta == 2.0
        assert isinstance(chosen.model.normalization, mf.NGPT)
        assert chosen.model.normalization.alpha == 0.5
        np.testing.assert_array_equal(chosen.law.means, [[1, 0, 0], [0, 1, 0]])
        assert isinstance(chosen.radius, ConstantRadius)
        assert chosen.settings == Settings(degree=12, rtol=1e-6)
        np.testing.assert_array_equal(chosen.times, [0.0, 0.5, 1.0])
        assert chosen.state == 2

    def test_the_smallest_case(self):
        chosen = from_document({"attention": {"beta": 1.0}, "time": {"final": 1.0}}, HERE)
        assert isinstance(chosen.model.normalization, mf.PostLN)
        assert len(chosen.times) == 101
        assert chosen.settings == Settings()

    def test_integers_are_taken_for_floats_but_not_the_other_way(self):
        assert case({"attention.beta": 2}).model.attention.beta == 2
        with pytest.raises(InputError, match=r"solver\.degree = 12\.0: expected a valid integer"):
            case({"solver.degree": 12.0})

    @pytest.mark.parametrize("scheme", [cls.case_name for cls in SCHEMES])
    def test_keys_of_other_schemes_may_stand_beside_but_are_checked(self, scheme):
        assert case({"normalization.scheme": scheme}).model.normalization.case_name == scheme
        with pytest.raises(InputError, match=r"normalization\.alpha"):
            case({"normalization.scheme": scheme, "normalization.alpha": "big"})
        with pytest.raises(InputError, match=r"normalization\.switch_time"):
            case({"normalization.scheme": scheme, "normalization.switch_time": True})

    def test_times_instead_of_final(self):
        chosen = case({"time": {"times": [0.5, 2.0]}})
        np.testing.assert_array_equal(chosen.times, [0.0, 0.5, 2.0])

    def test_changes_leave_the_case_alone(self):
        chosen = case()
        assert chosen.changed({"solver.degree": 20}).settings.degree == 20
        assert chosen.settings.degree == 12
        assert chosen.changed({"normalization": None}).model.normalization.case_name == "post-ln"
        assert DOCUMENT["solver"]["degree"] == 12


WRONG: list[tuple[str, Any, str]] = [
    ("title", 3, "title"),
    ("geometry", 3, "geometry"),
    ("geometry.kind", "torus", "geometry.kind"),
    ("geometry.kind", ["sphere"], "geometry.kind"),
    ("attention.beta", -1.0, "attention.beta"),
    ("attention.beta", "hot", "attention.beta"),
    ("attention.beta", float("nan"), "attention.beta"),
    ("attention.beta", float("inf"), "attention.beta"),
    ("attention.beta", True, "attention.beta"),
    ("attention.beta", None, "attention.beta"),  # absent
    ("attention.kind", "hard", "attention.kind"),
    ("normalization.scheme", "batch-norm", "normalization.scheme"),
    ("normalization.scheme", 4, "normalization.scheme"),
    ("normalization.scheme", [], "normalization.scheme"),
    ("normalization.alpha", 0.0, "normalization.alpha"),
    ("initial.kind", "vmf", "initial.kind"),
    ("initial.means", [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]], "initial.means"),
    ("initial.means", [[1.0, 0.0], [0.0, 1.0]], "initial.means"),
    ("initial.means", [], "initial.means"),
    ("initial.means", [[1.0, 0.0, "z"], [0.0, 1.0, 0.0]], "initial.means[0][2]"),
    ("initial.means", [[1.0], [0.0, 1.0]], "initial.means"),
    ("initial.concentrations", [2.0], "initial.concentrations"),
    ("initial.concentrations", [2.0, -1.0], "initial.concentrations"),
    ("initial.concentrations", [2.0, float("nan")], "initial.concentrations"),
    ("initial.concentrations", 2.0, "initial.concentrations"),
    ("initial.weights", [1.0], "initial.weights"),
    ("initial.weights", [0.0, 0.0], "initial.weights"),
    ("initial.weights", [-1.0, 2.0], "initial.weights"),
    ("initial.radius", 2.0, "initial.radius"),
    ("initial.radius.kind", "cauchy", "initial.radius.kind"),
    ("initial.radius.value", 0.0, "initial.radius.value"),
    ("initial.radius.value", "one", "initial.radius.value"),
    ("solver.method", "magic", "solver.method"),
    ("solver.degree", 0, "solver.degree"),
    ("solver.degree", 10**6, "solver.degree"),
    ("solver.degree", True, "solver.degree"),
    ("solver.tokens", 0, "solver.tokens"),
    ("solver.tokens", "all", "solver.tokens"),
    ("solver.trials", 0, "solver.trials"),
    ("solver.sums", "slow", "solver.sums"),
    ("solver.seed", -1, "solver.seed"),
    ("solver.rtol", 0.0, "solver.rtol"),
    ("solver.rtol", 1.0, "solver.rtol"),
    ("solver.atol", float("nan"), "solver.atol"),
    ("time.final", 0.0, "time.final"),
    ("time.final", None, "time.final"),  # absent
    ("time.frames", 1, "time.frames"),
    ("time.frames", 3.0, "time.frames"),
    ("time.times", [0.0, 1.0], "time.final"),  # both
    ("time.times", "often", "time.times"),
    ("output.state", "none", "output.state"),
    ("output.state", 0, "output.state"),
    ("output.state", 1.5, "output.state"),
]


class TestWhatIsRefused:
    @pytest.mark.parametrize(("dotted", "value", "key"), WRONG)
    def test_a_wrong_value_is_named_with_what_is_allowed(self, dotted, value, key):
        with pytest.raises(InputError) as caught:
            case({dotted: value})
        # a union type names its member behind the key
        assert caught.value.key.startswith(key)
        assert caught.value.allowed
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400

    @pytest.mark.parametrize(
        ("dotted", "near"),
        [
            ("atention", "attention"),
            ("attention.bta", "beta"),
            ("normalization.alfa", "alpha"),
            ("initial.concentration", "concentrations"),
            ("initial.radius.valu", "value"),
            ("solver.degre", "degree"),
            ("solver.rtoll", "rtol"),
            ("time.frame", "frames"),
            ("output.states", "state"),
        ],
    )
    def test_an_unknown_key_is_answered_with_the_nearest(self, dotted, near):
        with pytest.raises(InputError, match=rf"did you mean {near}\?") as caught:
            case({dotted: 1})
        assert caught.value.key == dotted

    @pytest.mark.parametrize("section", SECTIONS[1:])
    def test_every_section_refuses_a_key_of_none(self, section):
        with pytest.raises(InputError) as caught:
            case({f"{section}.zzz": 1})
        assert caught.value.key == f"{section}.zzz"

    @pytest.mark.parametrize(("kind", "near"), [("vmf-mixtur", "vmf-mixture"), ("unifrm", "uniform")])
    def test_a_misspelt_kind(self, kind, near):
        with pytest.raises(InputError, match=rf"did you mean {near}\?"):
            case({"initial.kind": kind})

    def test_files_that_are_no_cases(self, tmp_path):
        with pytest.raises(InputError, match="No such file"):
            read(tmp_path / "no.toml")
        with pytest.raises(InputError, match="directory"):
            read(tmp_path)
        (tmp_path / "bad.toml").write_text("[attention\nbeta = 1")
        with pytest.raises(InputError, match=r"valid TOML.*line 1"):
            read(tmp_path / "bad.toml")
        (tmp_path / "latin.toml").write_bytes(b'title = "\xe9"')
        with pytest.raises(InputError, match="not UTF-8"):
            read(tmp_path / "latin.toml")
        with pytest.raises(InputError, match="valid TOML"):
            parsed("a = " + "[" * 10_000)

    def test_a_key_below_a_value(self):
        with pytest.raises(InputError, match="title is none"):
            case({"title.x": 1})


WORDS = sorted(
    {
        *SECTIONS,
        *Settings.case_keys,
        *TIME_KEYS,
        *mf.Attention.case_keys,
        *(name for cls in (*LAWS, *SCHEMES) for name in (cls.case_name, *cls.case_keys)),
        *("kind", "scheme", "radius", "value", "state", "sphere", "circle", "zonal", "dimension", "x"),
    }
)
# Sizes stay small: what is tested is that a value is judged, not that a large case fits into memory.
SCALARS = st.one_of(
    st.none().map(lambda _: "x"),
    st.booleans(),
    st.integers(-3, 40),
    st.sampled_from([-(10**400), 10**400, 2**63]),
    st.floats(-100, 100),
    st.sampled_from([float("nan"), float("inf"), -float("inf"), 1e308, 5e-324]),
    st.sampled_from(WORDS),
    st.text(max_size=5),
    st.dates(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=5,
)
DOTTED = st.sampled_from([f"{section}.{key}" for section in SECTIONS[1:] for key in WORDS] + list(SECTIONS))
ENTRIES = sorted({dotted for dotted, _, _ in WRONG})


class TestAnyDocument:
    def judge(self, document: dict[str, Any]) -> None:
        """Whatever is raised is an InputError with a key, in one line."""
        refused = None
        try:
            from_document(document, HERE)
        except InputError as problem:
            refused = problem
        assert refused is None or (refused.key and "\n" not in str(refused))

    @pytest.mark.slow
    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.dictionaries(st.sampled_from(SECTIONS), VALUES, max_size=4))
    def test_a_random_document_is_a_case_or_one_sentence(self, document):
        self.judge(document)

    @pytest.mark.slow
    @settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.dictionaries(st.one_of(st.sampled_from(ENTRIES), DOTTED), VALUES, min_size=1, max_size=3))
    def test_a_case_with_random_changes_is_a_case_or_one_sentence(self, changes):
        try:
            document = set_keys(DOCUMENT, changes)
        except InputError:
            return
        self.judge(document)

    @settings(max_examples=300, deadline=None)
    @given(st.text(max_size=60))
    def test_a_random_text_is_a_document_or_one_sentence(self, text):
        try:
            answer = type(parsed(text)).__name__
        except InputError as refused:
            answer = str(refused)
        assert answer == "dict" or "valid TOML" in answer


class TestText:
    def test_text_to_case_to_text(self):
        text = case().text
        again = from_document(tomllib.loads(text), HERE)
        assert again.text == text
        assert tomllib.loads(text) == DOCUMENT

    def test_token_files_are_relative_to_the_case_and_absolute_in_the_run(self, tmp_path, monkeypatch):
        (tmp_path / "cases").mkdir()
        np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((4, 3)))
        document = {
            "attention": {"beta": 1.0},
            "initial": {"kind": "tokens", "file": "../x.npy"},
            "solver": {"method": "particles"},
            "time": {"final": 1.0},
        }
        file = tmp_path / "cases" / "mine.toml"
        file.write_text(tomli_w.dumps(document))
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        text = read(file).text
        assert tomllib.loads(text)["initial"]["file"] == str(tmp_path / "x.npy")
        assert read(Path("../cases/mine.toml")).text == text

    def test_a_run_from_python_writes_a_case_that_says_the_same(self):
        law = mf.vmf_mixture(mf.Sphere(), [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]], [2.0, 3.0])
        model = mf.Model(mf.Attention(2.0), mf.NGPT(0.5))
        wanted = Settings(degree=12, rtol=1e-6)
        text = case_text(model, law, ConstantRadius(), wanted, Depths(np.linspace(0.0, 1.0, 3)), 2)
        chosen = from_document(tomllib.loads(text), HERE)
        assert chosen.settings == wanted
        assert chosen.state == 2
        assert chosen.model.normalization.alpha == 0.5
        np.testing.assert_array_equal(chosen.law.means, law.means)
        np.testing.assert_array_equal(chosen.law.weights, law.weights)
        np.testing.assert_array_equal(chosen.times, [0.0, 0.5, 1.0])

    @pytest.mark.parametrize(
        ("law", "kind"),
        [
            (mf.uniform(mf.Sphere()), "uniform"),
            (mf.kuramoto(mf.Sphere(), 0.3), "kuramoto"),
            (mf.equiangular(mf.Euclidean(4), 0.2, 3), "equiangular"),
            (mf.orthogonal(mf.Euclidean(5)), "orthogonal"),
        ],
    )
    @pytest.mark.parametrize("scheme", [cls() for cls in SCHEMES], ids=lambda scheme: scheme.case_name)
    def test_every_law_and_scheme_can_be_written(self, law, kind, scheme):
        text = case_text(
            mf.Model(mf.Attention(1.0), scheme), law, None, Settings(), Depths(np.array([0.0, 0.3, 1.0])), "all"
        )
        chosen = from_document(tomllib.loads(text), HERE)
        assert chosen.law.case_name == kind
        assert chosen.law.space.dimension == law.space.dimension
        assert type(chosen.model.normalization) is type(scheme)
        np.testing.assert_array_equal(chosen.times, [0.0, 0.3, 1.0])

    def test_a_law_that_no_case_can_name_has_no_text_and_cannot_be_resumed(self):
        class Own(Law):
            pass

        model = mf.Model(mf.Attention(1.0), mf.PostLN())
        assert case_text(model, Own(mf.Sphere()), None, Settings(), Depths(np.array([0.0, 1.0])), "all") == ""
        with pytest.raises(InputError, match="cannot be resumed"):
            refuse_other_case("", "x = 1")

    def test_depths_are_written_so_that_they_come_back_bit_for_bit(self):
        rng = np.random.default_rng(0)
        for _ in range(50):
            final, count = rng.uniform(0.1, 50), int(rng.integers(2, 40))
            section = described_depths(Depths(np.linspace(0.0, final, count)))
            assert section == {"final": final, "frames": count}
        uneven = np.cumsum(rng.random(7))
        assert described_depths(Depths(uneven)) == {"times": uneven.tolist()}

    def test_another_title_is_no_other_case(self):
        refuse_other_case('title = "a"\n[time]\nfinal = 1.0', 'title = "b"\n[time]\nfinal = 1.0')
        with pytest.raises(InputError, match=r"time\.final = 2\.0: expected 1\.0, as the file"):
            refuse_other_case("[time]\nfinal = 1.0", "[time]\nfinal = 2.0")


def test_the_numbers_of_other_schemes_are_checked_as_their_own():
    text = "[attention]\nbeta = 1.0\n[time]\nfinal = 1.0\n"
    with pytest.raises(InputError, match=r"^normalization\.alpha = -5"):
        from_document(parsed(text + "[normalization]\nscheme = 'post-ln'\nalpha = -5.0\n"), Path())
