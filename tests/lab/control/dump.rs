//! Everything that is stored or logged, searched for every secret that was made.
//!
//! A secret is found if its random part stands anywhere in plain text; and what does stand there, the
//! stored form, is shown as a key and has to be refused.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use system_tests::oracle::float;
use system_tests::traffic::Callers;
use system_tests::world::PLANS_DATABASE;
use wire::key::{KeyHash, Pepper};

use super::scene::Scene;
use crate::report::{Limit, Report};

/// A key's last characters: its secret and its tag.
const SECRET_CHARS: usize = 34;
/// An operator token's: its secret.
const TOKEN_CHARS: usize = 27;
/// Files of the harness itself, in which secrets are handed from program to program.
const HANDED_OVER: [&str; 6] = [
    "admin-token",
    "gateway-token",
    "bootstrap-token",
    "control-token",
    "operations-token",
    "pepper",
];

/// A place and its bytes.
type Kept = (String, Vec<u8>);

pub async fn search(scene: &mut Scene, report: &mut Report) -> anyhow::Result<()> {
    let mut kept = Vec::new();
    for database in [PLANS_DATABASE, "shadow"] {
        let mut connection = scene.world.postgres()?.connect(database).await?;
        tables(&mut connection, database, &mut kept).await?;
        connection.close().await?;
    }
    redis(scene, &mut kept).await?;
    backup(scene).await?;
    files(scene.world.dir(), &mut kept)?;

    let mut secrets: HashSet<Vec<u8>> = HashSet::new();
    for (_, key) in &scene.keys {
        secrets.extend(last(key, SECRET_CHARS));
    }
    for file in ["admin-token", "gateway-token"] {
        let token = std::fs::read_to_string(scene.world.dir().join(file))?;
        secrets.extend(last(token.trim(), TOKEN_CHARS));
    }
    let mut found = Vec::new();
    for (place, bytes) in &kept {
        let hits = hits(&secrets, bytes);
        if hits > 0 {
            found.push(format!("{place}: {hits}"));
        }
    }
    let opened = stored_forms_that_open(scene).await?;
    report.require("usable_keys_in_dump", float(found.len() + opened), Limit::Exactly(0.0));
    let bytes: usize = kept.iter().map(|(_, bytes)| bytes.len()).sum();
    report.field("dump_bytes_searched", json!(bytes));
    report.field("secrets_searched_for", json!(secrets.len()));
    let places: Vec<&str> = kept.iter().map(|(place, _)| place.as_str()).collect();
    report.round(json!({ "places": places, "found": found }));
    Ok(())
}

fn last(key: &str, chars: usize) -> Option<Vec<u8>> {
    key.get(key.len().checked_sub(chars)?..).map(|last| last.as_bytes().to_vec())
}

/// How often a secret stands in these bytes. Secrets are letters and digits alone.
fn hits(secrets: &HashSet<Vec<u8>>, bytes: &[u8]) -> usize {
    let words = bytes.split(|byte| !byte.is_ascii_alphanumeric());
    let words = words.filter(|word| word.len() >= TOKEN_CHARS);
    words
        .map(|word| windows(secrets, word, SECRET_CHARS) + windows(secrets, word, TOKEN_CHARS))
        .sum()
}

fn windows(secrets: &HashSet<Vec<u8>>, word: &[u8], chars: usize) -> usize {
    word.windows(chars).filter(|window| secrets.contains(*window)).count()
}

/// Every row of every table, as Postgres would dump it.
async fn tables(
    connection: &mut PgConnection,
    database: &str,
    kept: &mut Vec<Kept>,
) -> anyhow::Result<()> {
    let names = "select tablename::text as name from pg_tables where schemaname = 'public'";
    let names: Vec<String> = sqlx::query(names)
        .fetch_all(&mut *connection)
        .await?
        .iter()
        .map(|row| row.try_get("name"))
        .collect::<Result<_, _>>()?;
    for name in names {
        let all = format!("select t::text as line from {name} t");
        let rows = sqlx::query(AssertSqlSafe(all)).fetch_all(&mut *connection).await?;
        let mut bytes = Vec::new();
        for row in rows {
            let line: String = row.try_get("line")?;
            bytes.extend_from_slice(line.as_bytes());
            bytes.push(b'\n');
        }
        kept.push((format!("{database}.{name}"), bytes));
    }
    Ok(())
}

/// Keys and values of the store.
async fn redis(scene: &mut Scene, kept: &mut Vec<Kept>) -> anyhow::Result<()> {
    let redis = scene.world.redis()?;
    let keys: Vec<String> = redis.query("KEYS *").await?;
    let mut bytes = Vec::new();
    for key in keys {
        bytes.extend_from_slice(key.as_bytes());
        let value: Option<Vec<u8>> = redis.query(&format!("DUMP {key}")).await?;
        bytes.extend(value.unwrap_or_default());
    }
    kept.push(("Redis".to_owned(), bytes));
    Ok(())
}

/// What an operator keeps elsewhere, into the folder whose files are searched.
async fn backup(scene: &Scene) -> anyhow::Result<()> {
    let file = scene.world.dir().join("backup.ndjson");
    let name = file.to_string_lossy().into_owned();
    let said = scene.world.weir(&["backup", "create", &name]).await?;
    anyhow::ensure!(said.code == 0 && file.exists(), "weir backup create: {said:?}");
    Ok(())
}

/// State folders, logs, settings, exports, the backup.
fn files(folder: &Path, kept: &mut Vec<Kept>) -> anyhow::Result<()> {
    let mut folders: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if !HANDED_OVER.contains(&name.as_str()) {
                kept.push((name, std::fs::read(&path)?));
            }
        }
    }
    Ok(())
}

/// What a thief finds, shown as a key in the two ways in which it can be written.
async fn stored_forms_that_open(scene: &Scene) -> anyhow::Result<usize> {
    let pepper = std::fs::read(scene.world.dir().join("plans-state/pepper"))?;
    let pepper = Pepper::from_bytes(&pepper)?;
    let mut shown = Vec::new();
    for (id, key) in scene.keys.iter().take(10) {
        let hash = KeyHash::of_key(key, &pepper).to_hex();
        shown.push((id.clone(), format!("weir_live_{id}_{hash}")));
        shown.push((id.clone(), hash));
    }
    let gateways: Vec<_> =
        scene.world.gateways.first().map(|gateway| gateway.traffic).into_iter().collect();
    let callers = Callers::new(&gateways, &scene.world.services.names(), &shown)?;
    let mut opened = 0;
    for client in 0..shown.len() {
        opened += usize::from(callers.one(client, 0, 0).await.status != 401);
    }
    Ok(opened)
}
