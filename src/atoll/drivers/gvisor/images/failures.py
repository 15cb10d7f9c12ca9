"""What went wrong with an image, told from what skopeo and umoci said. Pure.

The image store calls it at its boundary. "There is no such image" (INVALID_REQUEST) must never be mixed up with "it
cannot be had for now" (SANDBOX_NOT_READY, retryable): the first ends a sandbox for good. The sentences name no path of
the host and none of the programs' own words, which may hold both paths and addresses.
"""

from __future__ import annotations

import re

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.process import ProgramError, ProgramFailed, ProgramMissing, ProgramTimeout

_DISK_FULL = re.compile(r"no space left on device|disk quota exceeded|too many open files", re.IGNORECASE)
_UNAUTHORISED = re.compile(
    r"unauthorized|authentication required|denied|insufficient_scope|\b401\b|\b403\b|invalid username/password",
    re.IGNORECASE,
)
_MISSING = re.compile(
    r"manifest unknown|manifest_unknown|name unknown|name_unknown|repository name not known|blob unknown"
    r"|\b404\b|not found: manifest|unknown manifest|manifest invalid|invalid repository name",
    re.IGNORECASE,
)
_OUT_OF_REACH = re.compile(
    r"connection refused|no such host|i/o timeout|deadline exceeded|network is unreachable|no route to host"
    r"|connection reset|tls:|x509:|HTTP response to HTTPS client|server misbehaving|toomanyrequests|too many requests"
    r"|\b429\b|\b50[0-9]\b|unexpected eof",
    re.IGNORECASE,
)


def invalid_image(sentence: str) -> RuntimeFailure:
    """The image will not work, however often it is tried."""
    return RuntimeFailure(sentence, code=ErrorCode.INVALID_REQUEST)


def not_ready(sentence: str) -> RuntimeFailure:
    """The machine or the registry cannot serve for now."""
    return RuntimeFailure(sentence, code=ErrorCode.SANDBOX_NOT_READY)


def disk_full() -> RuntimeFailure:
    """No room for the image."""
    return not_ready("The disk of the sandbox machine is too full for the image.")


def fetch_failure(error: ProgramError) -> RuntimeFailure:
    """Classify a failure of skopeo."""
    if isinstance(error, ProgramMissing):
        return not_ready("The sandbox machine has no skopeo to fetch images with.")
    if isinstance(error, ProgramTimeout):
        return not_ready("The image could not be fetched from its registry in time.")
    said = _words(error)
    if _DISK_FULL.search(said):
        return disk_full()
    if _MISSING.search(said):
        return invalid_image("The registry has no image with this digest.")
    # Before "denied": that can be a word of a proxy that stands in the way.
    if _OUT_OF_REACH.search(said):
        return not_ready("The registry of the image cannot be reached.")
    if _UNAUTHORISED.search(said):
        return invalid_image("The registry does not give access to the image.")
    return not_ready("The image could not be fetched from its registry.")


def unpack_failure(error: ProgramError) -> RuntimeFailure:
    """Classify a failure of umoci."""
    if isinstance(error, ProgramMissing):
        return not_ready("The sandbox machine has no umoci to unpack images with.")
    if isinstance(error, ProgramTimeout):
        return not_ready("The image could not be unpacked in time.")
    if _DISK_FULL.search(_words(error)):
        return disk_full()
    return invalid_image("The image cannot be unpacked: a layer of it is damaged or not a tar archive.")


def _words(error: ProgramError) -> str:
    return error.completed.stderr.decode("utf-8", "replace") if isinstance(error, ProgramFailed) else ""
