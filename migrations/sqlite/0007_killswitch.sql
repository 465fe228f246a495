-- The kill switch of all gateways: at most one row, there while it is set. Gateways are told it like
-- any other object, so changes may have its kind; and they say which one was set by hand there.
-- Never change this file: add the next number.

create table killswitch (
    one integer primary key check (one = 1),
    id text not null constraint killswitch_id check (
        length(id) <= 64 and id glob '[a-z0-9]*' and id not glob '*[^a-z0-9._-]*'
    ),
    set_at integer not null check (set_at >= 0),
    revision integer not null check (revision >= 1)
) strict;

alter table gateway add column killswitch text;

create table change_of_any_kind (
    revision integer primary key,
    at integer not null,
    kind text not null constraint change_kind check (
        kind in ('plan', 'client', 'key', 'rollout', 'killswitch')
    ),
    id text not null,
    value text
) strict;

insert into change_of_any_kind select revision, at, kind, id, value from change;
drop table change;
alter table change_of_any_kind rename to change;
