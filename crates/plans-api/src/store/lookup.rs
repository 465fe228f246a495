//! Who shows a key: hashes in, keys and their clients out, a hundred with each statement.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use daemon::sql::{Transaction, Value};
use wire::client::plans::{ClientObject, KeyObject};
use wire::key::KeyHash;
use wire::policy::{FoundKey, LookupAnswer, SecretValue};

use super::{PlanStore, StoreError, clients, keys, many};
use crate::model::client;

const ONE: &str = "select hash, key_id from api_key_secret where hash = $1";
static MANY: LazyLock<String> =
    LazyLock::new(|| many::statement("select hash, key_id from api_key_secret where hash in", ""));

impl PlanStore {
    /// Who shows these keys? All answers are as of one revision.
    pub(crate) async fn lookup(&self, hashes: &[KeyHash]) -> Result<LookupAnswer, StoreError> {
        let mut tx = self.database.read().await?;
        let head = tx.row("select revision from head", []).await?;
        let revision = head.map_or(Ok(0), |row| row.count("revision"))?;
        let values: Vec<Value> = hashes.iter().map(|hash| hash.bytes().to_vec().into()).collect();
        let mut known = BTreeMap::new();
        for row in many::rows(&mut tx, ONE, MANY.as_str(), &values).await? {
            known.insert(row.bytes("hash")?, row.text("key_id")?);
        }
        let all = Owners::read(&mut tx, known.values()).await?;
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for hash in hashes {
            match known.get(hash.bytes().as_slice()) {
                None => missing.push(*hash),
                // Neither found nor missing: nobody can tell, and no other key suffers.
                Some(id) => match all.found(*hash, id) {
                    Some(key) => found.push(key),
                    None => tracing::error!(key = %id, "left out of a look-up"),
                },
            }
        }
        Ok(LookupAnswer { revision, found, missing })
    }
}

/// Keys by id, with their secrets and clients; without what cannot be read.
struct Owners {
    keys: BTreeMap<String, (KeyObject, Vec<SecretValue>)>,
    clients: BTreeMap<String, ClientObject>,
}

impl Owners {
    async fn read(
        tx: &mut Transaction,
        ids: impl Iterator<Item = &String>,
    ) -> Result<Owners, StoreError> {
        let ids: BTreeSet<&str> = ids.map(String::as_str).collect();
        let ids: Vec<Value> = ids.into_iter().map(Value::from).collect();
        let found = keys::find_many(tx, &ids).await?;
        let names: BTreeSet<&str> = found.iter().map(|key| key.client.as_str()).collect();
        let names: Vec<Value> = names.into_iter().map(Value::from).collect();
        let clients = clients::find_many(tx, &names).await?;
        let mut secrets = keys::secrets_of_many(tx, &ids).await?;
        let keys = found.into_iter().filter_map(|key| {
            let secrets = secrets.remove(&key.id)?;
            Some((key.id.clone(), (key, secrets)))
        });
        let keys = keys.collect();
        let clients = clients.into_iter().map(|client| (client.id.clone(), client)).collect();
        Ok(Owners { keys, clients })
    }

    fn found(&self, hash: KeyHash, id: &str) -> Option<FoundKey> {
        let (key, secrets) = self.keys.get(id)?;
        let owner = self.clients.get(&key.client)?;
        let key = keys::value_with(key, secrets.clone());
        Some(FoundKey { hash, key, client: client::value(owner) })
    }
}
