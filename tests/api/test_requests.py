"""What is malformed or hostile in any request: a 4xx that says what is wrong, and never a 500."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.plane import PREFIX, Api, create_body, expect, refused

CREATE = f"{PREFIX}/sandbox/create"
JSON = {"Content-Type": "application/json"}


@pytest.mark.spec("SA-440")
async def test_a_body_that_is_no_json_object_is_refused(api: Api) -> None:
    for content in (
        b"", b"{", b"nonsense", b"[]", b"null", b'"text"', b"5", b"{} {}", b"\xff\xfe", b"{\"a\": NaN}", b"{'a': 1}",
        b'{"accountId": Infinity}', b'{"accountId": "\xed\xa0\x80"}', b'{"accountId": "\\ud800"}', b"[" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "{}".encode("utf-16"), b'{"accountId": "tab\there"}',
    ):  # fmt: skip
        refused(await api.send("POST", CREATE, content=content, headers=JSON), 400, "body")


@pytest.mark.spec("SA-440")
async def test_a_body_of_another_type_is_refused(api: Api) -> None:
    content = json.dumps(create_body(api.ids)).encode()
    for media_type in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "json",
        "",
    ):
        answer = await api.send("POST", CREATE, content=content, headers={"Content-Type": media_type})
        refused(answer, 400, "Content-Type: application/json")
    for media_type in ("application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "application/a+json"):
        answer = await api.send("POST", CREATE, content=content, headers={"Content-Type": media_type})
        assert answer.status_code in {200, 201}


@pytest.mark.both_databases
@pytest.mark.spec("SA-440", "SA-441", "SA-103")
async def test_no_text_or_number_reaches_the_database_that_it_cannot_hold(api: Api) -> None:
    bad: list[tuple[str, Any]] = [
        ("ownerId", "nul \x00 inside"),
        ("ownerId", ""),
        ("ownerId", "x" * 501),
        ("ownerId", 5),
        ("ownerId", ["x"]),
        ("ownerId", {"$ne": ""}),
        ("ownerId", None),
        ("idempotencyKey", "\x00"),
        ("idempotencyKey", "x" * 501),
        ("externalSessionId", "x" * 501),
        ("projectId", "\x00"),
        ("accountId", "\x00"),
        ("accountId", "x" * 101),
        ("appId", "\x00"),
        ("templateId", "a\x00b"),
        ("templateRevisionId", "\x00"),
        ("region", "x" * 65),
        ("region", "\x00"),
        ("supervised", "true"),
        ("supervised", 1),
        ("maxProjectConcurrency", 2**63),
        ("maxProjectConcurrency", 10**100),
        ("unknownField", 1),
        ("idempotency_key", "k"),
        ("__proto__", {}),
    ]
    for field, value in bad:
        refused(await api.create(**{field: value}), 400, field)
    odd = "é😀\u202e\ufeff\u0001' OR 1=1 --\\ %s {0} ${x}"
    sandbox = expect(await api.create(ownerId=odd, externalSessionId=odd, projectId=odd, idempotencyKey=odd), 201)
    assert sandbox["sandbox"]["ownerId"] == sandbox["sandbox"]["projectId"] == odd
    assert expect(await api.create(ownerId=odd, idempotencyKey=odd), 200)["wasCreated"] is False


@pytest.mark.both_databases
@pytest.mark.spec("SA-435", "SA-440")
async def test_ids_of_any_form_are_at_worst_not_found(api: Api) -> None:
    for value in ("x", "../../etc", "%", "' OR ''='", "😀", "0" * 36, "0" * 100, "{}", "undefined", "null"):
        refused(await api.get("/sandbox", sandboxId=value), 404)
        refused(await api.get("/sandbox-template", templateId=value), 404)
        refused(await api.get("/sandbox", sandboxId="x", accountId=value), 403)
        refused(await api.post("/sandbox/terminate", sandboxId=value), 404)
        refused(await api.post("/sandbox/execute", sandboxId=value, command=["true"]), 404)
    for value in ("\x00", "a\x00", "", "x" * 101):
        refused(await api.get("/sandbox", sandboxId=value), 400, "sandboxId")
        refused(await api.get("/sandboxes", accountId=value), 400, "accountId")
        refused(await api.get("/sandboxes", appId=value), 400, "appId")
        refused(await api.post("/sandbox/terminate", sandboxId=value), 400, "sandboxId")
    raw = await api.send("GET", f"{PREFIX}/sandbox?accountId={api.ids.account}&sandboxId=%ff%fe%c0")
    refused(raw, 404)


@pytest.mark.spec("SA-440")
async def test_a_refusal_names_fields_dotted_and_in_camel_case_and_never_repeats_values(api: Api) -> None:
    secret = "do-not-repeat-me"
    answer = await api.post(
        "/sandbox/execute",
        sandboxId="s",
        command=["a", {"b": secret}],
        envVars={"NAME": [secret]},
        timeoutSeconds=secret,
    )
    body = refused(answer, 400, "command.1", "envVars.NAME", "timeoutSeconds")
    assert secret not in answer.text
    assert "_" not in body["error"]
    many = refused(await api.post("/sandbox/create", accountId=..., **{f"x{n}": 1 for n in range(500)}), 400)
    assert len(many["error"]) < 500
    long = refused(await api.post("/sandbox/create", **create_body(api.ids, **{"y" * 10_000: 1})), 400, "yyy")
    assert len(long["error"]) < 500


async def test_a_body_over_ten_megabytes_answers_413_whether_its_length_is_told_or_not(api: Api) -> None:
    async def chunks():  # type: ignore[no-untyped-def]  # an asynchronous generator of bytes
        for _ in range(12):
            yield b" " * 1_048_576

    told = await api.send("POST", CREATE, content=b" " * (10 * 1_048_576 + 1), headers=JSON)
    untold = await api.send("POST", CREATE, content=chunks(), headers=JSON)
    for answer in (told, untold):
        refused(answer, 413, "too large")
        assert answer.headers["connection"] == "close"
    refused(await api.send("POST", CREATE, content=b" " * 10 * 1_048_576, headers=JSON), 400)


@pytest.mark.spec("SA-438")
async def test_unknown_operations_answer_404_and_wrong_methods_405_in_the_one_shape(api: Api) -> None:
    for path in ("/", "/api", PREFIX, f"{PREFIX}/", f"{PREFIX}/sandboxes/", f"{PREFIX}/nothing", "/docs", "/redoc",
                 "//", "/%00", "/healthz/"):  # fmt: skip
        answer = await api.client.get(path)
        assert expect(answer, 404) == {"success": False, "error": "There is no such operation."}
    for method, path, allowed in (
        ("POST", "/sandboxes", "GET"),
        ("DELETE", "/sandbox", "GET"),
        ("GET", "/sandbox/create", "POST"),
        ("PUT", "/sandbox-template/save", "POST"),
        ("PATCH", "/sandbox/execute", "POST"),
    ):
        answer = await api.client.request(method, PREFIX + path)
        assert refused(answer, 405, method)["success"] is False
        assert answer.headers["allow"] == allowed


async def test_cross_origin_requests_get_no_permission(api: Api) -> None:
    answer = await api.client.options(
        f"{PREFIX}/sandboxes", headers={"Origin": "https://elsewhere.test", "Access-Control-Request-Method": "GET"}
    )
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]
