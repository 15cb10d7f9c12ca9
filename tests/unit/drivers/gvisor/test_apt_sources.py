"""The machine's own APT sources, in both formats, and what set-up makes of them.

The same files are given to the Python reader and to `deploy/setup-machine.sh`, which has to find the same archive.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from atoll.drivers.gvisor.images.apt_sources import debian_lines

SCRIPT = Path(__file__).parents[4] / "deploy" / "setup-machine.sh"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEB822 = f"""\
# Written by the installer
Types: deb deb-src
URIs: http://mirror.test/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: {KEYRING}

Types: deb
URIs: http://mirror.test/debian-security
Suites: bookworm-security
Components: main
Signed-By: {KEYRING}
"""
ONE_LINE = """\
# deb http://commented.test/debian bookworm main
deb-src http://source.test/debian bookworm main
deb [arch=amd64 trusted=yes] http://mirror.test/debian bookworm main contrib # a remark
deb http://mirror.test/debian-security bookworm-security main
"""
VENDORS = """\
deb [signed-by=/etc/apt/keyrings/vendor.gpg] https://vendor.test bookworm main
deb https://vendor.test/linux bookworm stable
"""


@pytest.fixture
def etc_apt(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def backports(etc_apt: Path) -> str | None:
    done = subprocess.run(
        ["sh", str(SCRIPT), "--backports-source", str(etc_apt), "bookworm"], capture_output=True, text=True, timeout=20
    )
    return done.stdout if done.returncode == 0 else None


def fields(stanza: str | None) -> dict[str, str]:
    assert stanza is not None
    return {name: value.strip() for name, _, value in (line.partition(":") for line in stanza.splitlines())}


def test_deb822_sources_are_read(etc_apt: Path) -> None:
    (etc_apt / "sources.list.d/debian.sources").write_text(DEB822)
    assert debian_lines("bookworm", etc_apt) == [
        f"deb [signed-by={KEYRING}] http://mirror.test/debian bookworm main",
        f"deb [signed-by={KEYRING}] http://mirror.test/debian-security bookworm-security main",
        f"deb [signed-by={KEYRING}] http://mirror.test/debian bookworm-updates main",
    ]
    assert fields(backports(etc_apt)) == {
        "Types": "deb",
        "URIs": "http://mirror.test/debian",
        "Suites": "bookworm-backports",
        "Components": "main",
        "Signed-By": KEYRING,
    }


def test_one_line_sources_are_read(etc_apt: Path) -> None:
    (etc_apt / "sources.list").write_text(ONE_LINE)
    assert debian_lines("bookworm", etc_apt) == [
        "deb [trusted=yes] http://mirror.test/debian bookworm main",
        "deb http://mirror.test/debian-security bookworm-security main",
    ]
    assert backports(etc_apt) == "deb [arch=amd64 trusted=yes] http://mirror.test/debian bookworm-backports main\n"


def test_other_vendors_with_debians_suite_names_are_passed_over(etc_apt: Path) -> None:
    (etc_apt / "sources.list.d/a-vendor.list").write_text(VENDORS)
    assert debian_lines("bookworm", etc_apt) == []
    assert backports(etc_apt) is None
    (etc_apt / "sources.list.d/debian.sources").write_text(DEB822)
    assert "mirror.test" in debian_lines("bookworm", etc_apt)[0]
    assert fields(backports(etc_apt))["URIs"] == "http://mirror.test/debian"


def test_a_disabled_source_is_none(etc_apt: Path) -> None:
    (etc_apt / "sources.list.d/debian.sources").write_text(DEB822.replace("Types: deb", "Enabled: no\nTypes: deb"))
    assert debian_lines("bookworm", etc_apt) == []
    assert backports(etc_apt) is None


def test_a_key_written_into_the_source_is_kept_for_backports(etc_apt: Path) -> None:
    key = "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBGPL\n -----END PGP PUBLIC KEY BLOCK-----\n"
    text = (
        f"Types: deb\nURIs: http://mirror.test/debian\nSuites:\n bookworm\n bookworm-updates\nComponents: main\n{key}"
    )
    (etc_apt / "sources.list.d/debian.sources").write_text(text)
    stanza = backports(etc_apt)
    assert stanza is not None and key in stanza
    assert "Suites: bookworm-backports\n" in stanza and "bookworm-updates" not in stanza
    assert debian_lines("bookworm", etc_apt)[0] == "deb http://mirror.test/debian bookworm main"


def test_a_machine_of_a_later_release_names_the_archive_for_an_earlier_one(etc_apt: Path) -> None:
    (etc_apt / "sources.list").write_text("deb http://mirror.test/debian trixie main\n")
    assert debian_lines("bookworm", etc_apt) == ["deb http://mirror.test/debian bookworm main"]


def test_a_machine_without_debians_archive_has_no_lines(etc_apt: Path) -> None:
    assert debian_lines("bookworm", etc_apt) == []
    assert backports(etc_apt) is None
