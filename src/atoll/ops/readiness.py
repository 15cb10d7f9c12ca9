"""Whether the database answers; what else a control plane needs is known to whoever wired it."""

from __future__ import annotations

from atoll.ops.services import Services
from atoll.store import identity


async def database_trouble(services: Services) -> str | None:
    """Why the database cannot be used, or None. Never the driver's text, which names hosts and users."""
    try:
        await services.database.read(lambda tx: identity.get_account(tx, ""))
    except Exception as error:  # whatever it is, it is the answer to the question
        return f"does not answer ({type(error).__name__})"
    return None
