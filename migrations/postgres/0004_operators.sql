-- What an operator may do beside plans, clients and keys: limits of a client's own for a time, a
-- second secret of a key and when it was used, more roles, what another person has to accept, and
-- calls that may be sent twice. Never change this file: add the next number.

-- One for each client; it ends by itself, and its row says so until it is taken away.
create table client_override (
    client text primary key constraint client_override_client references client (id),
    burst_capacity bigint,
    burst_tokens bigint,
    burst_per_us bigint,
    sustained_capacity bigint,
    sustained_tokens bigint,
    sustained_per_us bigint,
    failure text,
    reason text not null,
    set_at bigint not null,
    expires_at bigint not null,
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
            and burst_tokens::numeric * 1000000 <= burst_per_us::numeric * 1000000000
        )
    ),
    constraint client_override_burst_resolution check (
        (burst_capacity + least(burst_capacity, div(burst_tokens::numeric * 1000000 + burst_per_us - 1, nullif(burst_per_us, 0))))::numeric * burst_per_us < 9007199254740992
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
            and sustained_tokens::numeric * 1000000 <= sustained_per_us::numeric * 1000000000
        )
    ),
    constraint client_override_sustained_resolution check (
        (sustained_capacity + least(sustained_capacity, div(sustained_tokens::numeric * 1000000 + sustained_per_us - 1, nullif(sustained_per_us, 0))))::numeric * sustained_per_us < 9007199254740992
    ),
    constraint client_override_failure check (
        failure in ('closed', 'local', 'coarse', 'open')
        or (case when failure ~ '^[0-9]{1,3}(\.[0-9]{1,4})?$' then failure::numeric between 0.01 and 100 else false end)
    ),
    constraint client_override_says check (
        burst_capacity is not null or sustained_capacity is not null or failure is not null
    ),
    -- at most a year
    constraint client_override_end check (
        expires_at > set_at and expires_at - set_at <= 31622400000
    ),
    constraint client_override_reason check (octet_length(reason) <= 1024)
);

create index client_override_by_end on client_override (expires_at);

alter table api_key_secret add column created_at bigint not null default 0;
alter table api_key_secret add column last_used_at bigint;

alter table operator_token drop constraint operator_token_role;
alter table operator_token add constraint operator_token_role check (
        role in (
            'viewer', 'support', 'operator', 'admin', 'approver', 'gateway', 'service', 'bootstrap'
        )
);
alter table operator_token add column machine bigint not null default 0
    constraint operator_token_machine check (machine in (0, 1));

-- What somebody asked for, to be done when another accepts, if its subject is as it was then.
create table approval (
    id text primary key,
    command text not null,
    kind text not null,
    subject text not null,
    subject_revision bigint not null,
    evidence text not null,
    reason text not null,
    token_id text not null,
    requested_by text not null,
    requested_at bigint not null,
    expires_at bigint not null,
    state text not null constraint approval_state check (state in ('open', 'accepted', 'refused')),
    decided_by text,
    decided_at bigint
);

-- Calls that were done, by the caller's name for them; without a body the answer is not to be told
-- again (a secret) or was never told.
create table idempotency (
    token_id text not null,
    name text not null,
    request_hash bytea not null constraint idempotency_hash check (octet_length(request_hash) = 32),
    kind text not null,
    object text not null,
    status bigint,
    body text,
    at bigint not null,
    primary key (token_id, name)
);

create index idempotency_by_age on idempotency (at);
