-- weir-shadow-compare: batches as they came, sums by minute, what is known of gateway processes.

-- The instance that may write; every writing transaction touches this row.
create table evidence_owner (
    one bigint not null primary key check (one = 1),
    instance text not null
);

-- A batch in commit order; its bytes stay until they are part of the sums.
create table evidence_batch (
    number bigint not null primary key,
    gateway text not null,
    boot text not null,
    seq bigint not null,
    arrived_ms bigint not null,
    bytes bytea,
    unique (gateway, boot, seq)
);
create index evidence_batch_arrived on evidence_batch (arrived_ms);

-- How far the sums reach, and losses of processes that are forgotten.
create table evidence_checkpoint (
    one bigint not null primary key check (one = 1),
    number bigint not null,
    heard_ms bigint,
    lost_revision bigint not null,
    lost_known_ms bigint not null,
    lost_decisions bigint not null,
    lost_records bigint not null
);

-- A gateway process: which of its batches came (JSON).
create table evidence_boot (
    gateway text not null,
    boot text not null,
    heard_ms bigint not null,
    state text not null,
    primary key (gateway, boot)
);

-- Exact sums; client '' is everybody who found the table full.
create table evidence_tally (
    minute bigint not null,
    client text not null,
    service text not null,
    phase text not null check (phase in ('off', 'shadow', 'enforce')),
    since_revision bigint not null,
    requests bigint not null,
    both_allow bigint not null,
    both_deny bigint not null,
    stricter bigint not null,
    looser bigint not null,
    undecided bigint not null,
    ambiguous bigint not null,
    no_reply bigint not null,
    caller_gone bigint not null,
    not_configured bigint not null,
    rejected bigint not null,
    edge_denied bigint not null,
    service_denied bigint not null,
    cost_allowed bigint not null,
    primary key (minute, client, service, phase, since_revision)
);

-- The same for phase shadow by day, over all services: what the number of a rollout is read from.
create table evidence_shadow (
    day bigint not null,
    client text not null,
    since_revision bigint not null,
    both_allow bigint not null,
    both_deny bigint not null,
    stricter bigint not null,
    looser bigint not null,
    undecided bigint not null,
    ambiguous bigint not null,
    no_reply bigint not null,
    caller_gone bigint not null,
    not_configured bigint not null,
    primary key (day, client, since_revision)
);
