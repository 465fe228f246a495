//! What a newcomer types: `weir dev`, then the lines that it prints, as they stand in the README.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::Signal;
use serde_json::Value;
use system_tests::process::{Child, Launcher, START_MAX, find_program, free_port};

const ENDS_MAX: Duration = Duration::from_secs(30);

struct Dev {
    child: Child,
    said: Value,
}

/// Starts `weir dev` in `dir` and reads what it says when it is ready.
async fn dev(launcher: &Launcher, name: &str, port: u16) -> anyhow::Result<Dev> {
    let state = launcher.dir().join(".weir");
    let args = [
        "-o".into(),
        "json".into(),
        "dev".into(),
        "--port".into(),
        port.to_string().into(),
        "--state-dir".into(),
        state.into_os_string(),
    ];
    let mut child = launcher.start(name, "weir", args)?;
    let log = launcher.dir().join(format!("{name}.log"));
    let said = child
        .wait_for(START_MAX, || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let from = text.find('{').unwrap_or(text.len());
            let document = text.get(from..).unwrap_or_default();
            let first = serde_json::Deserializer::from_str(document).into_iter::<Value>().next();
            Ok(first.and_then(Result::ok))
        })
        .await?;
    Ok(Dev { child, said })
}

impl Dev {
    fn command(&self, name: &str) -> anyhow::Result<String> {
        let command = self.said.pointer(&format!("/commands/{name}")).and_then(Value::as_str);
        Ok(command.with_context(|| format!("no `{name}` in {}", self.said))?.to_owned())
    }

    fn key(&self) -> Option<&str> {
        self.said.get("key").and_then(Value::as_str)
    }
}

/// As a newcomer's shell runs it, but with this build of `weir`; what it printed.
async fn shell(command: &str, home: &Path) -> anyhow::Result<String> {
    find_program("curl", "curl")?;
    let weir = format!("'{}' part weir", env!("CARGO_BIN_EXE_lab"));
    let command = match command.strip_prefix("cargo ").unwrap_or(command).strip_prefix("weir ") {
        Some(args) => format!("{weir} {args}"),
        None => command.to_owned(),
    };
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &command]).env("HOME", home).env("XDG_CONFIG_HOME", home);
    let output = tokio::task::spawn_blocking(move || shell.output()).await??;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(text(&output.stdout) + &text(&output.stderr))
}

fn header<'a>(answer: &'a str, name: &str) -> Vec<&'a str> {
    let lines = answer.lines().filter_map(|line| line.split_once(": "));
    lines.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.trim()).collect()
}

#[tokio::test]
async fn the_lines_that_weir_dev_prints_do_what_they_say() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let launcher = Launcher::new(env!("CARGO_BIN_EXE_lab"), folder.path());
    let port = free_port()?;
    let mut dev = dev(&launcher, "first", port).await?;

    let allowed = shell(&dev.command("allowed")?, folder.path()).await?;
    assert!(allowed.starts_with("HTTP/1.1 200"), "{allowed}");
    assert!(!header(&allowed, "ratelimit").is_empty(), "{allowed}");
    assert!(!header(&allowed, "ratelimit-policy").is_empty(), "{allowed}");

    let refused = shell(&dev.command("refused")?, folder.path()).await?;
    let last = refused.rfind("HTTP/1.1 429").map(|at| refused.split_at(at).1);
    let last = last.with_context(|| format!("it never ended with 429: {refused}"))?;
    let waits = header(last, "retry-after");
    assert!(waits.iter().any(|wait| wait.parse::<u64>().is_ok_and(|s| s >= 1)), "{last}");
    assert!(last.contains("quota-exceeded"), "{last}");

    let change = dev.command("change")?;
    let changed = shell(&change, folder.path()).await?;
    let told = async || {
        let answer = shell(&dev.command("allowed")?, folder.path()).await?;
        Ok(header(&answer, "ratelimit-policy").join(" ").contains("q=20").then_some(()))
    };
    system_tests::process::eventually("the new plan is told", ENDS_MAX, told)
        .await
        .with_context(|| format!("{change}\n{changed}"))?;

    // The README shows the same commands.
    let readme =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md"))?;
    let set = change.find("plan set").map(|at| change.split_at(at).1).unwrap_or(&change);
    assert!(readme.contains(set), "the README does not have: {set}");
    assert!(readme.contains("cargo weir dev"));

    let key = dev.key().map(ToOwned::to_owned);
    dev.child.terminate(ENDS_MAX).await?;
    // The next start prints lines that work with the same key.
    let again = self::dev(&launcher, "second", port).await?;
    assert_eq!(again.key(), key.as_deref());
    let allowed = shell(&again.command("allowed")?, folder.path()).await?;
    assert!(allowed.starts_with("HTTP/1.1 200"), "{allowed}");
    again.child.signal(Signal::TERM)?;
    Ok(())
}
