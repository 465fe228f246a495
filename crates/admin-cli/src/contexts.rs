//! Contexts: where plans-api is and how to show oneself there, kept in `weir/contexts.toml` under
//! the user's configuration folder.
//!
//! What is written nearer wins: a flag, then the environment, then the current context, then the
//! folder `.weir` that `weir dev` left where we stand, or above. What then counts for nothing is
//! said. A token never follows an address from elsewhere: with `WEIR_ADDR` only `WEIR_TOKEN` is
//! shown, and where `--context` wins over `WEIR_ADDR`, the environment's token stays away too.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::args::Globals;
use crate::failure::{Exit, Failure};

/// Where plans-api listens if nobody says otherwise.
pub(crate) const USUAL_ADDR: &str = "http://127.0.0.1:8081";
/// The file's name, in the configuration folder and in a state folder of `weir dev`.
pub(crate) const FILE: &str = "contexts.toml";
/// The state folder of `weir dev`.
const DEV_FOLDER: &str = ".weir";

/// One place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// Address of plans-api.
    pub(crate) addr: String,
    /// The operator token itself …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
    /// … or the file that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token_file: Option<PathBuf>,
    /// Whether every change is confirmed and has a reason.
    #[serde(default)]
    pub(crate) production: bool,
}

/// The file.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    /// The one in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    /// All, by name.
    #[serde(default)]
    pub(crate) context: BTreeMap<String, Entry>,
}

/// What a command talks to.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Address of plans-api.
    pub(crate) addr: String,
    /// What is shown there.
    pub(crate) token: Option<String>,
    /// Whether every change is confirmed and has a reason.
    pub(crate) production: bool,
    /// Where this comes from, for people.
    pub(crate) source: String,
    /// What was said elsewhere and counts for nothing.
    pub(crate) ignored: Option<&'static str>,
}

impl Contexts {
    /// Reads a file; one that is not there is empty. Others must not be able to read it.
    pub(crate) fn read(path: &Path) -> Result<Contexts, Failure> {
        let failed = |what: String| {
            Failure::new(Exit::Usage, "context", format!("{}: {what}", path.display()))
        };
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contexts::default()),
            Err(error) => return Err(failed(error.to_string())),
        };
        let mode = fs::metadata(path).map_err(|error| failed(error.to_string()))?.permissions();
        if mode.mode() & 0o077 != 0 {
            return Err(failed("others can read or change it; say `chmod 600` first".to_owned()));
        }
        // Not the whole error: it shows the line, and a token may stand in it.
        toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            failed(format!("line {}: {}", before.matches('\n').count() + 1, error.message()))
        })
    }

    /// Writes the file, whole, for its owner alone.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Failure> {
        let written = toml::to_string(self)
            .map_err(io::Error::other)
            .and_then(|text| write_private(path, text.as_bytes()));
        written.map_err(|error| {
            Failure::new(Exit::Failed, "context", format!("{}: {error}", path.display()))
        })
    }

    fn find(&self, name: &str, source: &Path) -> Result<Target, Failure> {
        let Some(entry) = self.context.get(name) else {
            let known = self.context.keys().cloned().collect::<Vec<_>>().join(", ");
            let line = format!("there is no context `{name}` in {}", source.display());
            return Err(Failure::new(Exit::NotFound, "not_found", line)
                .and(format!("known: {}", if known.is_empty() { "none" } else { &known })));
        };
        let token = match (&entry.token, &entry.token_file) {
            (Some(token), _) => Some(token.clone()),
            (None, Some(file)) => Some(token_from(file)?),
            (None, None) => None,
        };
        Ok(Target {
            addr: entry.addr.clone(),
            token,
            production: entry.production,
            source: format!("context {name} of {}", source.display()),
            ignored: None,
        })
    }
}

/// The user's file of contexts.
pub(crate) fn user_file(globals: &Globals) -> Result<PathBuf, Failure> {
    let given = globals.config_home.clone().filter(|path| path.is_absolute());
    let home = given.or_else(|| std::env::home_dir().map(|home| home.join(".config")));
    let home = home.ok_or_else(|| Failure::usage("no home folder; set XDG_CONFIG_HOME"))?;
    Ok(home.join("weir").join(FILE))
}

/// What a command with these flags talks to.
pub(crate) fn resolve(globals: &Globals) -> Result<Target, Failure> {
    let (addr_said, context_said) = (globals.given.addr, globals.given.context);
    if addr_said && context_said {
        return Err(Failure::usage("say either --addr or --context: each names another plans-api"));
    }
    let by_context = context_said || globals.addr.is_none();
    if let Some(addr) = globals.addr.as_ref().filter(|_| !by_context) {
        let (token, source) = (globals.token.clone(), "--addr or WEIR_ADDR".to_owned());
        let ignored = globals.context.as_ref().map(|_| {
            if addr_said {
                "WEIR_CONTEXT counts for nothing beside --addr"
            } else {
                "WEIR_CONTEXT counts for nothing while WEIR_ADDR is set"
            }
        });
        return Ok(Target { addr: addr.clone(), token, production: false, source, ignored });
    }
    let mut target = chosen(globals)?;
    if globals.addr.is_some() {
        target.ignored = Some("WEIR_ADDR and WEIR_TOKEN count for nothing beside --context");
    } else if let Some(token) = &globals.token {
        if context_said {
            target.ignored = Some("WEIR_TOKEN counts for nothing beside --context");
        } else {
            target.token = Some(token.clone());
            target.source = format!("WEIR_TOKEN, at the address of {}", target.source);
        }
    }
    Ok(target)
}

fn chosen(globals: &Globals) -> Result<Target, Failure> {
    if let Some(name) = globals.context.as_ref() {
        if name.contains('/') {
            let path = Path::new(name);
            let contexts = Contexts::read(path)?;
            let current = contexts.current.as_deref();
            return contexts.find(current.unwrap_or_default(), path);
        }
        let path = user_file(globals)?;
        return Contexts::read(&path)?.find(name, &path);
    }
    if let Ok(path) = user_file(globals) {
        let contexts = Contexts::read(&path)?;
        if let Some(current) = &contexts.current {
            return contexts.find(current, &path);
        }
    }
    if let Some((contexts, file)) = dev_context()?
        && let Some(current) = &contexts.current
    {
        return contexts.find(current, &file);
    }
    let source = "the usual address; no context is set".to_owned();
    let addr = USUAL_ADDR.to_owned();
    Ok(Target { addr, token: None, production: false, source, ignored: None })
}

/// What `weir dev` left in this folder, or in the nearest one above it. Further up only what
/// belongs to whom this folder belongs to: in a shared place somebody else may have laid it there.
pub(crate) fn dev_context() -> Result<Option<(Contexts, PathBuf)>, Failure> {
    let Ok(here) = std::env::current_dir() else { return Ok(None) };
    let owner = |path: &Path| fs::metadata(path).map(|metadata| metadata.uid()).ok();
    for folder in here.ancestors() {
        let left = folder.join(DEV_FOLDER);
        let ours = folder == here || owner(&left) == owner(&here);
        if !left.join(FILE).is_file() || !ours {
            continue;
        }
        let file = left.join(FILE);
        let contexts = Contexts::read(&file)?;
        if contexts.current.is_some() {
            return Ok(Some((contexts, file)));
        }
    }
    Ok(None)
}

fn token_from(file: &Path) -> Result<String, Failure> {
    let text = fs::read_to_string(file).map_err(|error| {
        Failure::new(Exit::Usage, "context", format!("{}: {error}", file.display()))
    })?;
    Ok(text.trim().to_owned())
}

/// Writes a file that only its owner may read: beside, flushed, renamed. Its folder is made (0700)
/// if it is missing.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let beside = path.with_extension(format!("new{}", std::process::id()));
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn globals(home: &Path) -> Globals {
        Globals {
            addr: None,
            token: None,
            context: None,
            output: crate::args::Format::Table,
            quiet: false,
            no_input: false,
            config_home: Some(home.to_owned()),
            no_color: None,
            given: crate::args::Given::default(),
        }
    }

    fn two() -> Contexts {
        let entry = |addr: &str| Entry {
            addr: addr.to_owned(),
            token: Some(format!("token of {addr}")),
            token_file: None,
            production: false,
        };
        Contexts {
            current: Some("a".to_owned()),
            context: [("a".to_owned(), entry("http://a")), ("b".to_owned(), entry("http://b"))]
                .into(),
        }
    }

    #[test]
    fn nearer_wins_and_no_token_follows_a_foreign_address() {
        let home = tempfile::tempdir().unwrap();
        let mut flags = globals(home.path());
        two().write(&user_file(&flags).unwrap()).unwrap();
        assert_eq!(resolve(&flags).unwrap().addr, "http://a");
        flags.context = Some("b".to_owned());
        assert_eq!(resolve(&flags).unwrap().token.as_deref(), Some("token of http://b"));
        flags.token = Some("mine".to_owned());
        assert_eq!(resolve(&flags).unwrap().token.as_deref(), Some("mine"));
        flags.token = None;
        flags.addr = Some("http://elsewhere".to_owned());
        let target = resolve(&flags).unwrap();
        assert_eq!((target.addr.as_str(), target.token), ("http://elsewhere", None));
        assert!(target.ignored.unwrap().contains("WEIR_CONTEXT"), "the context is not taken");
    }

    #[test]
    fn a_flag_wins_over_the_environment_and_what_is_ignored_is_said() {
        let home = tempfile::tempdir().unwrap();
        let mut flags = globals(home.path());
        two().write(&user_file(&flags).unwrap()).unwrap();
        flags.addr = Some("http://elsewhere".to_owned());
        flags.token = Some("of elsewhere".to_owned());
        flags.context = Some("b".to_owned());
        flags.given.context = true;
        let target = resolve(&flags).unwrap();
        assert_eq!(target.addr, "http://b");
        assert_eq!(target.token.as_deref(), Some("token of http://b"), "no token goes elsewhere");
        assert!(target.ignored.unwrap().contains("WEIR_ADDR"));
        flags.given.addr = true;
        assert_eq!(resolve(&flags).unwrap_err().exit, Exit::Usage);
        flags.given.context = false;
        assert_eq!(resolve(&flags).unwrap().addr, "http://elsewhere");
        flags.context = None;
        assert_eq!(resolve(&flags).unwrap().ignored, None);
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let flags = globals(home.path());
        let path = user_file(&flags).unwrap();
        two().write(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Contexts::read(&path).unwrap(), two());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(resolve(&flags).unwrap_err().to_string().contains("chmod 600"));
    }
}
