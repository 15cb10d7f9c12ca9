"""The route of usage, with its query and answer (SA-443)."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from pydantic import AwareDatetime, Field
from starlette.responses import Response

from atoll.api.openapi import SANDBOX_API, errors
from atoll.api.route import AuthenticatedRoute, CurrentCall, needs
from atoll.api.sandbox.answers import Success
from atoll.api.sandbox.fields import AccountId, Answer, Id, Moment, Query
from atoll.api.sandbox.render import json_response
from atoll.domain.billing import Plan
from atoll.domain.identity import Scope
from atoll.domain.times import rfc3339
from atoll.ops import usage as ops

router = APIRouter(prefix=SANDBOX_API, route_class=AuthenticatedRoute, tags=["Usage"])


Money = Annotated[str, Field(pattern=r"^\d+\.\d{6}$", examples=["0.041250"])]


class UsageQuery(Query):
    """Whose usage, and of when."""

    account_id: AccountId
    app_id: Annotated[Id | None, Field(description="That of one app.")] = None
    since: Annotated[AwareDatetime | None, Field(description="From when; 30 days before `until` without it.")] = None
    until: Annotated[AwareDatetime | None, Field(description="Until when; now without it.")] = None


class AmountAnswer(Answer):
    """What was billed."""

    billed_seconds: int
    z_cloud_seconds: Annotated[int, Field(description="Billed seconds times zClouds.")]


class BilledIntervalAnswer(Answer):
    """A stretch in which the allocation was held."""

    started_at: Moment
    ended_at: Annotated[Moment | None, Field(description="Absent while it is still held.")] = None


class SandboxUsageAnswer(AmountAnswer):
    """What one sandbox used."""

    sandbox_id: str
    app_id: str
    project_id: str | None = None
    z_clouds: int
    intervals: list[BilledIntervalAnswer]


class AppUsageAnswer(AmountAnswer):
    """What the sandboxes of an app used."""

    app_id: str


class ProjectUsageAnswer(AppUsageAnswer):
    """What the sandboxes of a project used."""

    project_id: str


class ChargeAnswer(Answer):
    """What the usage costs in the deployment's own currency, as decimals. Savings Plans pay none of it."""

    amount: Annotated[Money, Field(description="3 times the regional zCloud rate; 0 on Connect.")]
    credits: Annotated[Money, Field(description="The part that the account's credits paid; 0 in a report of one app.")]
    due: Annotated[Money, Field(description="What is left to pay.")]


class UsageAnswer(Answer):
    """The report."""

    success: Success
    account_id: str
    since: Moment
    until: Moment
    total: AmountAnswer
    sandboxes: list[SandboxUsageAnswer]
    apps: list[AppUsageAnswer]
    projects: list[ProjectUsageAnswer]
    plan: Plan
    charge: ChargeAnswer


@router.get(
    "/usage",
    operation_id="get-usage",
    openapi_extra=needs(Scope.READ),
    summary="Report usage",
    response_model=UsageAnswer,
    responses=errors(),
)
async def get_usage(call: CurrentCall, query: Annotated[UsageQuery, QueryParameters()]) -> Response:
    """Billed seconds and zCloud-seconds per sandbox, app and project, over 92 days at most.

    Needs the scope `quave:read`.
    """
    report = await ops.report_usage(
        call.services,
        call.principal,
        query.account_id,
        since=query.since,
        until=query.until,
        app_id=query.app_id,
    )
    return json_response(
        {
            "accountId": query.account_id,
            "since": rfc3339(report.since),
            "until": rfc3339(report.until),
            "total": _amount(report.total),
            "sandboxes": [_sandbox(used) for used in report.sandboxes],
            "plan": report.plan,
            "charge": {
                "amount": _money(report.charge.amount),
                "credits": _money(report.charge.credits),
                "due": _money(report.charge.due),
            },
            "apps": [{"appId": app_id, **_amount(amount)} for app_id, amount in report.apps.items()],
            "projects": [
                {"appId": app_id, "projectId": project_id, **_amount(amount)}
                for (app_id, project_id), amount in report.projects.items()
            ],
        }
    )


def _money(amount: Decimal) -> str:
    return f"{amount:.6f}"


def _amount(amount: ops.Amount) -> dict[str, Any]:
    return {"billedSeconds": amount.billed_seconds, "zCloudSeconds": amount.zcloud_seconds}


def _sandbox(used: ops.SandboxUsage) -> dict[str, Any]:
    project = {} if used.project_id is None else {"projectId": used.project_id}
    return {
        "sandboxId": used.sandbox_id,
        "appId": used.app_id,
        **project,
        "zClouds": used.zclouds,
        **_amount(used.amount),
        "intervals": [_interval(interval.started_at, interval.ended_at) for interval in used.intervals],
    }


def _interval(started_at: datetime, ended_at: datetime | None) -> dict[str, str]:
    ended = {} if ended_at is None else {"endedAt": rfc3339(ended_at)}
    return {"startedAt": rfc3339(started_at), **ended}
