"""The entry point: gathers the commands."""

from __future__ import annotations

from typing import Annotated

import typer

from atoll import __version__
from atoll.cli import account, bootstrap, doctor, image, mcp, serve, teardown, token
from atoll.cli.options import AsJson
from atoll.cli.output import emit

app = typer.Typer(
    name="atoll",
    help="A self-hosted cloud for AI agents: isolated sandboxes and durable sessions.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.serve)
app.command("bootstrap")(bootstrap.bootstrap)
app.command("teardown")(teardown.teardown)
app.command("mcp")(mcp.mcp)
app.command("doctor")(doctor.doctor)
app.add_typer(account.app, name="account")
app.add_typer(token.app, name="token")
app.add_typer(image.app, name="image")
app.add_typer(bootstrap.apps, name="app")


def _print_version(wanted: bool) -> None:
    if wanted:
        emit({}, as_json=False, text=lambda: f"atoll {__version__}")
        raise typer.Exit


@app.callback()
def main(
    show: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """A self-hosted cloud for AI agents: isolated sandboxes and durable sessions."""


@app.command("version")
def version(as_json: AsJson = False) -> None:
    """Print the version."""
    emit({"version": __version__}, as_json=as_json, text=lambda: __version__)


if __name__ == "__main__":
    app()
