-- The audit becomes a chain: every row has the hash of the row before it and its own; the head has
-- the newest one and how far the chain reaches. Rows from before are put into it, as they are found,
-- by the first process that starts with this schema; a row of an older process that still runs
-- beside it, by the next change. Never change this file: add the next number.

alter table audit add column prev text
    constraint audit_prev check (length(prev) = 64 and prev not glob '*[^0-9a-f]*');
alter table audit add column hash text
    constraint audit_hash check (length(hash) = 64 and hash not glob '*[^0-9a-f]*');

alter table head add column audit_hash text not null
    default '0000000000000000000000000000000000000000000000000000000000000000'
    constraint head_audit_hash check (length(audit_hash) = 64 and audit_hash not glob '*[^0-9a-f]*');
alter table head add column audit_linked integer not null default 0
    constraint head_audit_linked check (audit_linked >= 0);
