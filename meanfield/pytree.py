"""The one decorator that makes a frozen dataclass a JAX pytree.

`jax.tree_util.register_dataclass` is not used: in JAX 0.10.2 two classes with the same number of fields get *equal*
tree definitions, and `jit` may then run the code compiled for the other class. `register_pytree_with_keys` puts the
class itself into the tree definition, so two classes never compare equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


def static(**options: Any) -> Any:
    """A dataclass field that belongs to the tree definition: hashable, never traced, a new value compiles anew."""
    return dataclasses.field(metadata={"static": True}, **options)


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def pytree(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass whose fields are pytree children, except those declared with `static()`.

    Rebuilding inside JAX bypasses `__init__`, so `__post_init__` may validate what a user passes and never sees
    the placeholder objects of a tree transformation. Equality is identity, as arrays have no single truth value.
    """
    cls = dataclasses.dataclass(frozen=True, eq=False)(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    children = tuple(f.name for f in fields if not f.metadata.get("static"))
    statics = tuple(f.name for f in fields if f.metadata.get("static"))
    keys = tuple(jax.tree_util.GetAttrKey(name) for name in children)

    def flatten_with_keys(tree: T) -> tuple[tuple[Any, ...], tuple[Hashable, ...]]:
        pairs = tuple((key, getattr(tree, name)) for key, name in zip(keys, children, strict=True))
        return pairs, tuple(getattr(tree, name) for name in statics)

    def flatten(tree: T) -> tuple[tuple[Any, ...], tuple[Hashable, ...]]:
        return tuple(getattr(tree, name) for name in children), tuple(getattr(tree, name) for name in statics)

    def unflatten(aux: tuple[Hashable, ...], values: Any) -> T:
        tree = object.__new__(cls)
        for name, value in zip(children, values, strict=True):
            object.__setattr__(tree, name, value)
        for name, value in zip(statics, aux, strict=True):
            object.__setattr__(tree, name, value)
        return tree

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
