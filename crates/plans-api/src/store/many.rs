//! One statement for many rows: it has a fixed number of places, so that databases keep its plan.

use daemon::sql::{Row, Transaction, Value};

use super::StoreError;

/// Values that one statement takes.
const AT_ONCE: usize = 100;

/// `before ($1, $2, …) after`.
pub(super) fn statement(before: &str, after: &str) -> String {
    let places: Vec<String> = (1..=AT_ONCE).map(|place| format!("${place}")).collect();
    format!("{before} ({}) {after}", places.join(", "))
}

/// The rows of all `values`: `one` is for a single one, `many` is made by [`statement`].
pub(super) async fn rows(
    tx: &mut Transaction,
    one: &'static str,
    many: &'static str,
    values: &[Value],
) -> Result<Vec<Row>, StoreError> {
    let mut rows = Vec::with_capacity(values.len());
    for some in values.chunks(AT_ONCE) {
        let Some(first) = some.first() else { continue };
        rows.extend(if some.len() == 1 {
            tx.rows(one, [first.clone()]).await?
        } else {
            // The first value fills the places that are left.
            let padded = some.iter().chain(std::iter::repeat(first)).take(AT_ONCE);
            tx.rows(many, padded.cloned()).await?
        });
    }
    Ok(rows)
}

/// What reads; of what somebody's hand has damaged the log tells.
pub(super) fn sound<T>(
    read: impl Iterator<Item = Result<T, StoreError>>,
) -> Result<Vec<T>, StoreError> {
    let mut items = Vec::new();
    for item in read {
        match item {
            Ok(item) => items.push(item),
            Err(error @ StoreError::Damaged { .. }) => {
                tracing::error!(%error, "left out of a look-up");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(items)
}
