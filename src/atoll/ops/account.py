"""What an operator sees and changes of accounts by the command line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from atoll.domain.audit import AuditAction, Channel
from atoll.domain.identity import Account
from atoll.ops.identity import existing_account
from atoll.store import audit, identity, sandboxes
from atoll.store.database import Transaction


class Ceiling(Enum):
    """What a change of an account's ceiling may be besides a number."""

    AS_IT_IS = auto()
    """It stays."""
    OF_THE_DEPLOYMENT = auto()
    """The account's own is given up."""


@dataclass(frozen=True, slots=True)
class AccountReport:
    """An account with the number of its sandboxes that count toward its ceiling."""

    account: Account
    active_sandboxes: int


def list_accounts(tx: Transaction) -> list[AccountReport]:
    """Every account, by name."""
    return [AccountReport(one, sandboxes.count_active(tx, one.id)) for one in identity.list_accounts(tx)]


def change_account(
    tx: Transaction, account_name: str, *, entitled: bool | None, ceiling: int | Ceiling
) -> AccountReport:
    """Change an account's ceiling (SA-423) or entitlement (SA-120), from the next create on. Raises `NotFound`.

    None leaves the entitlement. Sandboxes that are there stay, also above a lower ceiling.
    """
    account = existing_account(tx, account_name)
    if entitled is None:
        entitled = account.entitled
    match ceiling:
        case Ceiling.AS_IT_IS:
            limit = account.active_sandbox_limit
        case Ceiling.OF_THE_DEPLOYMENT:
            limit = None
        case _:
            limit = ceiling
    changed = replace(account, entitled=entitled, active_sandbox_limit=limit)
    identity.set_admission(tx, account.id, entitled=entitled, active_sandbox_limit=limit)
    audit.record_unattended(tx, Channel.OPERATOR, AuditAction.CHANGE_ACCOUNT, account.id, None)
    return AccountReport(changed, sandboxes.count_active(tx, account.id))
