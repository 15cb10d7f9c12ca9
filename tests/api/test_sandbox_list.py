"""List sandboxes."""

from __future__ import annotations

import pytest
from tests.plane import Api, Plane, expect, refused

pytestmark = pytest.mark.both_databases


async def make(plane: Plane, api: Api, count: int, **body: object) -> list[str]:
    """Make sandboxes a second apart, and put them into chosen statuses no worker touches: TERMINATED."""
    ids = []
    for _ in range(count):
        plane.clock.pass_seconds(1)
        ids.append(expect(await api.create(**body), 201)["sandbox"]["sandboxId"])
    return ids


@pytest.mark.spec("SA-128", "SA-133", "SA-134", "SA-135", "SA-437")
async def test_pages_are_newest_first_and_neither_repeat_nor_skip(plane: Plane, api: Api) -> None:
    made = await make(plane, api, 5)
    seen = []
    for page in (1, 2, 3, 4):
        answer = expect(await api.get("/sandboxes", limit=2, page=page), 200)
        assert (answer["accountId"], answer["page"], answer["limit"]) == (api.ids.account, page, 2)
        assert answer["totalCount"] == 5
        seen += [sandbox["sandboxId"] for sandbox in answer["sandboxes"]]
    assert seen == made[::-1]


@pytest.mark.spec("SA-128")
async def test_only_the_accounts_own_sandboxes_are_listed(plane: Plane, api: Api) -> None:
    stranger = await plane.add_account("stranger")
    theirs = expect(await stranger.create(), 201)["sandbox"]["sandboxId"]
    mine = expect(await api.create(), 201)["sandbox"]["sandboxId"]
    assert [s["sandboxId"] for s in expect(await api.get("/sandboxes"), 200)["sandboxes"]] == [mine]
    assert [s["sandboxId"] for s in expect(await stranger.get("/sandboxes"), 200)["sandboxes"]] == [theirs]


@pytest.mark.spec("SA-129")
async def test_the_app_filter_returns_that_apps_only(plane: Plane, api: Api) -> None:
    app = await plane.add_app("other")
    expect(await api.create(), 201)
    other = expect(await api.create(appId=app), 201)["sandbox"]["sandboxId"]
    answer = expect(await api.get("/sandboxes", appId=app), 200)
    assert (answer["totalCount"], [s["sandboxId"] for s in answer["sandboxes"]]) == (1, [other])
    assert expect(await api.get("/sandboxes", appId="no-such-app"), 200)["totalCount"] == 0


@pytest.mark.spec("SA-130", "SA-131")
async def test_the_status_filter_takes_several_ignores_unknown_ones_and_is_none_with_only_those(api: Api) -> None:
    ready = (await api.ready_sandbox())["sandboxId"]
    ended = (await api.ready_sandbox())["sandboxId"]
    expect(await api.post("/sandbox/terminate", sandboxId=ended), 200)

    async def listed(status: str) -> set[str]:
        answer = expect(await api.get("/sandboxes", status=status), 200)
        assert answer["totalCount"] == len(answer["sandboxes"])
        return {sandbox["sandboxId"] for sandbox in answer["sandboxes"]}

    assert await listed("READY") == {ready}
    assert await listed("TERMINATED") == {ended}
    assert await listed("READY,TERMINATED") == {ready, ended}
    assert await listed(" READY , NONSENSE") == {ready}
    assert await listed("FAILED") == set()
    assert await listed("NONSENSE,ready") == {ready, ended}
    assert await listed("") == {ready, ended}


@pytest.mark.spec("SA-132", "SA-133", "SA-440")
async def test_limit_and_page_have_defaults_and_bounds(api: Api) -> None:
    answer = expect(await api.get("/sandboxes"), 200)
    assert (answer["limit"], answer["page"]) == (50, 1)
    assert expect(await api.get("/sandboxes", limit=100), 200)["limit"] == 100
    for limit in ("0", "-1", "101", "1.0", "ten", "1e1", "", "99999999999999999999", " 5"):
        refused(await api.get("/sandboxes", limit=limit), 400, "limit")
    for page in ("0", "-1", "1.5", "one", "99999999999999999999"):
        refused(await api.get("/sandboxes", page=page), 400, "page")
    assert expect(await api.get("/sandboxes", limit=100, page=2_147_483_647), 200)["sandboxes"] == []


@pytest.mark.spec("SA-010")
async def test_the_account_is_required(api: Api) -> None:
    refused(await api.get("/sandboxes", accountId=None), 400, "accountId is required")
    refused(await api.get("/sandboxes", accountId=""), 400, "accountId")


@pytest.mark.spec("SA-441")
async def test_unknown_query_parameters_are_ignored(api: Api) -> None:
    expect(await api.get("/sandboxes", colour="blue"), 200)


@pytest.mark.spec("SA-061")
async def test_listing_is_no_activity(plane: Plane, api: Api) -> None:
    sandbox = await api.ready_sandbox()
    plane.clock.pass_seconds(60)
    assert (await api.sandbox(sandbox["sandboxId"]))["lastActiveAt"] == sandbox["lastActiveAt"]
