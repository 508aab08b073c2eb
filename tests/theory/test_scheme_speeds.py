"""The table of schemes: speeds, radial rates, and what is refused."""

import math

import numpy as np
import pytest

from meanfield.keys import InputError
from meanfield.theory import SCHEMES, Scheme


@pytest.mark.parametrize(
    ("name", "speed", "radial_rate"),
    [
        ("post-ln", 1.0, 0.0),
        ("pre-ln", 3.0, 0.4),
        ("peri-ln", 3.0 * 0.5, 0.4 / 0.5),
        ("ngpt", 0.5 / 2.0, 0.0),
        ("sqrt-scaling", math.sqrt(8.0), 0.0),
    ],
)
def test_one_row_of_the_table(name, speed, radial_rate):
    scheme = Scheme(name, alpha=2.0)
    assert scheme.speed(7.0, 3.0, 0.5) == speed
    assert scheme.radial_rate(7.0, 0.4, 0.5) == radial_rate


def test_mix_ln_is_post_ln_up_to_and_at_tau_then_pre_ln():
    mix, post, pre = (Scheme(name, switch_time=2.0) for name in ("mix-ln", "post-ln", "pre-ln"))
    for t, same in ((1.0, post), (2.0, post), (2.0 + 1e-12, pre), (9.0, pre)):
        assert mix.speed(t, 3.0, 0.5) == same.speed(t, 3.0, 0.5)
        assert mix.radial_rate(t, 0.4, 0.5) == same.radial_rate(t, 0.4, 0.5)
    assert [(start, end, branch.name) for start, end, branch in mix.branches()] == [
        (0.0, 2.0, "post-ln"),
        (2.0, math.inf, "pre-ln"),
    ]
    assert [branch.name for *_, branch in Scheme("mix-ln", switch_time=0.0).branches()] == ["pre-ln"]


def test_alpha_may_be_a_function_of_depth():
    scheme = Scheme("ngpt", alpha=lambda t: 2.0 + math.cos(t))
    t = np.array([[0.0, 1.0], [2.5, 10.0]])
    np.testing.assert_allclose(scheme.alpha_integral(t), 2.0 * t + np.sin(t), rtol=1e-13)
    np.testing.assert_array_equal(Scheme("ngpt", alpha=0.5).alpha_integral(t), 0.5 * t)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"name": "rms-ln"}, "scheme"),
        ({"name": "pre-ln", "initial_radius": 0.0}, "initial_radius"),
        ({"name": "ngpt", "alpha": -1.0}, "alpha"),
        ({"name": "mix-ln", "switch_time": -0.1}, "switch_time"),
        ({"name": "mix-ln", "switch_time": math.nan}, "switch_time"),
    ],
)
def test_a_wrong_scheme_is_refused_by_key(arguments, key):
    with pytest.raises(InputError) as error:
        Scheme(**arguments)
    assert error.value.key == key


def test_an_unknown_name_lists_the_six():
    with pytest.raises(InputError, match=", ".join(SCHEMES)):
        Scheme("layer-norm")
