"""The state at depth 0: a law of directions and radii as a density, as tokens on a quadrature, or as random tokens."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .density import Density
from .ensemble import Ensemble
from .events import Fold
from .geometry.funk_hecke import attention_degree
from .initial import ConstantRadius, Law, Tokens
from .joint_density import TAIL, JointDensity, joint_density
from .keys import require
from .model import Model
from .refinement import Rule, plain, refined
from .settings import Depths, Settings
from .stochastic import refuse_step

# Moments lose e^{2β} of relative accuracy where Z is least; up to here that leaves 1e-9.
FAST_SUMS_LARGEST_BETA = 7.0
# Below this many tokens the direct sum is as quick as moments of the usual degree.
FAST_SUMS_FEWEST_TOKENS = 256
# The recurrence of the Bessel ratios is verified up to here.
LARGEST_MOMENT_BETA = 1000.0
DEFAULT_TOKENS = 4096
# A quadrature that sees another mass than 1 by more than this does not resolve the initial density.
MASS_ACCURACY = 1e-6
# A joint density has at most so many radii, and its interval ends no nearer to 0 than this share of the least radius at the
# start: steps would shrink with it.
MOST_RADII, LEAST_RADIUS = 512, 0.2


def initial_state(
    model: Model, law: Law, radius: Any, settings: Settings, depths: Depths
) -> Density | JointDensity | Ensemble:
    """The state at t = 0 that `settings.method` asks for. InputError where law, model and method do not fit together."""
    _refuse_unfit(model, law.space, settings, depths)
    state = _state(model, law, radius, settings, depths)
    if model.noise is not None and isinstance(state, Ensemble):
        refuse_step(settings.step, float(model.noise.kappa), law.space.dimension)
    return state


def _state(
    model: Model, law: Law, radius: Any, settings: Settings, depths: Depths
) -> Density | JointDensity | Ensemble:
    space, method = law.space, settings.method
    going_on = law.ensemble()
    if going_on is not None and method != "density" and settings.tokens in (None, going_on.x.shape[-2]):
        return _going_on(model, going_on, radius, space, settings, depths)
    flows = depths.layers is None and (hasattr(radius, "density") or (model.restores and _is_unit(radius)))
    if method == "density" or (method == "auto" and law.smooth and flows):
        return _density(model, law, radius, settings, depths)
    if method in ("characteristics", "auto") and law.smooth:
        require(hasattr(space, "quadrature"), "method", method, f'"particles": {space!r} has no quadrature')
        return _characteristics(model, law, radius, settings, depths)
    return _particles(model, law, radius, settings, depths)


def _refuse_unfit(model: Model, space: Any, settings: Settings, depths: Depths) -> None:
    """Raise InputError where the model cannot act on this space, or not by this method."""
    attention, method = model.attention, settings.method
    if attention.heads is not None or attention.weights is not None:
        key = "weights" if attention.heads is None else "heads"
        require(not space.rings, key, "given", "absent in zonal geometry, where only Q = K = V = I keeps the symmetry")
    if attention.heads is not None:
        shape = list(np.shape(attention.heads.query))
        require(attention.heads.dimension == space.dimension, "heads", shape, f"matrices for d = {space.dimension}")
        own = (None, settings.trials) if method == "particles" and settings.trials > 1 else (None,)
        require(
            attention.heads.trials in own, "heads", shape, "matrices (head, row, column), or as many of them as trials"
        )
    if attention.causal:
        require(not space.rings, "causal", True, "false in zonal geometry, whose tokens are rings seen through moments")
        require(method == "particles", "method", method, '"particles" where attention is causal: tokens have an order')
    if model.noise is not None:
        require(depths.layers is None, "layers", depths.layers, "absent where there is noise: it acts on a flow")
        allowed = '"density" or "particles" where there is noise'
        require(method != "characteristics", "method", method, allowed)
        require(
            method != "particles" or not space.rings, "method", method, '"density" for noise on rings (zonal geometry)'
        )
    else:
        require(
            settings.step is None, "step", settings.step, "absent where there is no noise: steps follow the tolerances"
        )
    if depths.layers is not None:
        require(method != "density", "method", method, '"characteristics" or "particles": layers move tokens')


def _density(model: Model, law: Law, radius: Any, settings: Settings, depths: Depths) -> Density | JointDensity:
    space, method = law.space, settings.method
    require(law.smooth, "method", method, "characteristics or particles for a law that is a set of tokens")
    require(hasattr(space, "grid"), "method", method, f'"particles": {space!r} has no harmonics')
    seen = density_moment_grid(model, space, depths)
    grid = space.grid(settings.degree)
    if _is_unit(radius) and model.restores:
        return Density(grid, law.coefficients(grid), seen)
    allowed = (
        f'"characteristics" or "particles" for {model.normalization.case_name} from this radius, since one common radius other'
        " than a 1 that stays is no smooth density; or a law of radii (normal, lognormal)"
    )
    require(hasattr(radius, "density"), "method", method, allowed)
    require(model.noise is None, "noise", "given", "absent where radii have a law of their own")
    return joint_density(law, radius, grid, settings.radii, seen)


@dataclass(frozen=True)
class Continuation:
    """What a density becomes when it is no longer resolved: one of doubled degree, tokens, or nothing."""

    model: Model
    law: Law
    radius: Any
    settings: Settings
    depths: Depths

    @property
    def space(self) -> Any:
        """Where the density lives."""
        return self.law.space

    def following(self, state: Any, *, begun: bool) -> Any:
        """The same density at twice the degree, or at max_degree; beyond, with method "auto", tokens on its quadrature.

        Before the first step (not `begun`) its higher coefficients are those of the law; later they were zero. A joint
        density may need a wider interval of radii, or finer radii, instead.
        """
        degree = state.grid.degree
        if isinstance(state, JointDensity) and state.lacks() != "degree":
            return self._other_radii(state, begun)
        largest = min(self.settings.max_degree or degree, self.space.largest_degree)
        if degree < largest:
            grid = self.space.grid(min(2 * degree, largest))
            if isinstance(state, JointDensity):
                at_start = functools.partial(joint_density, self.law, self.radius, grid, len(state.radius))
                return state.of_degree(grid) if begun else at_start(state.moment_grid)
            padded = state.grid.resized(state.coefficients, grid.degree) if begun else self.law.coefficients(grid)
            return Density(grid, np.asarray(padded), state.moment_grid)
        noisy = self.model.noise is not None
        return None if self.settings.method != "auto" or noisy else self.tokens(state)

    def finer(self, centre: NDArray) -> Ensemble | None:
        """The law laid on a rule that is finer about one direction; None where the run did not begin on a quadrature, and
        where the plain rule is too coarse for the window between the two.
        """
        laid_at_first = self.settings.method in ("characteristics", "auto") and self.law.smooth
        if not (self.settings.refine and laid_at_first and hasattr(self.radius, "quadrature")):
            return None
        rule = refined(self.space, self.settings.degree, centre)
        if abs(float(rule.weights @ self.law.density(rule.nodes)) - 1) >= MASS_ACCURACY:
            return None
        return laid(rule, self.model, self.law, self.radius, self.settings, self.depths)

    def _other_radii(self, state: JointDensity, begun: bool) -> Any:
        """A joint density whose interval is wider where mass has come near its end, or whose radii are finer."""
        lack, count = state.lacks(), len(state.radius)
        least = LEAST_RADIUS * self.radius.interval(TAIL)[0]
        room = int((float(state.radius[0]) - least) / float(state.spacing))
        if 2 * count > MOST_RADII or (lack == "low" and room < 1):
            return self.tokens(state) if self.settings.method == "auto" else None
        if not begun:
            return joint_density(self.law, self.radius, state.grid, 2 * count, state.moment_grid)
        if lack == "radii":
            return state.of_finer_radii()
        more = count // 4
        return state.on_wider_interval(min(more, room), 0) if lack == "low" else state.on_wider_interval(0, more)

    def tokens(self, density: Density | JointDensity) -> Ensemble:
        """A density as tokens on a quadrature that integrates it against every moment of degree ≤ 2·degree, of radius 1 or
        at every radius of a joint density.

        Weights carry the sign of the density, which may be below 0 where it is next to nothing.
        """
        degree = 2 * density.grid.degree
        nodes, weights = self.space.quadrature(degree)
        values = np.atleast_2d(np.asarray(density.grid.evaluate(density.coefficients, nodes)))
        radius = np.asarray(density.radius if isinstance(density, JointDensity) else [1.0])
        x = (radius[:, None, None] * nodes).reshape(-1, nodes.shape[1])
        each, coarser = ((rule * values).reshape(-1) for rule in (weights, self.space.coarser(degree)))
        grid = moment_grid(self.model, self.space, len(x), self.settings, self.depths)
        return Ensemble(x, each / each.sum(), grid, coarser / coarser.sum())


def fold_mark(model: Model, law: Law, state: Any, settings: Settings) -> Fold | None:
    """The mark of a fold, for tokens with free radii that begin on a quadrature."""
    laid = isinstance(state, Ensemble) and state.coarser is not None and hasattr(law.space, "cells")
    free = any(not branch.restores for _, branch in model.segments())
    if not (laid and free and law.smooth):
        return None
    return Fold(law.space.cells(settings.degree), law.space.quadrature(settings.degree)[0])


def density_moment_grid(model: Model, space: Any, depths: Depths) -> Any:
    """The grid on whose nodes heads see a density; None for Q = K = V = I, which its own grid serves."""
    reach = _moment_reach(model, space, depths, None)
    plain = model.attention.heads is None and model.attention.weights is None
    return None if plain else space.grid(attention_degree(reach, space.dimension))


def _is_unit(radius: Any) -> bool:
    return isinstance(radius, ConstantRadius) and radius.value == 1


def _moment_reach(model: Model, space: Any, depths: Depths, trials: int | None) -> float:
    """The β of the narrowest kernel of a run. InputError where sums through moments cannot serve it."""
    reach = model.attention.reach(space.dimension, depths.final, depths.layers, trials)
    plain = model.attention.heads is None and model.attention.weights is None
    size = "" if plain else "a β for which β times the norm of KᵀQ, shown here, is "
    allowed = f"{size}at most {LARGEST_MOMENT_BETA:g} where attention goes through moments; direct sums take more"
    require(reach <= LARGEST_MOMENT_BETA, "beta", reach, allowed)
    return reach


def _characteristics(model: Model, law: Law, radius: Any, settings: Settings, depths: Depths) -> Ensemble:
    return laid(plain(law.space, settings.degree), model, law, radius, settings, depths)


def laid(rule: Rule, model: Model, law: Law, radius: Any, settings: Settings, depths: Depths) -> Ensemble:
    """A law of directions and radii as tokens: the nodes of a rule, at every radius of a quadrature of the radii."""
    density = law.density(rule.nodes)
    mass = float(rule.weights @ density)
    allowed = (
        f"larger: the quadrature sees mass {mass:.6g} instead of 1, so the initial density is not resolved"
        " (or a smaller concentration)"
    )
    require(abs(mass - 1) < MASS_ACCURACY, "degree", settings.degree, allowed)
    radii, radius_weights = radius.quadrature()
    x = (radii[:, None, None] * rule.nodes).reshape(-1, rule.nodes.shape[1])
    coarser = rule.coarser * density
    each = rule.weights * density / mass
    return Ensemble(
        x,
        np.outer(radius_weights, each).reshape(-1),
        moment_grid(model, law.space, len(x), settings, depths),
        np.outer(radius_weights, coarser / coarser.sum()).reshape(-1),
    )


def _going_on(model: Model, tokens: Tokens, radius: Any, space: Any, settings: Settings, depths: Depths) -> Ensemble:
    """The tokens of another run as they are."""
    require(radius is None, "radius", radius, "absent where tokens go on from a frame: they keep their radii")
    require(settings.trials == 1, "trials", settings.trials, "1: the tokens are those of a frame, with all its trials")
    grid = moment_grid(model, space, tokens.x.shape[-2], settings, depths)
    return Ensemble(tokens.x, tokens.weights, grid, tokens.coarser, sampled=tokens.coarser is None)


def _particles(model: Model, law: Law, radius: Any, settings: Settings, depths: Depths) -> Ensemble:
    definite = law.tokens()
    if definite is not None and settings.tokens in (None, len(definite)):
        require(settings.trials == 1, "trials", settings.trials, "1: the law is a set of definite tokens")
        lengths = np.linalg.norm(definite, axis=1, keepdims=True)
        require(bool(np.all(lengths > 0)), "tokens", settings.tokens, "tokens other than the zero vector")
        x = definite if radius is None else definite / lengths
        if radius is not None:
            x = x * radius.sample(len(x), np.random.default_rng(settings.seed))[:, None]
    else:
        count = DEFAULT_TOKENS if settings.tokens is None else settings.tokens
        trials = []
        for trial in range(settings.trials):
            rng = np.random.default_rng([settings.seed, trial])
            directions = law.sample(count, rng)
            radii = np.ones(count) if radius is None else radius.sample(count, rng)
            trials.append(directions * radii[:, None])
        x = np.stack(trials) if settings.trials > 1 else trials[0]
    count = x.shape[-2]
    grid = moment_grid(model, law.space, count, settings, depths)
    return Ensemble(x, np.full(count, 1 / count), grid, None, sampled=True)


def moment_grid(model: Model, space: Any, count: int, settings: Settings, depths: Depths) -> Any:
    """The grid of the moments through which tokens see each other, or None for the direct sum."""
    sums, trials = settings.sums, settings.trials if settings.trials > 1 else None
    if not hasattr(space, "grid"):
        require(sums != "fast", "sums", sums, f'"auto" or "direct": {space!r} has no harmonics')
        return None
    if model.attention.causal:
        require(sums != "fast", "sums", sums, '"auto" or "direct" where attention is causal')
        return None
    if space.rings:
        require(sums != "direct", "sums", sums, '"auto" or "fast" in zonal geometry, where tokens are rings')
    if sums == "direct":
        return None
    if space.rings or sums == "fast":
        return space.grid(attention_degree(_moment_reach(model, space, depths, trials), space.dimension))
    if count < FAST_SUMS_FEWEST_TOKENS:
        return None
    reach = model.attention.reach(space.dimension, depths.final, depths.layers, trials)
    if reach > FAST_SUMS_LARGEST_BETA:
        return None
    grid = space.grid(attention_degree(reach, space.dimension))
    plain = model.attention.heads is None and model.attention.weights is None
    # heads see moments as weights on the nodes, whose kernel is summed directly
    return grid if plain or count >= 2 * len(grid.weights) else None


def coarse_quadrature(model: Model, space: Any, degree: int, depths: Depths) -> str:
    """A warning where the kernel is narrower than the spacing of the nodes, which no coarser rule on them can see."""
    reach = model.attention.reach(space.dimension, depths.final, depths.layers)
    needed = attention_degree(reach, space.dimension, tolerance=1e-8)
    if needed <= 2 * degree + 1:
        return ""
    return (
        f"the quadrature of degree {degree} is too coarse for the kernel at beta = {reach:g}, which reaches degree {needed}:"
        f" the run is not accurate; use solver.degree = {-(-needed // 2)} or more"
    )
