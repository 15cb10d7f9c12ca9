"""What sandbox usage costs, by an account's plan. Pure; amounts are exact decimals in the deployment's own currency."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

SANDBOX_MULTIPLE = 3
"""Sandbox usage is charged at this many times the regional zCloud rate (SA-374)."""
MICROS = 1_000_000
"""Credits are kept in whole millionths, so that both databases add them exactly."""
MOST_MICROS = 10**15
"""The largest grant of credits: a thousand million."""
_SECONDS_AN_HOUR = 3_600
_SMALLEST = Decimal(1) / MICROS


class Plan(StrEnum):
    """How an account pays. Both can use sandboxes (SA-002)."""

    DIRECT = "DIRECT"
    """For what it uses."""
    CONNECT = "CONNECT"
    """By its licence: its sandboxes run on its own nodes and are never charged (SA-378)."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What usage costs, and what is left of it once credits are applied."""

    amount: Decimal
    credits: Decimal
    """The part that credits paid (SA-377). Savings plans pay none of it."""

    @property
    def due(self) -> Decimal:
        """What is to be paid."""
        return self.amount - self.credits


def amount_of(plan: Plan, zcloud_seconds: int, hourly_rate: Decimal) -> Decimal:
    """The price of usage in one region: by the second, without a minimum or a fixed fee (SA-374 … SA-376, SA-378)."""
    if plan is Plan.CONNECT:
        return Decimal(0)
    return (hourly_rate * SANDBOX_MULTIPLE * zcloud_seconds / _SECONDS_AN_HOUR).quantize(_SMALLEST)


def settle(amount: Decimal, *, spent_before: Decimal, credit_micros: int) -> Charge:
    """Apply what earlier usage has left of the account's credits."""
    left = max(Decimal(credit_micros) / MICROS - spent_before, Decimal(0))
    return Charge(amount, min(amount, left))
