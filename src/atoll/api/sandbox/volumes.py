"""Routes of shared volumes and storage servers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from atoll.api.openapi import SANDBOX_API, errors
from atoll.api.route import AuthenticatedRoute, CurrentCall, needs
from atoll.api.sandbox import render, volume_shapes
from atoll.api.sandbox.volume_shapes import (
    ConnectBucketBody,
    CreateVolumeBody,
    ListVolumesQuery,
    RestoreVolumeBody,
    StorageServersQuery,
    VolumeQuery,
)
from atoll.domain.identity import Scope
from atoll.ops import storage_point
from atoll.ops import volume as volume_ops

router = APIRouter(prefix=SANDBOX_API, route_class=AuthenticatedRoute, tags=["Volumes"])


@router.post(
    "/shared-volume/create",
    operation_id="create-shared-volume",
    openapi_extra=needs(Scope.CONFIG),
    summary="Create a shared volume",
    status_code=201,
    response_model=volume_shapes.SharedVolumeAnswer,
    responses=errors(404, 409),
)
async def create_volume(call: CurrentCall, body: CreateVolumeBody) -> Response:
    """Make an empty volume that sandboxes of the region can use by `volumeName`. Needs `quave:write:config`."""
    volume = await volume_ops.create_volume(
        call.services,
        call.principal,
        volume_ops.CreateVolume(
            account_id=body.account_id,
            region=body.region,
            name=body.name,
            size_mb=body.size_mb,
            storage_server_id=body.storage_server_id,
        ),
    )
    return render.json_response({"sharedVolume": render.shared_volume(volume)}, 201)


@router.get(
    "/shared-volumes",
    operation_id="list-shared-volumes",
    openapi_extra=needs(Scope.READ),
    summary="List shared volumes",
    response_model=volume_shapes.SharedVolumesAnswer,
    responses=errors(),
)
async def list_volumes(call: CurrentCall, query: Annotated[ListVolumesQuery, Query()]) -> Response:
    """The account's volumes, oldest first, those pending purge too. Needs the scope `quave:read`."""
    found = await volume_ops.list_volumes(call.services, call.principal, query.account_id, query.region)
    return render.json_response(
        {"accountId": query.account_id, "sharedVolumes": [render.shared_volume(volume) for volume in found]}
    )


@router.get(
    "/shared-volume",
    operation_id="get-shared-volume",
    openapi_extra=needs(Scope.READ),
    summary="Get a shared volume",
    response_model=volume_shapes.SharedVolumeAnswer,
    responses=errors(404),
)
async def get_volume(call: CurrentCall, query: Annotated[VolumeQuery, Query()]) -> Response:
    """One volume. Needs the scope `quave:read`."""
    volume = await volume_ops.get_volume(call.services, call.principal, query.account_id, query.name)
    return render.json_response({"sharedVolume": render.shared_volume(volume)})


@router.delete(
    "/shared-volume",
    operation_id="delete-shared-volume",
    openapi_extra=needs(Scope.DANGEROUS),
    summary="Remove a shared volume",
    response_model=volume_shapes.SharedVolumeAnswer,
    responses=errors(404, 409),
)
async def delete_volume(call: CurrentCall, query: Annotated[VolumeQuery, Query()]) -> Response:
    """Remove a volume; until `purgeAt` it can be restored with everything in it. Needs `quave:write:dangerous`."""
    volume = await volume_ops.remove_volume(call.services, call.principal, query.account_id, query.name)
    return render.json_response({"sharedVolume": render.shared_volume(volume)})


@router.post(
    "/shared-volume/restore",
    operation_id="restore-shared-volume",
    openapi_extra=needs(Scope.CONFIG),
    summary="Restore a removed shared volume",
    response_model=volume_shapes.SharedVolumeAnswer,
    responses=errors(404, 409),
)
async def restore_volume(call: CurrentCall, body: RestoreVolumeBody) -> Response:
    """Take back the removal of a volume. Needs the scope `quave:write:config`."""
    volume = await volume_ops.restore_volume(call.services, call.principal, body.account_id, body.name)
    return render.json_response({"sharedVolume": render.shared_volume(volume)})


@router.get(
    "/storage-servers",
    operation_id="list-storage-servers",
    openapi_extra=needs(Scope.READ),
    summary="List storage servers",
    response_model=volume_shapes.StorageServersAnswer,
    responses=errors(),
)
async def list_storage_servers(call: CurrentCall, query: Annotated[StorageServersQuery, Query()]) -> Response:
    """Where the account can make volumes: its own buckets, then the platform's. Needs the scope `quave:read`."""
    found = await storage_point.list_points(call.services, call.principal, query.account_id)
    return render.json_response(
        {"accountId": query.account_id, "storageServers": [render.storage_server(point) for point in found]}
    )


@router.post(
    "/storage-server/object-storage/create",
    operation_id="create-object-storage",
    openapi_extra=needs(Scope.CONFIG),
    summary="Connect a bucket",
    status_code=201,
    response_model=volume_shapes.StorageServerAnswer,
    responses=errors(409),
)
async def connect_bucket(call: CurrentCall, body: ConnectBucketBody) -> Response:
    """Connect a bucket of the account, once it has been written to and read. Needs the scope `quave:write:config`."""
    point = await storage_point.connect_bucket(
        call.services,
        call.principal,
        storage_point.ConnectBucket(
            account_id=body.account_id,
            region=body.region,
            name=body.name,
            bucket=body.bucket,
            prefix=body.prefix or "",
            endpoint=body.endpoint,
            bucket_region=body.bucket_region,
            access_key_id=body.access_key_id,
            secret_access_key=body.secret_access_key,
            uid=body.uid,
            gid=body.gid,
        ),
    )
    return render.json_response({"storageServer": render.storage_server(point)}, 201)
