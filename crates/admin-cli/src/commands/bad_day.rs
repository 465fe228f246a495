//! `weir killswitch` and `weir approvals`: everybody into shadow at once, and second opinions.

use serde_json::{Value, json};
use wire::client::{Call, Method, segment};

use super::keys::time;
use super::plans::done;
use crate::args::{ApprovalCommand, KillswitchCommand, Named};
use crate::failure::Failure;
use crate::output::{Report, Shown, text};
use crate::session::Session;

pub(crate) async fn killswitch(
    command: KillswitchCommand,
    session: &Session<'_>,
) -> Result<Report, Failure> {
    match command {
        KillswitchCommand::Status => Ok(state(session.send(Call::get("/v1/killswitch")).await?)),
        KillswitchCommand::Set { id, change } => {
            // Nobody is counted: on such a day one call has to be enough.
            let danger = "put everybody into shadow on every gateway: no limit refuses anybody";
            session.confirm(&change, danger, None)?;
            let body = id.map_or_else(|| json!({}), |id| json!({ "id": id }));
            let reason = session.reason(&change)?;
            let call = Call::post("/v1/killswitch:set", &body).query("reason", reason);
            let json = session.send(call.if_match_or_insist(None)).await?;
            let id = text(&json, "/killswitch/id");
            let said = format!("everybody is in shadow; back: weir killswitch clear {id}");
            Ok(session.finish(done(json, &id, said), &change).await)
        }
        KillswitchCommand::Clear(Named { id, change }) => {
            let danger = format!(
                "clear the kill switch {id}: clients in enforce are held to their limits again"
            );
            session.confirm(&change, &danger, None)?;
            let reason = session.reason(&change)?;
            let call = Call::post("/v1/killswitch:clear", &json!({ "id": id }));
            let call = call.query("reason", reason).if_match_or_insist(None);
            let json = session.send(call).await?;
            let said = format!("kill switch {id} cleared");
            Ok(session.finish(done(json, &id, said), &change).await)
        }
    }
}

fn state(json: Value) -> Report {
    let set = json.get("killswitch").filter(|set| !set.is_null());
    let told = match set {
        Some(set) => format!("set as {} since {}", text(set, "id"), time(set.get("set_at"))),
        None => "off".to_owned(),
    };
    let mut fields = vec![("kill switch", told)];
    for own in json.get("own").and_then(Value::as_array).into_iter().flatten() {
        let by_hand = format!("set by hand as {}", text(own, "id"));
        fields.push(("at", format!("{}: {by_hand}", text(own, "gateway"))));
    }
    let name = set.map_or_else(|| "off".to_owned(), |set| text(set, "id"));
    Report::new(json, Shown::Fields(fields)).named(name)
}

const HEADINGS: &[&str] = &["APPROVAL", "STATE", "COMMAND", "OF", "BY", "ENDS", "REASON"];

pub(crate) async fn approvals(
    command: ApprovalCommand,
    session: &Session<'_>,
) -> Result<Report, Failure> {
    match command {
        ApprovalCommand::List => {
            let items = session.pages("/v1/approvals").await?;
            Ok(Report::list(&items, HEADINGS, "id", |item| {
                let subject = format!("{} {}", text(item, "kind"), text(item, "subject"));
                let mut row = vec![text(item, "id"), text(item, "state"), text(item, "command")];
                row.extend([subject, text(item, "requested_by"), time(item.get("expires_at"))]);
                row.push(text(item, "reason"));
                row
            }))
        }
        ApprovalCommand::Accept(named) => answer(named, "accept", "accepted", session).await,
        ApprovalCommand::Refuse(named) => answer(named, "refuse", "refused", session).await,
    }
}

async fn answer(
    named: Named,
    verb: &str,
    past: &str,
    session: &Session<'_>,
) -> Result<Report, Failure> {
    let Named { id, change } = named;
    let path = format!("/v1/approvals/{}", segment(&id));
    if verb == "accept" {
        let approval = session.send(Call::get(path.clone())).await?;
        let (command, subject) = (text(&approval, "command"), text(&approval, "subject"));
        let by = text(&approval, "requested_by");
        let danger = format!("do `{command}` of {subject}, which {by} asked for");
        session.confirm(&change, &danger, None)?;
    }
    session.confirm_in_production(&change, &format!("{verb} the approval {id}"))?;
    let reason = session.reason(&change)?;
    let call = Call::new(Method::POST, format!("{path}:{verb}")).query("reason", reason);
    let json = session.send(call.if_match_or_insist(None)).await?;
    let said = format!("approval {id} {past}");
    Ok(session.finish(done(json, &id, said), &change).await)
}
