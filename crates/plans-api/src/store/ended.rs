//! What a restore does not bring back: keys that were revoked here, and secrets that ended here.
//!
//! Where a key is in both, the newer of its secrets hold. One that the backup has and this catalog
//! has not, although it has one made later, was rotated away here, so it ends; the one in its place
//! stays. A secret that ends here ends no later for being restored.

use daemon::sql::Transaction;

use super::StoreError;

/// Keys that were revoked here, also those that went with their client; and the secrets of all.
const REMEMBER: &str = "create temporary table revoked_here as \
        select id from api_key where state = 'revoked' \
        union select id from audit \
        where kind = 'key' and command in ('key revoke', 'client delete'); \
    create temporary table secret_here as \
        select hash, key_id, algorithm, valid_until, created_at, last_used_at \
        from api_key_secret; \
    create index secret_here_by_hash on secret_here (hash); \
    create index secret_here_by_key on secret_here (key_id)";
const FORGET: &str = "drop table revoked_here; drop table secret_here";

const REVOKE: &str = "update api_key set state = 'revoked' where state <> 'revoked' \
    and id in (select id from revoked_here)";
const END: &str = "update api_key_secret set valid_until = $1 \
    where (valid_until is null or valid_until > $1) \
    and not exists (select 1 from secret_here h where h.hash = api_key_secret.hash) \
    and exists (select 1 from secret_here h where h.key_id = api_key_secret.key_id \
        and h.created_at >= api_key_secret.created_at)";
const SOONER: &str = "update api_key_secret set valid_until = \
        (select h.valid_until from secret_here h where h.hash = api_key_secret.hash) \
    where exists (select 1 from secret_here h where h.hash = api_key_secret.hash \
        and h.valid_until is not null and (api_key_secret.valid_until is null \
            or h.valid_until < api_key_secret.valid_until))";
const STAY: &str = "insert into api_key_secret \
        (hash, key_id, algorithm, valid_until, created_at, last_used_at) \
    select h.hash, h.key_id, h.algorithm, h.valid_until, h.created_at, h.last_used_at \
    from secret_here h where exists (select 1 from api_key k where k.id = h.key_id) \
    and not exists (select 1 from api_key_secret s where s.hash = h.hash) \
    and not exists (select 1 from api_key_secret s where s.key_id = h.key_id \
        and s.created_at > h.created_at)";

/// How much of the backup is not as the backup has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) stay_revoked: u64,
    pub(super) stay_ended: u64,
}

/// Notes what is here, before it is replaced.
pub(super) async fn remember(tx: &mut Transaction) -> Result<(), StoreError> {
    Ok(tx.run_text(REMEMBER).await?)
}

/// Holds what was restored to what was noted.
pub(super) async fn keep(tx: &mut Transaction, now: u64) -> Result<Kept, StoreError> {
    let stay_revoked = tx.run(REVOKE, []).await?;
    let stay_ended = tx.run(END, [now.into()]).await? + tx.run(SOONER, []).await?;
    tx.run(STAY, []).await?;
    tx.run_text(FORGET).await?;
    Ok(Kept { stay_revoked, stay_ended })
}
