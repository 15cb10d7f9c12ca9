"""`atoll token create`, `list` and `revoke`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from atoll.cli.options import AsJson, DatabaseUrl, DataDir
from atoll.cli.output import emit, reported_errors
from atoll.cli.store import existing_database
from atoll.domain.errors import Invalid
from atoll.domain.identity import Role, Scope, TokenKind
from atoll.domain.times import rfc3339
from atoll.ops import identity
from atoll.settings import Settings, load_settings
from atoll.store.identity import TokenRecord

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


@app.command("list")
def list_tokens(
    data_dir: DataDir,
    account: Annotated[str | None, typer.Option(help="Of this account only.")] = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show every token: whose it is and what it may do, never its text. Oldest first."""
    with reported_errors(as_json=as_json):
        settings = load_settings(data_dir, database_url=database_url)
        records = asyncio.run(_list(settings, account))
        value = {"tokens": [_record(record) for record in records]}
        emit(value, as_json=as_json, text=lambda: "\n".join(map(_line, records)) or "There are no tokens.")


@app.command("revoke")
def revoke(
    data_dir: DataDir,
    token_id: Annotated[str | None, typer.Argument(help="The id that atoll token list shows.")] = None,
    from_stdin: Annotated[
        bool, typer.Option("--stdin", help="Read the token itself from standard input instead.")
    ] = False,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a token good for nothing, at once, also while the server runs. What it started goes on."""
    with reported_errors(as_json=as_json):
        if (token_id is None) is not from_stdin:
            raise Invalid("Give the id of a token, or --stdin and the token there.", field="token-id")
        token = sys.stdin.readline().strip() if from_stdin else None
        settings = load_settings(data_dir, database_url=database_url)
        revoked = asyncio.run(_revoke(settings, token_id, token))
        emit({"tokenId": revoked, "revoked": True}, as_json=as_json, text=lambda: f"Revoked {revoked}.")


def _record(record: TokenRecord) -> dict[str, object]:
    restriction = record.restriction
    bound = (
        None
        if restriction is None
        else {
            name: sorted(ids)
            for name, ids in (
                ("apps", restriction.apps),
                ("regions", restriction.regions),
                ("templates", restriction.templates),
            )
            if ids is not None
        }
    )
    return {
        "tokenId": record.id,
        "principalId": record.user_id,
        "kind": record.kind,
        "account": record.account_name,
        "user": record.user_name,
        "role": record.role,
        "scopes": list(record.scopes),
        "restrictedTo": bound,
        "createdAt": rfc3339(record.created_at),
        "revokedAt": None if record.revoked_at is None else rfc3339(record.revoked_at),
    }


def _line(record: TokenRecord) -> str:
    state = "revoked" if record.revoked_at else "active "
    scopes = "every scope" if set(record.scopes) == set(Scope) else ",".join(record.scopes)
    bound = "" if record.restriction is None else "  restricted"
    made = rfc3339(record.created_at)
    whose = f"{record.account_name}/{record.user_name}"
    return f"{record.id}  {state}  {made}  {whose}  {record.kind} {record.role}  {scopes}{bound}"


async def _list(settings: Settings, account: str | None) -> list[TokenRecord]:
    async with existing_database(settings) as (database, _):
        return await database.read(lambda tx: identity.list_tokens(tx, account))


async def _revoke(settings: Settings, token_id: str | None, token: str | None) -> str:
    async with existing_database(settings) as (database, _):
        return await database.write(lambda tx: identity.revoke_token(tx, token_id=token_id, token=token))


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
    async with existing_database(settings) as (database, new_id):
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
