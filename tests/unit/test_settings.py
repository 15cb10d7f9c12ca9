"""Settings: where they come from, which source wins, and that a wrong one is named without its value."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from atoll.domain.errors import Invalid
from atoll.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ATOLL_")]:
        monkeypatch.delenv(name)


def written(folder: Path, text: str) -> Path:
    (folder / "atoll.toml").write_text(text)
    return folder


@pytest.mark.spec("SA-422")
def test_the_defaults_are_those_of_the_contract(tmp_path: Path) -> None:
    settings = load_settings(tmp_path)
    assert settings.account_active_sandbox_limit == 200
    assert [region.name for region in settings.regions] == ["local"]
    assert settings.store_url == f"sqlite:///{tmp_path}/atoll.db"


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path, "concurrent_boots = 5\nwarm_pool_size = 5\nsandbox_disk_mb = 500")
    monkeypatch.setenv("ATOLL_CONCURRENT_BOOTS", "6")
    monkeypatch.setenv("ATOLL_WARM_POOL_SIZE", "6")
    settings = load_settings(folder, warm_pool_size=7, concurrent_boots=None)
    assert (settings.sandbox_disk_mb, settings.concurrent_boots, settings.warm_pool_size) == (500, 6, 7)


def test_the_file_takes_the_names_of_the_environment_too(tmp_path: Path) -> None:
    assert load_settings(written(tmp_path, "ATOLL_CONCURRENT_BOOTS = 5")).concurrent_boots == 5


def test_settings_do_not_change(tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        load_settings(tmp_path).concurrent_boots = 9  # type: ignore[misc]  # the point


@pytest.mark.spec("SA-117", "SA-118", "SA-119")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("eu", [("eu", None, True)]),
        (" eu , us ,", [("eu", None, True), ("us", None, True)]),
        (
            '{"eu": {"accounts": ["a", "b"]}, "us": {"sandboxes": false}}',
            [("eu", {"a", "b"}, True), ("us", None, False)],
        ),
        ('{"eu": {}}', [("eu", None, True)]),
    ],
)
def test_regions_are_names_or_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: list[object]
) -> None:
    monkeypatch.setenv("ATOLL_REGIONS", text)
    regions = load_settings(tmp_path).regions
    assert [(region.name, region.accounts, region.sandboxes) for region in regions] == expected


@pytest.mark.parametrize("text", ['regions = ["eu", "us"]', "[regions.eu]\n[regions.us]\nsandboxes = true"])
def test_the_file_can_list_regions_or_hold_a_table_of_them(tmp_path: Path, text: str) -> None:
    assert [region.name for region in load_settings(written(tmp_path, text)).regions] == ["eu", "us"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REGIONS", ""),
        ("REGIONS", " , "),
        ("REGIONS", "eu,eu"),
        ("REGIONS", "{"),
        ("REGIONS", "{}"),
        ("REGIONS", '{"eu": null}'),
        ("REGIONS", '{"eu": {"accounts": "a"}}'),
        ("DATABASE_URL", "mysql://user:hunter2@host/db"),
        ("DATABASE_URL", "postgres://user:hunter2@host/db"),
        ("ACCOUNT_ACTIVE_SANDBOX_LIMIT", "0"),
        ("ACCOUNT_ACTIVE_SANDBOX_LIMIT", "hunter2"),
        ("CONCURRENT_BOOTS", "0"),
        ("WARM_POOL_SIZE", "-1"),
        ("WARM_POOL_SIZE", "65"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_without_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"ATOLL_{name}", value)
    with pytest.raises(Invalid) as refused:
        load_settings(tmp_path)
    assert f"ATOLL_{name}" in refused.value.message
    assert "hunter2" not in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("content", [b"a = ", b"\xff\xfe", b"[[[", b"= 1"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "atoll.toml").write_bytes(content)
    with pytest.raises(Invalid, match=r"atoll\.toml"):
        load_settings(tmp_path)


def test_a_folder_in_the_files_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "atoll.toml").mkdir()
    with pytest.raises(Invalid, match=r"atoll\.toml"):
        load_settings(tmp_path)


def test_lists_are_comma_separated_or_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_SANDBOX_DNS", "9.9.9.9, 1.1.1.1")
    folder = written(tmp_path, 'insecure_registries = ["127.0.0.1:5000"]')
    settings = load_settings(folder)
    assert settings.sandbox_dns == ("9.9.9.9", "1.1.1.1")
    assert settings.insecure_registries == {"127.0.0.1:5000"}


def test_a_database_url_replaces_the_file_in_the_data_directory(tmp_path: Path) -> None:
    url = "postgresql://user@host/db"
    assert Settings(data_dir=tmp_path, database_url=url).store_url == url
