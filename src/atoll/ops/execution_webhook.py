"""The execution webhook of a sandbox: checked and sealed when it is created, opened for each delivery."""

from __future__ import annotations

from atoll.domain.errors import AtollError, Invalid
from atoll.domain.webhook import WebhookTarget, parse_target
from atoll.ops.services import Services
from atoll.outbound.destinations import HostNotPublic
from atoll.store import webhooks
from atoll.store.database import Transaction
from atoll.store.webhooks import SealedTarget


async def check_host(services: Services, target: WebhookTarget) -> None:
    """Refuse a host that leads into a private network (SA-295).

    One that cannot be looked up now is accepted: nothing is sent before an attempt has looked it up again (SA-321).
    """
    try:
        await services.destinations.check(target.host)
    except HostNotPublic:
        raise Invalid(
            "The host of the URL leads to an address that is not public.", field="executionWebhook.url"
        ) from None


def keep_target(tx: Transaction, services: Services, sandbox_id: str, target: WebhookTarget) -> None:
    """Store it with its new sandbox; the URL and the secret sealed (SA-297)."""
    sealed = SealedTarget(
        url=services.sealer.seal(target.url.encode(), _context("url", sandbox_id)),
        secret=services.sealer.seal(target.secret.encode(), _context("secret", sandbox_id)),
    )
    webhooks.add_target(tx, sandbox_id, sealed)


async def open_target(services: Services, sandbox_id: str) -> WebhookTarget:
    """Read and open it. Raises `AtollError` when it cannot be opened."""
    sealed = await services.database.read(lambda tx: webhooks.get_target(tx, sandbox_id))
    if sealed is None:
        raise AtollError("the webhook of a sandbox is gone")
    url = services.sealer.open(sealed.url, _context("url", sandbox_id)).decode()
    secret = services.sealer.open(sealed.secret, _context("secret", sandbox_id)).decode()
    return parse_target(url, secret)


def _context(column: str, sandbox_id: str) -> str:
    return f"execution_webhooks.{column}:{sandbox_id}"
