//! Contexts: kept, chosen, shown. Tokens are never shown.

use std::path::Path;

use serde_json::{Value, json};

use crate::args::{ContextCommand, Given, Globals};
use crate::contexts::{self, Contexts, Entry, USUAL_ADDR, resolve, user_file};
use crate::failure::{Exit, Failure};
use crate::output::{Output, Report, Shown, text};
use crate::session::{Session, with_scheme};

const HEADINGS: &[&str] = &["CURRENT", "CONTEXT", "ADDR", "TOKEN", "PRODUCTION"];

pub(crate) fn run(command: ContextCommand, globals: &Globals) -> Result<Report, Failure> {
    let path = user_file(globals)?;
    match command {
        ContextCommand::Show => return show(globals),
        ContextCommand::List => return list(&path, globals),
        ContextCommand::Add { .. } | ContextCommand::Use { .. } | ContextCommand::Remove { .. } => {
        }
    }
    let mut contexts = Contexts::read(&path)?;
    let (name, said) = match command {
        ContextCommand::Add { name, token_file, production } => {
            if name.is_empty() || name.contains('/') {
                return Err(Failure::usage("a context's name is not empty and has no `/`"));
            }
            let token = if token_file.is_some() { None } else { globals.token.clone() };
            let token_file = match token_file {
                Some(file) => Some(
                    std::path::absolute(&file)
                        .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?,
                ),
                None => None,
            };
            let addr = globals.addr.clone().unwrap_or_else(|| USUAL_ADDR.to_owned());
            with_scheme(&addr, "--addr or WEIR_ADDR")?;
            wire::client::Client::new(&addr, None)
                .map_err(|error| Failure::usage(error.to_string()))?;
            contexts.context.insert(name.clone(), Entry { addr, token, token_file, production });
            contexts.current.get_or_insert_with(|| name.clone());
            (name, "added")
        }
        ContextCommand::Use { name } => {
            known(&contexts, &name)?;
            contexts.current = Some(name.clone());
            (name, "in use")
        }
        ContextCommand::Remove { name } => {
            known(&contexts, &name)?;
            contexts.context.remove(&name);
            contexts.current.take_if(|current| *current == name);
            (name, "removed")
        }
        ContextCommand::List | ContextCommand::Show => return list(&path, globals),
    };
    contexts.write(&path)?;
    let json = json!({ "name": name, "file": path.display().to_string() });
    Ok(Report::new(json, Shown::Nothing).named(&name).note(format!("context {name} {said}")))
}

/// Keeps an address and a token that work. The token comes from WEIR_TOKEN or from the first line of
/// standard input, never from the command line, where others can read it.
pub(crate) async fn login(
    name: &str,
    production: bool,
    globals: &Globals,
    output: &Output,
) -> Result<Report, Failure> {
    if name.is_empty() || name.contains('/') {
        return Err(Failure::usage("a context's name is not empty and has no `/`"));
    }
    let addr = globals.addr.clone().unwrap_or_else(|| USUAL_ADDR.to_owned());
    let token = match &globals.token {
        Some(token) => token.clone(),
        None => output
            .hear(&format!("token for {addr}:"))
            .map_err(|error| Failure::usage(format!("no token: {error}")))?,
    };
    if token.is_empty() {
        return Err(Failure::usage("no token: set WEIR_TOKEN, or give it on standard input"));
    }
    let tried = Globals { addr: Some(addr.clone()), token: Some(token.clone()), ..globals.clone() };
    let given = Given { addr: true, context: false, dry_run: false };
    let tried = Globals { given, context: None, ..tried };
    let session = Session::open(&tried, output)?;
    session.answer(session.api.plans()).await?;
    let path = user_file(globals)?;
    let mut contexts = Contexts::read(&path)?;
    let entry = Entry { addr, token: Some(token), token_file: None, production };
    contexts.context.insert(name.to_owned(), entry);
    contexts.current = Some(name.to_owned());
    contexts.write(&path)?;
    let json = json!({ "name": name, "file": path.display().to_string() });
    let said = format!("the token works; context {name} is in use");
    Ok(Report::new(json, Shown::Nothing).named(name).note(said))
}

fn known(contexts: &Contexts, name: &str) -> Result<(), Failure> {
    if contexts.context.contains_key(name) {
        return Ok(());
    }
    Err(Failure::new(Exit::NotFound, "not_found", format!("there is no context `{name}`")))
}

/// The user's contexts, and what `weir dev` left where that is what commands use: it is named by
/// its file, as `--context` takes it.
fn list(path: &Path, globals: &Globals) -> Result<Report, Failure> {
    let contexts = Contexts::read(path)?;
    let row = |name: &str, entry: &Entry, current: bool| {
        let token = match (&entry.token, &entry.token_file) {
            (Some(_), _) => "inline".to_owned(),
            (None, Some(file)) => file.display().to_string(),
            (None, None) => "none".to_owned(),
        };
        json!({ "name": name, "addr": entry.addr, "token": token,
                "production": entry.production, "current": current })
    };
    let current = contexts.current.as_ref();
    let mut items: Vec<Value> = contexts
        .context
        .iter()
        .map(|(name, entry)| row(name, entry, current == Some(name)))
        .collect();
    let elsewhere = globals.addr.is_some() || globals.context.is_some();
    if current.is_none()
        && !elsewhere
        && let Some((dev, file)) = contexts::dev_context()?
        && let Some(entry) = dev.current.as_ref().and_then(|name| dev.context.get(name))
    {
        items.push(row(&file.display().to_string(), entry, true));
    }
    Ok(Report::list(&items, HEADINGS, "name", |item| {
        let current = if item.get("current") == Some(&json!(true)) { "*" } else { "" };
        let mut row = vec![current.to_owned()];
        row.extend(["name", "addr", "token", "production"].iter().map(|field| text(item, field)));
        row
    }))
}

fn show(globals: &Globals) -> Result<Report, Failure> {
    let target = resolve(globals)?;
    let has_token = target.token.is_some();
    let json = json!({ "addr": target.addr, "has_token": has_token,
                       "production": target.production, "source": target.source });
    let fields = vec![
        ("addr", target.addr.clone()),
        ("token", if has_token { "known" } else { "none" }.to_owned()),
        ("production", target.production.to_string()),
        ("source", target.source),
    ];
    Ok(Report::new(json, Shown::Fields(fields)).named(target.addr))
}
