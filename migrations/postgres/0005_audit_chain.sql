-- The audit becomes a chain: every row has the hash of the row before it and its own; the head has
-- the newest one and how far the chain reaches. Rows from before are put into it, as they are found,
-- by the first process that starts with this schema; a row of an older process that still runs
-- beside it, by the next change. Never change this file: add the next number.

alter table audit add column prev text constraint audit_prev check (prev ~ '^[0-9a-f]{64}$');
alter table audit add column hash text constraint audit_hash check (hash ~ '^[0-9a-f]{64}$');

alter table head add column audit_hash text not null
    default '0000000000000000000000000000000000000000000000000000000000000000'
    constraint head_audit_hash check (audit_hash ~ '^[0-9a-f]{64}$');
alter table head add column audit_linked bigint not null default 0
    constraint head_audit_linked check (audit_linked >= 0);
