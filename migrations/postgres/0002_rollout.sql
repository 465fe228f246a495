-- Rollouts: which clients are in which phase. At most one rollout is active.
-- Never change this file: add the next number.

create table rollout (
    name text primary key,
    -- the one active place; unique, so a second active rollout is refused
    active bigint not null unique check (active = 1),
    share_bp bigint not null constraint rollout_share check (share_bp between 0 and 10000),
    revision bigint not null check (revision >= 1),
    constraint rollout_name check (name ~ '^[a-z0-9][a-z0-9._-]{0,63}$')
);

create table rollout_rule (
    rollout text not null constraint rollout_rule_rollout references rollout (name),
    named_by text not null constraint rollout_rule_by check (named_by in ('all', 'client')),
    client text not null,
    phase text not null constraint rollout_rule_phase check (phase in ('off', 'shadow', 'enforce')),
    since_revision bigint not null check (since_revision >= 0),
    primary key (rollout, named_by, client),
    constraint rollout_rule_client check ((named_by = 'all') = (client = ''))
);
