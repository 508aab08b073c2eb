"""Bands over trials: the median of an observable, and the bounds of the middle 90 % of its trials."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

BANDS = np.array([0.05, 0.5, 0.95])
MEANING = "quantile over trials"


def of_trials(values: NDArray, axis: int = 0) -> NDArray:
    """Quantiles 0.05, 0.5 and 0.95 over the axis of the trials, which they take the place of."""
    return np.moveaxis(np.quantile(values, BANDS, axis=axis), 0, axis)


def layout(
    dims: Mapping[str, tuple[str, ...]], values: Mapping[str, NDArray]
) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
    """Dimensions and shape of the band of every observable that has trials and is known: name → both, without time.

    dims: of "observables/NAME", without time. values: the observables of a frame.
    """
    found = {}
    for name, value in values.items():
        own = dims[f"observables/{name}"]
        if own[:1] == ("trial",) and not np.isnan(value).all():
            found[name] = (("band", *own[1:]), (len(BANDS), *value.shape[1:]))
    return found
