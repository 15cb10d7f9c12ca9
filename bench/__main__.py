"""`python -m bench`: runs the measures, prints and writes their figures, and cleans up whatever happens."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape
from tests.images import default_image

from atoll.drivers.gvisor.probe import probe_runsc
from bench import machine, report
from bench.figures import Result
from bench.measures import MEASURES
from bench.setting import Setting

RESULTS = Path(__file__).with_name("results")
README = Path(__file__).parents[1] / "README.md"
MEASURE_SECONDS = 900
"""Longest time of one measure."""

console = Console(highlight=False)


class TooLongError(Exception):
    """A measure took longer than it may."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise `TooLongError` in the block once it has taken that long."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLongError(f"not done after {seconds} s")

    earlier = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, earlier)


def run(names: list[str], setting: Setting) -> tuple[list[Result], dict[str, str]]:
    """Run the measures; one that fails is named and does not stop the others."""
    results: list[Result] = []
    failures: dict[str, str] = {}
    for name in names:
        setting.say(f"measuring: {name}")
        try:
            with time_limit(MEASURE_SECONDS):
                result = MEASURES[name](setting)
        except Exception as error:
            failures[name] = (f"{type(error).__name__}: {error}".splitlines() or [""])[0]
            traceback.print_exc()
        else:
            results.append(result)
            report.show(result, console)
    return results, failures


def main() -> int:
    """Exit status 0 when every measure was taken, whether its targets are met or not."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it works")
    parser.add_argument("--only", action="append", choices=list(MEASURES), help="one measure; may be given again")
    parser.add_argument("--update-readme", action="store_true", help="also put the table into README.md")
    arguments = parser.parse_args()
    if os.geteuid():
        console.print("The bench needs root, as the server does.")
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    image = default_image()
    traits = asyncio.run(probe_runsc(Path(shutil.which("runsc") or "runsc")))
    work = Path(tempfile.mkdtemp(prefix="atoll-bench-"))
    try:
        setting = Setting(
            work=work,
            image=image,
            quick=arguments.quick,
            hide_proc_sys_net=traits.hide_proc_sys_net,
            say=lambda line: console.print(f"[dim]{line}[/dim]"),
        )
        results, failures = run(arguments.only or list(MEASURES), setting)
    except KeyboardInterrupt:
        console.print("Interrupted; nothing was written.")
        return 130
    finally:
        shutil.rmtree(work, ignore_errors=True)
    # The date of the report is the machine's own clock: it says when, and nothing depends on it.
    taken = report.Report(datetime.now(UTC), machine.examine(), arguments.quick, results, failures)
    # A quick or partial run must not take the place of the figures that the README shows.
    whole = not arguments.quick and not arguments.only
    report.write(taken, RESULTS, "latest" if whole else "partial")
    if arguments.update_readme:
        README.write_text(report.update_readme(README.read_text(), report.markdown(taken)))
    for name, reason in failures.items():
        console.print(f"[red]{name} could not be measured:[/red] {escape(reason)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
