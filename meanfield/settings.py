"""What a run is asked for: how it is computed, at which depths, and which frames keep the state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .keys import Key, require

Method = Literal["density", "characteristics", "particles", "auto"]
Sums = Literal["auto", "fast", "direct"]
LARGEST_DEGREE = 1024
LARGEST_DEPTH = 1e9
MOST_FRAMES = 10**6


@dataclass(frozen=True)
class Settings:
    """How a run is computed: the [solver] section of a case. InputError for a value out of range."""

    method: Method = "density"
    degree: int = 64
    max_degree: int | None = None
    radii: int = 64
    refine: bool = True
    tokens: int | None = None
    trials: int = 1
    sums: Sums = "auto"
    step: float | None = None
    seed: int = 0
    rtol: float = 1e-8
    atol: float = 1e-10

    case_keys: ClassVar[dict[str, Key]] = {
        "method": Key(
            str,
            "density, characteristics (tokens on a quadrature), particles (random tokens) or auto (a density, then"
            " characteristics when it must)",
            "density",
        ),
        "degree": Key(int, "degree of the density, or of the quadrature of characteristics", 64),
        "max_degree": Key(
            int, "largest degree to which the degree of a density is doubled; its degree when absent", None
        ),
        "radii": Key(int, "number of radii of a density of directions and radii at the start", 64),
        "refine": Key(bool, "characteristics: begin again with more nodes where a void opens", True),
        "tokens": Key(int, "particles: number of random tokens; all of a token file, else 4096, when absent", None),
        "trials": Key(int, "particles: independent draws of the random tokens", 1),
        "sums": Key(str, "auto, fast (through moments) or direct (token by token)", "auto"),
        "step": Key(float, "particles with noise: the fixed step", None),
        "seed": Key(int, "seed of the random draws", 0),
        "rtol": Key(float, "relative tolerance of a step", 1e-8),
        "atol": Key(float, "absolute tolerance of a step", 1e-10),
    }

    def __post_init__(self) -> None:
        for key, kind in (("method", Method), ("sums", Sums)):
            names = get_args(kind)
            require(getattr(self, key) in names, key, getattr(self, key), "one of " + ", ".join(names))
        for key, low, high in (
            ("degree", 1, LARGEST_DEGREE),
            ("radii", 8, 512),
            ("trials", 1, 10**6),
            ("seed", 0, 2**63 - 1),
        ):
            value = getattr(self, key)
            require(_is_integer(value) and low <= value <= high, key, value, f"an integer from {low} to {high}")
        require(isinstance(self.refine, bool), "refine", self.refine, "true or false")
        if self.max_degree is not None:
            fine = _is_integer(self.max_degree) and self.degree <= self.max_degree <= LARGEST_DEGREE
            allowed = f"an integer from the degree, {self.degree}, to {LARGEST_DEGREE}"
            require(fine, "max_degree", self.max_degree, allowed)
        if self.tokens is not None:
            fine = _is_integer(self.tokens) and 1 <= self.tokens <= 10**8
            require(fine, "tokens", self.tokens, "an integer from 1 to 100000000")
        if self.step is not None:
            require(bool(np.isfinite(self.step)) and self.step > 0, "step", self.step, "a finite number above 0")
        require(0 < self.rtol <= 0.1 and self.rtol >= 1e-14, "rtol", self.rtol, "a number from 1e-14 to 0.1")
        require(0 < self.atol <= 0.1, "atol", self.atol, "a number above 0 and at most 0.1")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


@dataclass(frozen=True)
class Depths:
    """The depths of the frames, from 0 on; with a layer_step η, those of a network with layers at depths η·l."""

    times: NDArray
    layer_step: float | None = None

    @property
    def final(self) -> float:
        """The last depth."""
        return float(self.times[-1])

    @property
    def layers(self) -> int | None:
        """How many layers there are; None in a flow."""
        return None if self.layer_step is None else self.layer(len(self.times) - 1)

    def layer(self, frame: int) -> int:
        """The number of layers before a frame."""
        assert self.layer_step is not None
        return round(float(self.times[frame]) / self.layer_step)


def asked_depths(
    final_time: float | None = None,
    frames: int | None = None,
    times: ArrayLike | None = None,
    layers: int | None = None,
    layer_step: float | None = None,
) -> Depths:
    """Depths equally spaced from 0 to final_time (101 frames when not told), or the given increasing ones from 0 on; or
    those of `layers` layers of a step, one frame a layer when not told.

    InputError for numbers out of range, and where two of final_time, times and layers are given.
    """
    if layers is not None:
        return _layer_depths(final_time, frames, times, layers, layer_step)
    require(layer_step is None, "step", layer_step, "absent where there are no layers")
    if times is not None:
        require(final_time is None, "final", final_time, "absent where times are given")
        depths = np.asarray(times, dtype=float)
        fine = depths.ndim == 1 and depths.size >= 1 and bool(np.all(np.isfinite(depths)))
        require(fine and bool(np.all(np.diff(depths) > 0)), "times", times, "a list of increasing finite numbers")
        require(depths[0] >= 0, "times", times, "depths of at least 0")
        return Depths(depths if depths[0] == 0 else np.concatenate([[0.0], depths]))
    require(final_time is not None, "final", final_time, "the last depth, where no times or layers are given")
    assert final_time is not None
    fine = bool(np.isfinite(final_time)) and 0 < final_time <= LARGEST_DEPTH
    require(fine, "final", final_time, f"a number above 0 and at most {LARGEST_DEPTH:g}")
    count = 101 if frames is None else frames
    require(_is_integer(count) and 2 <= count <= MOST_FRAMES, "frames", frames, f"an integer from 2 to {MOST_FRAMES}")
    return Depths(np.linspace(0.0, final_time, count))


def _layer_depths(
    final_time: float | None, frames: int | None, times: ArrayLike | None, layers: int, step: float | None
) -> Depths:
    require(final_time is None, "final", final_time, "absent where layers are given")
    require(times is None, "times", times, "absent where layers are given")
    fine = _is_integer(layers) and 1 <= layers < MOST_FRAMES
    require(fine, "layers", layers, f"an integer from 1 to {MOST_FRAMES - 1}")
    require(step is not None, "step", step, "the step of a layer, where layers are given")
    assert step is not None
    fine = bool(np.isfinite(step)) and 0 < step <= LARGEST_DEPTH / layers
    require(fine, "step", step, f"a number above 0 with layers · step at most {LARGEST_DEPTH:g}")
    count = layers + 1 if frames is None else frames
    fine = _is_integer(count) and count >= 2 and layers % (count - 1) == 0
    require(fine, "frames", frames, f"1 more than a divisor of the {layers} layers")
    return Depths(step * (layers // (count - 1)) * np.arange(count), float(step))


def kept_frames(state: str | int, count: int) -> list[int]:
    """Indices of the frames that keep the whole state: "all", "last", or every k-th from the first, and always the last."""
    if state == "all":
        return list(range(count))
    if state == "last":
        return [count - 1]
    allowed = '"all", "last" or an integer k of at least 1 (every k-th frame)'
    require(_is_integer(state) and int(state) >= 1, "state", state, allowed)
    return sorted({*range(0, count, int(state)), count - 1})
