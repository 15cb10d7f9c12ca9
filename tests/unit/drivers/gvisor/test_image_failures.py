"""What skopeo and umoci say, told apart: never there, not allowed, or not for now."""

from __future__ import annotations

import pytest

from atoll.domain.errors import ErrorCode
from atoll.drivers.gvisor.images.failures import fetch_failure, unpack_failure
from atoll.drivers.process import Completed, ProgramFailed, ProgramMissing, ProgramTimeout

GOOD, LATER = ErrorCode.INVALID_REQUEST, ErrorCode.SANDBOX_NOT_READY


def said(text: str) -> ProgramFailed:
    return ProgramFailed("skopeo", Completed(1, b"", text.encode()))


@pytest.mark.parametrize(
    ("text", "code", "word"),
    [
        ("reading manifest sha256:00 in a/b: manifest unknown: manifest unknown", GOOD, "no image"),
        ("reading manifest in no/such: name unknown: repository name not known to registry", GOOD, "no image"),
        ("unauthorized: authentication required", GOOD, "access"),
        ("requested access to the resource is denied", GOOD, "access"),
        ("unable to retrieve auth token: invalid username/password: unauthorized", GOOD, "access"),
        ("pinging container registry x: dial tcp 127.0.0.1:1: connect: connection refused", LATER, "reached"),
        ("dial tcp: lookup x on 1.1.1.1:53: no such host", LATER, "reached"),
        ("http: server gave HTTP response to HTTPS client", LATER, "reached"),
        ("x509: certificate signed by unknown authority", LATER, "reached"),
        ("toomanyrequests: You have reached your pull rate limit", LATER, "reached"),
        ("received unexpected HTTP status: 503 Service Unavailable", LATER, "reached"),
        ("writing blob: write /var/x: no space left on device", LATER, "full"),
        ("something never seen before in /var/lib/x", LATER, "fetched"),
    ],
)
def test_a_failed_fetch_is_classified(text: str, code: ErrorCode, word: str) -> None:
    failure = fetch_failure(said(text))
    assert failure.code is code
    assert word in failure.message
    assert "/" not in failure.message


def test_a_missing_or_slow_program_is_worth_another_try() -> None:
    for classify in (fetch_failure, unpack_failure):
        assert classify(ProgramMissing("x", "gone")).code is LATER
        assert classify(ProgramTimeout("x", 5)).code is LATER


def test_a_layer_that_cannot_be_unpacked_is_the_images_fault_unless_the_disk_is_full() -> None:
    assert unpack_failure(said("unpack layer: gzip: invalid header")).code is GOOD
    assert unpack_failure(said("open /x: no space left on device")).code is LATER
