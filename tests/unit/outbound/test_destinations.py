"""Looking hosts up: what is judged, what is left out, and that nobody waits for a name server that does not answer."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from atoll.outbound import destinations as module
from atoll.outbound.destinations import Destinations, HostNotPublic, HostUnresolved
from atoll.settings import WebhookTestDestination

Answers = dict[str, list[str] | OSError]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """What the system's resolver answers."""
    answers: Answers = {}

    def getaddrinfo(host: str, *rest: Any, **options: Any) -> list[Any]:
        found = answers.get(host, socket.gaierror("unknown"))
        if isinstance(found, OSError):
            raise found
        return [(socket.AF_INET6 if ":" in a else socket.AF_INET, 1, 6, "", (a, 0)) for a in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return answers


@pytest.mark.spec("SA-321")
async def test_a_public_host_gives_the_addresses_to_connect_to(names: Answers) -> None:
    names["hooks.example.com"] = ["8.8.8.8", "2606:4700:4700::1111"]
    found = await Destinations({}).find("hooks.example.com", 443)
    assert found.addresses == (ipaddress.ip_address("8.8.8.8"), ipaddress.ip_address("2606:4700:4700::1111"))
    assert found.port == 443
    assert found.tls.check_hostname


@pytest.mark.parametrize(
    "bad",
    ["10.0.0.1", "127.0.0.1", "169.254.169.254", "100.64.0.1", "::1", "fd00::1", "fe80::1%eth0", "::ffff:8.8.8.8"],
)
@pytest.mark.spec("SA-295", "SA-321")
async def test_one_private_address_among_public_ones_is_enough_to_refuse(names: Answers, bad: str) -> None:
    names["hooks.example.com"] = ["8.8.8.8", bad]
    with pytest.raises(HostNotPublic):
        await Destinations({}).check("hooks.example.com")
    with pytest.raises(HostNotPublic):
        await Destinations({}).find("hooks.example.com", 443)


@pytest.mark.spec("SA-321")
async def test_every_look_asks_again(names: Answers) -> None:
    hosts = Destinations({})
    names["hooks.example.com"] = ["8.8.8.8"]
    await hosts.find("hooks.example.com", 443)
    names["hooks.example.com"] = ["10.0.0.1"]
    with pytest.raises(HostNotPublic):
        await hosts.find("hooks.example.com", 443)


async def test_a_name_without_an_address_passes_the_check_and_is_not_found(names: Answers) -> None:
    names["empty.example.com"] = []
    for host in ("nowhere.example.com", "empty.example.com"):
        await Destinations({}).check(host)
        with pytest.raises(HostUnresolved):
            await Destinations({}).find(host, 443)


async def test_a_test_destination_is_not_looked_up(names: Answers) -> None:
    names["hooks.example.com"] = ["10.0.0.1"]
    receiver = WebhookTestDestination(address=ipaddress.IPv4Address("127.0.0.1"), port=8443)
    hosts = Destinations({"hooks.example.com": receiver})
    await hosts.check("hooks.example.com")
    found = await hosts.find("hooks.example.com", 443)
    assert (found.addresses, found.port) == ((ipaddress.ip_address("127.0.0.1"),), 8443)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """A name server that never answers; gives how many look-ups wait for it."""
    release = threading.Event()
    waiting = 0

    def getaddrinfo(*rest: Any, **options: Any) -> list[Any]:
        nonlocal waiting
        waiting += 1
        release.wait(30)
        raise socket.gaierror("gave up")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(module, "_LOOKUP_SECONDS", 0.2)
    yield lambda: waiting
    release.set()


async def test_a_name_server_that_does_not_answer_costs_the_limit_and_holds_up_nothing(
    stuck: Callable[[], int],
) -> None:
    hosts = Destinations({})
    began = time.monotonic()
    results = await asyncio.gather(*(hosts.check(f"h{n}.example.com") for n in range(20)))
    assert results == [None] * 20
    assert stuck() == 20
    assert 0.2 <= time.monotonic() - began < 3
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 1) == "free"
