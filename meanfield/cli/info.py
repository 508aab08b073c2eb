"""`meanfield info`: what a file holds."""

from __future__ import annotations

import json
from pathlib import Path

import click

HELP = """Say what a file of a run holds; works while the run goes on.

Example: meanfield info run.h5 --json
"""


@click.command("info", help=HELP)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def info(file: Path, as_json: bool) -> None:
    """Say what a file holds."""
    from .. import store

    facts = store.info(file)
    if as_json:
        click.echo(json.dumps(_finite(facts), indent=1))
        return
    click.echo(f"{facts['path']}: {facts['status']}, frame {facts['frames_written']} of {facts['frames_asked']}")
    if facts["message"]:
        click.echo(facts["message"])
    for name in ("created", "meanfield_version", "versions", "platform", "cores", "seed"):
        click.echo(f"{name:>18}  {facts.get(name, '')}")
    if facts["events"]:
        click.echo("events")
        for event in facts["events"]:
            click.echo(f"{event['kind']:>34}  t = {event['time']:.10g}, value {event['value']:.6g}")
    click.echo("arrays")
    for name, shape in facts["arrays"].items():
        click.echo(f"{name:>34}  {' × '.join(map(str, shape)) or 'scalar'}")
    if facts["last"]:
        click.echo(f"observables at depth t = {facts['reached_depth']:g}")
        for name, value in facts["last"].items():
            shown = f"{value:.10g}" if isinstance(value, float) else _several(value)
            click.echo(f"{name:>34}  {shown}")


def _several(values: list) -> str:
    first = ", ".join(f"{v:.6g}" if isinstance(v, float) else "[…]" for v in values[:3])
    return f"[{first}{', …' if len(values) > 3 else ''}]"


def _finite(value: object) -> object:
    """NaN and infinities as null: JSON has neither."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
