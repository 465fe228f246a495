//! Whether the database has every migration that this program knows: one that was put back from an
//! old copy under a running program has not.

use super::{PlanStore, STEPS, StoreError};

impl PlanStore {
    /// Migrations of this program that the database lacks.
    pub(crate) async fn missing_migrations(&self) -> Result<u64, StoreError> {
        let mut tx = self.database.read().await?;
        let rows = tx.rows("select version from _sqlx_migrations", []).await?;
        let done: Vec<i64> = rows.iter().map(|row| row.int("version")).collect::<Result<_, _>>()?;
        let missing = STEPS.iter().filter(|step| !done.contains(&step.number));
        Ok(missing.count() as u64)
    }
}
