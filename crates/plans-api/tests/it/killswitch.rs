//! The kill switch of all gateways, and rows that do not read.

use std::time::Duration;

use wire::key::{KeyEnv, KeyHash, Pepper};
use wire::policy::Object;

use crate::api::{Api, feed_request, told};

pub(crate) async fn it_is_set_for_all_told_to_gateways_and_cleared_by_its_id(api: &Api) {
    let operator = &api.operator;
    let before = operator.killswitch().await.unwrap();
    assert_eq!((before.killswitch, before.own.len()), (None, 0));
    let snapshot = api.gateway.snapshot().await.unwrap();
    let (history, revision) = (snapshot.history, snapshot.revision);

    let set = operator.set_killswitch(Some("inc-7"), "everybody is refused").await.unwrap();
    let switch = set.killswitch.clone().unwrap();
    assert_eq!((switch.id.as_str(), set.revision), ("inc-7", revision + 1));
    let again = operator.set_killswitch(None, "once more").await.unwrap();
    assert_eq!(again, set, "what is set stays as it is");
    assert_eq!(api.gateway.snapshot().await.unwrap().killswitch, Some(switch.clone()));
    let answer = api.gateway.feed(&feed_request("gw-1", &history, revision, 0)).await.unwrap();
    let [change] = &answer.changes[..] else { panic!("{answer:?}") };
    let object = Object::Killswitch { id: "inc-7".to_owned(), value: Some(switch) };
    assert_eq!((change.revision, &change.object), (revision + 1, &object));

    let other = operator.clear_killswitch("inc-8", "a slip").await;
    assert_eq!(told(other), (404, "not_found"));
    let cleared = operator.clear_killswitch("inc-7", "it was the plan").await.unwrap();
    assert_eq!((cleared.killswitch, cleared.revision), (None, revision + 2));
    let answer = api.gateway.feed(&feed_request("gw-1", &history, revision + 1, 0)).await.unwrap();
    let object = Object::Killswitch { id: "inc-7".to_owned(), value: None };
    assert_eq!(answer.changes.last().unwrap().object, object);
    let audit = operator.audit(2, None).await.unwrap();
    let commands: Vec<&str> = audit.items.iter().map(|row| row.command.as_str()).collect();
    assert_eq!(commands, ["killswitch clear", "killswitch set"]);
    let bad = operator.set_killswitch(Some("Not A Name"), "").await;
    assert_eq!(told(bad), (422, "invalid_value"));

    let mut own = feed_request("gw-1", &history, revision + 2, 0);
    own.killswitch = Some("here-1".to_owned());
    api.gateway.feed(&own).await.unwrap();
    let state = operator.killswitch().await.unwrap();
    let latches: Vec<(&str, &str)> =
        state.own.iter().map(|own| (own.gateway.as_str(), own.id.as_str())).collect();
    assert_eq!(latches, [("gw-1", "here-1")]);
    own.killswitch = Some("no name".to_owned());
    assert_eq!(told(api.gateway.feed(&own).await), (422, "invalid_value"));
}

#[tokio::test]
async fn a_key_whose_row_does_not_read_is_left_out_of_a_look_up_alone() {
    let api = Api::sqlite().await;
    api.plan("pro").await;
    let pepper = std::fs::read(api.state_dir.path().join("pepper")).unwrap();
    let pepper = Pepper::from_bytes(&pepper).unwrap();
    let mut hashes = Vec::new();
    for client in ["one", "two"] {
        api.client(client, "pro").await;
        let made = api.operator.create_key(client, KeyEnv::Live, None, "test").await.unwrap();
        hashes.push(KeyHash::of_key(&made.key, &pepper));
    }
    let database = api.by_hand().await;
    let mut tx = database.write().await.unwrap();
    tx.run_text("pragma ignore_check_constraints = on").await.unwrap();
    tx.run_text("update client set state = 'burnt' where id = 'one'").await.unwrap();
    tx.commit().await.unwrap();
    database.close().await;
    let answer = api.gateway.lookup(hashes, Duration::from_secs(5)).await.unwrap();
    let found: Vec<&str> = answer.found.iter().map(|found| found.client.id.as_str()).collect();
    assert_eq!((found, answer.missing.len()), (vec!["two"], 0));
    api.stop().await;
}
