"""The shape of the package: imports run downward, files stay short, public functions are typed, nothing is global."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "meanfield"
FILES = sorted(PACKAGE.rglob("*.py"))
LONGEST_FILE = 500
# These stand above everything: they open the package to its users.
DOORS = {"meanfield", "meanfield.__main__"}


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {module_name(file): ast.parse(file.read_text(encoding="utf-8"), str(file)) for file in FILES}
IS_PACKAGE = {module_name(file): file.name == "__init__.py" for file in FILES}


def layers() -> list[list[str]]:
    """The order of docs/architecture.md: the block of arrows, lowest first."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = next(block for block in re.findall(r"```\n(.*?)```", text, re.DOTALL) if "←" in block)
    return [[name.strip() for name in layer.split(",")] for layer in block.split("←")]


def imported_modules(module: str) -> set[str]:
    """Modules of the package that `module` imports anywhere, inside functions too."""
    found = set()
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            found |= {longest_module(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            up = node.level - (1 if IS_PACKAGE[module] else 0)
            start = base[: len(base) - up] if node.level else []
            target = ".".join([*start, *([node.module] if node.module else [])])
            found |= {longest_module(f"{target}.{alias.name}") for alias in node.names}
    return {name for name in found if name.split(".")[0] == "meanfield"} - {module}


def longest_module(dotted: str) -> str:
    """The module of `dotted`, which may end in names that the module defines, or which may not be there."""
    parts = dotted.split(".")
    prefixes = [".".join(parts[:count]) for count in range(len(parts), 1, -1)]
    return next((prefix for prefix in prefixes if prefix in TREES), ".".join(parts[:2]))


def layer_of(module: str) -> int:
    """The rank of a module, that of its package for the modules of a package."""
    name = module.split(".")[1]
    rank = next((rank for rank, names in enumerate(layers()) if name in names), None)
    assert rank is not None, f"docs/architecture.md does not say where {name} stands"
    return rank


IMPORTS = {module: imported_modules(module) for module in TREES}


def test_every_module_has_a_place_in_the_order():
    ordered = {name for layer in layers() for name in layer}
    assert {module.split(".")[1] for module in TREES if module not in DOORS} <= ordered


@pytest.mark.parametrize("module", sorted(set(TREES) - DOORS))
def test_imports_run_downward_only(module):
    package = module.split(".")[1]
    for other in IMPORTS[module]:
        assert other not in DOORS, f"{module} imports {other}, which stands above it"
        assert other.split(".")[1] == package or layer_of(other) < layer_of(module), f"{module} imports {other}"


def test_no_module_imports_itself_by_a_detour():
    TopologicalSorter(IMPORTS).prepare()


def test_an_upward_import_inside_a_function_would_be_seen(monkeypatch):
    lazy = ast.parse("def f():\n    from .integrate import evolve\n    import meanfield.observables")
    monkeypatch.setitem(TREES, "meanfield.keys", lazy)
    assert imported_modules("meanfield.keys") == {"meanfield.integrate", "meanfield.observables"}
    assert layer_of("meanfield.keys") < layer_of("meanfield.observables") < layer_of("meanfield.integrate")


def test_only_the_store_knows_hdf5():
    users = {
        module
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "h5py" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "h5py")
    }
    assert {".".join(user.split(".")[:2]) for user in users} <= {"meanfield.store"}


def test_no_file_is_long():
    files = [*FILES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "data").rglob("*.py")]
    lengths = {str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def test_every_file_bears_the_name_of_an_idea():
    assert not {file.stem for file in FILES} & {"utils", "util", "helpers", "common", "misc", "tools"}


def public_functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """Functions of a module and methods of its classes whose names do not begin with an underscore."""
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    functions = [node for body in bodies for node in body if isinstance(node, ast.FunctionDef)]
    return [function for function in functions if not function.name.startswith("_")]


@pytest.mark.parametrize("module", sorted(TREES))
def test_every_public_function_is_typed(module):
    untyped = []
    for function in public_functions(TREES[module]):
        given = function.args
        arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        named = [a for a in arguments if a is not None and a.arg not in ("self", "cls")]
        if function.returns is None or any(a.annotation is None for a in named):
            untyped.append(f"{function.name} (line {function.lineno})")
    assert untyped == []


def modules_that_can_be_imported() -> list[str]:
    """Modules all of whose imports from the package, direct and indirect, are there."""
    missing = {module for module, others in IMPORTS.items() if others - set(TREES)}
    while more := {module for module, others in IMPORTS.items() if others & missing} - missing:
        missing |= more
    return sorted(set(TREES) - missing)


IMPORT_ALL = """
import json, sys
import jax, numpy, matplotlib
def settings():
    return {**jax.config.values, **numpy.geterr(), **matplotlib.rcParams}
before = settings()
import importlib, meanfield
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
after = settings()
changed = [name for name in after if name not in before or repr(before[name]) != repr(after[name])]
arrays = [
    f"{module.__name__}.{name}"
    for module in list(sys.modules.values()) if module.__name__.startswith("meanfield")
    for name, value in vars(module).items() if isinstance(value, jax.Array)
]
print(json.dumps([changed, arrays, jax.config.jax_enable_x64, "vtk" in sys.modules or "vtkmodules" in sys.modules]))
"""


def test_importing_every_module_changes_no_global_setting_and_holds_no_device_array():
    modules = modules_that_can_be_imported()
    assert {"meanfield.integrate", "meanfield.geometry.sphere"} <= set(modules)
    command = [sys.executable, "-c", IMPORT_ALL, json.dumps(modules)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    changed, arrays, x64, vtk = json.loads(done.stdout.splitlines()[-1])
    assert changed == []
    assert arrays == []
    assert not x64
    assert not vtk
