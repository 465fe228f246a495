-- Rollouts: which clients are in which phase. At most one rollout is active.
-- Never change this file: add the next number.

create table rollout (
    name text primary key,
    -- the one active place; unique, so a second active rollout is refused
    active integer not null unique check (active = 1),
    share_bp integer not null constraint rollout_share check (share_bp between 0 and 10000),
    revision integer not null check (revision >= 1),
    constraint rollout_name check (
        length(name) <= 64 and name glob '[a-z0-9]*' and name not glob '*[^a-z0-9._-]*'
    )
) strict;

create table rollout_rule (
    rollout text not null constraint rollout_rule_rollout references rollout (name),
    named_by text not null constraint rollout_rule_by check (named_by in ('all', 'client')),
    client text not null,
    phase text not null constraint rollout_rule_phase check (phase in ('off', 'shadow', 'enforce')),
    since_revision integer not null check (since_revision >= 0),
    primary key (rollout, named_by, client),
    constraint rollout_rule_client check ((named_by = 'all') = (client = ''))
) strict;
