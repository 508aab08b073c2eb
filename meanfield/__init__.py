"""Continuum limits of attention dynamics: token densities on the sphere under every normalisation scheme."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

# name → module that defines it; modules are imported when a name is first used, so that `meanfield --help` stays light.
_WHERE = {
    "Sphere": "geometry",
    "Circle": "geometry",
    "Zonal": "geometry",
    "Euclidean": "geometry",
    "Attention": "attention",
    "Heads": "heads",
    "RandomHeads": "heads",
    "Schedule": "schedule",
    "Noise": "noise",
    "PostLN": "normalization",
    "PreLN": "normalization",
    "MixLN": "normalization",
    "PeriLN": "normalization",
    "NGPT": "normalization",
    "SqrtScaling": "normalization",
    "Model": "model",
    "Density": "density",
    "JointDensity": "joint_density",
    "Ensemble": "ensemble",
    "ConstantRadius": "initial",
    "NormalRadius": "initial",
    "LogNormalRadius": "initial",
    "function": "initial",
    "samples": "initial",
    "frame": "initial",
    "uniform": "initial",
    "vmf_mixture": "initial",
    "kuramoto": "initial",
    "tokens": "initial",
    "perturbed_uniform": "initial",
    "equiangular": "initial",
    "orthogonal": "initial",
    "Statistics": "statistics",
    "evolve": "integrate",
    "apply_layers": "layers",
    "solve": "solve",
    "AccuracyWarning": "solve",
    "Solution": "solution",
    "Case": "case",
    "InputError": "keys",
    "PrecisionError": "precision",
    "__version__": "version",
}
_RENAMED = {"open": ("case", "open_run"), "read_case": ("case", "read")}

__all__ = [*_WHERE, *_RENAMED]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        module, attribute = _WHERE[name], name
    elif name in _RENAMED:
        module, attribute = _RENAMED[name]
    else:
        raise AttributeError(f"module 'meanfield' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{module}", __name__), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(types.ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # A function may share its name with its module (`solve`), which an import of the module, by whomever, would
        # bind here in its place: what users get is the function.
        if not (name in _WHERE and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
