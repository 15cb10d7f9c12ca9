"""The bodies, queries and answers of shared volumes and storage servers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from atoll.api.sandbox.answers import Success
from atoll.api.sandbox.fields import AccountId, Answer, Body, Count, Id, Label, Moment, Query, ShortName
from atoll.domain.volume import VolumeStatus

_NO_NUL = r"^[^\x00]*$"
Region = Annotated[str, Field(min_length=1, max_length=64, pattern=_NO_NUL, description="The region.")]
VolumeName = Annotated[ShortName, Field(description="The name of the volume.", examples=["project-42"])]
Number = Annotated[int, Field(ge=0, le=2_147_483_647)]


class CreateVolumeBody(Body):
    """A volume to make."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"accountId": "ACCOUNT_ID", "region": "local", "name": "project-42"}}
    )

    account_id: AccountId
    region: Region
    name: VolumeName
    size_mb: Annotated[Count | None, Field(description="Nominal size.")] = None
    storage_server_id: Annotated[Id | None, Field(description="Where to make it; the account's own unless sent.")] = (
        None
    )


class RestoreVolumeBody(Body):
    """Which volume to restore."""

    model_config = ConfigDict(json_schema_extra={"example": {"accountId": "ACCOUNT_ID", "name": "project-42"}})

    account_id: AccountId
    name: VolumeName


class ListVolumesQuery(Query):
    """Which volumes to list."""

    account_id: AccountId
    region: Annotated[str | None, Field(max_length=64, pattern=_NO_NUL, description="Those of one region.")] = None


class VolumeQuery(Query):
    """Names a volume."""

    account_id: AccountId
    name: VolumeName


class StorageServersQuery(Query):
    """Whose storage servers to list."""

    account_id: AccountId


class ConnectBucketBody(Body):
    """A bucket to connect."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "accountId": "ACCOUNT_ID",
                "region": "local",
                "name": "our bucket",
                "bucket": "sandboxes",
                "endpoint": "https://s3.example.com",
                "accessKeyId": "ACCESS_KEY_ID",
                "secretAccessKey": "SECRET_ACCESS_KEY",
                "uid": 1001,
                "gid": 1001,
            }
        }
    )

    account_id: AccountId
    region: Region
    name: Annotated[ShortName, Field(description="A name for people.")]
    bucket: Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{1,62}$", description="The bucket.")]
    prefix: Annotated[
        str | None,
        Field(max_length=500, pattern=r"^[A-Za-z0-9._/-]*$", description="Where in the bucket to keep volumes."),
    ] = None
    endpoint: Annotated[Label | None, Field(description="URL of the S3 service; the one of AWS unless sent.")] = None
    bucket_region: Annotated[
        str | None, Field(max_length=64, pattern=r"^[A-Za-z0-9-]+$", description="The S3 service's region.")
    ] = None
    access_key_id: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$")]
    secret_access_key: Annotated[
        str,
        Field(min_length=1, max_length=500, pattern=r"^[\x21-\x7e]+$", description="Stored encrypted, never returned."),
    ]
    uid: Annotated[Number | None, Field(description="Owner that entries of volumes report; 1001 unless sent.")] = None
    gid: Annotated[Number | None, Field(description="Group that entries of volumes report; 1001 unless sent.")] = None


class SharedVolume(Answer):
    """Data of the account that outlives sandboxes."""

    volume_id: str
    account_id: str
    name: str
    region: str
    storage_server_id: str
    status: VolumeStatus
    size_mb: Annotated[int, Field(description="Nominal.")]
    uid: Annotated[int, Field(description="Owner that its entries report.")]
    gid: int
    purge_at: Annotated[Moment | None, Field(description="Until when it can be restored.")] = None
    created_at: Moment
    updated_at: Moment


class StorageServer(Answer):
    """A place for volumes."""

    storage_server_id: str
    account_id: str | None = None
    name: str
    region: str
    type: Literal["OBJECT_STORAGE"]
    scope: Annotated[Literal["PLATFORM", "ACCOUNT"], Field(description="Whose it is.")]
    bucket: str | None = None
    prefix: str | None = None
    endpoint: str | None = None
    bucket_region: str | None = None
    access_key_id: str | None = None
    uid: int
    gid: int
    created_at: Moment


class SharedVolumeAnswer(Answer):
    """A volume."""

    success: Success
    shared_volume: SharedVolume


class SharedVolumesAnswer(Answer):
    """The volumes of an account."""

    success: Success
    account_id: str
    shared_volumes: list[SharedVolume]


class StorageServerAnswer(Answer):
    """A storage server."""

    success: Success
    storage_server: StorageServer


class StorageServersAnswer(Answer):
    """Every storage server on which the account can make volumes."""

    success: Success
    account_id: str
    storage_servers: list[StorageServer]
