//! Tokens, the audit, backups.

use wire::audit::AuditWalked;
use wire::client::plans::{AuditRow, NewToken, Restored, TokenObject};

use super::*;

pub(super) fn tokens() -> Vec<Operation> {
    const ALL: &str = "/v1/tokens";
    vec![
        Operation::new(("GET", ALL), "listTokens", "All operator tokens, never their secrets")
            .gives_page::<TokenObject>(),
        Operation::new(("POST", ALL), "createToken", "Make a token; it is shown once")
            .writes()
            .body(bodies::token(), true)
            .gives_one::<NewToken>(),
        Operation::new(("POST", "/v1/tokens/{id}:revoke"), "revokeToken", "End a token for good")
            .by_id(ID)
            .writes()
            .body(bodies::reason(), false)
            .gives_changed::<TokenObject>(),
    ]
}

pub(super) fn keeping() -> Vec<Operation> {
    let mut restore = Operation::new(
        ("POST", "/v1/backup:restore"),
        "restoreBackup",
        "Replace the whole catalog by that of a backup",
    )
    .writes()
    .gives_one::<Restored>();
    restore.body = Some(Body {
        media: "application/octet-stream",
        schema: json!({ "type": "string", "format": "binary" }),
        required: true,
    });
    vec![
        Operation::new(("GET", "/v1/audit"), "listAudit", "Who changed what, newest first")
            .param("actor", text(1_024))
            .param("kind", text(1_024))
            .param("id", text(1_024))
            .param("since", json!({ "type": "integer", "minimum": 0, "maximum": i64::MAX }))
            .gives_page::<AuditRow>(),
        Operation::new(
            ("POST", "/v1/audit:verify"),
            "verifyAudit",
            "Walk a part of the audit's chain",
        )
        .body(bodies::walk(), false)
        .gives_one::<AuditWalked>(),
        Operation::new(("GET", "/v1/backup"), "createBackup", "The whole catalog as a file"),
        restore,
    ]
}
