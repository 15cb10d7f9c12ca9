"""A sandbox's life over plain HTTP, step by step with its time; `make demo` runs it.

It doubles as an example of the API: everything between `bootstrap` and the end is an ordinary request. It starts a
server of its own on a free port of the loopback interface, kills it in the middle of a command, and stops it at the end
(also on Ctrl-C). Exit status 0 when every step did what it says, 1 with a sentence otherwise.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import httpx
from rich.console import Console
from rich.markup import escape

from atoll.drivers.gvisor.layout import Layout

API = "/api/public/v1"
LINES = 80
"""What the background command prints, one line a tenth of a second."""
START_SECONDS = 60.0
STOP_SECONDS = 20.0
GONE_SECONDS = 20.0
COMMAND_SECONDS = 60.0
Json = dict[str, Any]

console = Console(highlight=False, soft_wrap=True)


class StepFailed(Exception):  # noqa: N818 - says what happened
    """A step did not do what it says; the sentence is for the person who watches."""


def atoll(*arguments: str) -> list[str]:
    """The command line of an `atoll` command, in this Python."""
    return [sys.executable, "-m", "atoll.cli.main", *arguments]


def say(line: str) -> None:
    """One line below the step."""
    console.print(f"         [dim]{escape(line)}[/dim]")


@contextmanager
def step(title: str) -> Iterator[Callable[[str], None]]:
    """Name a step, and print what came of it with the time that it took."""
    console.print(f"[bold]{title}[/bold]")
    outcome: list[str] = []
    began = time.perf_counter()
    yield outcome.append
    took = time.perf_counter() - began
    shown = f"{took * 1000:6.0f} ms" if took < 10 else f"{took:6.1f} s "
    console.print(f"[green]{shown}[/green] {escape(' '.join(outcome) or 'done')}")


class Refused(StepFailed):
    """An answer that is no success."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Server:
    """`atoll serve` as a child process."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    @property
    def running(self) -> bool:
        """Whether it lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it on a free port; `--json` prints its address."""
        # No pool of booted sandboxes here, so that at the end nothing at all is left.
        environment = {**os.environ, "ATOLL_WARM_POOL_SIZE": "0"}
        argv = atoll("serve", "--data-dir", str(self._data_dir), "--listen", "127.0.0.1:0", "--log-level", "error")
        with (self._data_dir / "server.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                [*argv, "--json"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        answer = json.loads(_first_line(self._process.stdout) or b"{}")
        if "url" not in answer:
            self.end(signal.SIGKILL)
            raise StepFailed(answer.get("error") or f"The server did not start; see {self._data_dir / 'server.log'}.")
        self.url = str(answer["url"])

    def end(self, number: signal.Signals) -> None:
        """Send it a signal and wait for its end."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None


def _first_line(stream: IO[bytes] | None) -> bytes:
    if stream is None or not select.select([stream], [], [], START_SECONDS)[0]:
        return b""
    return stream.readline()


class Api:
    """Requests with the token, and a sentence for every refusal."""

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx.Client(base_url=url + API, headers={"Authorization": f"Bearer {token}"}, timeout=60.0)

    def post(self, path: str, **body: Any) -> Json:
        """POST a JSON body."""
        return self._answer(self._http.post(path, json=body))

    def get(self, path: str, **query: Any) -> Json:
        """GET with query parameters."""
        return self._answer(self._http.get(path, params=query))

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    @staticmethod
    def _answer(response: httpx.Response) -> Json:
        value: Json = response.json()
        if response.is_error:
            sentence = f"{response.request.url.path} answered {response.status_code}: {value.get('error')}"
            raise Refused(response.status_code, sentence)
        return value


def bootstrap(data_dir: Path) -> Json:
    """An account, an app, the default template and a token. Builds the default image when it is missing."""
    argv = atoll("bootstrap", "--data-dir", str(data_dir), "--json")
    done = subprocess.run(argv, stdout=subprocess.PIPE, timeout=3_600, check=False)  # noqa: S603 - our own command line
    answer: Json = json.loads(done.stdout or b"{}")
    if done.returncode:
        raise StepFailed(answer.get("error") or "The account could not be made; the lines above say why.")
    return answer


def create(api: Api, access: Json, key: str) -> Json:
    """Create the sandbox; the same key again would connect to the same one."""
    answer = api.post(
        "/sandbox/create",
        accountId=access["accountId"],
        appId=access["appId"],
        templateId=access["templateId"],
        region=access["region"],
        workloadProfile="QUAVE_AUTOMATION_RUN",
        ownerKind="AGENT_RUN",
        ownerId="demo",
        idempotencyKey=key,
    )
    sandbox: Json = answer["sandbox"]
    return sandbox


def wait_ready(api: Api, names: Json) -> Json:
    """Wait until it is READY; every call answers as soon as the sandbox settles, so this needs no sleep."""
    for _ in range(4):
        sandbox: Json = api.get("/sandbox", **names, waitSeconds=25)["sandbox"]
        if sandbox["status"] == "READY":
            return sandbox
        if sandbox["status"] == "FAILED":
            break
    raise StepFailed(f"The sandbox is {sandbox['status']}: {sandbox.get('statusReason', 'no reason given')}.")


def terminate(api: Api, names: Json) -> str:
    """End it. 409 says that its status was just changing, here by the end of its command: the call is repeated."""
    for _ in range(20):
        try:
            return str(api.post("/sandbox/terminate", **names)["sandbox"]["status"])
        except Refused as refused:
            if refused.status != httpx.codes.CONFLICT:
                raise
        time.sleep(0.1)
    raise StepFailed("The sandbox cannot be terminated: it keeps changing its state.")


def execute(api: Api, names: Json, *argv: str) -> str:
    """Run a command to its end and return its standard output."""
    result = api.post("/sandbox/execute", **names, command=list(argv), timeoutSeconds=60)["result"]
    if result["exitCode"]:
        raise StepFailed(f"{argv[0]} ended with {result['exitCode']}.")
    return base64.b64decode(result.get("stdout", "")).decode("utf-8", "replace")


class Follower:
    """Follows one command's output: each call continues at `nextSeq` of the one before, also on another server."""

    def __init__(self, names: Json, execution_id: str) -> None:
        self._query = {**names, "executionId": execution_id}
        self._expected = 0
        self._deadline = time.monotonic() + COMMAND_SECONDS
        self.next_seq = 0
        self.text = ""
        self.command: Json = {}

    def follow(self, api: Api, until: Callable[[], bool]) -> None:
        """Read until the condition holds or the command's last event was read."""
        while not until() and not self.command.get("complete"):
            if time.monotonic() > self._deadline:
                raise StepFailed(f"The command's output did not come within {COMMAND_SECONDS:g} s.")
            query = {**self._query, "from": self.next_seq, "waitSeconds": 5}
            self.command = api.get("/sandbox/command", **query)["command"]
            self._take(self.command["events"])
            self.next_seq = self.command["nextSeq"]

    def _take(self, events: list[Json]) -> None:
        for event in events:
            if event["seq"] != self._expected:
                raise StepFailed(f"Event {self._expected} was expected and {event['seq']} came.")
            self._expected += 1
            self.text += base64.b64decode(event.get("stdout", "")).decode()

    @property
    def lines(self) -> int:
        """Whole lines read so far."""
        return self.text.count("\n")


def remains(layout: Layout) -> list[str]:
    """What the machine has of this data directory's sandboxes: folders, processes, control groups."""
    found = [f"folder {path.name}" for folder in (layout.instances_dir, layout.disk_dir) for path in _entries(folder)]
    found += [f"control group {path.name}" for path in Path("/sys/fs/cgroup").glob(f"**/{layout.cgroup_name}/*/")]
    mark = str(layout.run_dir).encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "cmdline").read_bytes():
                found.append(f"process {process.name}")
    return found


def _entries(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError):
        return list(folder.iterdir())
    return []


def tell_story(server: Server, data_dir: Path) -> None:
    """The steps. Whatever it leaves running, `main` ends."""
    with step("1. An account, a token and the default image (its build takes a minute or two)") as tell:
        access = bootstrap(data_dir)
        tell(f"account {access['accountId']}")
    with step("2. A server") as tell:
        server.start()
        tell(f"serves on {server.url}")
    api = Api(server.url, access["token"])
    _end_earlier_ones(api, access)

    with step("3. A sandbox: POST /sandbox/create, GET /sandbox?waitSeconds=25"):
        sandbox = create(api, access, f"demo-{time.time_ns()}")
        names = {"accountId": access["accountId"], "sandboxId": sandbox["sandboxId"]}
        say(f"{sandbox['status']:<10} {sandbox['sandboxId']}")
        say(f"{wait_ready(api, names)['status']:<10} after the boot of a kernel of its own")

    with step("4. A command in it: POST /sandbox/execute"):
        output = execute(api, names, "sh", "-c", "uname -srm; dmesg | head -n 3; python3 -V; node -v")
        for line in output.splitlines():
            say(line)
        if "Starting gVisor" not in output:
            raise StepFailed("The sandbox's kernel does not say that it is gVisor.")
    with step("5. `true`, twenty times") as tell:
        began = time.perf_counter()
        for _ in range(20):
            execute(api, names, "true")
        tell(f"{(time.perf_counter() - began) * 50:.1f} ms each")

    with step("6. A background command, followed: POST /sandbox/command/start, GET /sandbox/command?from=nextSeq"):
        script = f"i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo line $i; sleep 0.1; done; exit 7"
        execution = api.post("/sandbox/command/start", **names, command=["sh", "-c", script])["execution"]
        follower = Follower(names, execution["executionId"])
        follower.follow(api, lambda: follower.lines >= 5)
        say(f"process {execution['processId']} has printed {follower.lines} lines; nextSeq is {follower.next_seq}")
    api.close()

    with step("7. The server is killed (SIGKILL); the command goes on without it"):
        server.end(signal.SIGKILL)
        time.sleep(1)
    with step("8. The server again") as tell:
        server.start()
        tell(f"serves on {server.url}")
    api = Api(server.url, access["token"])
    with step("9. The rest of the output, from the nextSeq known before") as tell:
        begun = follower.lines
        follower.follow(api, lambda: follower.lines > begun)
        say(f"{follower.lines - begun} lines came meanwhile; the command is {follower.command['state']}")
        follower.follow(api, lambda: False)
        expected = "".join(f"line {number}\n" for number in range(1, LINES + 1))
        if follower.text != expected or follower.command["exitCode"] != 7:
            raise StepFailed("The output or the exit code after the restart is not the command's.")
        tell(f"lines {begun + 1} to {LINES}, each once and none lost; exit code {follower.command['exitCode']}")

    with step("10. The end: POST /sandbox/terminate") as tell:
        tell(terminate(api, names))
    with step("11. What is left of it on the machine") as tell:
        layout = Layout.of(data_dir, Path("/run/atoll"))
        deadline = time.monotonic() + GONE_SECONDS
        while left := remains(layout):
            if time.monotonic() > deadline:
                raise StepFailed(f"Left on the machine: {', '.join(left)}.")
            time.sleep(0.05)
        tell("nothing: no process, no control group, no file")
    api.close()


def _end_earlier_ones(api: Api, access: Json) -> None:
    """Sandboxes of a demo that was interrupted; they outlive their server."""
    account = {"accountId": access["accountId"]}
    statuses = "REQUESTED,ALLOCATING,STARTING,READY,BUSY,FAILED"
    for sandbox in api.get("/sandboxes", **account, status=statuses)["sandboxes"]:
        terminate(api, {**account, "sandboxId": sandbox["sandboxId"]})


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description="A sandbox's life, step by step.")
    parser.add_argument("--data-dir", type=Path, default=Path(".atoll/demo"), help="default: .atoll/demo")
    data_dir: Path = parser.parse_args().data_dir.absolute()
    if os.geteuid():
        console.print("[red]The demo needs root: sandboxes have network namespaces and control groups.[/red]")
        return 1
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    server = Server(data_dir)
    began = time.perf_counter()
    try:
        tell_story(server, data_dir)
    except StepFailed as failure:
        console.print(f"[red]Failed:[/red] {escape(str(failure))}")
        return 1
    except (httpx.HTTPError, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        console.print(f"[red]Failed:[/red] {escape(f'{type(error).__name__}: {error}')}; see {data_dir / 'server.log'}")
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted; the sandbox, if any, is ended by the next demo.")
        return 130
    finally:
        server.end(signal.SIGTERM)
    console.print(f"[bold green]All of it worked, in {time.perf_counter() - began:.1f} s.[/bold green]")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
