"""What a restricted token may touch: everything inside, nothing outside, each bound on its own."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.domain.errors import Forbidden
from atoll.domain.restriction import (
    Restriction,
    check_account,
    check_change_of_template,
    check_inside,
    check_new_template,
    is_inside,
    region_is_inside,
)

INSIDE: dict[str, Any] = {"app_id": "a1", "region": "r1", "template_id": "t1"}
BOUND = Restriction("one", frozenset({"a1"}), frozenset({"r1"}), frozenset({"t1"}))


@pytest.mark.spec("SA-008")
def test_without_a_restriction_and_inside_one_nothing_is_refused() -> None:
    for restriction in (None, Restriction("one"), BOUND):
        check_account(restriction, "one")
        check_inside(restriction, **INSIDE)
        check_inside(restriction)
        assert is_inside(restriction, "a1", "t1")
        assert is_inside(restriction, None, "t1"), "a template without an app is every app's"
        assert region_is_inside(restriction, "r1")


@pytest.mark.parametrize("outside", [{"app_id": "x"}, {"region": "x"}, {"template_id": "x"}])
@pytest.mark.spec("SA-009")
def test_each_thing_outside_is_enough_for_a_refusal(outside: dict[str, Any]) -> None:
    with pytest.raises(Forbidden):
        check_inside(BOUND, **{**INSIDE, **outside})
    with pytest.raises(Forbidden):
        check_account(Restriction("one"), "two")


@pytest.mark.spec("SA-009")
def test_what_others_use_too_is_not_changed_by_a_bound_token() -> None:
    of_apps, of_templates = Restriction("one", apps=frozenset({"a1"})), Restriction("one", templates=frozenset({"t1"}))
    check_change_of_template(of_apps, "a1")
    check_new_template(of_apps, "a1")
    check_change_of_template(of_templates, None)
    with pytest.raises(Forbidden):
        check_change_of_template(of_apps, None)
    with pytest.raises(Forbidden):
        check_new_template(of_templates, None)
