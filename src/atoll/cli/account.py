"""`atoll account list` and `change`: who may have how many sandboxes."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from atoll.cli.options import AsJson, DatabaseUrl, DataDir
from atoll.cli.output import emit, reported_errors
from atoll.cli.store import existing_database
from atoll.domain.errors import Invalid
from atoll.ops import account as ops
from atoll.ops.account import AccountReport, Ceiling
from atoll.settings import Settings, load_settings

app = typer.Typer(help="Accounts.", no_args_is_help=True)
_DEFAULT = "default"
_MOST = 1_000_000


@app.command("list")
def list_accounts(data_dir: DataDir, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Show every account: its id, plan, ceiling, and how many active sandboxes it has."""
    with reported_errors(as_json=as_json):
        settings = load_settings(data_dir, database_url=database_url)
        reports = asyncio.run(_list(settings))
        value = {"accounts": [_value(report, settings) for report in reports]}
        text = "\n".join(_line(report, settings) for report in reports) or "There are no accounts."
        emit(value, as_json=as_json, text=lambda: text)


@app.command("change")
def change(
    data_dir: DataDir,
    name: Annotated[str, typer.Argument(help="The account.")],
    sandbox_limit: Annotated[
        str | None, typer.Option(help="Its own ceiling of active sandboxes; `default` takes the deployment's again.")
    ] = None,
    entitled: Annotated[
        bool | None, typer.Option("--entitled/--not-entitled", help="Whether it may use sandboxes at all.")
    ] = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Change an account, also while the server runs; from the next create on. Sandboxes that are there stay."""
    with reported_errors(as_json=as_json):
        if sandbox_limit is None and entitled is None:
            raise Invalid("Say what to change: --sandbox-limit, --entitled or --not-entitled.")
        ceiling = _ceiling(sandbox_limit)
        settings = load_settings(data_dir, database_url=database_url)
        report = asyncio.run(_change(settings, name, entitled, ceiling))
        emit(_value(report, settings), as_json=as_json, text=lambda: _line(report, settings))


def _ceiling(text: str | None) -> int | Ceiling:
    if text is None:
        return Ceiling.AS_IT_IS
    if text == _DEFAULT:
        return Ceiling.OF_THE_DEPLOYMENT
    if not text.isascii() or not text.isdecimal() or int(text) > _MOST:
        raise Invalid(f"--sandbox-limit takes 0 to {_MOST}, or `default`, not {text!r}.", field="sandbox-limit")
    return int(text)


def _value(report: AccountReport, settings: Settings) -> dict[str, object]:
    account = report.account
    return {
        "accountId": account.id,
        "name": account.name,
        "plan": account.plan,
        "entitled": account.entitled,
        "sandboxLimit": account.sandbox_ceiling(settings.account_active_sandbox_limit),
        "hasOwnLimit": account.active_sandbox_limit is not None,
        "activeSandboxes": report.active_sandboxes,
    }


def _line(report: AccountReport, settings: Settings) -> str:
    account = report.account
    ceiling = account.sandbox_ceiling(settings.account_active_sandbox_limit)
    own = "its own" if account.active_sandbox_limit is not None else "the deployment's"
    barred = "" if account.entitled else "  not entitled"
    active = f"{report.active_sandboxes} of {ceiling} sandboxes ({own} ceiling)"
    return f"{account.id}  {account.name}  {account.plan}  {active}{barred}"


async def _list(settings: Settings) -> list[AccountReport]:
    async with existing_database(settings) as (database, _):
        return await database.read(ops.list_accounts)


async def _change(settings: Settings, name: str, entitled: bool | None, ceiling: int | Ceiling) -> AccountReport:
    async with existing_database(settings) as (database, _):
        return await database.write(lambda tx: ops.change_account(tx, name, entitled=entitled, ceiling=ceiling))
