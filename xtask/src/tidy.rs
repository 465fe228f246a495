//! House rules as checks. Each message says what is wrong, where, and what to do instead; a rule
//! that needs a person's judgement belongs in docs/style.md and not here.
//!
//! Every check is a function from a tree of sources (or from cargo's metadata) to findings, so
//! that each is tested on a few lines that break it. Nothing here changes a file.

mod arrows;
mod bans;
mod cases;
mod doors;
mod floors;
mod form;
mod machine;
pub(crate) mod metadata;
mod pages;
mod pure;
mod source;

use std::fmt;

use anyhow::{Result, bail};

use crate::run;
use metadata::Metadata;
use source::Tree;

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    place: String,
    what: String,
}

impl Finding {
    fn new(place: impl Into<String>, what: impl Into<String>) -> Finding {
        Finding { place: place.into(), what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// Runs every check; prints what it found.
pub(crate) fn command() -> Result<()> {
    let tree = Tree::read(&run::root())?;
    let metadata = Metadata::load()?;
    let mut findings = Vec::new();
    findings.extend(arrows::check(&metadata));
    findings.extend(doors::check(&tree));
    findings.extend(bans::check_lock(tree.text("Cargo.lock").unwrap_or_default())?);
    findings.extend(floors::check(tree.text("Cargo.lock").unwrap_or_default())?);
    findings.extend(bans::check_manifests(&metadata));
    findings.extend(bans::check_graph(&bans::built_packages()?));
    findings.extend(bans::check_shipped(&bans::shipped_packages()?));
    findings.extend(form::check(&tree));
    findings.extend(pure::check(&tree));
    findings.extend(cases::check(&tree));
    findings.extend(pages::check(&tree));
    findings.extend(machine::check(&tree, &run::root()));
    findings.sort();
    findings.dedup();
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("tidy: {} files, nothing to mend", tree.files().count());
            Ok(())
        }
        count => bail!("tidy found {count} broken house rules"),
    }
}
