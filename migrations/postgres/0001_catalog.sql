-- Catalog of the control plane: plans, clients, API keys, operator tokens, gateways seen, and the
-- head from which every revision is taken. The checks carry the bounds of the API (limiter-core),
-- so a hand-made update is refused too; gateways check once more what they are told.
-- Times are milliseconds since 1970 (UTC). Never change this file: add the next number.

create table head (
    one bigint primary key check (one = 1),
    history text not null,
    -- which pepper the stored key hashes were made with
    pepper_id text not null,
    revision bigint not null check (revision >= 0),
    audit_seq bigint not null check (audit_seq >= 0)
);

create table plan (
    name text primary key,
    burst_capacity bigint,
    burst_tokens bigint,
    burst_per_us bigint,
    sustained_capacity bigint,
    sustained_tokens bigint,
    sustained_per_us bigint,
    unlimited bigint not null,
    scope text not null,
    failure text not null,
    costs text not null,
    labels text not null,
    note text not null,
    revision bigint not null check (revision >= 1),
    constraint plan_name check (name ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
    constraint plan_burst_whole check (
        (burst_capacity is null and burst_tokens is null and burst_per_us is null)
        or (burst_capacity is not null and burst_tokens is not null and burst_per_us is not null)
    ),
    constraint plan_burst_capacity check (burst_capacity between 1 and 1000000000000),
    -- no tokens (every 1 us) is the fixed allowance; otherwise at most 10^9 a second
    constraint plan_burst_refill check (
        (burst_tokens = 0 and burst_per_us = 1)
        or (
            burst_tokens between 1 and 1000000000
            and burst_per_us between 1 and 2678400000000
            and burst_tokens::numeric * 1000000 <= burst_per_us::numeric * 1000000000
        )
    ),
    -- counted exactly: (capacity + one second of refill, at most the capacity) * period < 2^53
    constraint plan_burst_resolution check (
        (burst_capacity + least(burst_capacity, div(burst_tokens::numeric * 1000000 + burst_per_us - 1, nullif(burst_per_us, 0))))::numeric * burst_per_us < 9007199254740992
    ),
    constraint plan_sustained_whole check (
        (sustained_capacity is null and sustained_tokens is null and sustained_per_us is null)
        or (sustained_capacity is not null and sustained_tokens is not null and sustained_per_us is not null)
    ),
    constraint plan_sustained_capacity check (sustained_capacity between 1 and 1000000000000),
    -- no tokens (every 1 us) is the fixed allowance; otherwise at most 10^9 a second
    constraint plan_sustained_refill check (
        (sustained_tokens = 0 and sustained_per_us = 1)
        or (
            sustained_tokens between 1 and 1000000000
            and sustained_per_us between 1 and 2678400000000
            and sustained_tokens::numeric * 1000000 <= sustained_per_us::numeric * 1000000000
        )
    ),
    -- counted exactly: (capacity + one second of refill, at most the capacity) * period < 2^53
    constraint plan_sustained_resolution check (
        (sustained_capacity + least(sustained_capacity, div(sustained_tokens::numeric * 1000000 + sustained_per_us - 1, nullif(sustained_per_us, 0))))::numeric * sustained_per_us < 9007199254740992
    ),
    -- unlimited only by the flag, and then without limits; no number means it
    constraint plan_unlimited check (
        (unlimited = 1 and burst_capacity is null and sustained_capacity is null)
        or (unlimited = 0 and burst_capacity is not null)
    ),
    constraint plan_scope check (scope in ('client', 'key')),
    constraint plan_failure check (
        failure in ('closed', 'local', 'coarse', 'open')
        or (case when failure ~ '^[0-9]{1,3}(\.[0-9]{1,4})?$' then failure::numeric between 0.01 and 100 else false end)
    ),
    constraint plan_note check (octet_length(note) <= 1024)
);

create table client (
    id text primary key,
    name text not null,
    plan text not null constraint client_plan references plan (name),
    state text not null constraint client_state check (state in ('active', 'suspended')),
    labels text not null,
    reset_revision bigint not null check (reset_revision >= 0),
    revision bigint not null check (revision >= 1),
    constraint client_id check (id ~ '^[a-z0-9][a-z0-9._-]{0,63}$')
);

create index client_by_plan on client (plan);

create table api_key (
    id text primary key,
    client text not null constraint api_key_client references client (id),
    env text not null constraint api_key_env check (env in ('live', 'test')),
    state text not null constraint api_key_state check (state in ('active', 'disabled', 'revoked')),
    expires_at bigint check (expires_at >= 0),
    created_at bigint not null,
    created_by text not null,
    revision bigint not null check (revision >= 1)
);

create index api_key_by_client on api_key (client);

create table api_key_secret (
    hash bytea primary key constraint api_key_secret_hash check (octet_length(hash) = 32),
    key_id text not null constraint api_key_secret_key references api_key (id),
    algorithm text not null check (algorithm in ('weir', 'sha256')),
    valid_until bigint check (valid_until >= 0)
);

create index api_key_secret_by_key on api_key_secret (key_id);

create table operator_token (
    id text primary key,
    hash bytea not null unique constraint operator_token_hash check (octet_length(hash) = 32),
    name text not null,
    role text not null constraint operator_token_role check (
        role in ('viewer', 'operator', 'admin', 'gateway', 'service', 'bootstrap')
    ),
    created_at bigint not null,
    expires_at bigint,
    last_used_at bigint,
    revoked_at bigint
);

create table gateway (
    id text primary key,
    boot text not null,
    build text not null,
    ops_url text,
    routes text not null,
    applied bigint not null,
    rejected text not null,
    seen_at bigint not null
);

-- What the feed sends: whole values, one revision each.
create table change (
    revision bigint primary key,
    at bigint not null,
    kind text not null check (kind in ('plan', 'client', 'key', 'rollout')),
    id text not null,
    value text
);

-- Who did what, written in the transaction that did it.
create table audit (
    seq bigint primary key,
    revision bigint,
    at bigint not null,
    actor text not null,
    via text not null,
    command text not null,
    reason text not null,
    kind text not null,
    id text not null,
    "before" text,
    "after" text,
    request_id text not null
);

create index audit_by_object on audit (kind, id, seq);
