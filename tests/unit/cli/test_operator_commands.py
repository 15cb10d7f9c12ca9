"""The commands of an operator: one JSON value and nothing else, ids that stay, errors in one line."""

from __future__ import annotations

import json
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from atoll import __version__
from atoll.cli import bootstrap
from atoll.cli.main import app
from atoll.domain.identity import Role, Scope, TokenKind
from atoll.ops.access import hash_token

IMAGES = [f"atoll/default@sha256:{digit * 64}" for digit in "12"]


@pytest.fixture(autouse=True)
def image(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stands in for the build of the default image, which takes minutes; a test may change what is built."""
    built = [IMAGES[0]]

    async def ensure(settings: Any) -> str:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        return built[0]

    monkeypatch.setattr(bootstrap, "_default_image", ensure)
    for name in ("ATOLL_DATABASE_URL", "ATOLL_REGIONS", "ATOLL_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    return built


def atoll(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def answer(*words: str) -> dict[str, Any]:
    """The one JSON value that a command prints."""
    result = atoll(*words, "--json")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def rows(folder: Path, statement: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(folder / "atoll.db")
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Any]:
    return answer("bootstrap", "--data-dir", str(tmp_path))


def test_bootstrap_makes_an_account_that_can_be_worked_with(made: dict[str, Any], tmp_path: Path) -> None:
    assert set(made) == {"token", "accountId", "userId", "appId", "templateId", "region"}
    assert made["region"] == "local"
    ((digest,),) = rows(tmp_path, "SELECT image_digest FROM revisions")
    assert digest == IMAGES[0]
    ((role, scopes),) = rows(tmp_path, "SELECT role, scopes FROM tokens")
    assert role == "admin"
    assert set(json.loads(scopes)) == {str(scope) for scope in Scope}


def test_bootstrap_again_keeps_the_ids_and_issues_a_fresh_token(made: dict[str, Any], tmp_path: Path) -> None:
    again = answer("bootstrap", "--data-dir", str(tmp_path))
    assert {**again, "token": ""} == {**made, "token": ""}
    assert again["token"] != made["token"]
    assert len(rows(tmp_path, "SELECT 1 FROM revisions")) == 1
    hashes = {hash_ for (hash_,) in rows(tmp_path, "SELECT hash FROM tokens WHERE revoked_at IS NULL")}
    assert hashes == {hash_token(made["token"]), hash_token(again["token"])}


def test_bootstrap_pins_a_new_default_image_in_a_new_revision(
    made: dict[str, Any], tmp_path: Path, image: list[str]
) -> None:
    image[0] = IMAGES[1]
    assert answer("bootstrap", "--data-dir", str(tmp_path))["templateId"] == made["templateId"]
    assert rows(tmp_path, "SELECT revision, image_digest FROM revisions ORDER BY revision") == [
        (1, IMAGES[0]),
        (2, IMAGES[1]),
    ]


def test_bootstrap_of_another_account_shares_nothing_with_the_first(made: dict[str, Any], tmp_path: Path) -> None:
    other = answer("bootstrap", "--data-dir", str(tmp_path), "--account", "other")
    assert not {value for key, value in other.items() if key != "region"} & set(made.values())


@pytest.mark.spec("SA-436")
def test_no_token_is_kept_readable(made: dict[str, Any], tmp_path: Path) -> None:
    secret = made["token"].removeprefix("atoll_").encode()
    assert len(secret) >= 43
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and secret in file.read_bytes()]


@pytest.mark.parametrize("kind", list(TokenKind))
@pytest.mark.parametrize("role", list(Role))
def test_a_token_of_any_kind_and_role_is_issued(
    made: dict[str, Any], tmp_path: Path, kind: TokenKind, role: Role
) -> None:
    issued = answer(
        "token", "create", "--data-dir", str(tmp_path), "--kind", kind, "--role", role, "--scopes", "quave:read"
    )
    assert set(issued) == {"token", "principalId"}
    assert issued["principalId"] == made["userId"]
    found = rows(tmp_path, f"SELECT kind, role, scopes FROM tokens WHERE hash = '{hash_token(issued['token'])}'")
    assert found == [(kind.value, role.value, '["quave:read"]')]


def test_another_user_is_made_once(made: dict[str, Any], tmp_path: Path) -> None:
    words = ("token", "create", "--data-dir", str(tmp_path), "--user", "ada")
    first, again = answer(*words), answer(*words)
    assert first["principalId"] == again["principalId"] != made["userId"]
    assert first["token"] != again["token"]


def test_an_app_is_made_once(made: dict[str, Any], tmp_path: Path) -> None:
    words = ("app", "create", "--data-dir", str(tmp_path), "--name", "web")
    assert answer(*words) == answer(*words) != {"appId": made["appId"]}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("token", "create", "--scopes", "quave:everything"), "quave:everything"),
        (("token", "create", "--scopes", ""), "--scopes"),
        (("token", "create", "--scopes", " , "), "--scopes"),
        (("token", "create", "--account", "no[body]"), "no[body]"),
        (("app", "create", "--name", "web", "--account", "[/red]"), "[/red]"),
        (("token", "create", "--database-url", "mysql://me:hunter2@host/db"), "ATOLL_DATABASE_URL"),
        (("token", "create", "--database-url", "postgresql://me:hunter2@127.0.0.1:9/db"), "database"),
    ],
)
def test_an_error_is_one_line_or_one_value_and_status_1(
    made: dict[str, Any], tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    plain = atoll(*words, "--data-dir", str(tmp_path))
    assert plain.exit_code == 1
    assert plain.stdout == ""
    assert plain.stderr.startswith("error: ") and says in plain.stderr
    assert plain.stderr.count("\n") == 1
    value = atoll(*words, "--data-dir", str(tmp_path), "--json")
    assert value.exit_code == 1
    assert says in json.loads(value.stdout)["error"]
    assert "hunter2" not in plain.output + value.output
    assert len(rows(tmp_path, "SELECT 1 FROM tokens")) == 1, "nothing was issued"


def test_a_data_directory_that_cannot_be_made_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = atoll("token", "create", "--data-dir", str(tmp_path / "file" / "data"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1 and "error: " in result.stderr


@pytest.mark.parametrize(
    "words", [("token", "create", "--kind", "king"), ("token", "create", "--role", "king"), ("x",)]
)
def test_what_typer_refuses_has_status_2(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert atoll(*words, "--data-dir", str(tmp_path)).exit_code == 2


def test_the_version_is_one_value_too() -> None:
    assert set(answer("version")) == {"version"}


def test_the_file_of_settings_counts_for_commands(tmp_path: Path) -> None:
    (tmp_path / "atoll.toml").write_text('regions = "eu-1"')
    assert answer("bootstrap", "--data-dir", str(tmp_path))["region"] == "eu-1"


def test_the_version_is_told_by_the_option_too() -> None:
    assert atoll("--version").output == f"atoll {__version__}\n"
    assert answer("version") == {"version": __version__}


def test_an_address_in_use_is_told_once_and_in_words(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = atoll("serve", "--data-dir", str(tmp_path / "data"), "--listen", address)
    assert refused.exit_code == 1
    words = refused.stderr or refused.output
    assert words.count(address) == 1
    assert "another program listens there" in words
    assert "Errno" not in words
    assert not (tmp_path / "data").exists()


def test_a_token_is_bound_to_what_exists(made: dict[str, Any], tmp_path: Path) -> None:
    create = ("token", "create", "--data-dir", str(tmp_path), "--kind", "mcp")
    answer(*create, "--restrict-app", made["appId"], "--restrict-region", "local")
    answer(*create, "--restrict-account")
    answer(*create)
    found = rows(tmp_path, "SELECT restriction FROM tokens WHERE kind = 'mcp' ORDER BY restriction")
    bound = json.dumps({"apps": [made["appId"]], "regions": ["local"]})
    assert found == [(None,), (bound,), ("{}",)]
    for option in ("app", "template", "region"):
        refused = atoll(*create, f"--restrict-{option}", "unknown")
        assert refused.exit_code == 1
        assert option in refused.output
    assert len(rows(tmp_path, "SELECT 1 FROM tokens WHERE kind = 'mcp'")) == 3


def test_how_an_account_pays_is_set_by_bootstrap_and_kept_by_the_next(made: dict[str, Any], tmp_path: Path) -> None:
    def billing() -> list[tuple[Any, ...]]:
        return rows(tmp_path, "SELECT plan, credit_micros FROM accounts")

    assert billing() == [("DIRECT", 0)]
    answer("bootstrap", "--data-dir", str(tmp_path), "--plan", "connect", "--credit", "12.5")
    assert billing() == [("CONNECT", 12_500_000)]
    answer("bootstrap", "--data-dir", str(tmp_path))
    assert billing() == [("CONNECT", 12_500_000)]
    for credit in ("-1", "much", "0.0000001", "1e30"):
        assert atoll("bootstrap", "--data-dir", str(tmp_path), f"--credit={credit}").exit_code == 1


def test_tokens_are_listed_without_their_text_and_revoked_by_id_or_text(made: dict[str, Any], tmp_path: Path) -> None:
    where = ("--data-dir", str(tmp_path))
    issued = answer("token", "create", *where, "--kind", "mcp", "--role", "technical", "--restrict-app", made["appId"])
    result = atoll("token", "list", *where)
    assert made["token"] not in result.output
    assert issued["token"] not in result.output
    first, second = answer("token", "list", *where, "--account", "default")["tokens"]
    assert (first["kind"], first["role"], first["revokedAt"], first["restrictedTo"]) == ("user", "admin", None, None)
    assert (second["kind"], second["restrictedTo"]) == ("mcp", {"apps": [made["appId"]]})
    assert answer("token", "revoke", *where, second["tokenId"]) == {"tokenId": second["tokenId"], "revoked": True}
    told = CliRunner().invoke(app, ["token", "revoke", *where, "--stdin"], input=f"{made['token']}\n")
    assert told.exit_code == 0, told.output
    assert all(token["revokedAt"] for token in answer("token", "list", *where)["tokens"])
    revocations = rows(tmp_path, "SELECT target_id FROM audit_entries WHERE action = 'revoke-token'")
    assert sorted(revocations) == sorted([(first["tokenId"],), (second["tokenId"],)])


def test_a_token_that_is_not_there_is_not_revoked(made: dict[str, Any], tmp_path: Path) -> None:
    where = ("--data-dir", str(tmp_path))
    assert "no such token" in atoll("token", "revoke", *where, "nothing").output
    for words in ((), ("some-id", "--stdin")):
        result = atoll("token", "revoke", *where, *words)
        assert (result.exit_code, "--stdin" in result.output) == (1, True)


@pytest.mark.spec("SA-120", "SA-423")
def test_an_account_s_own_ceiling_and_entitlement_are_changed_and_shown(made: dict[str, Any], tmp_path: Path) -> None:
    where = ("--data-dir", str(tmp_path))
    (account,) = answer("account", "list", *where)["accounts"]
    assert account == {
        "accountId": made["accountId"],
        "name": "default",
        "plan": "DIRECT",
        "entitled": True,
        "sandboxLimit": 200,
        "hasOwnLimit": False,
        "activeSandboxes": 0,
    }
    changed = answer("account", "change", *where, "default", "--sandbox-limit", "0", "--not-entitled")
    assert (changed["sandboxLimit"], changed["hasOwnLimit"], changed["entitled"]) == (0, True, False)
    assert "not entitled" in atoll("account", "list", *where).output
    changed = answer("account", "change", *where, "default", "--sandbox-limit", "default", "--entitled")
    assert (changed["sandboxLimit"], changed["hasOwnLimit"], changed["entitled"]) == (200, False, True)
    assert rows(tmp_path, "SELECT count(*) FROM audit_entries WHERE action = 'change-account'") == [(2,)]


@pytest.mark.parametrize(
    "words",
    [
        ("default",),
        ("nobody", "--entitled"),
        *(("default", "--sandbox-limit", n) for n in ("-1", "x", "1.5", "9" * 20)),
    ],
)
def test_a_change_of_an_account_that_says_nothing_sensible_is_refused(
    made: dict[str, Any], tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert atoll("account", "change", "--data-dir", str(tmp_path), *words).exit_code in {1, 2}
    (account,) = answer("account", "list", "--data-dir", str(tmp_path))["accounts"]
    assert not account["hasOwnLimit"]


@pytest.mark.parametrize(
    "words", [("token", "list"), ("account", "list"), ("token", "revoke", "x"), ("app", "create", "--name", "a")]
)
def test_a_mistyped_folder_is_no_empty_control_plane(tmp_path: Path, words: tuple[str, ...]) -> None:
    missing = tmp_path / "missing"
    result = atoll(*words, "--data-dir", str(missing))
    assert result.exit_code == 1
    assert "no control plane" in result.output
    assert not missing.exists()


def test_an_empty_folder_name_is_refused() -> None:
    result = atoll("account", "list", "--data-dir", "")
    assert result.exit_code == 2
    assert "empty" in result.output


@pytest.mark.parametrize("words", [("app", "create", "--name", " "), ("token", "create", "--user", "")])
def test_a_name_that_is_none_is_refused(made: dict[str, Any], tmp_path: Path, words: tuple[str, ...]) -> None:
    result = atoll(*words, "--data-dir", str(tmp_path))
    assert (result.exit_code, "1 to 200 characters" in result.output) == (1, True)
