-- What an operator may do beside plans, clients and keys: limits of a client's own for a time, a
-- second secret of a key and when it was used, more roles, what another person has to accept, and
-- calls that may be sent twice. Never change this file: add the next number.

-- One for each client; it ends by itself, and its row says so until it is taken away.
create table client_override (
    client text primary key constraint client_override_client references client (id),
    burst_capacity integer,
    burst_tokens integer,
    burst_per_us integer,
    sustained_capacity integer,
    sustained_tokens integer,
    sustained_per_us integer,
    failure text,
    reason text not null,
    set_at integer not null,
    expires_at integer not null,
    constraint client_override_burst_whole check (
        (burst_capacity is null and burst_tokens is null and burst_per_us is null)
        or (burst_capacity is not null and burst_tokens is not null and burst_per_us is not null)
    ),
    constraint client_override_burst_capacity check (burst_capacity between 1 and 1000000000000),
    constraint client_override_burst_refill check (
        (burst_tokens = 0 and burst_per_us = 1)
        or (
            burst_tokens between 1 and 1000000000
            and burst_per_us between 1 and 2678400000000
            and burst_tokens * 1000000 <= burst_per_us * 1000000000
        )
    ),
    constraint client_override_burst_resolution check (
        (burst_capacity + min(burst_capacity, (burst_tokens * 1000000 + burst_per_us - 1) / burst_per_us)) * burst_per_us < 9007199254740992
    ),
    constraint client_override_sustained_whole check (
        (sustained_capacity is null and sustained_tokens is null and sustained_per_us is null)
        or (sustained_capacity is not null and sustained_tokens is not null and sustained_per_us is not null)
    ),
    constraint client_override_sustained_capacity check (sustained_capacity between 1 and 1000000000000),
    constraint client_override_sustained_refill check (
        (sustained_tokens = 0 and sustained_per_us = 1)
        or (
            sustained_tokens between 1 and 1000000000
            and sustained_per_us between 1 and 2678400000000
            and sustained_tokens * 1000000 <= sustained_per_us * 1000000000
        )
    ),
    constraint client_override_sustained_resolution check (
        (sustained_capacity + min(sustained_capacity, (sustained_tokens * 1000000 + sustained_per_us - 1) / sustained_per_us)) * sustained_per_us < 9007199254740992
    ),
    constraint client_override_failure check (
        failure in ('closed', 'local', 'coarse', 'open')
        or (failure glob '[0-9]*' and failure not glob '*[^0-9.]*' and cast(failure as real) between 0.01 and 100)
    ),
    constraint client_override_says check (
        burst_capacity is not null or sustained_capacity is not null or failure is not null
    ),
    -- at most a year
    constraint client_override_end check (
        expires_at > set_at and expires_at - set_at <= 31622400000
    ),
    constraint client_override_reason check (length(reason) <= 1024)
) strict;

create index client_override_by_end on client_override (expires_at);

alter table api_key_secret add column created_at integer not null default 0;
alter table api_key_secret add column last_used_at integer;

-- SQLite cannot change a check: the table is made anew.
create table operator_token_anew (
    id text primary key,
    hash blob not null unique constraint operator_token_hash check (length(hash) = 32),
    name text not null,
    role text not null constraint operator_token_role check (
        role in (
            'viewer', 'support', 'operator', 'admin', 'approver', 'gateway', 'service', 'bootstrap'
        )
    ),
    machine integer not null default 0 constraint operator_token_machine check (machine in (0, 1)),
    created_at integer not null,
    expires_at integer,
    last_used_at integer,
    revoked_at integer
) strict;

insert into operator_token_anew
    (id, hash, name, role, created_at, expires_at, last_used_at, revoked_at)
    select id, hash, name, role, created_at, expires_at, last_used_at, revoked_at
    from operator_token;
drop table operator_token;
alter table operator_token_anew rename to operator_token;

-- What somebody asked for, to be done when another accepts, if its subject is as it was then.
create table approval (
    id text primary key,
    command text not null,
    kind text not null,
    subject text not null,
    subject_revision integer not null,
    evidence text not null,
    reason text not null,
    token_id text not null,
    requested_by text not null,
    requested_at integer not null,
    expires_at integer not null,
    state text not null constraint approval_state check (state in ('open', 'accepted', 'refused')),
    decided_by text,
    decided_at integer
) strict;

-- Calls that were done, by the caller's name for them; without a body the answer is not to be told
-- again (a secret) or was never told.
create table idempotency (
    token_id text not null,
    name text not null,
    request_hash blob not null constraint idempotency_hash check (length(request_hash) = 32),
    kind text not null,
    object text not null,
    status integer,
    body text,
    at integer not null,
    primary key (token_id, name)
) strict;

create index idempotency_by_age on idempotency (at);
