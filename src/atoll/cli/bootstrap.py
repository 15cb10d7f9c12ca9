"""`atoll bootstrap` and `atoll app create`: make an account that can be worked with."""

from __future__ import annotations

import asyncio
from decimal import Decimal, InvalidOperation
from typing import Annotated

import typer

from atoll.cli.options import AsJson, DatabaseUrl, DataDir
from atoll.cli.output import emit, progress, reported_errors
from atoll.cli.store import existing_database, operator_database
from atoll.data_dir import with_the_servers_images
from atoll.domain.billing import MICROS, MOST_MICROS, Plan
from atoll.domain.errors import Invalid
from atoll.drivers.gvisor.images import ImageStore
from atoll.drivers.gvisor.images.default_image import ensure_default_image
from atoll.ops import identity
from atoll.settings import Settings, load_settings

apps = typer.Typer(help="Apps: groups of sandboxes inside an account.", no_args_is_help=True)


def bootstrap(
    data_dir: DataDir,
    account: Annotated[str, typer.Option(help="The account to make or find.")] = identity.DEFAULT_ACCOUNT,
    plan: Annotated[
        Plan | None, typer.Option(case_sensitive=False, help="How the account pays; DIRECT unless it is set once.")
    ] = None,
    credit: Annotated[
        str | None, typer.Option(help="Credits granted in all, in the deployment's currency, such as 25.00.")
    ] = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make or find an account, its admin, app and default template, and issue a token with every scope.

    Idempotent, before or while serving: the ids stay, the token is a fresh one each time. Builds the default image when
    it is missing.
    """
    with reported_errors(as_json=as_json):
        settings = load_settings(data_dir, database_url=database_url)
        result = asyncio.run(_bootstrap(settings, account, plan, _micros(credit)))
        value = {
            "token": result.token,
            "accountId": result.account_id,
            "userId": result.user_id,
            "appId": result.app_id,
            "templateId": result.template_id,
            "region": settings.regions[0].name,
        }
        emit(value, as_json=as_json, text=lambda: "\n".join(f"{key:<11} {item}" for key, item in value.items()))


def _micros(credit: str | None) -> int | None:
    if credit is None:
        return None
    try:
        micros = Decimal(credit) * MICROS
    except InvalidOperation:
        micros = Decimal("NaN")
    if not micros.is_finite() or not 0 <= micros <= MOST_MICROS or micros != int(micros):
        raise Invalid(f"--credit takes a decimal with at most six places, not {credit!r}.", field="credit")
    return int(micros)


async def _bootstrap(
    settings: Settings, account: str, plan: Plan | None, credit_micros: int | None
) -> identity.Bootstrapped:
    image_digest = await _default_image(settings)
    async with operator_database(settings) as (database, new_id):
        return await database.write(
            lambda tx: identity.bootstrap(
                tx,
                new_id,
                account_name=account,
                image_digest=image_digest,
                image_ref="atoll/default",
                plan=plan,
                credit_micros=credit_micros,
            )
        )


async def _default_image(settings: Settings) -> str:
    store = ImageStore.from_settings(with_the_servers_images(settings))
    return await ensure_default_image(store, progress=progress)


@apps.command("create")
def create_app(
    data_dir: DataDir,
    name: Annotated[str, typer.Option(help="The name of the app.")],
    account: Annotated[str, typer.Option(help="The account that it belongs to.")] = identity.DEFAULT_ACCOUNT,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make or find an app and print its id."""
    with reported_errors(as_json=as_json):
        settings = load_settings(data_dir, database_url=database_url)
        app_id = asyncio.run(_create_app(settings, account, name))
        emit({"appId": app_id}, as_json=as_json, text=lambda: app_id)


async def _create_app(settings: Settings, account_name: str, name: str) -> str:
    async with existing_database(settings) as (database, new_id):
        app = await database.write(lambda tx: identity.create_app(tx, new_id, account_name, name))
        return app.id
