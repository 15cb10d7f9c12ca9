"""List, get and save templates."""

from __future__ import annotations

import pytest
from tests.plane import IMAGE, Api, Plane, expect, refused

pytestmark = pytest.mark.both_databases


@pytest.mark.spec("SA-179", "SA-180", "SA-184", "SA-015", "SA-016", "SA-017", "SA-018", "SA-019", "SA-021", "SA-437")
async def test_saving_without_an_id_creates_a_template(api: Api) -> None:
    answer = expect(await api.post("/sandbox-template/save", name="Python & Café REPL!"), 201)
    template = answer["template"]
    assert set(template) == {
        "templateId", "accountId", "name", "slug", "enabled", "currentRevisionNumber", "createdAt", "updatedAt",
    }  # fmt: skip
    assert template["accountId"] == api.ids.account
    assert (template["name"], template["slug"]) == ("Python & Café REPL!", "python-cafe-repl")
    assert template["enabled"] is True
    assert template["currentRevisionNumber"] == 0
    assert template["createdAt"] == template["updatedAt"]


@pytest.mark.spec("SA-183", "SA-016", "SA-184")
async def test_optional_fields_are_kept_and_returned(api: Api) -> None:
    sent = {"name": "t", "appId": api.ids.app, "description": "for tests", "enabled": False}
    template = expect(await api.post("/sandbox-template/save", **sent), 201)["template"]
    assert {key: template[key] for key in sent} == sent


@pytest.mark.spec("SA-181", "SA-021", "SA-183", "SA-019")
async def test_saving_with_an_id_updates_what_was_sent_and_no_more(plane: Plane, api: Api) -> None:
    made = expect(await api.post("/sandbox-template/save", name="one", description="first", enabled=False), 201)[
        "template"
    ]
    plane.clock.pass_seconds(5)
    named = expect(await api.post("/sandbox-template/save", templateId=made["templateId"], name="two"), 200)["template"]
    assert (named["name"], named["slug"], named["description"], named["enabled"]) == ("two", "two", "first", False)
    assert named["createdAt"] == made["createdAt"]
    assert named["updatedAt"] > made["updatedAt"]
    changes = {"description": "second", "enabled": True, "deprecated": True}
    changed = expect(
        await api.post("/sandbox-template/save", templateId=made["templateId"], name="two", **changes), 200
    )["template"]
    assert (changed["description"], changed["enabled"]) == ("second", True)
    assert changed["deprecatedAt"] == changed["updatedAt"]
    back = await api.post("/sandbox-template/save", templateId=made["templateId"], name="two", deprecated=False)
    assert "deprecatedAt" not in expect(back, 200)["template"]


@pytest.mark.spec("SA-182")
async def test_an_update_cannot_move_a_template_to_another_app(plane: Plane, api: Api) -> None:
    made = expect(await api.post("/sandbox-template/save", name="t", appId=api.ids.app), 201)["template"]
    other = await plane.add_app("other")
    body = {"templateId": made["templateId"], "name": "t", "appId": other}
    refused(await api.post("/sandbox-template/save", **body), 400, "appId")
    read = expect(await api.get("/sandbox-template", templateId=made["templateId"]), 200)["template"]
    assert read["appId"] == api.ids.app


@pytest.mark.spec("SA-185", "SA-441")
async def test_saving_sets_nothing_that_belongs_to_a_revision(api: Api) -> None:
    for field in ("imageDigest", "command", "zClouds", "resources", "idleTimeoutSeconds"):
        refused(await api.post("/sandbox-template/save", name="t", **{field: 1}), 400, field)


@pytest.mark.spec("SA-179", "SA-010", "SA-440")
async def test_a_name_is_required_and_bounded(api: Api) -> None:
    refused(await api.post("/sandbox-template/save"), 400, "name is required")
    refused(await api.post("/sandbox-template/save", name="t", accountId=...), 400, "accountId is required")
    for name in ("", "  ", "x" * 201, 5, None):
        refused(await api.post("/sandbox-template/save", name=name), 400, "name")
    widest = expect(await api.post("/sandbox-template/save", name="㍿℡" * 100), 201)["template"]
    assert 0 < len(widest["slug"]) <= 200


@pytest.mark.spec("SA-435")
async def test_what_is_another_accounts_cannot_be_saved_or_read(plane: Plane, api: Api) -> None:
    stranger = await plane.add_account("stranger")
    refused(await stranger.post("/sandbox-template/save", templateId=api.ids.template, name="mine"), 404)
    refused(await stranger.post("/sandbox-template/save", appId=api.ids.app, name="mine"), 404)
    refused(await stranger.get("/sandbox-template", templateId=api.ids.template), 404)
    refused(await api.get("/sandbox-template", templateId="nothing"), 404)


@pytest.mark.spec("SA-176", "SA-177", "SA-178", "SA-020")
async def test_get_holds_the_latest_revision_or_null(api: Api) -> None:
    made = expect(await api.post("/sandbox-template/save", name="t"), 201)["template"]["templateId"]
    empty = expect(await api.get("/sandbox-template", templateId=made), 200)
    assert empty["currentRevision"] is None
    for number in (1, 2):
        revision = expect(
            await api.post("/sandbox-template/revision", templateId=made, imageDigest=IMAGE, zClouds=number), 201
        )["revision"]
        read = expect(await api.get("/sandbox-template", templateId=made), 200)
        assert read["currentRevision"] == revision
        assert read["template"]["currentRevisionNumber"] == revision["revision"] == number
    refused(await api.get("/sandbox-template"), 400, "templateId is required")
    refused(await api.get("/sandbox-template", templateId=made, accountId=None), 400, "accountId is required")


@pytest.mark.spec("SA-173", "SA-174", "SA-175")
async def test_a_list_holds_the_accounts_own_one_apps_or_deprecated_ones_too(plane: Plane, api: Api) -> None:
    stranger = await plane.add_account("stranger")
    of_app = expect(await api.post("/sandbox-template/save", name="a", appId=api.ids.app), 201)["template"]
    old = expect(await api.post("/sandbox-template/save", name="b", deprecated=True), 201)["template"]

    async def listed(caller: Api, **query: str) -> set[str]:
        found = expect(await caller.get("/sandbox-templates", **query), 200)["templates"]
        return {template["templateId"] for template in found}

    present = {api.ids.template, of_app["templateId"]}
    assert await listed(api) == present
    assert await listed(api, includeDeprecated="false") == present
    assert await listed(api, includeDeprecated="true") == present | {old["templateId"]}
    assert await listed(api, appId=api.ids.app) == {of_app["templateId"]}
    assert await listed(stranger) == {stranger.ids.template}
    refused(await api.get("/sandbox-templates", includeDeprecated="yes"), 400, "includeDeprecated")
    refused(await api.get("/sandbox-templates", accountId=None), 400, "accountId is required")
