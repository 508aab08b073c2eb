"""Our classes are pytrees that JAX tells apart: one compiled function, many classes, each its own result."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import itertools
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from meanfield.attention import Attention
from meanfield.keys import InputError
from meanfield.normalization import NGPT, SCHEMES, MixLN, PostLN
from meanfield.pytree import pytree, static

ROOT = Path(__file__).parent.parent
TREES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(file.read_text("utf-8"))
    for file in sorted((ROOT / "meanfield").rglob("*.py"))
}


def our_classes() -> list[type]:
    """Every class of the package that the decorator makes a pytree."""
    return [
        getattr(importlib.import_module(module), node.name)
        for module, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and any(ast.unparse(mark) == "pytree" for mark in node.decorator_list)
    ]


CLASSES = our_classes()


def alike(cls: type) -> Any:
    """An instance with children 0.0 and static fields 0, so that only the class tells it apart."""
    tree = object.__new__(cls)
    for field in dataclasses.fields(cls):
        object.__setattr__(tree, field.name, 0 if field.metadata.get("static") else 0.0)
    return tree


def test_the_walk_finds_the_schemes_the_states_and_the_model():
    names = {cls.__name__ for cls in CLASSES}
    assert {cls.__name__ for cls in SCHEMES} < names
    assert {"Attention", "Moments", "Tokens", "Density", "Ensemble", "Model", "SphereGrid"} <= names


def test_tree_definitions_are_pairwise_different():
    definitions = [jax.tree.structure(alike(cls)) for cls in CLASSES]
    for (i, first), (j, second) in itertools.product(enumerate(definitions), repeat=2):
        assert (first == second) == (i == j), f"{CLASSES[i].__name__} and {CLASSES[j].__name__}"


def test_two_trees_of_one_class_have_one_tree_definition():
    assert jax.tree.structure(NGPT(1.0)) == jax.tree.structure(NGPT(2.0))
    assert hash(jax.tree.structure(NGPT(1.0))) == hash(jax.tree.structure(NGPT(2.0)))


def test_one_compiled_function_gives_each_class_its_own_result_in_every_order():
    for trial in range(5):
        which = jax.jit(lambda tree: CLASSES.index(type(tree)))
        for index in np.random.default_rng(trial).permutation(np.repeat(np.arange(len(CLASSES)), 2)):
            assert which(alike(CLASSES[index])) == index


def test_one_compiled_function_gives_each_of_six_schemes_its_own_push():
    # six pushes and flags, told apart by what they do to θ ⊥ A with ‖A‖ = 2 at t = 3
    theta, A, t = np.array([1.0, 0.0]), np.array([0.0, 2.0]), 3.0
    expected = {
        "post-ln": (True, [0, 2]),
        "pre-ln": (False, [0, 2]),
        "mix-ln": (False, [0, 4]),
        "peri-ln": (False, [0, 1]),
        "ngpt": (True, [-0.5, 0.5]),
        "sqrt-scaling": (True, [0, 1]),
    }
    schemes = [cls(0.5) if cls is NGPT else cls() for cls in SCHEMES]
    for trial in range(5):
        pushes = jax.jit(lambda s: (s.restores, sum(branch.push(theta, A, t) for branch in s.branches())))
        for index in np.random.default_rng(trial).permutation(np.repeat(np.arange(6), 3)):
            restores, push = pushes(schemes[index])
            assert (bool(restores), push.tolist()) == expected[schemes[index].case_name]


def test_a_static_field_belongs_to_the_tree_definition_and_a_child_does_not():
    softmax, unnormalized = Attention(2.0), Attention(2.0, normalized=False)
    assert jax.tree.leaves(softmax) == jax.tree.leaves(unnormalized) == [2.0]
    assert jax.tree.structure(softmax) != jax.tree.structure(unnormalized)
    kind = jax.jit(lambda attention: attention.beta if attention.normalized else -attention.beta)
    assert [kind(softmax), kind(unnormalized), kind(Attention(3.0)), kind(softmax)] == [2.0, -2.0, 3.0, 2.0]
    assert kind._cache_size() == 2


@pytree
class Counted:
    """Counts how often a user's values are checked."""

    value: Any
    shift: int = static(default=1)

    checks: ClassVar[list] = []

    def __post_init__(self) -> None:
        self.checks.append(self.value)


def test_values_are_checked_when_a_user_gives_them_and_never_when_jax_rebuilds():
    tree = Counted(1.0)
    jax.tree.map(lambda leaf: object(), tree)
    jax.jit(lambda t: jax.tree.map(lambda leaf: leaf + t.shift, t))(tree)
    jax.grad(lambda t: t.value**2)(tree)
    jax.vmap(lambda t: t.value)(jax.tree.map(lambda leaf: np.ones(3), tree))
    assert Counted.checks == [1.0]
    with pytest.raises(InputError, match="switch_time = -1"):
        MixLN(-1.0)
    assert jax.tree.map(lambda leaf: -1.0, MixLN(1.0)).switch_time == -1.0


def test_a_rebuilt_tree_is_of_the_same_class_with_the_same_static_fields():
    tree = Counted(2.0, shift=7)
    rebuilt = jax.tree.unflatten(jax.tree.structure(tree), [5.0])
    assert (type(rebuilt), rebuilt.value, rebuilt.shift) == (Counted, 5.0, 7)
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    assert [(jax.tree_util.keystr(path), leaf) for path, leaf in paths] == [(".value", 2.0)]


def test_trees_are_frozen_and_equal_to_themselves_alone():
    scheme = PostLN()
    assert scheme == scheme
    assert scheme != PostLN()
    with pytest.raises(dataclasses.FrozenInstanceError):
        Attention(1.0).beta = 2.0


def test_the_registration_whose_tree_definitions_collide_is_used_nowhere():
    for module, tree in TREES.items():
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert "register_dataclass" not in names, module
