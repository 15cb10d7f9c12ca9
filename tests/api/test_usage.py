"""The report of what was billed."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from tests.plane import Api, Plane, expect, open_plane, refused

from atoll.domain.billing import MICROS, Plan
from atoll.domain.region import Region
from atoll.domain.times import rfc3339
from atoll.ops.identity import Restrict, bootstrap
from atoll.system import random_id

pytestmark = pytest.mark.both_databases


@pytest.mark.spec("SA-374", "SA-375", "SA-380", "SA-383", "SA-443")
async def test_a_sandbox_is_billed_by_the_second_while_it_holds_its_allocation(plane: Plane, api: Api) -> None:
    first = await api.ready_sandbox(projectId="alpha")
    second = await api.ready_sandbox()
    plane.clock.pass_seconds(90)
    expect(await api.post("/sandbox/terminate", sandboxId=first["sandboxId"]), 200)
    plane.clock.pass_seconds(30)
    report = expect(await api.get("/usage"), 200)
    used = {item["sandboxId"]: item for item in report["sandboxes"]}
    one, two = used[first["sandboxId"]], used[second["sandboxId"]]
    assert 90 <= one["billedSeconds"] <= 95
    assert 120 <= two["billedSeconds"] <= 125
    assert one["zCloudSeconds"] == one["billedSeconds"] * one["zClouds"]
    assert "endedAt" in one["intervals"][0]
    assert "endedAt" not in two["intervals"][0]
    assert report["projects"] == [
        {
            "appId": api.ids.app,
            "projectId": "alpha",
            "billedSeconds": one["billedSeconds"],
            "zCloudSeconds": one["zCloudSeconds"],
        }
    ]
    assert report["apps"][0]["billedSeconds"] == one["billedSeconds"] + two["billedSeconds"]
    assert report["total"]["billedSeconds"] == report["apps"][0]["billedSeconds"]


@pytest.mark.spec("SA-443")
async def test_a_report_covers_the_times_and_the_app_that_were_asked_for(plane: Plane, api: Api) -> None:
    await api.ready_sandbox()
    plane.clock.pass_seconds(100)
    now = plane.clock()
    report = expect(await api.get("/usage", since=rfc3339(now - timedelta(seconds=10))), 200)
    assert report["total"]["billedSeconds"] == 10
    assert expect(await api.get("/usage", until=rfc3339(now - timedelta(days=1))), 200)["sandboxes"] == []
    other = await plane.add_app("other")
    assert expect(await api.get("/usage", appId=other), 200)["sandboxes"] == []


async def test_times_that_make_no_sense_are_refused(plane: Plane, api: Api) -> None:
    now = plane.clock()
    refused(await api.get("/usage", since=rfc3339(now + timedelta(days=1))), 400, "since")
    refused(await api.get("/usage", since=rfc3339(now - timedelta(days=93))), 400, "since")
    refused(await api.get("/usage", since="yesterday"), 400, "since")
    refused(await api.get("/usage", since="2026-01-01T00:00:00"), 400, "since")


async def test_usage_of_another_account_is_refused(plane: Plane, api: Api) -> None:
    other = await plane.add_account("other")
    refused(await other.get("/usage", accountId=api.ids.account), 403)


async def test_a_time_before_all_others_is_refused(api: Api) -> None:
    refused(await api.get("/usage", until="0001-01-02T00:00:00Z"), 400, "until")


RATE = "0.10"
PRICED = (Region("local", zcloud_hourly_rate=Decimal(RATE)),)


@pytest.mark.spec("SA-002", "SA-374", "SA-376", "SA-377")
async def test_on_direct_usage_costs_three_times_the_regional_rate_less_credits(database_url: str | None) -> None:
    async with open_plane(database_url, regions=PRICED) as plane:
        api = plane.api
        await api.ready_sandbox()
        plane.stop_workers()  # it is idle for longer than it may be
        plane.clock.pass_seconds(3_600)
        since = rfc3339(plane.clock())
        report = expect(await api.get("/usage"), 200)
        assert report["plan"] == "DIRECT"
        spent = (Decimal(RATE) * 3 * report["total"]["zCloudSeconds"] / 3_600).quantize(Decimal("0.000001"))
        assert Decimal("0.3") <= spent < Decimal("0.302")
        assert report["charge"] == {"amount": str(spent), "credits": "0.000000", "due": str(spent)}

        await bill(plane, credit="0.50")
        assert expect(await api.get("/usage"), 200)["charge"]["due"] == "0.000000"
        plane.clock.pass_seconds(3_600)
        # What the first hour took of the credits is gone for the second.
        second = expect(await api.get("/usage", since=since), 200)["charge"]
        left = Decimal("0.5") - spent
        assert abs(Decimal(second["credits"]) - left) < Decimal("0.001")
        assert Decimal(second["due"]) == Decimal(second["amount"]) - Decimal(second["credits"])
        assert Decimal(second["due"]) > 0
        of_app = expect(await api.get("/usage", appId=api.ids.app), 200)["charge"]
        assert of_app["credits"] == "0.000000"


@pytest.mark.spec("SA-002", "SA-378")
async def test_on_connect_usage_is_reported_and_never_charged(database_url: str | None) -> None:
    async with open_plane(database_url, regions=PRICED) as plane:
        await bill(plane, plan=Plan.CONNECT, credit="10")
        await plane.api.ready_sandbox()
        plane.clock.pass_seconds(3_600)
        report = expect(await plane.api.get("/usage"), 200)
        assert report["plan"] == "CONNECT"
        assert report["total"]["billedSeconds"] >= 3_600
        assert set(report["charge"].values()) == {"0.000000"}


async def bill(plane: Plane, *, plan: Plan | None = None, credit: str) -> None:
    """What `atoll bootstrap --plan --credit` does."""
    name, micros = plane.api.ids.account_name, int(Decimal(credit) * MICROS)
    await plane.services.database.write(
        lambda tx: bootstrap(
            tx, random_id, account_name=name, image_digest=None, image_ref=None, plan=plan, credit_micros=micros
        )
    )


@pytest.mark.spec("SA-009")
async def test_a_token_bound_to_an_app_sees_the_usage_of_that_alone(plane: Plane, api: Api) -> None:
    inside = (await api.ready_sandbox())["sandboxId"]
    other = await plane.add_app("other")
    await api.ready_sandbox(appId=other)
    plane.clock.pass_seconds(10)
    bound = await plane.caller(restrict=Restrict(apps=frozenset({api.ids.app})))
    assert [used["sandboxId"] for used in expect(await bound.get("/usage"), 200)["sandboxes"]] == [inside]
    refused(await bound.get("/usage", appId=other), 403, "other apps")
