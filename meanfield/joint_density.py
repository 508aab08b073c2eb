"""A smooth density of directions and radii: harmonics in direction, a Fourier grid in radius."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from .attention import Moments
from .density import Density
from .precision import float64
from .pytree import pytree

# The outermost nodes, a share of all of them, in which mass counts as near an end of the interval.
EDGE = 1 / 40
# Mass near an end comes back at the other one, and waves that the radii do not carry ring up to the ends; both count for
# more than a tail of the degrees, and waves for most, so that what is near an end is mass.
EDGE_FACTOR, WAVE_FACTOR = 1e4, 1e5
# Mass that may be left out on either side of the interval of radii.
TAIL, MARGIN = 1e-15, 0.25


@pytree
class JointDensity:
    """f(θ, r) with respect to dσ dr: coefficients (radius, mode) of its harmonics at equally spaced radii.

    The interval is periodic to the Fourier grid, so f must vanish near its ends, and r > 0 there; `resolution` watches
    that. ∂_t f + div_θ(f P_θp)/r + ∂_r(f ⟨θ,p⟩) = 0 with the push p of a scheme whose radius is free, and
    ∂_t f + div_θ(f P_θp) = 0 where the norm is restored (2510.22026). The mass is Σ_r Δr f_0(r).
    """

    grid: Any
    radius: Any
    coefficients: Any
    moment_grid: Any = None

    name: ClassVar[str] = "density"
    needed: ClassVar[tuple[str, ...]] = ("density/coefficients", "density/degree", "density/radius")
    holds_radii: ClassVar[bool] = False

    @property
    def moving(self) -> Array:
        """The array that time advances: the coefficients."""
        return self.coefficients

    def moved(self, coefficients: Any) -> JointDensity:
        """The same density with other coefficients."""
        return JointDensity(self.grid, self.radius, coefficients, self.moment_grid)

    def framed(self, frame: Mapping[str, Any]) -> JointDensity:
        """The same density with the named arrays of a frame, whose radii are 0 where it had fewer."""
        used = np.asarray(frame["density/radius"]) > 0
        coefficients = np.asarray(frame["density/coefficients"])[used]
        return JointDensity(self.grid, np.asarray(frame["density/radius"])[used], coefficients, self.moment_grid)

    @classmethod
    def from_arrays(
        cls, space: Any, frame: Mapping[str, Any], fixed: Mapping[str, Any], moment_grid: Callable[[int], Any]
    ) -> JointDensity:
        """The density that the named arrays of a file describe."""
        grid = space.grid(int(fixed["density/degree"].max()))
        empty = cls(grid, np.zeros(0), np.zeros((0, grid.size)), moment_grid(len(grid.weights)))
        return empty.framed(frame)

    @property
    def spacing(self) -> Any:
        """Δr between neighbouring radii."""
        return (self.radius[-1] - self.radius[0]) / (self.radius.shape[0] - 1)

    def marginal(self) -> Density:
        """The density of directions, ∫f dr."""
        return Density(self.grid, self.spacing * self.coefficients.sum(axis=0), self.moment_grid)

    def settled(self, previous: JointDensity) -> JointDensity:
        """Nothing is to be restored after a step."""
        return self

    def source(self) -> Moments:
        """What attention sees: the direction marginal alone."""
        return self.marginal().source()

    @property
    def points(self) -> Any:
        """The field is needed at the grid's own nodes: None where attention looks from there."""
        return None if self.moment_grid is None else self.grid.nodes

    @property
    def directions(self) -> Any:
        """The grid's nodes: (node, axis)."""
        return self.grid.nodes

    @property
    def weights(self) -> Any:
        """What integrates functions of direction over the measure: (node,)."""
        return self.marginal().weights

    def transport(self, push: Array, restores: bool) -> Array:
        """df/dt from the push at the nodes: (node, axis) → (radius, mode).

        The radial speed ⟨θ,p⟩ does not depend on the radius, so in radius every direction is advected as a whole.
        """
        theta = jnp.asarray(self.directions)
        along = jnp.sum(theta * push, axis=-1)
        velocity = push - along[:, None] * theta
        values = self.grid.synthesize(self.coefficients)
        if restores:
            return -self.grid.divergence(values[..., None] * velocity)
        turned = self.grid.divergence((values / jnp.asarray(self.radius)[:, None])[..., None] * velocity)
        stretched = self.grid.analyze(along * self._slope(values))
        return -turned - stretched

    def _slope(self, values: Array) -> Array:
        """∂_r by Fourier series: (radius, ...) → (radius, ...), with exactly no mean."""
        count = values.shape[0]
        wave = 2 * np.pi * np.arange(count // 2 + 1) / (count * self.spacing)
        wave = jnp.where(np.arange(count // 2 + 1) * 2 == count, 0.0, wave)  # the last of an even number has no slope
        spectrum = jnp.fft.rfft(values, axis=0)
        turned = 1j * wave.reshape(-1, *([1] * (values.ndim - 1))) * spectrum
        return jnp.fft.irfft(turned, n=count, axis=0)

    def error_norm(self, error: Array, rtol: Array, atol: Array) -> Array:
        """‖error‖ / (atol + rtol ‖f‖) in L²(σ × dr)."""
        size = lambda c: jnp.sqrt(self.spacing * jnp.sum(c**2))  # noqa: E731
        return size(error) / (atol + rtol * size(self.coefficients))

    @float64
    def shares(self) -> tuple[Array, Array, Array, Array]:
        """Shares of f, in L²: of the top tenth of degrees, of the top tenth of radial wavenumbers, near the lower end, near
        the upper end.
        """
        c, count = jnp.asarray(self.coefficients), self.radius.shape[0]
        total = jnp.maximum(jnp.sum(c**2), 1e-300)
        degrees = jnp.sum(c**2 * (self.grid.degrees > 0.9 * self.grid.degree))
        spectrum = jnp.abs(jnp.fft.rfft(c, axis=0)) ** 2
        top = np.arange(spectrum.shape[0]) > 0.9 * (count // 2)
        waves = jnp.sum(spectrum * top[:, None]) / jnp.maximum(jnp.sum(spectrum), 1e-300)
        edge = max(2, int(EDGE * count))
        ends = [jnp.sqrt(jnp.sum(part**2) / total) for part in (c[:edge], c[-edge:])]
        return jnp.sqrt(degrees / total), jnp.sqrt(waves), ends[0], ends[1]

    @float64
    def resolution(self) -> Array:
        """The largest of the shares in the top tenth of degrees and of radial wavenumbers, and 1,000 times those at the
        ends of the interval.
        """
        degrees, waves, low, high = self.shares()
        return jnp.maximum(jnp.maximum(degrees, waves), EDGE_FACTOR * jnp.maximum(low, high))

    def lacks(self) -> str:
        """What it is least resolved in: "degree", "radii" (their spacing), "low" or "high" (the end that mass has come to)."""
        factors = {"degree": 1.0, "radii": WAVE_FACTOR, "low": EDGE_FACTOR, "high": EDGE_FACTOR}
        shares = zip(factors, self.shares(), strict=True)
        return max(shares, key=lambda share: factors[share[0]] * float(share[1]))[0]

    @float64
    def quadrature_error(self) -> Array:
        """Not a notion of a density; NaN."""
        return jnp.asarray(np.nan)

    @float64
    def mean_direction(self) -> Array:
        """∫θ dμ: (axis,)."""
        return self.marginal().mean_direction()

    @float64
    def mean_cosine(self, order_parameter: Array) -> Array:
        """|∫θdμ|², the mean cosine of two independent tokens."""
        return order_parameter**2

    @float64
    def mass(self) -> Array:
        """∫∫ f dσ dr."""
        return self.spacing * jnp.sum(jnp.asarray(self.coefficients)[:, 0])

    @float64
    def radii(self) -> tuple[Array, Array]:
        """Mean and standard deviation of the radius."""
        weights = self.spacing * jnp.asarray(self.coefficients)[:, 0] / self.mass()
        mean = jnp.sum(weights * self.radius)
        return mean, jnp.sqrt(jnp.maximum(jnp.sum(weights * (self.radius - mean) ** 2), 0.0))

    @float64
    def min_density(self) -> Array:
        """The least nodal value of f."""
        return jnp.min(self.grid.synthesize(self.coefficients))

    def arrays(self) -> dict[str, tuple[tuple[str, ...], Any, str]]:
        """Named arrays of a frame: name → (dimensions, value, long name)."""
        meaning = "coefficients at each radius of the density with respect to the uniform probability measure times dr"
        radii = "radii of the density, equally spaced; 0 where a frame had fewer"
        return {
            "density/coefficients": (("radius", "mode"), self.coefficients, meaning),
            "density/radius": (("radius",), self.radius, radii),
        }

    def fixed_arrays(self) -> dict[str, tuple[tuple[str, ...], Any, str]]:
        """Named arrays that no frame changes."""
        return self.marginal().fixed_arrays()

    def of_degree(self, grid: Any) -> JointDensity:
        """The same density on a grid of a larger degree: padding is exact."""
        return JointDensity(
            grid, self.radius, np.asarray(self.grid.resized(self.coefficients, grid.degree)), self.moment_grid
        )

    def of_finer_radii(self) -> JointDensity:
        """The same density at twice as many radii, by its Fourier series: exact."""
        c = np.asarray(self.coefficients)
        count = len(c)
        spectrum = np.fft.rfft(c, axis=0)
        if count % 2 == 0:
            spectrum[-1] /= 2  # the last wave of an even number stands for two
        finer = 2 * np.fft.irfft(spectrum, n=2 * count, axis=0)
        radius = self.radius[0] + self.spacing / 2 * np.arange(2 * count)
        return JointDensity(self.grid, np.asarray(radius), finer, self.moment_grid)

    def on_wider_interval(self, below: int, above: int) -> JointDensity:
        """The same density with more radii of the same spacing below and above, where it is 0."""
        count = self.radius.shape[0] + below + above
        radius = self.radius[0] + self.spacing * (np.arange(count) - below)
        c = np.pad(np.asarray(self.coefficients), [(below, above), (0, 0)])
        return JointDensity(self.grid, np.asarray(radius), c, self.moment_grid)


def joint_density(law: Any, radius_law: Any, grid: Any, radii: int, moment_grid: Any = None) -> JointDensity:
    """The density of independent directions and radii on an interval that holds all radii but 1e-15 on either side.

    A quarter of that is added on either side, so that mass has room to move before the interval is widened.
    """
    low, high = radius_law.interval(TAIL)
    margin = MARGIN * (high - low)
    nodes = np.linspace(max(low - margin, low / 2), high + margin, radii)
    profile: NDArray = radius_law.density(nodes)
    profile = profile / (profile.sum() * (nodes[1] - nodes[0]))
    return JointDensity(grid, nodes, profile[:, None] * law.coefficients(grid), moment_grid)
