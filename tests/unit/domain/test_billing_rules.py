"""What usage costs: by the second, three times the rate, less credits; nothing on Connect."""

from __future__ import annotations

from decimal import Decimal

import pytest

from atoll.domain.billing import Plan, amount_of, settle


@pytest.mark.spec("SA-374", "SA-375", "SA-376")
def test_an_hour_of_a_zcloud_costs_three_times_its_rate_and_nothing_costs_nothing() -> None:
    assert amount_of(Plan.DIRECT, 3_600, Decimal("0.1")) == Decimal("0.3")
    assert amount_of(Plan.DIRECT, 1, Decimal("0.36")) == Decimal("0.0003")
    assert amount_of(Plan.DIRECT, 0, Decimal("9")) == 0


@pytest.mark.spec("SA-378")
def test_connect_is_never_charged() -> None:
    assert amount_of(Plan.CONNECT, 10**9, Decimal("9")) == 0


@pytest.mark.parametrize(
    ("spent", "granted", "paid"), [("0", 0, "0"), ("0", 2_000_000, "2"), ("1.5", 2_000_000, "0.5"), ("9", 10**6, "0")]
)
@pytest.mark.spec("SA-377")
def test_credits_pay_what_earlier_usage_left_of_them(spent: str, granted: int, paid: str) -> None:
    charge = settle(Decimal("5"), spent_before=Decimal(spent), credit_micros=granted)
    assert (charge.credits, charge.due) == (Decimal(paid), Decimal("5") - Decimal(paid))
    assert settle(Decimal("0.1"), spent_before=Decimal(0), credit_micros=10**6).credits == Decimal("0.1")
