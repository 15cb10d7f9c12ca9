"""The objects of the Sandbox API as JSON values. A key whose value is not set is left out, never null.

`answers` describes the same objects for the OpenAPI document; every answer in the tests is held against it.
"""

from __future__ import annotations

from typing import Any

import orjson
import pybase64
from starlette.responses import Response

from atoll.domain.command import CommandEvent, CommandOutput, CommandResult, Exit, Init, Output
from atoll.domain.sandbox import Sandbox, SandboxStatus
from atoll.domain.template import NetworkControl, Revision, Template
from atoll.domain.times import rfc3339
from atoll.domain.volume import SharedVolume, StoragePoint
from atoll.ops.command_start import StartedCommand


def json_response(value: dict[str, Any], status: int = 200) -> Response:
    """An answer; `value` is what stands beside `success` (SA-437)."""
    return Response(orjson.dumps({"success": True, **value}), status, media_type="application/json")


def template(it: Template) -> dict[str, Any]:
    """A template (SA-015 … SA-021)."""
    value: dict[str, Any] = {
        "templateId": it.id,
        "accountId": it.account_id,
        "name": it.name,
        "slug": it.slug,
        "enabled": it.enabled,
        "currentRevisionNumber": it.current_revision_number,
        "createdAt": rfc3339(it.created_at),
        "updatedAt": rfc3339(it.updated_at),
    }
    if it.deprecated_at is not None:
        value["deprecatedAt"] = rfc3339(it.deprecated_at)
    return value | _present({"appId": it.app_id, "description": it.description})


def revision(it: Revision) -> dict[str, Any]:
    """A revision (SA-022 … SA-041)."""
    value: dict[str, Any] = {
        "revisionId": it.id,
        "templateId": it.template_id,
        "revision": it.revision,
        "imageDigest": it.image_digest,
        "resources": _resources(it.zclouds, it.ephemeral_disk_mb, it.pid_limit),
        "persistenceMode": it.persistence_mode,
        "isolationProfile": it.isolation_profile,
        "idleTimeoutSeconds": it.idle_timeout_seconds,
        "hardLifetimeSeconds": it.hard_lifetime_seconds,
        "suspendedRetentionSeconds": it.suspended_retention_seconds,
        "createdAt": rfc3339(it.created_at),
    }
    workspace = _present({"sizeMb": it.volume_size_mb, "mountPath": it.mount_path})
    if workspace:
        value["persistentWorkspace"] = workspace
    if it.warm_pool is not None:
        value["warmPool"] = {"desired": it.warm_pool.desired, "min": it.warm_pool.min, "max": it.warm_pool.max}
    if it.network_control is not None:
        value["networkControl"] = _network_control(it.network_control)
    return value | _present(
        {
            "imageRef": it.image_ref,
            "command": it.command,
            "workingDir": it.working_dir,
            "ports": it.ports,
            "snapshotExclude": it.snapshot_exclude,
            "snapshotMaxMb": it.snapshot_max_mb,
        }
    )


def sandbox(it: Sandbox) -> dict[str, Any]:
    """A sandbox (SA-043 … SA-068). Its idempotency key is write-only (SA-069)."""
    value: dict[str, Any] = {
        "sandboxId": it.id,
        "accountId": it.account_id,
        "appId": it.app_id,
        "templateId": it.template_id,
        "templateRevisionId": it.template_revision_id,
        "templateRevisionNumber": it.template_revision_number,
        "region": it.region,
        "workloadProfile": it.workload_profile,
        "isolationProfile": it.isolation_profile,
        "persistenceMode": it.persistence_mode,
        "ownerKind": it.owner_kind,
        "ownerId": it.owner_id,
        "callerKey": it.caller_key,
        "status": it.status,
        "generation": it.generation,
        "isWarmAllocation": it.is_warm_allocation,
        "resources": _resources(it.zclouds, it.ephemeral_disk_mb, it.pid_limit),
        "lastActiveAt": rfc3339(it.last_active_at),
        "expiresAt": rfc3339(it.expires_at),
        "correlationId": it.correlation_id,
        "createdAt": rfc3339(it.created_at),
        "updatedAt": rfc3339(it.updated_at),
    }
    for key, moment in (
        ("claimedAt", it.claimed_at),
        ("readyAt", it.ready_at),
        ("suspendedAt", it.suspended_at),
        ("resumedAt", it.resumed_at),
        ("terminatedAt", it.terminated_at),
    ):
        if moment is not None:
            value[key] = rfc3339(moment)
    if it.error_code is not None:
        value["errorCode"] = it.error_code
        value["errorRetryable"] = it.error_code.retryable
    if it.webhook_host is not None:
        value["executionWebhook"] = {"host": it.webhook_host}
    return value | _present(
        {
            "volumeName": it.volume_name,
            "persistence": _persistence(it),
            "externalSessionId": it.external_session_id,
            "projectId": it.project_id,
            "maxProjectConcurrency": it.max_project_concurrency,
            "supervised": it.supervised,
            "private": it.private,
            "statusReason": it.status_reason,
            "desiredStatus": _driven_toward(it),
            "terminationReason": it.termination_reason,
        }
    )


def _persistence(it: Sandbox) -> dict[str, Any] | None:
    """What is known of its volume and snapshots (SA-048 … SA-050)."""
    value = _present(
        {
            "mountPath": it.mount_path,
            "lastSnapshotAt": None if it.last_snapshot_at is None else rfc3339(it.last_snapshot_at),
            "lastSnapshotBytes": it.last_snapshot_bytes,
            "lastSnapshotError": it.last_snapshot_error,
        }
    )
    return value if it.persistence_mode.uses_volume else None


def storage_server(it: StoragePoint) -> dict[str, Any]:
    """A storage point. Where the platform keeps its own is nobody's business, and a secret is never told."""
    value: dict[str, Any] = {
        "storageServerId": it.id,
        "name": it.name,
        "region": it.region,
        "type": "OBJECT_STORAGE",
        "scope": "PLATFORM" if it.account_id is None else "ACCOUNT",
        "uid": it.uid,
        "gid": it.gid,
        "createdAt": rfc3339(it.created_at),
    }
    if it.account_id is None:
        return value
    bucket, _, prefix = it.location.partition("/")
    return value | _present(
        {
            "accountId": it.account_id,
            "bucket": bucket,
            "prefix": prefix or None,
            "endpoint": it.endpoint,
            "bucketRegion": it.bucket_region,
            "accessKeyId": it.access_key_id,
        }
    )


def shared_volume(it: SharedVolume) -> dict[str, Any]:
    """A shared volume."""
    value: dict[str, Any] = {
        "volumeId": it.id,
        "accountId": it.account_id,
        "name": it.name,
        "region": it.region,
        "storageServerId": it.storage_point_id,
        "status": it.status,
        "sizeMb": it.size_mb,
        "uid": it.uid,
        "gid": it.gid,
        "createdAt": rfc3339(it.created_at),
        "updatedAt": rfc3339(it.updated_at),
    }
    if it.purge_at is not None:
        value["purgeAt"] = rfc3339(it.purge_at)
    return value


def execution(it: StartedCommand) -> dict[str, Any]:
    """A command that was just started (SA-252)."""
    return {"executionId": it.execution_id, "processId": it.process_id, "startedAt": rfc3339(it.started_at)}


def result(it: CommandResult) -> dict[str, Any]:
    """What a command that ran to its end said (SA-228 … SA-235)."""
    value: dict[str, Any] = {"exitCode": it.state.exit_code}
    if it.stdout:
        value["stdout"] = _base64(it.stdout)
    if it.stderr:
        value["stderr"] = _base64(it.stderr)
    if it.stdout_truncated:
        value["stdoutTruncated"] = True
    if it.stderr_truncated:
        value["stderrTruncated"] = True
    return value | _present({"reason": it.state.reason})


def command(it: CommandOutput) -> dict[str, Any]:
    """A started command and a page of its events (SA-259 … SA-277)."""
    state = it.state
    value: dict[str, Any] = {
        "executionId": str(state.execution_id),
        "state": "running" if state.running else "exited",
        "startedAt": rfc3339(state.started_at),
        "stdoutBytes": state.stdout_bytes,
        "stderrBytes": state.stderr_bytes,
        "outputTruncated": state.output_truncated,
        "events": [event(each) for each in it.events],
        "nextSeq": it.next_seq,
        "complete": it.complete,
    }
    if not state.running:
        value["exitCode"] = state.exit_code
        if state.exited_at is not None:
            value["exitedAt"] = rfc3339(state.exited_at)
        if state.reason is not None:
            value["reason"] = state.reason
    return value


def event(it: CommandEvent) -> dict[str, Any]:
    """One event (SA-264 … SA-271)."""
    if isinstance(it, Output):
        return {"seq": it.seq, it.stream: _base64(it.data)}
    if isinstance(it, Init):
        return {"seq": it.seq, "init": {"processId": it.process_id}}
    if isinstance(it, Exit):
        return {"seq": it.seq, "exit": {"exitCode": it.exit_code} | _present({"reason": it.reason})}
    return {"seq": it.seq, "truncated": {"droppedBytes": it.dropped_bytes, "droppedEvents": it.dropped_events}}


def _driven_toward(it: Sandbox) -> SandboxStatus | None:
    """The status being driven to while it differs (SA-055). BUSY fulfils READY, and FAILED is driven to it no more."""
    if it.desired_status in {None, it.status}:
        return None
    if it.desired_status is SandboxStatus.READY and it.status in {SandboxStatus.BUSY, SandboxStatus.FAILED}:
        return None
    return it.desired_status


def _resources(zclouds: int, ephemeral_disk_mb: int | None, pid_limit: int | None) -> dict[str, Any]:
    return {"zClouds": zclouds} | _present({"ephemeralDiskMb": ephemeral_disk_mb, "pidLimit": pid_limit})


def _network_control(it: NetworkControl) -> dict[str, Any]:
    value: dict[str, Any] = {"enabled": it.enabled}
    if it.address_allowlist:
        value["addressAllowlist"] = it.address_allowlist
    if it.domain_allowlist:
        value["domainAllowlist"] = it.domain_allowlist
    return value


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _base64(data: bytes) -> str:
    # pybase64 is seventy times as fast as the standard library, which took half the time of an answer of 1 MiB.
    return pybase64.b64encode_as_string(data)
