"""`networkControl` at allocation, over HTTP; what it holds a sandbox to is proven on gVisor (tests/contract)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.plane import IMAGE, Api, Plane, expect

pytestmark = pytest.mark.both_databases


async def revise(api: Api, control: dict[str, Any] | None) -> None:
    body = {"templateId": api.ids.template, "imageDigest": IMAGE, "networkControl": control or ...}
    expect(await api.post("/sandbox-template/revision", **body), 201)


async def egress_of_all(plane: Plane) -> list[Any]:
    """What the driver was told, of every instance."""
    instances = await plane.driver.list_instances()
    specs = [(plane.driver._folder(one.instance_id) / "spec.json").read_text() for one in instances]
    return [json.loads(spec)["egress"] for spec in specs]


@pytest.mark.spec("SA-195", "SA-196")
@pytest.mark.parametrize(
    ("control", "named"),
    [
        ({"enabled": True, "addressAllowlist": ["203.0.113.8", "not an address"]}, "not an address"),
        ({"enabled": True, "addressAllowlist": ["203.0.113.8", "10.1.0.0/16"]}, "10.1.0.0/16"),
        ({"enabled": True, "addressAllowlist": ["169.254.169.254"]}, "169.254.169.254"),
        ({"enabled": False, "domainAllowlist": ["https://github.com"]}, "https://github.com"),
        ({"enabled": False, "domainAllowlist": ["metadata.google.internal"]}, "metadata.google.internal"),
    ],
)
async def test_a_list_that_cannot_be_enforced_fails_the_allocation(
    plane: Plane, api: Api, control: dict[str, Any], named: str
) -> None:
    await revise(api, control)
    created = expect(await api.create(), 201)["sandbox"]
    failed = expect(await api.get("/sandbox", sandboxId=created["sandboxId"], waitSeconds=10), 200)["sandbox"]
    assert (failed["status"], failed["errorCode"]) == ("FAILED", "INVALID_REQUEST")
    assert named in failed["statusReason"]
    assert await plane.driver.list_instances() == []


@pytest.mark.spec("SA-192", "SA-200")
async def test_what_a_revision_lists_reaches_the_driver(plane: Plane, api: Api) -> None:
    await revise(api, {"enabled": True, "addressAllowlist": ["203.0.113.8"], "domainAllowlist": ["*.Example.com"]})
    await api.ready_sandbox()
    assert await egress_of_all(plane) == [{"addresses": ["203.0.113.8/32"], "domains": ["*.example.com"]}]


@pytest.mark.spec("SA-198", "SA-199")
@pytest.mark.parametrize("control", [None, {"enabled": False, "domainAllowlist": []}])
async def test_without_a_list_there_is_no_restriction(plane: Plane, api: Api, control: dict[str, Any] | None) -> None:
    await revise(api, control)
    await api.ready_sandbox()
    assert await egress_of_all(plane) == [None]
