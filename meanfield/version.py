"""The version of the package, from its metadata."""

from __future__ import annotations

import importlib.metadata

__version__ = importlib.metadata.version("meanfield")
