//! Whether every gateway can hold the policy: what would make it too large is refused here, so that
//! no gateway ever meets it.

use wire::error::{ErrorCode, FieldError};

use super::writing::Writing;
use super::{StoreError, text_of};
use crate::model::plan::{PLANS_MAX, PlanRow};

/// Largest plan, in bytes as gateways are told it.
const PLAN_BYTES_MAX: usize = 64 << 10;
/// Largest policy, in bytes: what a client of the API reads at most, with room for the rollout.
const POLICY_BYTES_MAX: u64 = (wire::client::ANSWER_BYTES_MAX as u64) - (1 << 20);
/// What a plan is told with beside its name and costs, in bytes; never more.
const PLAN_BYTES: u64 = 512;

/// How many plans there are and what they come to, as far as a change has got. Read once for all
/// plans of a change: thousands at once would otherwise each read all others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    plans: u64,
    bytes: u64,
}

const ALL: &str = "select count(*) as plans, \
    coalesce(cast(sum(octet_length(name) + octet_length(costs)) as bigint), 0) as bytes from plan";
const ONE: &str = "select cast(octet_length(name) + octet_length(costs) as bigint) as bytes \
    from plan where name = $1";

/// Refuses a plan that is too large, or that would make the policy so or be one too many; counts
/// it as written otherwise.
pub(super) async fn fits(writing: &mut Writing<'_>, plan: &PlanRow) -> Result<(), StoreError> {
    let sizes = match writing.sizes {
        Some(sizes) => sizes,
        None => match writing.tx.row(ALL, []).await? {
            Some(row) => Sizes { plans: row.count("plans")?, bytes: row.count("bytes")? },
            None => Sizes { plans: 0, bytes: 0 },
        },
    };
    let old = writing.tx.row(ONE, [plan.name.as_str().into()]).await?;
    let old = old.map(|row| row.count("bytes")).transpose()?;
    let plans = sizes.plans.saturating_sub(u64::from(old.is_some()));
    let others = sizes.bytes.saturating_sub(old.unwrap_or(0));
    if old.is_none() && PLANS_MAX <= plans {
        let detail = format!("there are {PLANS_MAX} plans already, and no more fit");
        return Err(refused("plan".to_owned(), ErrorCode::InvalidValue, detail));
    }
    let field = |name: &str| format!("plan.{}.{name}", plan.name);
    let bytes = text_of(&plan.object()).len();
    if bytes > PLAN_BYTES_MAX {
        let detail = format!("the plan has {bytes} bytes, at most {PLAN_BYTES_MAX} fit");
        return Err(refused(field("labels"), ErrorCode::InvalidValue, detail));
    }
    let own = u64::try_from(plan.name.len() + text_of(&plan.costs).len()).unwrap_or(u64::MAX);
    let policy = (plans + 1) * PLAN_BYTES + others + own;
    if POLICY_BYTES_MAX < policy {
        let detail = format!(
            "all plans together would have {policy} bytes, and gateways hold {POLICY_BYTES_MAX}: \
             delete plans or cost rules first"
        );
        return Err(refused(field("costs"), ErrorCode::PolicyTooLarge, detail));
    }
    writing.sizes = Some(Sizes { plans: plans + 1, bytes: others + own });
    Ok(())
}

fn refused(field: String, code: ErrorCode, detail: String) -> StoreError {
    StoreError::Refused(vec![FieldError { field, code, detail }])
}
