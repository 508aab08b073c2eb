"""Every closed form says where it comes from."""

import inspect

import pytest

from meanfield.theory import clusters, equiangular, finite_n, growth, kuramoto, noise

FORMULAS = [
    function
    for module in (clusters, equiangular, finite_n, growth, kuramoto, noise)
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__ and not name.startswith(("_", "require_"))
]


@pytest.mark.parametrize("function", FORMULAS, ids=lambda function: f"{function.__module__}.{function.__name__}")
def test_a_closed_form_names_its_source(function):
    assert "Source:" in inspect.getdoc(function)
