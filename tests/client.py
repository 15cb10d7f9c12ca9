"""A small typed client of the Sandbox API for tests and the bench, over one kept-alive connection of `http.client`.

Not for two threads at once: each takes a client of its own. It costs about 0.2 ms a call, which figures of the bench
include. It hides no status: whatever is not a success is an `ApiError`.
"""

from __future__ import annotations

import json
import socket
import time
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

API = "/api/public/v1"
PROVISIONING = frozenset({"REQUESTED", "ALLOCATING", "STARTING", "RESUMING"})
CALL_SECONDS = 60.0
"""Longest wait for an answer, above every `waitSeconds`."""
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Access:
    """What `atoll bootstrap --json` prints."""

    token: str
    account_id: str
    app_id: str
    template_id: str
    region: str


class ApiError(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(f"{status}: {body.get('error')} ({body.get('errorCode')})")
        self.status = status
        self.body = body


class ServerGone(Exception):  # noqa: N818 - says what happened
    """The connection broke before the answer was there: the server was killed."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What execute answered."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    reason: str | None
    stdout_truncated: bool


@dataclass(slots=True)
class Output:
    """What was read of a started command, over any number of calls and servers."""

    next_seq: int = 0
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    sequence: list[int] = field(default_factory=list)
    dropped_bytes: int = 0
    exit_code: int | None = None
    reason: str | None = None
    complete: bool = False

    def take(self, command: Json) -> None:
        """Add one page."""
        for event in command["events"]:
            self.sequence.append(event["seq"])
            self.stdout += b64decode(event.get("stdout", ""))
            self.stderr += b64decode(event.get("stderr", ""))
            self.dropped_bytes += event.get("truncated", {}).get("droppedBytes", 0)
        self.next_seq = command["nextSeq"]
        self.exit_code, self.reason = command.get("exitCode"), command.get("reason")
        self.complete = command["complete"]


class Client:
    """Calls of one caller."""

    def __init__(self, url: str, access: Access, *, seconds: float = CALL_SECONDS) -> None:
        address = urlsplit(url)
        self.access = access
        self._connection = HTTPConnection(str(address.hostname), address.port, timeout=seconds)
        self._headers = {"Authorization": f"Bearer {access.token}", "Content-Type": "application/json"}

    def __enter__(self) -> Self:
        """Enter a block that closes the connection."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def raw(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """One call. Raises `ServerGone`."""
        try:
            self._connection.request(method, path, body, self._headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except TimeoutError:
            self._connection.close()
            raise
        except (HTTPException, OSError) as error:
            self._connection.close()
            raise ServerGone(str(error)) from error

    def call(self, method: str, path: str, body: Json | None = None, **query: object) -> Json:
        """One call of the API with the account's id in it."""
        account = {"accountId": self.access.account_id}
        if method == "GET":
            status, answer = self.raw(method, f"{API}{path}?{urlencode(account | query)}")
        else:
            status, answer = self.raw(method, f"{API}{path}", json.dumps(account | (body or {})).encode())
        value: Json = json.loads(answer)
        if status >= 400:
            raise ApiError(status, value)
        return value

    def create(self, key: str, *, template_id: str | None = None) -> Json:
        """Create or connect; the sandbox as answered."""
        body = {
            "appId": self.access.app_id,
            "templateId": template_id or self.access.template_id,
            "workloadProfile": "QUAVE_AUTOMATION_RUN",
            "ownerKind": "AGENT_RUN",
            "ownerId": "tests",
            "region": self.access.region,
            "idempotencyKey": key,
        }
        sandbox: Json = self.call("POST", "/sandbox/create", body)["sandbox"]
        return sandbox

    def get(self, sandbox_id: str, *, wait_seconds: int = 0) -> Json:
        """The sandbox."""
        sandbox: Json = self.call("GET", "/sandbox", sandboxId=sandbox_id, waitSeconds=wait_seconds)["sandbox"]
        return sandbox

    def settled(self, sandbox_id: str, *, seconds: float = 60.0) -> Json:
        """The sandbox once it is not provisioning any more."""
        deadline = time.monotonic() + seconds
        while True:
            sandbox = self.get(sandbox_id, wait_seconds=max(1, min(25, int(deadline - time.monotonic()))))
            if sandbox["status"] not in PROVISIONING:
                return sandbox
            if time.monotonic() > deadline:
                raise TimeoutError(f"still {sandbox['status']} after {seconds:g} s")

    def until(self, sandbox_id: str, *statuses: str, seconds: float = 30.0) -> Json:
        """The sandbox once it is in one of the statuses."""
        deadline = time.monotonic() + seconds
        while (sandbox := self.get(sandbox_id))["status"] not in statuses:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{sandbox['status']}, not {' or '.join(statuses)}, after {seconds:g} s")
            time.sleep(0.02)
        return sandbox

    def ready(self, key: str, *, template_id: str | None = None, seconds: float = 60.0) -> str:
        """Create, wait until it is READY, and return its id."""
        sandbox = self.settled(self.create(key, template_id=template_id)["sandboxId"], seconds=seconds)
        if sandbox["status"] not in {"READY", "BUSY"}:
            raise AssertionError(f"{sandbox['status']}: {sandbox.get('errorCode')} {sandbox.get('statusReason')}")
        return str(sandbox["sandboxId"])

    def list(self, *statuses: str) -> list[Json]:
        """All sandboxes of the account in these statuses; a page of a hundred at a time."""
        found: list[Json] = []
        for page in range(1, 1_000):
            answer = self.call("GET", "/sandboxes", status=",".join(statuses), limit=100, page=page)
            found += answer["sandboxes"]
            if len(found) >= answer["totalCount"] or not answer["sandboxes"]:
                break
        return found

    def execute(self, sandbox_id: str, argv: Sequence[str], **options: object) -> CommandResult:
        """Run a command to its end."""
        body = {"sandboxId": sandbox_id, "command": list(argv), **options}
        result = self.call("POST", "/sandbox/execute", body)["result"]
        return CommandResult(
            exit_code=result["exitCode"],
            stdout=b64decode(result.get("stdout", "")),
            stderr=b64decode(result.get("stderr", "")),
            reason=result.get("reason"),
            stdout_truncated=result.get("stdoutTruncated", False),
        )

    def start(self, sandbox_id: str, argv: Sequence[str], **options: object) -> str:
        """Start a command and return its execution id."""
        body = {"sandboxId": sandbox_id, "command": list(argv), **options}
        return str(self.call("POST", "/sandbox/command/start", body)["execution"]["executionId"])

    def read(self, sandbox_id: str, execution_id: str, *, from_seq: int = 0, wait_seconds: int = 0) -> Json:
        """One page of a started command."""
        query: Json = {"from": from_seq, "waitSeconds": wait_seconds}
        command: Json = self.call("GET", "/sandbox/command", sandboxId=sandbox_id, executionId=execution_id, **query)[
            "command"
        ]
        return command

    def follow(self, sandbox_id: str, execution_id: str, output: Output | None = None, seconds: float = 60.0) -> Output:
        """Read a started command to its end, going on where `output` stopped."""
        output = output or Output()
        deadline = time.monotonic() + seconds
        while not output.complete:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the command did not end in {seconds:g} s, nextSeq {output.next_seq}")
            output.take(self.read(sandbox_id, execution_id, from_seq=output.next_seq, wait_seconds=5))
        return output

    def kill(self, sandbox_id: str, execution_id: str, signal: str = "SIGTERM") -> Json:
        """Signal a started command."""
        body = {"sandboxId": sandbox_id, "executionId": execution_id, "signal": signal}
        return self.call("POST", "/sandbox/command/kill", body)

    def terminate(self, sandbox_id: str) -> Json:
        """End it; repeated while the sandbox is changing state, as the specification says."""
        for attempt in range(20):
            try:
                sandbox: Json = self.call("POST", "/sandbox/terminate", {"sandboxId": sandbox_id})["sandbox"]
            except ApiError as error:
                if error.status != 409 or attempt == 19:
                    raise
                time.sleep(0.05)
            else:
                return sandbox
        raise AssertionError("unreachable")

    def make_template(self, name: str, **revision: object) -> str:
        """A template with one revision, by default of the default template's image; its id."""
        current = self.call("GET", "/sandbox-template", templateId=self.access.template_id)["currentRevision"]
        template_id = str(self.call("POST", "/sandbox-template/save", {"name": name})["template"]["templateId"])
        body = {"templateId": template_id, "imageDigest": current["imageDigest"], **revision}
        self.call("POST", "/sandbox-template/revision", body)
        return template_id


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
