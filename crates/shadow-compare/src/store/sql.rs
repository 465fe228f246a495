//! The one SQL text and the one body of every method, for Postgres and SQLite.
//!
//! Every writing transaction first touches the owner's row, so an instance that has lost its claim
//! without noticing can write nothing more. Sums are added by many-row inserts of fixed sizes, so
//! all statements are constant.

use std::sync::LazyLock;

use daemon::sql::{Database, Row, SqlError, Step, Transaction, Value};
use wire::batch::TallyCell;
use wire::rollout::Phase;

use super::{ClientSum, Committed, EvidenceStore, NewBatch, StoreError, StoredBatch};
use crate::book::{BootId, Checkpoint, MinuteWrite};
use crate::boot::{Boot, Loss};

/// The schema.
const STEPS: [Step; 1] = [Step {
    number: 3,
    name: "evidence",
    postgres: include_str!("../../../../migrations/postgres/0003_evidence.sql"),
    sqlite: include_str!("../../../../migrations/sqlite/0003_evidence.sql"),
}];

/// Batches read at once after a restart.
const BATCHES_READ_MAX: u64 = 16;
/// Rows of batches forgotten at once.
const BATCHES_FORGOTTEN_MAX: u64 = 10_000;
/// Minutes of sums forgotten at once.
const MINUTES_FORGOTTEN_MAX: u64 = 2;
/// Rows of sums written by one statement.
const ROWS_AT_ONCE: usize = 100;
/// Minutes of a day.
const DAY_MINUTES: u64 = 24 * 60;

const TALLY_COUNTS: [&str; 14] = [
    "requests",
    "both_allow",
    "both_deny",
    "stricter",
    "looser",
    "undecided",
    "ambiguous",
    "no_reply",
    "caller_gone",
    "not_configured",
    "rejected",
    "edge_denied",
    "service_denied",
    "cost_allowed",
];
const SHADOW_COUNTS: [&str; 9] = [
    "both_allow",
    "both_deny",
    "stricter",
    "looser",
    "undecided",
    "ambiguous",
    "no_reply",
    "caller_gone",
    "not_configured",
];

static ADD_TALLY: LazyLock<Adding> = LazyLock::new(|| {
    let keys = ["minute", "client", "service", "phase", "since_revision"];
    Adding::new("evidence_tally", &keys, &TALLY_COUNTS)
});
static ADD_SHADOW: LazyLock<Adding> = LazyLock::new(|| {
    Adding::new("evidence_shadow", &["day", "client", "since_revision"], &SHADOW_COUNTS)
});

/// `insert … on conflict … do update set n = n + excluded.n`, for one row and for many.
#[derive(Debug)]
struct Adding {
    one: String,
    many: String,
}

impl Adding {
    fn new(table: &str, keys: &[&str], counts: &[&str]) -> Adding {
        let columns = [keys, counts].concat();
        let sums: Vec<_> =
            counts.iter().map(|n| format!("{n} = {table}.{n} + excluded.{n}")).collect();
        let text = |rows: usize| {
            let places = |row: usize| {
                let numbers =
                    (1..=columns.len()).map(|at| format!("${}", row * columns.len() + at));
                format!("({})", numbers.collect::<Vec<_>>().join(", "))
            };
            format!(
                "insert into {table} ({}) values {} on conflict ({}) do update set {}",
                columns.join(", "),
                (0..rows).map(places).collect::<Vec<_>>().join(", "),
                keys.join(", "),
                sums.join(", "),
            )
        };
        Adding { one: text(1), many: text(ROWS_AT_ONCE) }
    }

    async fn run<T>(
        &'static self,
        tx: &mut Transaction,
        rows: &[T],
        values: impl Fn(&T) -> Vec<Value>,
    ) -> Result<(), SqlError> {
        let mut whole = rows.chunks_exact(ROWS_AT_ONCE);
        for rows in &mut whole {
            tx.run(&self.many, rows.iter().flat_map(&values)).await?;
        }
        for row in whole.remainder() {
            tx.run(&self.one, values(row)).await?;
        }
        Ok(())
    }
}

/// Evidence in Postgres or SQLite.
#[derive(Debug, Clone)]
pub(crate) struct SqlStore {
    database: Database,
    instance: String,
}

impl SqlStore {
    /// Brings the schema forward and takes over as `instance`; the claim must be held already.
    pub(crate) async fn take_over(
        database: Database,
        instance: String,
    ) -> Result<SqlStore, StoreError> {
        database.migrate(&STEPS).await?;
        let mut tx = database.write().await?;
        tx.run(
            "insert into evidence_owner (one, instance) values (1, $1)
             on conflict (one) do update set instance = excluded.instance",
            [instance.as_str().into()],
        )
        .await?;
        tx.commit().await?;
        Ok(SqlStore { database, instance })
    }

    /// A writing transaction, if this instance is still the one.
    async fn write(&self) -> Result<Transaction, StoreError> {
        let mut tx = self.database.write().await?;
        let own = tx
            .run(
                "update evidence_owner set instance = instance where one = 1 and instance = $1",
                [self.instance.as_str().into()],
            )
            .await?;
        if own == 1 { Ok(tx) } else { Err(StoreError::TakenOver) }
    }
}

impl EvidenceStore for SqlStore {
    async fn restore(&self) -> Result<(Checkpoint, Vec<(BootId, Boot)>), StoreError> {
        let mut tx = self.database.read().await?;
        let row = tx
            .row(
                "select number, heard_ms, lost_revision, lost_known_ms, lost_decisions, lost_records
                 from evidence_checkpoint where one = 1",
                [],
            )
            .await?;
        let checkpoint = row.map(|row| checkpoint_of(&row)).transpose()?.unwrap_or_default();
        let rows = tx.rows("select gateway, boot, state from evidence_boot", []).await?;
        let boots = rows.iter().map(boot_of).collect::<Result<_, _>>()?;
        Ok((checkpoint, boots))
    }

    async fn batches_after(&self, number: u64) -> Result<Vec<StoredBatch>, StoreError> {
        let mut tx = self.database.read().await?;
        let rows = tx
            .rows(
                "select number, arrived_ms, bytes from evidence_batch
                 where number > $1 order by number limit $2",
                [number.into(), BATCHES_READ_MAX.into()],
            )
            .await?;
        let batch = |row: &Row| -> Result<StoredBatch, SqlError> {
            let bytes = row.bytes("bytes")?;
            Ok(StoredBatch {
                number: row.count("number")?,
                arrived_ms: row.count("arrived_ms")?,
                bytes,
            })
        };
        Ok(rows.iter().map(batch).collect::<Result<_, _>>()?)
    }

    fn unwritable(&self) -> Option<String> {
        self.database.writes().failure()
    }

    async fn try_write(&self) -> Result<(), StoreError> {
        let mut tx = self.write().await?;
        tx.run(
            "insert into evidence_boot (gateway, boot, heard_ms, state) values ('', '', 0, '{}')",
            [],
        )
        .await?;
        tx.run("delete from evidence_boot where gateway = '' and boot = ''", []).await?;
        Ok(tx.commit().await?)
    }

    async fn commit(&self, batch: &NewBatch<'_>) -> Result<Committed, StoreError> {
        let mut tx = self.write().await?;
        let new = tx
            .run(
                "insert into evidence_batch (number, gateway, boot, seq, arrived_ms, bytes)
                 values ($1, $2, $3, $4, $5, $6) on conflict (gateway, boot, seq) do nothing",
                [
                    batch.number.into(),
                    batch.id.gateway.as_str().into(),
                    batch.id.boot.as_str().into(),
                    batch.seq.into(),
                    batch.arrived_ms.into(),
                    batch.bytes.into(),
                ],
            )
            .await?;
        tx.commit().await?;
        Ok(if new == 1 { Committed::New } else { Committed::Known })
    }

    async fn write_minute(&self, write: &MinuteWrite) -> Result<(), StoreError> {
        let mut tx = self.write().await?;
        ADD_TALLY.run(&mut tx, &write.cells, tally_values).await?;
        ADD_SHADOW.run(&mut tx, &shadow_days(&write.cells), shadow_values).await?;
        write_boots(&mut tx, write).await?;
        write_checkpoint(&mut tx, &write.checkpoint).await?;
        tx.run(
            "update evidence_batch set bytes = null where number > $1 and number <= $2",
            [write.previous.into(), write.checkpoint.number.into()],
        )
        .await?;
        Ok(tx.commit().await?)
    }

    async fn shadow_since(&self, revision: u64) -> Result<Vec<TallyCell>, StoreError> {
        let mut tx = self.database.read().await?;
        let rows = tx
            .rows(
                "select client, since_revision,
                        cast(sum(both_allow) as bigint) as both_allow,
                        cast(sum(both_deny) as bigint) as both_deny,
                        cast(sum(stricter) as bigint) as stricter,
                        cast(sum(looser) as bigint) as looser,
                        cast(sum(undecided) as bigint) as undecided,
                        cast(sum(ambiguous) as bigint) as ambiguous,
                        cast(sum(no_reply) as bigint) as no_reply,
                        cast(sum(caller_gone) as bigint) as caller_gone,
                        cast(sum(not_configured) as bigint) as not_configured
                 from evidence_shadow where since_revision >= $1
                 group by client, since_revision",
                [revision.into()],
            )
            .await?;
        Ok(rows.iter().map(shadow_cell_of).collect::<Result<_, _>>()?)
    }

    async fn clients_since(&self, minute: u64) -> Result<Vec<ClientSum>, StoreError> {
        let mut tx = self.database.read().await?;
        let rows = tx
            .rows(
                "select client, phase, max(minute) as minute, max(since_revision) as since_revision,
                        cast(sum(requests) as bigint) as requests,
                        cast(sum(edge_denied) as bigint) as would_deny,
                        cast(sum(both_allow + both_deny + stricter + looser) as bigint) as pairs,
                        cast(sum(stricter + looser) as bigint) as disagreements
                 from evidence_tally where minute >= $1 group by client, phase",
                [minute.into()],
            )
            .await?;
        Ok(rows.iter().map(client_sum_of).collect::<Result<_, _>>()?)
    }

    async fn usage_since(&self, client: &str, minute: u64) -> Result<Vec<TallyCell>, StoreError> {
        let mut tx = self.database.read().await?;
        let rows = tx
            .rows(
                "select minute, client,
                        cast(sum(requests) as bigint) as requests,
                        cast(sum(rejected) as bigint) as rejected,
                        cast(sum(edge_denied) as bigint) as edge_denied,
                        cast(sum(service_denied) as bigint) as service_denied,
                        cast(sum(cost_allowed) as bigint) as cost_allowed
                 from evidence_tally where minute >= $1 and (client = $2 or client = '')
                 group by minute, client order by minute",
                [minute.into(), client.into()],
            )
            .await?;
        Ok(rows.iter().map(usage_cell_of).collect::<Result<_, _>>()?)
    }

    async fn forget(&self, batches_ms: u64, minute: u64) -> Result<(), StoreError> {
        let mut tx = self.write().await?;
        tx.run(
            "delete from evidence_batch where number in (
                 select number from evidence_batch where arrived_ms < $1 and bytes is null
                 order by arrived_ms limit $2)",
            [batches_ms.into(), BATCHES_FORGOTTEN_MAX.into()],
        )
        .await?;
        tx.run(
            "delete from evidence_tally where minute < $1
             and minute < (select min(minute) + $2 from evidence_tally)",
            [minute.into(), MINUTES_FORGOTTEN_MAX.into()],
        )
        .await?;
        tx.run("delete from evidence_shadow where day < $1", [(minute / DAY_MINUTES).into()])
            .await?;
        Ok(tx.commit().await?)
    }
}

async fn write_boots(tx: &mut Transaction, write: &MinuteWrite) -> Result<(), StoreError> {
    for id in &write.gone {
        tx.run(
            "delete from evidence_boot where gateway = $1 and boot = $2",
            [id.gateway.as_str().into(), id.boot.as_str().into()],
        )
        .await?;
    }
    for (id, boot) in &write.boots {
        let state = serde_json::to_string(boot)
            .map_err(|error| StoreError::Corrupt(format!("process {}", id.boot), error))?;
        tx.run(
            "insert into evidence_boot (gateway, boot, heard_ms, state) values ($1, $2, $3, $4)
             on conflict (gateway, boot)
             do update set heard_ms = excluded.heard_ms, state = excluded.state",
            [
                id.gateway.as_str().into(),
                id.boot.as_str().into(),
                boot.heard_ms().into(),
                state.into(),
            ],
        )
        .await?;
    }
    Ok(())
}

async fn write_checkpoint(tx: &mut Transaction, to: &Checkpoint) -> Result<(), StoreError> {
    let Loss { revision, known_ms, decisions, records } = to.forgotten;
    tx.run(
        "insert into evidence_checkpoint (one, number, heard_ms, lost_revision, lost_known_ms,
                                          lost_decisions, lost_records)
         values (1, $1, $2, $3, $4, $5, $6)
         on conflict (one) do update set
             number = excluded.number, heard_ms = excluded.heard_ms,
             lost_revision = excluded.lost_revision, lost_known_ms = excluded.lost_known_ms,
             lost_decisions = excluded.lost_decisions, lost_records = excluded.lost_records",
        [
            to.number.into(),
            to.heard_ms.into(),
            revision.into(),
            known_ms.into(),
            decisions.into(),
            records.into(),
        ],
    )
    .await?;
    Ok(())
}

fn tally_values(cell: &TallyCell) -> Vec<Value> {
    let mut values: Vec<Value> = vec![
        cell.minute.into(),
        cell.client.as_str().into(),
        cell.service.as_str().into(),
        cell.phase.name().into(),
        cell.since_revision.into(),
        cell.requests.into(),
    ];
    values.extend(shadow_counts(cell));
    let rest = [cell.rejected, cell.edge_denied, cell.service_denied, cell.cost_allowed];
    values.extend(rest.map(Value::from));
    values
}

/// In the order of [`SHADOW_COUNTS`], which is also that of [`TALLY_COUNTS`].
fn shadow_counts(cell: &TallyCell) -> [Value; 9] {
    [
        cell.both_allow,
        cell.both_deny,
        cell.stricter,
        cell.looser,
        cell.undecided,
        cell.ambiguous,
        cell.no_reply,
        cell.caller_gone,
        cell.not_configured,
    ]
    .map(Value::from)
}

/// Sums by day, client and the revision at which the phase began.
type ShadowDay<'a> = ((u64, &'a str, u64), TallyCell);

/// The cells of phase shadow, each row once: one statement may touch it only once.
fn shadow_days(cells: &[TallyCell]) -> Vec<ShadowDay<'_>> {
    let mut sums = std::collections::BTreeMap::<(u64, &str, u64), TallyCell>::new();
    for cell in cells.iter().filter(|cell| cell.phase == Phase::Shadow) {
        let key = (cell.minute / DAY_MINUTES, cell.client.as_str(), cell.since_revision);
        sums.entry(key).or_default().add(cell);
    }
    sums.into_iter().collect()
}

fn shadow_values(((day, client, since), sum): &ShadowDay<'_>) -> Vec<Value> {
    let mut values: Vec<Value> = vec![(*day).into(), (*client).into(), (*since).into()];
    values.extend(shadow_counts(sum));
    values
}

fn checkpoint_of(row: &Row) -> Result<Checkpoint, SqlError> {
    Ok(Checkpoint {
        number: row.count("number")?,
        heard_ms: row.count_or_null("heard_ms")?,
        forgotten: Loss {
            revision: row.count("lost_revision")?,
            known_ms: row.count("lost_known_ms")?,
            decisions: row.count("lost_decisions")?,
            records: row.count("lost_records")?,
        },
    })
}

fn boot_of(row: &Row) -> Result<(BootId, Boot), StoreError> {
    let id = BootId { gateway: row.text("gateway")?, boot: row.text("boot")? };
    let boot = serde_json::from_str(&row.text("state")?)
        .map_err(|error| StoreError::Corrupt(format!("process {}", id.boot), error))?;
    Ok((id, boot))
}

fn shadow_cell_of(row: &Row) -> Result<TallyCell, SqlError> {
    Ok(TallyCell {
        client: row.text("client")?,
        phase: Phase::Shadow,
        since_revision: row.count("since_revision")?,
        both_allow: row.count("both_allow")?,
        both_deny: row.count("both_deny")?,
        stricter: row.count("stricter")?,
        looser: row.count("looser")?,
        undecided: row.count("undecided")?,
        ambiguous: row.count("ambiguous")?,
        no_reply: row.count("no_reply")?,
        caller_gone: row.count("caller_gone")?,
        not_configured: row.count("not_configured")?,
        ..TallyCell::default()
    })
}

fn client_sum_of(row: &Row) -> Result<ClientSum, SqlError> {
    Ok(ClientSum {
        client: row.text("client")?,
        phase: Phase::named(&row.text("phase")?).unwrap_or_default(),
        minute: row.count("minute")?,
        since_revision: row.count("since_revision")?,
        requests: row.count("requests")?,
        would_deny: row.count("would_deny")?,
        pairs: row.count("pairs")?,
        disagreements: row.count("disagreements")?,
    })
}

fn usage_cell_of(row: &Row) -> Result<TallyCell, SqlError> {
    Ok(TallyCell {
        minute: row.count("minute")?,
        client: row.text("client")?,
        requests: row.count("requests")?,
        rejected: row.count("rejected")?,
        edge_denied: row.count("edge_denied")?,
        service_denied: row.count("service_denied")?,
        cost_allowed: row.count("cost_allowed")?,
        ..TallyCell::default()
    })
}
