-- weir-shadow-compare: batches as they came, sums by minute, what is known of gateway processes.

-- The instance that may write; every writing transaction touches this row.
create table evidence_owner (
    one integer not null primary key check (one = 1),
    instance text not null
);

-- A batch in commit order; its bytes stay until they are part of the sums.
create table evidence_batch (
    number integer not null primary key,
    gateway text not null,
    boot text not null,
    seq integer not null,
    arrived_ms integer not null,
    bytes blob,
    unique (gateway, boot, seq)
);
create index evidence_batch_arrived on evidence_batch (arrived_ms);

-- How far the sums reach, and losses of processes that are forgotten.
create table evidence_checkpoint (
    one integer not null primary key check (one = 1),
    number integer not null,
    heard_ms integer,
    lost_revision integer not null,
    lost_known_ms integer not null,
    lost_decisions integer not null,
    lost_records integer not null
);

-- A gateway process: which of its batches came (JSON).
create table evidence_boot (
    gateway text not null,
    boot text not null,
    heard_ms integer not null,
    state text not null,
    primary key (gateway, boot)
) without rowid;

-- Exact sums; client '' is everybody who found the table full.
create table evidence_tally (
    minute integer not null,
    client text not null,
    service text not null,
    phase text not null check (phase in ('off', 'shadow', 'enforce')),
    since_revision integer not null,
    requests integer not null,
    both_allow integer not null,
    both_deny integer not null,
    stricter integer not null,
    looser integer not null,
    undecided integer not null,
    ambiguous integer not null,
    no_reply integer not null,
    caller_gone integer not null,
    not_configured integer not null,
    rejected integer not null,
    edge_denied integer not null,
    service_denied integer not null,
    cost_allowed integer not null,
    primary key (minute, client, service, phase, since_revision)
) without rowid;

-- The same for phase shadow by day, over all services: what the number of a rollout is read from.
create table evidence_shadow (
    day integer not null,
    client text not null,
    since_revision integer not null,
    both_allow integer not null,
    both_deny integer not null,
    stricter integer not null,
    looser integer not null,
    undecided integer not null,
    ambiguous integer not null,
    no_reply integer not null,
    caller_gone integer not null,
    not_configured integer not null,
    primary key (day, client, since_revision)
) without rowid;
