//! Whether every gateway can hold the policy: what would make it too large is refused here, so that
//! no gateway ever meets it.

use daemon::sql::Transaction;
use wire::error::{ErrorCode, FieldError};

use super::{StoreError, text_of};
use crate::model::plan::PlanRow;

/// Largest plan, in bytes as gateways are told it.
const PLAN_BYTES_MAX: usize = 64 << 10;
/// Largest policy, in bytes: what a client of the API reads at most, with room for the rollout.
const POLICY_BYTES_MAX: u64 = (wire::client::ANSWER_BYTES_MAX as u64) - (1 << 20);
/// What a plan is told with beside its name and costs, in bytes; never more.
const PLAN_BYTES: u64 = 512;

/// Refuses a plan that is too large, or that would make the policy so.
pub(super) async fn fits(tx: &mut Transaction, plan: &PlanRow) -> Result<(), StoreError> {
    let field = |name: &str| format!("plan.{}.{name}", plan.name);
    let bytes = text_of(&plan.object()).len();
    if bytes > PLAN_BYTES_MAX {
        let detail = format!("the plan has {bytes} bytes, at most {PLAN_BYTES_MAX} fit");
        let (field, code) = (field("labels"), ErrorCode::InvalidValue);
        return Err(StoreError::Refused(vec![FieldError { field, code, detail }]));
    }
    let row = tx
        .row(
            "select count(*) as plans, \
             coalesce(cast(sum(octet_length(name) + octet_length(costs)) as bigint), 0) as bytes \
             from plan where name <> $1",
            [plan.name.as_str().into()],
        )
        .await?;
    let (plans, others) = match row {
        Some(row) => (row.count("plans")?, row.count("bytes")?),
        None => (0, 0),
    };
    let own = u64::try_from(plan.name.len() + text_of(&plan.costs).len()).unwrap_or(u64::MAX);
    let policy = (plans + 1) * PLAN_BYTES + others + own;
    if policy <= POLICY_BYTES_MAX {
        return Ok(());
    }
    let detail = format!(
        "all plans together would have {policy} bytes, and gateways hold {POLICY_BYTES_MAX}: \
         delete plans or cost rules first"
    );
    let (field, code) = (field("costs"), ErrorCode::PolicyTooLarge);
    Err(StoreError::Refused(vec![FieldError { field, code, detail }]))
}
