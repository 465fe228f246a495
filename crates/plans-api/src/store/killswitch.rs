//! The kill switch of all gateways: set or not, and under which id.

use daemon::sql::Transaction;
use serde_json::json;
use wire::killswitch::{KillswitchState, KillswitchValue, OwnLatch};
use wire::name::Name;
use wire::policy::Object;

use super::feed::LIVE_MS;
use super::writing::{Told, Writing};
use super::{PlanStore, Stamp, StoreError};

const CURRENT: &str = "select id, set_at from killswitch";
/// Gateways that are named; more need no list to be noticed.
const OWN: &str = "select id, killswitch from gateway \
    where killswitch is not null and seen_at >= $1 order by id limit 1000";

impl PlanStore {
    /// Whether it is set, and where by hand.
    pub(crate) async fn killswitch(&self) -> Result<KillswitchState, StoreError> {
        let mut tx = self.database.read().await?;
        let head = tx.row("select revision from head", []).await?;
        let revision = head.map_or(Ok(0), |row| row.count("revision"))?;
        let killswitch = current(&mut tx).await?;
        let mut own = Vec::new();
        for row in tx.rows(OWN, [self.now().saturating_sub(LIVE_MS).into()]).await? {
            own.push(OwnLatch { gateway: row.text("id")?, id: row.text("killswitch")? });
        }
        Ok(KillswitchState { revision, killswitch, own })
    }

    /// Sets it under this id. What is set already stays as it is.
    pub(crate) async fn set_killswitch(&self, id: &Name, stamp: &Stamp) -> Result<(), StoreError> {
        let mut writing = self.begin(stamp).await?;
        if current(&mut writing.tx).await?.is_some() {
            return Ok(());
        }
        let switch = KillswitchValue { id: id.to_string(), set_at: writing.now() };
        let revision = writing.next_revision();
        let row = [switch.id.as_str().into(), switch.set_at.into(), revision.into()];
        let insert = "insert into killswitch (one, id, set_at, revision) values (1, $1, $2, $3)";
        writing.tx.run(insert, row).await?;
        record(&mut writing, "killswitch set", &switch, Some(&switch)).await?;
        writing.commit().await?;
        Ok(())
    }

    /// Clears the one with this id.
    pub(crate) async fn clear_killswitch(&self, id: &str, stamp: &Stamp) -> Result<(), StoreError> {
        let mut writing = self.begin(stamp).await?;
        let found = current(&mut writing.tx).await?.filter(|switch| switch.id == id);
        let switch =
            found.ok_or_else(|| StoreError::NotFound { kind: "kill switch", id: id.to_owned() })?;
        writing.next_revision();
        writing.tx.run("delete from killswitch", []).await?;
        record(&mut writing, "killswitch clear", &switch, None).await?;
        writing.commit().await?;
        Ok(())
    }
}

async fn record(
    writing: &mut Writing<'_>,
    command: &str,
    switch: &KillswitchValue,
    now: Option<&KillswitchValue>,
) -> Result<(), StoreError> {
    let told = Told {
        command,
        kind: "killswitch",
        id: &switch.id,
        before: now.is_none().then(|| json!(switch)),
        after: now.map(|now| json!(now)),
    };
    let object = Object::Killswitch { id: switch.id.clone(), value: now.cloned() };
    writing.record(&object, told).await
}

/// What is set.
pub(super) async fn current(tx: &mut Transaction) -> Result<Option<KillswitchValue>, StoreError> {
    let row = tx.row(CURRENT, []).await?;
    row.map(|row| Ok(KillswitchValue { id: row.text("id")?, set_at: row.count("set_at")? }))
        .transpose()
}
