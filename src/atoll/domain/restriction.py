"""Restrictions of a token: the one account, and the apps, regions and templates in it, that it may be used for.

Pure. `ops.access` and the use cases ask; each thing outside is enough for a refusal (SA-009).
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll.domain.errors import Forbidden


@dataclass(frozen=True, slots=True)
class Restriction:
    """What a token is bound to (SA-008). None of `apps`, `regions` or `templates` is all of the account."""

    account_id: str
    apps: frozenset[str] | None = None
    regions: frozenset[str] | None = None
    templates: frozenset[str] | None = None

    @property
    def is_narrow(self) -> bool:
        """Whether it leaves out a part of the account."""
        return any(chosen is not None for chosen in (self.apps, self.regions, self.templates))


def check_account(restriction: Restriction | None, account_id: str) -> None:
    """Refuse another account than the token's own."""
    if restriction is not None and restriction.account_id != account_id:
        raise Forbidden("The token is restricted to another account.")


def check_inside(
    restriction: Restriction | None,
    *,
    app_id: str | None = None,
    region: str | None = None,
    template_id: str | None = None,
) -> None:
    """Refuse an app, a region or a template outside; None is a thing that the request does not name."""
    if restriction is None:
        return
    for chosen, named, noun in (
        (restriction.apps, app_id, "app"),
        (restriction.regions, region, "region"),
        (restriction.templates, template_id, "template"),
    ):
        if chosen is not None and named is not None and named not in chosen:
            raise Forbidden(f"The token is restricted to other {noun}s of the account.")


def check_whole_account(restriction: Restriction | None) -> None:
    """Refuse what concerns the account as a whole to a token that is bound to a part of it."""
    if restriction is not None and restriction.is_narrow:
        raise Forbidden(
            "The token is restricted to a part of the account, and this is about all of it; name a sandbox inside."
        )


def is_inside(restriction: Restriction | None, app_id: str | None, template_id: str) -> bool:
    """Whether a template belongs to what is left; one without an app is every app's."""
    if restriction is None:
        return True
    app_fits = restriction.apps is None or app_id is None or app_id in restriction.apps
    return app_fits and (restriction.templates is None or template_id in restriction.templates)


def check_new_template(restriction: Restriction | None, app_id: str | None) -> None:
    """Refuse a template that would not be one of the chosen ones, or that would be every app's."""
    if restriction is not None and restriction.templates is not None:
        raise Forbidden("The token is restricted to other templates of the account.")
    check_change_of_template(restriction, app_id)


def check_change_of_template(restriction: Restriction | None, app_id: str | None) -> None:
    """Refuse a change, to a token bound to apps, of what apps outside use too."""
    if restriction is not None and restriction.apps is not None and app_id not in restriction.apps:
        raise Forbidden("The token is restricted to other apps of the account.")


def region_is_inside(restriction: Restriction | None, region: str) -> bool:
    """Whether a region is one of those that are left."""
    return restriction is None or restriction.regions is None or region in restriction.regions
