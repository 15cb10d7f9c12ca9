"""What kinds, scopes, roles and memberships allow."""

from __future__ import annotations

import pytest
from tests.samples import principal

from atoll.domain.errors import ErrorCode, Forbidden
from atoll.domain.identity import (
    Account,
    Role,
    Scope,
    TokenKind,
    require_manager,
    require_membership,
    require_scope,
)

ACCOUNT = Account("account-1", "one", entitled=True, active_sandbox_limit=None)


@pytest.mark.spec("SA-003", "SA-005", "SA-006")
@pytest.mark.parametrize("kind", list(TokenKind))
def test_sandbox_calls_take_tokens_of_persons_only(kind: TokenKind) -> None:
    caller = principal(kind=kind)
    if kind in {TokenKind.USER, TokenKind.OAUTH}:
        require_scope(caller, Scope.READ)
        return
    with pytest.raises(Forbidden):
        require_scope(caller, Scope.READ)


@pytest.mark.spec("SA-004")
@pytest.mark.parametrize("scope", list(Scope))
def test_a_token_without_the_scope_is_refused_whatever_else_it_holds(scope: Scope) -> None:
    require_scope(principal(scopes=frozenset({str(scope)})), scope)
    with pytest.raises(Forbidden) as refused:
        require_scope(principal(scopes=frozenset(str(other) for other in Scope if other is not scope)), scope)
    assert refused.value.code is ErrorCode.INSUFFICIENT_SCOPE


@pytest.mark.spec("SA-012", "SA-013", "SA-014", "SA-240", "SA-280")
@pytest.mark.parametrize("role", list(Role))
def test_managing_needs_the_admin_or_the_technical_role_and_reading_any(role: Role) -> None:
    require_membership(principal(role=role), ACCOUNT, role)
    if role is Role.MEMBER:
        with pytest.raises(Forbidden):
            require_manager(role)
    else:
        require_manager(role)


@pytest.mark.spec("SA-011")
def test_a_foreign_account_and_an_unknown_one_are_refused_alike() -> None:
    with pytest.raises(Forbidden) as foreign:
        require_membership(principal(), ACCOUNT, None)
    with pytest.raises(Forbidden) as unknown:
        require_membership(principal(), None, None)
    assert foreign.value.message == unknown.value.message


@pytest.mark.spec("SA-120")
def test_an_account_without_the_entitlement_is_refused() -> None:
    with pytest.raises(Forbidden, match="entitlement"):
        require_membership(principal(), Account("a", "a", entitled=False, active_sandbox_limit=None), Role.ADMIN)


@pytest.mark.spec("SA-422", "SA-423")
@pytest.mark.parametrize(("own", "ceiling"), [(None, 200), (500, 500), (0, 0)])
def test_the_ceiling_is_the_accounts_own_before_the_deployments(own: int | None, ceiling: int) -> None:
    assert Account("a", "a", entitled=True, active_sandbox_limit=own).sandbox_ceiling(200) == ceiling


@pytest.mark.spec("SA-052")
@pytest.mark.parametrize("kind", [TokenKind.USER, TokenKind.OAUTH])
def test_the_caller_key_names_the_user_for_either_kind(kind: TokenKind) -> None:
    assert principal(kind=kind, user_id="u-7").caller_key == "user:u-7"
