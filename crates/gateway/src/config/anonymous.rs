//! The table `[anonymous]`: the plan of callers that are known by their address alone.

use edge::AuthMode;
use serde_json::Value;
use wire::strict::{Fields, Problems};

use super::PolicyChoice;
use super::read::{needed, wrong};
use crate::route::RouteTable;

/// The plan's name; needed if a route asks for it.
pub(super) fn read(
    value: Option<&Value>,
    routes: &RouteTable,
    policy: &PolicyChoice,
    problems: &mut Problems,
) -> Option<String> {
    let Some(value) = value else {
        for route in routes.iter().filter(|route| route.terms.auth == AuthMode::Anonymous) {
            let what = "anonymous callers need a plan: set plan under [anonymous]";
            wrong(problems, format!("route[{}].auth", route.number), what);
        }
        return None;
    };
    let mut fields = Fields::of(value, "anonymous", problems);
    let plan = needed(&mut fields, "plan", problems);
    let place = fields.path("plan");
    fields.finish(problems);
    let plan = plan?;
    if let PolicyChoice::File(file) = policy {
        if !file.plans.iter().any(|spec| spec.name.to_string() == plan) {
            wrong(problems, place, format!("there is no valid [plan.{plan}]"));
        }
        let taken = edge::anonymous_client(plan);
        if file.clients.iter().any(|client| client.id == taken) {
            wrong(problems, format!("client.{taken}"), "is how anonymous callers are counted");
        }
    }
    Some(plan.to_owned())
}
