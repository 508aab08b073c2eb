"""`meanfield cases`: the cases that ship."""

from __future__ import annotations

import json

import click

HELP = """List the cases that ship, with their titles.

Example: meanfield cases
"""


@click.command("cases", help=HELP)
@click.option("--json", "as_json", is_flag=True, help="Print name, title and path as JSON.")
def cases(as_json: bool) -> None:
    """List the cases that ship."""
    import tomllib

    from ..shipped import shipped_cases

    rows = []
    for name, path in shipped_cases().items():
        title = tomllib.loads(path.read_text(encoding="utf-8")).get("title", "")
        rows.append({"name": name, "title": title, "path": str(path)})
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        click.echo(f"{row['name']:<{width}}  {row['title']}")
