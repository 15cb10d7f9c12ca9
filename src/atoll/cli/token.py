"""`atoll token create`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
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
    restrict_account: Annotated[
        bool, typer.Option("--restrict-account", help="Bind the token to this account alone.")
    ] = False,
    restrict_app: Annotated[
        list[str] | None, typer.Option(help="Bind it to this app, by id; repeat for more. Implies --restrict-account.")
    ] = None,
    restrict_region: Annotated[list[str] | None, typer.Option(help="Bind it to this region; repeat for more.")] = None,
    restrict_template: Annotated[
        list[str] | None, typer.Option(help="Bind it to this template, by id; repeat for more.")
    ] = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Issue a token. Its text is shown this once.

    A restricted token gets 403 for whatever is outside; this is how an MCP client is kept to what it is for.
    """
    with reported_errors(as_json=as_json):
        settings = load_settings(data_dir, database_url=database_url)
        chosen = identity.Restrict(
            apps=frozenset(restrict_app or ()),
            regions=_regions(settings, restrict_region or ()),
            templates=frozenset(restrict_template or ()),
        )
        restrict = chosen if restrict_account or chosen != identity.Restrict() else None
        issued = asyncio.run(_issue(settings, account, user, kind, role, _scopes(scopes), restrict))
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


def _regions(settings: Settings, names: Iterable[str]) -> frozenset[str]:
    known = {region.name for region in settings.regions}
    for name in names:
        if name not in known:
            raise Invalid(
                f"There is no region {name!r}; there are {', '.join(sorted(known))}.", field="restrict-region"
            )
    return frozenset(names)


async def _issue(
    settings: Settings,
    account: str,
    user: str | None,
    kind: TokenKind,
    role: Role,
    scopes: frozenset[str],
    restrict: identity.Restrict | None,
) -> identity.IssuedToken:
    async with operator_database(settings) as (database, new_id):
        return await database.write(
            lambda tx: identity.issue_token(
                tx,
                new_id,
                account_name=account,
                user_name=user,
                kind=kind,
                role=role,
                scopes=scopes,
                restrict=restrict,
            )
        )
