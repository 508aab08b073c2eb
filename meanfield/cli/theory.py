"""`meanfield theory`: closed forms and exactly solvable cases, as tables or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

HELP = """Closed forms and exactly solvable cases: what a run can be measured against.

\b
Examples:
  meanfield theory growth --dimension 3 --beta 5
  meanfield theory equiangular --scheme peri-ln --beta 5 --tokens 256 --times 1,5,10
  meanfield theory steady --dimension 2 --beta 1,5 -o branches.h5

--json prints JSON alone on stdout. Sources are named by arXiv number; "derived" means derived for this project and
checked numerically.
"""


class Numbers(click.ParamType):
    """Comma-separated numbers, each converted by `kind`."""

    name = "numbers"

    def __init__(self, kind: type = float) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return [self.kind(part) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers like 1,5,10", param, ctx)


class Words(click.ParamType):
    """Comma-separated words."""

    name = "words"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


@click.group("theory", help=HELP)
def theory() -> None:
    """Closed forms."""


def _topic(name: str, text: str, *options: Callable) -> Callable:
    """A subcommand that prints what its function returns: (numbers of the whole, rows)."""

    def decorate(function: Callable[..., tuple[dict[str, Any], list[dict[str, Any]]]]) -> click.Command:
        def command(as_json: bool, **given: Any) -> None:
            try:
                whole, rows = function(**given)
            except ArithmeticError as problem:  # numbers out of all proportion
                raise click.ClickException(f"{name}: {problem}") from problem
            if as_json:
                shown = {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}
                document = {"topic": name, "parameters": shown, **whole, "rows": rows}
                click.echo(json.dumps(_finite(document), indent=1, allow_nan=False))
            else:
                click.echo(_text(whole, rows))

        command.__doc__ = function.__doc__
        made: Callable = click.option("--json", "as_json", is_flag=True, help="Print JSON alone.")(command)
        for option in reversed(options):
            made = option(made)
        return theory.command(name, help=text)(made)

    return decorate


class _Columns(NamedTuple):
    """A list in a row, with a label for each entry in the heading of the table."""

    labels: list[str]
    values: Any


def _at(times: Sequence[float], values: Any) -> _Columns:
    return _Columns([f"({t:g})" for t in times], values)


def _finite(value: Any) -> Any:
    """Plain Python values; NaN and infinities as null, which JSON has not."""
    if isinstance(value, _Columns):
        return _finite(value.values)
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(whole: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """Rows as aligned columns, then one line for each number of the whole."""
    lines = [list(_flat(rows[0]).keys()), *(list(map(_cell, _flat(row).values())) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(table + [f"{key}: {_cell(value)}" for key, value in whole.items()])


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """One entry for each column of the table."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, _Columns):
            flat |= {f"{key}{label}": inner for label, inner in zip(value.labels, _finite(value), strict=True)}
        elif not isinstance(value, dict):  # whole curves are for JSON and files
            flat[key] = value
    return flat


def _cell(value: Any) -> str:
    value = _finite(value)
    if isinstance(value, list):
        return ", ".join(map(_cell, value)) or "none"
    return f"{value:.10g}" if isinstance(value, float) else "-" if value is None else str(value)


DIMENSION = click.option("--dimension", type=int, default=3, show_default=True, help="d of the sphere S^(d-1).")
BETA = click.option("--beta", type=float, default=1.0, show_default=True, help="Inverse temperature.")
BETAS = click.option("--beta", "betas", type=Numbers(), default="1", show_default=True, help="One or more, like 1,5,9.")
TIMES = click.option("--times", type=Numbers(), default="1,5,10", show_default=True, help="Depths t.")
TOKENS = click.option("--tokens", type=int, default=32, show_default=True, help="Number of tokens n.")
KIND = click.option("--kind", default="softmax", show_default=True, help="softmax, unnormalized or doubly-stochastic.")
KAPPA = click.option("--kappa", type=float, help="Noise of inverse strength kappa; none when absent.")
SCHEMES = click.option("--scheme", "names", type=Words(), help="One or more schemes; all six when absent.")
SCHEME = click.option("--scheme", "name", default="post-ln", show_default=True, help="The scheme.")
RADIUS = click.option("--radius", type=float, default=1.0, show_default=True, help="Common initial radius r0.")
ALPHA = click.option("--alpha", type=float, default=1.0, show_default=True, help="Step of ngpt.")
SWITCH = click.option("--switch-time", type=float, default=1.0, show_default=True, help="Switch of mix-ln.")
LATE_LAWS = {"post-ln": "exp(-2t)", "ngpt": "alpha exp(-2 alpha t)", "sqrt-scaling": "exp(-4 sqrt t)/sqrt t"}


def _schemes(names: Sequence[str] | None, radius: float, alpha: float, switch_time: float) -> list[Any]:
    from ..theory import schemes

    return [schemes.Scheme(name, radius, alpha, switch_time) for name in names or schemes.SCHEMES]


GROWTH = """Growth of small harmonics, linearly.

Growth rates about the uniform density under Post-LN, and the fastest of them.
sigma lists sigma_l for l = 1 ... DEGREES. Q = K = V = I. Source: derived; the fastest mode on the circle agrees with 2410.23228.

Example: meanfield theory growth --dimension 2 --beta 2,5,7
"""
DEGREES = click.option("--degrees", type=click.IntRange(1, 200), default=4, show_default=True, help="Largest degree l.")


@_topic("growth", GROWTH, DIMENSION, BETAS, DEGREES, KIND, KAPPA)
def growth(dimension: int, betas: list[float], degrees: int, kind: str, kappa: float | None) -> Any:
    """σ_l against β, and where the fastest mode steps."""
    from ..theory import growth as t

    noise = math.inf if kappa is None else kappa
    rows = []
    for beta in betas:
        rates = t.growth_rates(dimension, beta, degrees, kind, noise)
        sigma = _Columns([f"_{l}" for l in range(1, degrees + 1)], rates[1:])
        rows.append({"beta": beta, "fastest_degree": t.fastest_degree(dimension, beta, kind, noise), "sigma": sigma})
    steps = [t.step_beta(dimension, l, kind) for l in range(1, degrees + 1)] if kappa is None else []
    return {"fastest_steps_up_at_beta": steps} if steps else {}, rows


AMPLIFICATION = """Growth up to a depth, by scheme.

The factor by which a small harmonic has grown at depth t, under each scheme.
Uniform density, Q = K = V = I, one common initial radius. Source: derived from the schemes of 2510.22026.

Example: meanfield theory amplification --dimension 2 --beta 2 --times 3
"""
DEGREE = click.option("--degree", type=int, default=1, show_default=True, help="Degree l of the harmonic.")


@_topic(
    "amplification", AMPLIFICATION, SCHEMES, DIMENSION, BETA, DEGREE, TIMES, KIND, KAPPA, RADIUS, ALPHA, SWITCH
)  # fmt: skip
def amplification(
    names: list[str] | None,
    dimension: int,
    beta: float,
    degree: int,
    times: list[float],
    kind: str,
    kappa: float | None,
    radius: float,
    alpha: float,
    switch_time: float,
) -> Any:
    """Growth under each scheme."""
    from ..theory import growth as t

    noise = math.inf if kappa is None else kappa
    rows = []
    for scheme in _schemes(names, radius, alpha, switch_time):
        factors = t.amplification(scheme, times, dimension, beta, degree, kind, noise)
        rows.append({"scheme": scheme.name, "factor": _at(times, factors)})
    return {"mean_attention": t.mean_attention(dimension, beta, kind)}, rows


EQUIANGULAR = """Tokens with one common cosine.

Their cosine and radius under each scheme, exact for n <= d.
Softmax, Q = K = V = I. late_law is d(cosine)/dt as t grows, up to a factor. Sources: 2510.22026, 2512.01868, derived.

Example: meanfield theory equiangular --scheme peri-ln --beta 5 --tokens 256 --times 1,5,10
"""
COSINE = click.option("--cosine", type=float, default=0.0, show_default=True, help="Cosine at t = 0.")


@_topic("equiangular", EQUIANGULAR, SCHEMES, BETA, TOKENS, TIMES, COSINE, RADIUS, ALPHA, SWITCH)
def equiangular(
    names: list[str] | None,
    beta: float,
    tokens: int,
    times: list[float],
    cosine: float,
    radius: float,
    alpha: float,
    switch_time: float,
) -> Any:
    """γ, r, initial and late speeds."""
    from ..theory import equiangular as t

    rows = []
    for scheme in _schemes(names, radius, alpha, switch_time):
        path = t.flow(scheme, beta, tokens, times, cosine)
        row = {"scheme": scheme.name}
        row["initial_speed"] = t.cosine_rate(scheme, 0.0, cosine, radius, beta, tokens)
        row |= {"late_law": LATE_LAWS.get(scheme.name, "t^-3"), "cosine": _at(times, path.cosine)}
        rows.append(row | {"radius": _at(times, path.radius), "distance": _at(times, path.distance)})
    return {}, rows


PHASE = """The phase curve of equiangular tokens.

Time at which they reach a cosine, against beta.
Softmax, Q = K = V = I. Source: 2312.10794 (n = 32, cosine 0.999, Post-LN), derived for the other schemes.

Example: meanfield theory phase --tokens 32 --beta 1,5,9
"""
TARGET = click.option("--cosine", type=float, default=0.999, show_default=True, help="The cosine to be reached.")


@_topic("phase", PHASE, SCHEME, BETAS, TOKENS, TARGET, RADIUS, ALPHA, SWITCH)
def phase(
    name: str, betas: list[float], tokens: int, cosine: float, radius: float, alpha: float, switch_time: float
) -> Any:
    """Time to a cosine against β."""
    from ..theory import equiangular as t

    (scheme,) = _schemes([name], radius, alpha, switch_time)
    return {}, [{"beta": beta, "time": t.time_to_cosine(scheme, beta, tokens, cosine)} for beta in betas]


KURAMOTO = """The exact solution at beta = 0.

Densities with one parameter |w| on a sphere of any dimension.
Post-LN is then the Kuramoto flow of the sphere; ngpt and sqrt-scaling change its clock. Source: derived.

Example: meanfield theory kuramoto --dimension 3 --parameter 0.2 --times 1,2,4
"""
PARAMETER = click.option("--parameter", type=float, default=0.2, show_default=True, help="|w| at t = 0.")


@_topic("kuramoto", KURAMOTO, SCHEME, DIMENSION, PARAMETER, TIMES, ALPHA)
def kuramoto(name: str, dimension: int, parameter: float, times: list[float], alpha: float) -> Any:
    """|w| and the order parameter at the asked depths."""
    from ..theory import kuramoto as t

    (scheme,) = _schemes([name], 1.0, alpha, 1.0)
    norms = t.parameter_norm(scheme, times, parameter, dimension)
    pairs = zip(times, norms, t.order_parameter(norms, dimension), strict=True)
    return {}, [{"t": time, "parameter": w, "order_parameter": m} for time, w, m in pairs]


CLUSTERS = """Two clusters that merge.

Time from one angle to a smaller one, against beta.
Softmax, Post-LN, any dimension; masses m and 1 - m. Source: derived.

Example: meanfield theory clusters --beta 0,5
"""
MASS = click.option("--mass", type=float, default=0.5, show_default=True, help="Mass m of one cluster.")
FROM = click.option("--initial-angle", type=float, default=math.pi / 2, help="Angle at t = 0; pi/2 when absent.")
TO = click.option("--final-angle", type=float, default=0.1, show_default=True, help="Angle at the end.")


@_topic("clusters", CLUSTERS, BETAS, MASS, FROM, TO)
def clusters(betas: list[float], mass: float, initial_angle: float, final_angle: float) -> Any:
    """Merging times."""
    from ..theory import clusters as t

    return {}, [{"beta": b, "time": t.merging_time(initial_angle, final_angle, b, mass)} for b in betas]


LONG = """Contexts of n tokens, n to infinity.

The cosine after one attention layer of n equiangular tokens, beta = gamma log n.
Attention alone, without residual. Source: derived.

Example: meanfield theory long-context --cosine 0.5 --gamma 1,2,3
"""
GAMMAS = click.option("--gamma", "gammas", type=Numbers(), default="0.5,1,2,3", show_default=True, help="beta / log n.")
BEFORE = click.option("--cosine", type=float, default=0.5, show_default=True, help="Cosine before the layer.")


@_topic("long-context", LONG, BEFORE, GAMMAS)
def long_context(cosine: float, gammas: list[float]) -> Any:
    """One layer in the limit."""
    from ..theory import finite_n as t

    rows = [{"gamma": gamma, "cosine_after": t.long_context_map(cosine, gamma)} for gamma in gammas]
    return {"critical_gamma": 1.0 / (1.0 - cosine)}, rows


NOISE = """Thresholds of the noise.

The coupling at which the uniform density turns unstable, and whether order then begins continuously.
Unnormalised attention, dX = drift dt + sqrt(2/kappa) dW. With --kappa also the order parameter at beta = 0. Sources:
2606.05140 (its coupling is K = kappa/2), derived. Beyond the threshold see `meanfield theory steady`.

Example: meanfield theory noise --dimension 2 --beta 1,5 --kappa 3
"""
KAPPAS = click.option("--kappa", "kappas", type=Numbers(), help="Couplings for the order parameter at beta = 0.")


@_topic("noise", NOISE, DIMENSION, BETAS, KAPPAS)
def noise(dimension: int, betas: list[float], kappas: list[float] | None) -> Any:
    """κ_#, β_*, and m at β = 0."""
    from ..theory import noise as t

    threshold = t.continuity_threshold(dimension)
    rows = [
        {
            "beta": beta,
            "critical_kappa": t.critical_coupling(dimension, beta),
            "transition": "continuous" if beta <= threshold else "discontinuous",
        }
        for beta in betas
    ]
    whole: dict[str, Any] = {"continuous_up_to_beta": threshold}
    if kappas:
        whole |= {"kappa_at_beta_0": kappas, "order_parameter_at_beta_0": t.order_parameter(dimension, kappas)}
    return whole, rows


FINITE = """Constants of finitely many tokens.

I.i.d. uniform tokens: fluctuations of the velocity, norm of attention, distance to the continuum.
velocity_variance is the limit of n E|v|^2; attention_norm_squared is exact as d grows (softmax); squared_distance is
E D^2 in H^-s, s = ORDER, over all degrees, "-" where it diverges. Source: derived.

Example: meanfield theory finite-n --dimension 3 --beta 2 --tokens 64,1024
"""
COUNTS = click.option("--tokens", "counts", type=Numbers(int), default="64,256,1024,4096", show_default=True, help="n.")
ORDER = click.option("--order", type=float, default=2.0, show_default=True, help="s of the H^-s distance.")


@_topic("finite-n", FINITE, DIMENSION, BETA, COUNTS, ORDER)
def finite_n(dimension: int, beta: float, counts: list[int], order: float) -> Any:
    """Constants of finite n."""
    from ..keys import require
    from ..theory import finite_n as t

    require(math.isfinite(order), "order", order, "finite")
    converges = order > (dimension - 1) / 2 and dimension <= 64
    rows = [
        {
            "tokens": n,
            "attention_norm_squared": t.uniform_attention_norm_squared(n, dimension, beta),
            "squared_distance": t.mean_squared_distance(n, [1.0], [0], dimension, order) if converges else None,
        }
        for n in counts
    ]
    variances = {f"velocity_variance_{k}": t.velocity_variance(dimension, beta, k) for k in ("softmax", "unnormalized")}
    return variances, rows


STEADY = """Stationary states with noise.

The branch of them that leaves the uniform density, its saddle-nodes and free energies.
Unnormalised attention; densities symmetric about an axis. Branches are followed by pseudo-arclength from kappa_l =
beta/a_l up to --largest-kappa; saddle-nodes and crossings of the free energy with that of the uniform density are
located to round-off. For degree 1 the transition is continuous up to beta_* and discontinuous beyond. Sources:
2606.05140 (its coupling is K = kappa/2), derived.

\b
Example:
  meanfield theory steady --dimension 2 --beta 1,5 -o branches.h5
leaves the diagram on both sides of beta_* in branches.h5: /branch_0 for beta = 1, /branch_1 for beta = 5.
"""
LARGEST = click.option("--largest-kappa", type=float, help="Where to end; twice the beginning when absent.")
SIGN = click.option("--sign", type=int, default=1, show_default=True, help="Side of an even mode in d >= 3: 1 or -1.")
OUTPUT = click.option("-o", "--output", type=click.Path(path_type=Path), help="A file for the branches.")
OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace an existing file.")


@_topic("steady", STEADY, DIMENSION, BETAS, DEGREE, SIGN, LARGEST, OUTPUT, OVERWRITE)
def steady(
    dimension: int,
    betas: list[float],
    degree: int,
    sign: int,
    largest_kappa: float | None,
    output: Path | None,
    overwrite: bool,
) -> Any:
    """Branches of stationary states."""
    from .. import steady as s
    from ..keys import require

    if output is not None:
        require(overwrite or not output.exists(), "--output", str(output), "a new file; this one exists (--overwrite)")
    found = [s.branch(dimension, b, degree, sign=sign, largest_kappa=largest_kappa) for b in betas]
    rows = []
    for one in found:
        states = one.states
        row = {"beta": states.beta[0], "critical_kappa": states.kappa[0], "points": len(states)}
        row |= {"fold_kappa": list(one.folds.kappa), "fold_order_parameter": list(one.order_parameter(one.folds))}
        row |= {"crossing_kappa": list(one.crossings.kappa)}
        row |= {"crossing_order_parameter": list(one.order_parameter(one.crossings))}
        row |= {"last_kappa": states.kappa[-1], "last_order_parameter": one.order_parameter()[-1]}
        curve = {"kappa": states.kappa, "order_parameter": one.order_parameter(), "free_energy": states.free_energy}
        rows.append(row | {"last_stable": states.stable[-1], "states": curve | {"stable": states.stable}})
    if output is not None:
        s.save(found, output, overwrite=overwrite)
    return {} if output is None else {"file": str(output)}, rows
