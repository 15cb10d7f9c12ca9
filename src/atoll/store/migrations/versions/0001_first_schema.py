"""The first schema: accounts, templates, sandboxes, commands, volumes and warm instances."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("entitled", sa.Boolean(), nullable=False),
        sa.Column("active_sandbox_limit", sa.Integer(), nullable=True),
        sa.Column("plan", sa.String(length=64), nullable=False),
        sa.Column("credit_micros", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_accounts")),
        sa.UniqueConstraint("name", name=op.f("uq_accounts_name")),
    )
    op.create_table(
        "warm_instances",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("pool_key", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=64), nullable=False),
        sa.Column("allocation_pending", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("ready_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_warm_instances")),
    )
    op.create_index("ix_warm_instances_key_state", "warm_instances", ["pool_key", "state"], unique=False)
    op.create_table(
        "apps",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_apps_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_apps")),
        sa.UniqueConstraint("account_id", "name", name=op.f("uq_apps_account_id_name")),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_users_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("account_id", "name", name=op.f("uq_users_account_id_name")),
    )
    op.create_table(
        "memberships",
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_memberships_account_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_memberships_user_id")),
        sa.PrimaryKeyConstraint("account_id", "user_id", name=op.f("pk_memberships")),
    )
    op.create_table(
        "templates",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("app_id", sa.String(length=36), nullable=True),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("slug", sa.String(length=200), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("deprecated_at", sa.BigInteger(), nullable=True),
        sa.Column("current_revision_number", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_templates_account_id")),
        sa.ForeignKeyConstraint(["app_id"], ["apps.id"], name=op.f("fk_templates_app_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_templates")),
    )
    op.create_index("ix_templates_account", "templates", ["account_id", "created_at"], unique=False)
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("role", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("restriction", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_tokens_account_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_tokens_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("hash", name=op.f("uq_tokens_hash")),
    )
    op.create_table(
        "revisions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("template_id", sa.String(length=36), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("image_digest", sa.String(length=500), nullable=False),
        sa.Column("image_ref", sa.String(length=500), nullable=True),
        sa.Column("command", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("working_dir", sa.Text(), nullable=True),
        sa.Column("ports", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("zclouds", sa.Integer(), nullable=False),
        sa.Column("ephemeral_disk_mb", sa.Integer(), nullable=True),
        sa.Column("pid_limit", sa.Integer(), nullable=True),
        sa.Column("persistence_mode", sa.String(length=64), nullable=False),
        sa.Column("volume_size_mb", sa.Integer(), nullable=True),
        sa.Column("mount_path", sa.Text(), nullable=True),
        sa.Column("snapshot_exclude", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("snapshot_max_mb", sa.Integer(), nullable=True),
        sa.Column("isolation_profile", sa.String(length=64), nullable=False),
        sa.Column("idle_timeout_seconds", sa.Integer(), nullable=False),
        sa.Column("hard_lifetime_seconds", sa.Integer(), nullable=False),
        sa.Column("suspended_retention_seconds", sa.Integer(), nullable=False),
        sa.Column("warm_pool", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("network_control", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["template_id"], ["templates.id"], name=op.f("fk_revisions_template_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_revisions")),
        sa.UniqueConstraint("template_id", "revision", name=op.f("uq_revisions_template_id_revision")),
    )
    op.create_table(
        "sandboxes",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("app_id", sa.String(length=36), nullable=False),
        sa.Column("template_id", sa.String(length=36), nullable=False),
        sa.Column("template_revision_id", sa.String(length=36), nullable=False),
        sa.Column("template_revision_number", sa.Integer(), nullable=False),
        sa.Column("region", sa.String(length=64), nullable=False),
        sa.Column("workload_profile", sa.String(length=64), nullable=False),
        sa.Column("isolation_profile", sa.String(length=64), nullable=False),
        sa.Column("persistence_mode", sa.String(length=64), nullable=False),
        sa.Column("volume_name", sa.String(length=200), nullable=True),
        sa.Column("volume_id", sa.String(length=36), nullable=True),
        sa.Column("mount_path", sa.Text(), nullable=True),
        sa.Column("owner_kind", sa.String(length=64), nullable=False),
        sa.Column("owner_id", sa.String(length=500), nullable=False),
        sa.Column("external_session_id", sa.String(length=500), nullable=True),
        sa.Column("caller_key", sa.String(length=80), nullable=False),
        sa.Column("idempotency_key", sa.String(length=500), nullable=False),
        sa.Column("project_id", sa.String(length=500), nullable=True),
        sa.Column("max_project_concurrency", sa.Integer(), nullable=True),
        sa.Column("supervised", sa.Boolean(), nullable=True),
        sa.Column("status", sa.String(length=64), nullable=False),
        sa.Column("status_reason", sa.Text(), nullable=True),
        sa.Column("desired_status", sa.String(length=64), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("is_warm_allocation", sa.Boolean(), nullable=False),
        sa.Column("zclouds", sa.Integer(), nullable=False),
        sa.Column("ephemeral_disk_mb", sa.Integer(), nullable=True),
        sa.Column("pid_limit", sa.Integer(), nullable=True),
        sa.Column("idle_timeout_seconds", sa.Integer(), nullable=False),
        sa.Column("suspended_retention_seconds", sa.Integer(), nullable=False),
        sa.Column("instance_id", sa.String(length=36), nullable=True),
        sa.Column("allocation_pending", sa.Boolean(), nullable=False),
        sa.Column("claimed_at", sa.BigInteger(), nullable=True),
        sa.Column("ready_at", sa.BigInteger(), nullable=True),
        sa.Column("last_active_at", sa.BigInteger(), nullable=False),
        sa.Column("suspended_at", sa.BigInteger(), nullable=True),
        sa.Column("resumed_at", sa.BigInteger(), nullable=True),
        sa.Column("terminated_at", sa.BigInteger(), nullable=True),
        sa.Column("last_snapshot_at", sa.BigInteger(), nullable=True),
        sa.Column("last_snapshot_bytes", sa.BigInteger(), nullable=True),
        sa.Column("last_snapshot_error", sa.Text(), nullable=True),
        sa.Column("restore_failed", sa.Boolean(), nullable=False),
        sa.Column("pause", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("termination_reason", sa.String(length=64), nullable=True),
        sa.Column("error_code", sa.String(length=64), nullable=True),
        sa.Column("correlation_id", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("private", sa.Boolean(), nullable=True),
        sa.Column("webhook_host", sa.String(length=253), nullable=True),
        sa.Column("lease_token", sa.String(length=64), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_sandboxes_account_id")),
        sa.ForeignKeyConstraint(["app_id"], ["apps.id"], name=op.f("fk_sandboxes_app_id")),
        sa.ForeignKeyConstraint(["template_id"], ["templates.id"], name=op.f("fk_sandboxes_template_id")),
        sa.ForeignKeyConstraint(
            ["template_revision_id"], ["revisions.id"], name=op.f("fk_sandboxes_template_revision_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sandboxes")),
        sa.UniqueConstraint(
            "account_id",
            "app_id",
            "caller_key",
            "idempotency_key",
            name=op.f("uq_sandboxes_account_id_app_id_caller_key_idempotency_key"),
        ),
    )
    op.create_index("ix_sandboxes_account_created", "sandboxes", ["account_id", "created_at", "id"], unique=False)
    op.create_index("ix_sandboxes_allocation_pending", "sandboxes", ["allocation_pending"], unique=False)
    op.create_index("ix_sandboxes_instance", "sandboxes", ["instance_id"], unique=False)
    op.create_index("ix_sandboxes_status", "sandboxes", ["status"], unique=False)
    op.create_index("ix_sandboxes_volume", "sandboxes", ["volume_id"], unique=False)
    op.create_table(
        "commands",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("sandbox_id", sa.String(length=36), nullable=False),
        sa.Column("instance_id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=64), nullable=False),
        sa.Column("idempotency_key", sa.String(length=200), nullable=True),
        sa.Column("fingerprint", sa.String(length=64), nullable=True),
        sa.Column("caller_key", sa.String(length=80), nullable=False),
        sa.Column("process_id", sa.Integer(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("stdout_bytes", sa.BigInteger(), nullable=False),
        sa.Column("stderr_bytes", sa.BigInteger(), nullable=False),
        sa.Column("output_truncated", sa.Boolean(), nullable=False),
        sa.Column("requested_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("exited_at", sa.BigInteger(), nullable=True),
        sa.Column("execution_type", sa.String(length=64), nullable=False),
        sa.Column("end_seq", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["sandbox_id"], ["sandboxes.id"], name=op.f("fk_commands_sandbox_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_commands")),
        sa.UniqueConstraint("sandbox_id", "idempotency_key", name=op.f("uq_commands_sandbox_id_idempotency_key")),
    )
    op.create_index("ix_commands_instance_state", "commands", ["instance_id", "state"], unique=False)
    op.create_index("ix_commands_sandbox_state", "commands", ["sandbox_id", "state"], unique=False)
    op.create_table(
        "execution_webhooks",
        sa.Column("sandbox_id", sa.String(length=36), nullable=False),
        sa.Column("url", sa.LargeBinary(), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["sandbox_id"], ["sandboxes.id"], name=op.f("fk_execution_webhooks_sandbox_id")),
        sa.PrimaryKeyConstraint("sandbox_id", name=op.f("pk_execution_webhooks")),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("sandbox_id", sa.String(length=36), nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("host", sa.String(length=253), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(length=64), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.BigInteger(), nullable=False),
        sa.Column("lease_token", sa.String(length=64), nullable=True),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("last_failure", sa.String(length=100), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["sandbox_id"], ["sandboxes.id"], name=op.f("fk_webhook_deliveries_sandbox_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
    )
    op.create_index("ix_webhook_deliveries_due", "webhook_deliveries", ["state", "next_attempt_at"], unique=False)
    op.create_table(
        "ai_subscriptions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("env_var_name", sa.String(length=200), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_ai_subscriptions_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ai_subscriptions")),
    )
    op.create_index("ix_ai_subscriptions_user", "ai_subscriptions", ["user_id", "created_at"], unique=False)
    op.create_table(
        "sandbox_events",
        sa.Column("sandbox_id", sa.String(length=36), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("from_status", sa.String(length=64), nullable=True),
        sa.Column("to_status", sa.String(length=64), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("occurred_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["sandbox_id"], ["sandboxes.id"], name=op.f("fk_sandbox_events_sandbox_id")),
        sa.PrimaryKeyConstraint("sandbox_id", "generation", name=op.f("pk_sandbox_events")),
    )
    op.create_table(
        "storage_points",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=True),
        sa.Column("region", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=True),
        sa.Column("bucket_region", sa.String(length=64), nullable=True),
        sa.Column("access_key_id", sa.String(length=200), nullable=True),
        sa.Column("sealed_secret", sa.LargeBinary(), nullable=True),
        sa.Column("uid", sa.Integer(), nullable=False),
        sa.Column("gid", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("retired_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_storage_points_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_storage_points")),
    )
    op.create_index("ix_storage_points_account_region", "storage_points", ["account_id", "region"], unique=False)
    op.create_table(
        "shared_volumes",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("region", sa.String(length=64), nullable=False),
        sa.Column("storage_point_id", sa.String(length=36), nullable=False),
        sa.Column("status", sa.String(length=64), nullable=False),
        sa.Column("size_mb", sa.Integer(), nullable=False),
        sa.Column("uid", sa.Integer(), nullable=False),
        sa.Column("gid", sa.Integer(), nullable=False),
        sa.Column("purge_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_shared_volumes_account_id")),
        sa.ForeignKeyConstraint(
            ["storage_point_id"], ["storage_points.id"], name=op.f("fk_shared_volumes_storage_point_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shared_volumes")),
        sa.UniqueConstraint("account_id", "name", name=op.f("uq_shared_volumes_account_id_name")),
    )
    op.create_index("ix_shared_volumes_purge_at", "shared_volumes", ["purge_at"], unique=False)
    op.create_table(
        "snapshots",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("volume_id", sa.String(length=36), nullable=False),
        sa.Column("sandbox_id", sa.String(length=36), nullable=False),
        sa.Column("archive_bytes", sa.BigInteger(), nullable=False),
        sa.Column("content_bytes", sa.BigInteger(), nullable=False),
        sa.Column("file_count", sa.Integer(), nullable=False),
        sa.Column("skipped_count", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["sandbox_id"], ["sandboxes.id"], name=op.f("fk_snapshots_sandbox_id")),
        sa.ForeignKeyConstraint(["volume_id"], ["shared_volumes.id"], name=op.f("fk_snapshots_volume_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_snapshots")),
    )
    op.create_index("ix_snapshots_volume_created", "snapshots", ["volume_id", "created_at"], unique=False)
    op.create_table(
        "gateway_sessions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("sandbox_id", sa.String(length=36), nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("token_id", sa.String(length=36), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_gateway_sessions_account_id")),
        sa.ForeignKeyConstraint(["sandbox_id"], ["sandboxes.id"], name=op.f("fk_gateway_sessions_sandbox_id")),
        sa.ForeignKeyConstraint(["token_id"], ["tokens.id"], name=op.f("fk_gateway_sessions_token_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_gateway_sessions_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gateway_sessions")),
        sa.UniqueConstraint("hash", name=op.f("uq_gateway_sessions_hash")),
    )
    op.create_index("ix_gateway_sessions_expires_at", "gateway_sessions", ["expires_at"], unique=False)

    op.create_table(
        "audit_entries",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("occurred_at", sa.BigInteger(), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("outcome", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error_code", sa.String(length=64), nullable=True),
        sa.Column("user_id", sa.String(length=36), nullable=True),
        sa.Column("token_id", sa.String(length=36), nullable=True),
        sa.Column("channel", sa.String(length=64), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("target_kind", sa.String(length=64), nullable=True),
        sa.Column("target_id", sa.String(length=200), nullable=True),
        sa.Column("execution_id", sa.String(length=36), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_audit_entries_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entries")),
    )
    op.create_index("ix_audit_entries_account", "audit_entries", ["account_id", "id"], unique=False)
    op.create_index("ix_audit_entries_target", "audit_entries", ["account_id", "target_id", "id"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_audit_entries_target", table_name="audit_entries")
    op.drop_index("ix_audit_entries_account", table_name="audit_entries")
    op.drop_table("audit_entries")
    op.drop_index("ix_gateway_sessions_expires_at", table_name="gateway_sessions")
    op.drop_table("gateway_sessions")
    op.drop_index("ix_snapshots_volume_created", table_name="snapshots")
    op.drop_table("snapshots")
    op.drop_index("ix_shared_volumes_purge_at", table_name="shared_volumes")
    op.drop_table("shared_volumes")
    op.drop_index("ix_storage_points_account_region", table_name="storage_points")
    op.drop_table("storage_points")
    op.drop_table("sandbox_events")
    op.drop_index("ix_ai_subscriptions_user", table_name="ai_subscriptions")
    op.drop_table("ai_subscriptions")
    op.drop_index("ix_webhook_deliveries_due", table_name="webhook_deliveries")
    op.drop_table("webhook_deliveries")
    op.drop_table("execution_webhooks")
    op.drop_index("ix_commands_sandbox_state", table_name="commands")
    op.drop_index("ix_commands_instance_state", table_name="commands")
    op.drop_table("commands")
    op.drop_index("ix_sandboxes_volume", table_name="sandboxes")
    op.drop_index("ix_sandboxes_status", table_name="sandboxes")
    op.drop_index("ix_sandboxes_instance", table_name="sandboxes")
    op.drop_index("ix_sandboxes_allocation_pending", table_name="sandboxes")
    op.drop_index("ix_sandboxes_account_created", table_name="sandboxes")
    op.drop_table("sandboxes")
    op.drop_table("revisions")
    op.drop_table("tokens")
    op.drop_index("ix_templates_account", table_name="templates")
    op.drop_table("templates")
    op.drop_table("memberships")
    op.drop_table("users")
    op.drop_table("apps")
    op.drop_index("ix_warm_instances_key_state", table_name="warm_instances")
    op.drop_table("warm_instances")
    op.drop_table("accounts")
