"""`atoll token create`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from atoll.cli.options import AsJson, DatabaseUrl, DataDir
from atoll.cli.output import emit, reported_errors
from atoll.cli.store import operator_database
from atoll.domain.errors import Invalid
from atoll.domain.identity import Role, Scope, TokenKind
from atoll.ops import identity
from atoll.settings import Settings, load_settings

app = typer.Typer(help="Tokens.", no_args_is_help=True)


@app.callback()
def tokens() -> None:
    """Tokens."""


@app.command("create")
def create(
    data_dir: DataDir,
    kind: Annotated[TokenKind, typer.Option(help="What the token stands for.")] = TokenKind.USER,
    role: Annotated[Role, typer.Option(help="The role of its holder.")] = Role.ADMIN,
    scopes: Annotated[str | None, typer.Option(help="Comma-separated scopes; every scope without it.")] = None,
    account: Annotated[str, typer.Option(help="The account.")] = identity.DEFAULT_ACCOUNT,
    user: Annotated[str | None, typer.Option(help="Another user of the account, made if missing.")] = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Issue a token. Its text is shown this once."""
    with reported_errors(as_json=as_json):
        settings = load_settings(data_dir, database_url=database_url)
        issued = asyncio.run(_issue(settings, account, user, kind, role, _scopes(scopes)))
        value = {"token": issued.token, "principalId": issued.principal_id}
        emit(value, as_json=as_json, text=lambda: issued.token)


def _scopes(text: str | None) -> frozenset[str]:
    """Every scope, or those that are named. An empty list is refused: it must not come to mean all of them."""
    if text is None:
        return frozenset(str(scope) for scope in Scope)
    scopes = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not scopes:
        raise Invalid("--scopes names no scope; leave it out for every scope.", field="scopes")
    return scopes


async def _issue(
    settings: Settings, account: str, user: str | None, kind: TokenKind, role: Role, scopes: frozenset[str]
) -> identity.IssuedToken:
    async with operator_database(settings) as (database, new_id):
        return await database.write(
            lambda tx: identity.issue_token(
                tx, new_id, account_name=account, user_name=user, kind=kind, role=role, scopes=scopes
            )
        )
