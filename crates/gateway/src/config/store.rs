//! The table `[store]`: where buckets live.

use std::path::{Path, PathBuf};
use std::time::Duration;

use edge::limiter::store::redis::{CONNECTIONS_MAX, RedisSettings};
use serde_json::Value;
use wire::strict::{Fields, Problems};

use super::read::{path, size, time, wrong};
use super::{StoreChoice, file::MILLISECOND};

const DEADLINE_MAX: Duration = Duration::from_millis(50);

/// The store and how long a request waits for it.
pub(super) fn read(
    value: Option<&Value>,
    beside: &Path,
    problems: &mut Problems,
) -> (StoreChoice, Duration) {
    let default = 5 * MILLISECOND;
    let Some(value) = value else { return (StoreChoice::Memory, default) };
    let mut fields = Fields::of(value, "store", problems);
    let deadline = time(&mut fields, "deadline", problems, default);
    if deadline > DEADLINE_MAX {
        let what = "must be at most 50ms: every request waits for it";
        wrong(problems, fields.path("deadline"), what);
    }
    let choice = choice(&mut fields, beside, problems);
    fields.finish(problems);
    (choice, deadline)
}

fn choice(fields: &mut Fields<'_>, beside: &Path, problems: &mut Problems) -> StoreChoice {
    // Not by `parsed`, which shows what it cannot read: a mistyped URL may have its password in it.
    let url = fields.text("url", problems).unwrap_or("memory");
    if url == "memory" {
        return StoreChoice::Memory;
    }
    let default = RedisSettings::new(url);
    let most = u64::try_from(CONNECTIONS_MAX).unwrap_or(1);
    let settings = RedisSettings {
        username: fields.text("username", problems).map(str::to_owned),
        password_file: password(fields, "password_file", problems, beside),
        sentinel_username: fields.text("sentinel_username", problems).map(str::to_owned),
        sentinel_password_file: password(fields, "sentinel_password_file", problems, beside),
        trusted_roots: roots(fields, problems, beside),
        connections: size(fields, "connections", problems, 1..=most, default.connections),
        ..default
    };
    if let Err(error) = settings.check() {
        for mistake in error.mistakes {
            wrong(problems, fields.path("url"), mistake);
        }
    }
    StoreChoice::Redis { settings: Box::new(settings) }
}

/// Only its path is kept: the store reads it at each dial, so that it may change.
fn password(
    fields: &mut Fields<'_>,
    name: &'static str,
    problems: &mut Problems,
    beside: &Path,
) -> Option<PathBuf> {
    fields.get(name)?;
    let path = path(fields, name, problems, beside)?;
    if let Err(error) = daemon::settings::secret_file(&path) {
        wrong(problems, fields.path(name), error);
    }
    Some(path)
}

fn roots(fields: &mut Fields<'_>, problems: &mut Problems, beside: &Path) -> Option<Vec<u8>> {
    const NAME: &str = "trusted_roots_file";
    fields.get(NAME)?;
    let path = path(fields, NAME, problems, beside)?;
    std::fs::read(&path)
        .map_err(|error| wrong(problems, fields.path(NAME), format!("{}: {error}", path.display())))
        .ok()
}
