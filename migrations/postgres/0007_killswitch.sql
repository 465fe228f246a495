-- The kill switch of all gateways: at most one row, there while it is set. Gateways are told it like
-- any other object, so changes may have its kind; and they say which one was set by hand there.
-- Never change this file: add the next number.

create table killswitch (
    one bigint primary key check (one = 1),
    id text not null constraint killswitch_id check (id ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
    set_at bigint not null check (set_at >= 0),
    revision bigint not null check (revision >= 1)
);

alter table gateway add column killswitch text;

alter table change drop constraint change_kind_check;
alter table change add constraint change_kind check (
    kind in ('plan', 'client', 'key', 'rollout', 'killswitch')
);
