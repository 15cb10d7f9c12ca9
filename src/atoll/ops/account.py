"""What an operator sees and changes of accounts by the command line."""

from __future__ import annotations

from dataclasses import dataclass, replace

from atoll.domain.audit import AuditAction, Channel
from atoll.domain.identity import Account
from atoll.ops.identity import existing_account
from atoll.store import audit, identity, sandboxes
from atoll.store.database import Transaction


@dataclass(frozen=True, slots=True)
class AccountChange:
    """What is to be changed; None leaves it."""

    entitled: bool | None = None
    active_sandbox_limit: int | None = None
    takes_the_deployments_limit: bool = False
    """Gives up the account's own ceiling."""


@dataclass(frozen=True, slots=True)
class AccountReport:
    """An account with the number of its sandboxes that count toward its ceiling."""

    account: Account
    active_sandboxes: int


def list_accounts(tx: Transaction) -> list[AccountReport]:
    """Every account, by name."""
    return [AccountReport(one, sandboxes.count_active(tx, one.id)) for one in identity.list_accounts(tx)]


def change_account(tx: Transaction, account_name: str, change: AccountChange) -> AccountReport:
    """Change an account's ceiling (SA-423) or entitlement (SA-120), from the next create on. Raises `NotFound`.

    Sandboxes that are there stay, also above a lower ceiling.
    """
    account = existing_account(tx, account_name)
    limit = change.active_sandbox_limit if change.active_sandbox_limit is not None else account.active_sandbox_limit
    changed = replace(
        account,
        entitled=account.entitled if change.entitled is None else change.entitled,
        active_sandbox_limit=None if change.takes_the_deployments_limit else limit,
    )
    identity.set_admission(tx, account.id, entitled=changed.entitled, active_sandbox_limit=changed.active_sandbox_limit)
    audit.record_unattended(tx, Channel.OPERATOR, AuditAction.CHANGE_ACCOUNT, account.id, None)
    return AccountReport(changed, sandboxes.count_active(tx, account.id))
