"""The signals that the gateway sends to processes, and which of them ask for the end. Pure."""

from __future__ import annotations

import signal

from atoll.domain.errors import ErrorCode, Invalid

ENDING_SIGNALS = frozenset({"SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGTERM"})
"""A process that ends after one of these was canceled; after another it ended by itself."""
OTHER_SIGNALS = frozenset({"SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGWINCH"})


def signal_number(name: str) -> int:
    """The number of a signal; raises `Invalid` INVALID_REQUEST for one that is not sent (SA-400)."""
    if name not in ENDING_SIGNALS | OTHER_SIGNALS:
        raise Invalid(
            f"signal must be one of {', '.join(sorted(ENDING_SIGNALS | OTHER_SIGNALS))}.",
            field="signal",
            code=ErrorCode.INVALID_REQUEST,
        )
    return signal.Signals[name].value
