//! `weir man`: a page for every command, made of the same words as `--help`.

use std::path::Path;

use serde_json::json;

use crate::args;
use crate::failure::Failure;
use crate::output::{Report, Shown};
use crate::session::counted;

pub(crate) fn run(folder: &Path) -> Result<Report, Failure> {
    let failed = |error: std::io::Error| Failure::usage(format!("{}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    let pages = args::man_pages().map_err(failed)?;
    let mut report = Report::new(json!({ "pages": pages.len() }), Shown::Nothing);
    for (name, text) in &pages {
        std::fs::write(folder.join(name), text).map_err(failed)?;
        report.names.push(name.clone());
    }
    let told = counted(pages.len(), "page");
    Ok(report.note(format!(
        "{told} in {}; read one: man -l {}",
        folder.display(),
        folder.join("weir.1").display()
    )))
}
