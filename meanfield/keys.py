"""How a class declares its case keys, and the one error for a wrong value.

A class that can be written in a case file carries

    case_name: ClassVar[str]              what `kind` (or `scheme`) says in the file
    case_keys: ClassVar[dict[str, Key]]   its own keys, each the name of a constructor argument

and checks ranges in its constructor with `require`, so that the case file and the Python face refuse the same values
with the same sentence. `case.py` knows none of these classes by name.
"""

from __future__ import annotations

import dataclasses
from typing import Any

REQUIRED: Any = object()


class InputError(ValueError):
    """A wrong input: one sentence that names the key, the value and what is allowed."""

    def __init__(self, key: str, value: Any, allowed: str) -> None:
        self.key, self.value, self.allowed = key, value, allowed
        super().__init__(f"{key} = {shown(value)}: expected {allowed}")

    def under(self, section: str) -> InputError:
        """The same error with its key prefixed by the section of the case file in which it stands."""
        return InputError(f"{section}.{self.key}", self.value, self.allowed)


def shown(value: Any) -> str:
    """A value as an error message shows it: short, whatever its size."""
    text = repr(value.tolist() if hasattr(value, "tolist") else value)
    return text if len(text) <= 80 else f"{text[:60]}…"


def require(condition: bool, key: str, value: Any, allowed: str) -> None:
    """Raise InputError unless `condition` holds."""
    if not condition:
        raise InputError(key, value, allowed)


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of the case file: the Python type pydantic checks it against, what it means, its default."""

    type: Any
    meaning: str
    default: Any = REQUIRED


def described(thing: Any) -> dict[str, Any]:
    """The case keys of an object as plain TOML values, for the `case` attribute of a run made from Python.

    Keys at their default are left out. Raises TypeError if a value has no TOML form.
    """
    table: dict[str, Any] = {}
    for name, key in thing.case_keys.items():
        value = getattr(thing, name)
        value = value.tolist() if hasattr(value, "tolist") else value
        if hasattr(value, "as_case"):
            value = value.as_case()
        elif hasattr(value, "case_keys"):
            kind = {"kind": value.case_name} if hasattr(value, "case_name") else {}
            value = {**kind, **described(value)}
        if value is None or (key.default is not REQUIRED and value == key.default):
            continue
        if not isinstance(value, bool | int | float | str | list | dict):
            raise TypeError(f"{name} = {shown(value)} cannot be written as TOML")
        table[name] = value
    return table
