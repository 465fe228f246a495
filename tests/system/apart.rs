//! The page about the three programs as processes of their own: its lines, run as they stand.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use system_tests::origin;
use system_tests::process::{Launcher, find_program, free_port};
use system_tests::redis::Redis;

/// Ends the script if it hangs; what it has started ends with it.
const SCRIPT_S: &str = "120";
const PROGRAMS: [&str; 4] = ["weir", "weir-gateway", "weir-plans-api", "weir-shadow-compare"];

/// The lines of the page, with addresses that are free here.
fn script(bin: &Path, redis: &str, service: &str) -> anyhow::Result<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/apart.md");
    let page = std::fs::read_to_string(page)?;
    let lines = page.split_once("```sh\n").and_then(|(_, rest)| rest.split_once("```\n"));
    let (mut lines, _) = lines.map(|(lines, rest)| (lines.to_owned(), rest)).context("a script")?;
    let others = ["127.0.0.1:8080", "127.0.0.1:8081", "127.0.0.1:8082", "127.0.0.1:9080"];
    let mut replaced =
        vec![("redis://127.0.0.1:6379", redis.to_owned()), ("127.0.0.1:3000", service.to_owned())];
    for address in others {
        replaced.push((address, format!("127.0.0.1:{}", free_port()?)));
    }
    for (shown, here) in replaced {
        anyhow::ensure!(lines.contains(shown), "the page does not say {shown}");
        lines = lines.replace(shown, &here);
    }
    Ok(format!("set -e\ntrap 'exit 1' TERM\nPATH='{}':\"$PATH\"\n{lines}", bin.display()))
}

/// Programs of these names that are this build's.
fn programs(bin: &Path) -> anyhow::Result<()> {
    std::fs::create_dir(bin)?;
    for name in PROGRAMS {
        let part = name.strip_prefix("weir-").unwrap_or(name);
        let path = bin.join(name);
        let lab = env!("CARGO_BIN_EXE_lab");
        std::fs::write(&path, format!("#!/bin/sh\nexec '{lab}' part {part} \"$@\"\n"))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

#[tokio::test]
async fn the_lines_of_the_page_start_three_programs_and_a_client_of_theirs_is_served()
-> anyhow::Result<()> {
    find_program("curl", "curl")?;
    let folder = tempfile::tempdir()?;
    let launcher = Launcher::new(env!("CARGO_BIN_EXE_lab"), folder.path());
    let redis = Redis::start(&launcher).await?;
    let (_service, service) = origin::start(&launcher).await?;
    let (bin, work) = (folder.path().join("bin"), folder.path().join("work"));
    programs(&bin)?;
    std::fs::create_dir(&work)?;
    let file = folder.path().join("script");
    std::fs::write(&file, script(&bin, &redis.url(), &service.to_string())?)?;

    let mut shell = std::process::Command::new("timeout");
    shell.args(["-k", "5", SCRIPT_S, "sh"]).arg(&file).current_dir(&work);
    shell.env("HOME", folder.path()).env("XDG_CONFIG_HOME", folder.path());
    for name in ["WEIR_ADDR", "WEIR_TOKEN", "WEIR_CONTEXT"] {
        shell.env_remove(name);
    }
    // To files: whoever is still ending would hold a pipe open.
    let (said, told) = (folder.path().join("said"), folder.path().join("told"));
    shell.stdout(std::fs::File::create(&said)?).stderr(std::fs::File::create(&told)?);
    let ended = tokio::task::spawn_blocking(move || shell.status()).await??;

    let (said, told) = (std::fs::read_to_string(said)?, std::fs::read_to_string(told)?);
    assert!(ended.success(), "{ended}\n{said}\n{told}");
    assert!(said.contains("HTTP/1.1 200"), "{said}\n{told}");
    assert!(said.contains("ratelimit-policy: \"burst\";q=100"), "{said}");
    assert!(!told.contains("token_invalid") && !told.contains(" ERROR "), "{told}");
    Ok(())
}
