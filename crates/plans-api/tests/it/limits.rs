//! How a client's bucket stands is asked at a live gateway.

use serde_json::json;

use crate::api::{Api, feed_request, told};
use crate::fakes::{OPERATIONS_TOKEN, operations_port};

#[tokio::test]
async fn a_live_gateway_is_asked_how_the_bucket_stands() {
    let folder = tempfile::tempdir().unwrap();
    let database = plans_api::Settings::database_in(folder.path());
    let api = Api::start(folder, database, None, Some(OPERATIONS_TOKEN.to_owned())).await;
    api.plan("pro").await;
    api.client("acme", "pro").await;
    assert_eq!(told(api.viewer.inspect_limit("acme").await), (503, "gateway_unreachable"));
    assert_eq!(told(api.viewer.inspect_limit("nobody").await), (404, "not_found"));

    let history = api.gateway.snapshot().await.unwrap().history;
    // The first one has gone away without a word; the second one answers.
    for (id, url) in [("gw-1", "http://127.0.0.1:1".to_owned()), ("gw-2", operations_port().await)]
    {
        let mut request = feed_request(id, &history, 2, 0);
        request.ops_url = Some(url);
        api.gateway.feed(&request).await.unwrap();
    }
    let standing = api.viewer.inspect_limit("acme").await.unwrap();
    assert_eq!(
        standing,
        json!({ "client": "acme", "gateway": "gw-2", "burst": { "level": 7, "capacity": 10 } })
    );
    let own = json!({
        "burst": { "capacity": 50, "refill": "1/s" },
        "expires_at": crate::catalog::now() + 60_000,
    });
    api.operator.put_override("acme", &own, "test", None).await.unwrap();
    let standing = api.viewer.inspect_limit("acme").await.unwrap();
    assert_eq!(standing["burst"]["capacity"], json!(50), "the gateway is told its own limits");
    api.stop().await;
}

#[tokio::test]
async fn without_the_operations_token_nobody_is_asked() {
    let api = Api::sqlite().await;
    api.plan("pro").await;
    api.client("acme", "pro").await;
    assert_eq!(told(api.viewer.inspect_limit("acme").await), (503, "gateway_unreachable"));
    api.stop().await;
}
