//! The whole grammar of `weir`; nothing outside of this module knows clap. Here is what all
//! commands share and which there are; their own flags are in the files beside.
//!
//! Every command's help ends with an example; a test parses them all, so a help text cannot
//! promise a flag that is gone. Nothing is judged here except spelling: limits, names and rates
//! are checked where files and bodies are checked too.

mod contracts; // plans, clients, keys, limits, tokens, files
mod whole; // states of everything: diff, export, prune
mod replay; // a log against plans
mod daily; // top, routes, kill switch, approvals
mod rollouts; // phases, gate, shadow, gateways, audit
mod local; // contexts, dev, demo
mod keeping; // backups

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
pub(crate) use clap_complete::Shell;
use wire::client::plans::{Role, TopBy};
use wire::key::KeyEnv;
use wire::rollout::Phase;

pub(crate) use self::contracts::{
    Apply, ClientCommand, ClientSet, KeyCommand, LimitCommand, Named, OverrideCommand, OverrideSet,
    PlanCommand, PlanSet, TokenCommand, Validate,
};
#[cfg(feature = "dev")]
pub(crate) use self::daily::RouteTest;
pub(crate) use self::daily::{ApprovalCommand, KillswitchCommand, RouteCommand, Top};
pub(crate) use self::keeping::BackupCommand;
pub(crate) use self::local::ContextCommand;
#[cfg(feature = "dev")]
pub(crate) use self::local::{Demo, Dev, DevProcess};
pub(crate) use self::replay::{LogFormat, Replay};
pub(crate) use self::rollouts::{
    AuditCommand, AuditList, GateCommand, GatewayCommand, RolloutCommand, ShadowCommand,
};
pub(crate) use self::whole::{Diff, Export, Prune};

/// Operate Weir: plans, clients, keys, rollouts, and a whole system in one process.
#[derive(Debug, Parser)]
#[command(name = "weir", version, arg_required_else_help = true)]
#[command(after_help = "Example:\n  weir dev")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Globals {
    /// Address of plans-api; wins over the context
    #[arg(long, global = true, env = "WEIR_ADDR", value_name = "URL")]
    pub(crate) addr: Option<String>,
    /// Operator token; better given as WEIR_TOKEN or in a context
    #[arg(long, global = true, env = "WEIR_TOKEN", hide = true, hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// Use this context instead of the current one
    #[arg(long, global = true, env = "WEIR_CONTEXT", value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// How data is written to standard output
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: Format,
    /// Say nothing on standard error but what went wrong
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Never ask; without --yes a question is then an error
    #[arg(long, global = true)]
    pub(crate) no_input: bool,
    /// Folder above `weir/contexts.toml`; ~/.config unless said otherwise
    #[arg(long, global = true, env = "XDG_CONFIG_HOME", hide = true)]
    pub(crate) config_home: Option<PathBuf>,
    /// Any text switches colour off
    #[arg(long, global = true, env = "NO_COLOR", hide = true)]
    pub(crate) no_color: Option<String>,
    /// What was said on the command line itself.
    #[arg(skip)]
    pub(crate) given: Given,
}

/// What stood on the command line, as opposed to the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Given {
    pub(crate) addr: bool,
    pub(crate) context: bool,
    /// The command has the flag `--dry-run`, and it is set.
    pub(crate) dry_run: bool,
}

impl Given {
    fn of(mut matches: &ArgMatches) -> Given {
        while let Some((_, inner)) = matches.subcommand() {
            matches = inner;
        }
        let said = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
        let dry_run = matches.try_get_one::<bool>("dry_run").ok().flatten().copied();
        Given { addr: said("addr"), context: said("context"), dry_run: dry_run.unwrap_or_default() }
    }
}

/// How data is written to standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Table,
    /// For people with wide screens: more columns
    Wide,
    /// One document for programs
    Json,
    /// One document a line: each item of a list, else the whole
    Ndjson,
    /// Only names, one a line
    Name,
}

/// What every command takes that changes something.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ChangeFlags {
    /// Why; kept in the audit
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Wait until all live gateways have applied the change
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true,
          default_missing_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) wait: Option<Duration>,
    /// Do not ask for a confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Check and show what would happen, change nothing; exits as the change would
    #[arg(long)]
    pub(crate) dry_run: bool,
}

const ENVS: [(&str, KeyEnv); 2] = [("live", KeyEnv::Live), ("test", KeyEnv::Test)];
const PHASES: [(&str, Phase); 3] =
    [("off", Phase::Off), ("shadow", Phase::Shadow), ("enforce", Phase::Enforce)];
const BACK_TO: [(&str, Phase); 2] = [("shadow", Phase::Shadow), ("off", Phase::Off)];
const TOP_BY: [(&str, TopBy); 3] = [
    ("would-deny", TopBy::WouldDeny),
    ("disagree", TopBy::Disagree),
    ("requests", TopBy::Requests),
];

/// Every role that can be given away.
fn role() -> impl TypedValueParser<Value = Role> {
    let given = Role::ALL.into_iter().filter(|role| *role != Role::Bootstrap);
    PossibleValuesParser::new(given.map(Role::name))
        .try_map(|name| Role::named(&name).ok_or("is none of the roles"))
}

/// Reads one of some words as what it means.
fn one_of<T: Copy + Send + Sync + 'static>(
    words: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(words.iter().map(|(word, _)| *word)).try_map(|given| {
        let meant = words.iter().find(|(word, _)| *word == given);
        meant.map(|(_, meaning)| *meaning).ok_or("is none of the words")
    })
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run gateway, plans-api and shadow-compare in one process
    #[cfg(feature = "dev")]
    Dev(Dev),
    /// Show the incident and its cure in one process
    #[cfg(feature = "dev")]
    Demo(Demo),
    /// Ask every part whether it is well
    #[command(after_help = "Example:\n  weir doctor")]
    Doctor,
    /// Plans: limits and what holds without the store
    #[command(subcommand, after_help = "Example:\n  weir plan list")]
    Plan(PlanCommand),
    /// Clients: who has which plan
    #[command(subcommand, after_help = "Example:\n  weir client list")]
    Client(ClientCommand),
    /// API keys of clients
    #[command(subcommand, after_help = "Example:\n  weir key list")]
    Key(KeyCommand),
    /// Buckets of clients
    #[command(subcommand, after_help = "Example:\n  weir limit inspect acme")]
    Limit(LimitCommand),
    /// Make plans and clients as the files say: all or nothing, deleting nothing without --prune
    #[command(after_help = "Example:\n  weir apply -f plans.toml --reason \"new tariff\" --wait")]
    Apply(Apply),
    /// Write all plans and clients in the form that apply reads
    #[command(after_help = "Example:\n  weir export > plans.toml")]
    Export(Export),
    /// What apply would change, and what is in no file; exit 2 if anything differs
    #[command(after_help = "Example:\n  weir diff -f plans.toml")]
    Diff(Diff),
    /// Check files without asking anybody
    #[command(after_help = "Example:\n  weir validate plans.toml")]
    Validate(Validate),
    /// Play an access log against plans: who would be refused, when, how often
    #[command(
        after_help = "Example:\n  weir replay access.log --plans plans.toml --format nginx --key-field 10"
    )]
    Replay(Replay),
    /// Phases of clients: off, shadow, enforce
    #[command(subcommand, after_help = "Example:\n  weir rollout list")]
    Rollout(RolloutCommand),
    /// How often edge and services disagree: the number that lets a rollout go on
    ///
    /// It is the share of compared requests on which the edge and the service's own limiter came
    /// to different decisions, of clients in shadow. All may be enforced once it is below 1 in
    /// 1000, over at least 3000 pairs; what was lost counts as a difference.
    #[command(subcommand, after_help = "Example:\n  weir gate status edge")]
    Gate(GateCommand),
    /// What shadow saw
    #[command(subcommand, after_help = "Example:\n  weir shadow top")]
    Shadow(ShadowCommand),
    /// Gateways and what they have applied
    #[command(subcommand, after_help = "Example:\n  weir gateway list")]
    Gateway(GatewayCommand),
    /// The clients that matter most now
    #[command(after_help = "Example:\n  weir top --by would-deny -n 2")]
    Top(Top),
    /// Routes of the gateways
    #[command(subcommand, after_help = "Example:\n  weir route list")]
    Route(RouteCommand),
    /// Put everybody into shadow at once, on every gateway, and back
    #[command(subcommand, after_help = "Example:\n  weir killswitch status")]
    Killswitch(KillswitchCommand),
    /// What others asked for and a second person has to accept
    #[command(subcommand, after_help = "Example:\n  weir approvals list")]
    Approvals(ApprovalCommand),
    /// Operator tokens
    #[command(subcommand, after_help = "Example:\n  weir token list")]
    Token(TokenCommand),
    /// Who changed what, and why
    #[command(subcommand, after_help = "Example:\n  weir audit list")]
    Audit(AuditCommand),
    /// Everything that plans-api knows, as a file
    #[command(subcommand, after_help = "Example:\n  weir backup create weir-2026-12-01.ndjson")]
    Backup(BackupCommand),
    /// Where plans-api is and how to show oneself there
    #[command(subcommand, after_help = "Example:\n  weir context list")]
    Context(ContextCommand),
    /// Keep an address and a token as a context, after trying them
    #[command(after_help = "Example:\n  weir login prod --addr https://weir.example.com")]
    Login {
        /// Name of the context, which becomes the current one
        name: String,
        /// Ask before every change, and want a reason
        #[arg(long)]
        production: bool,
    },
    /// Version of this program
    #[command(after_help = "Example:\n  weir version -o json")]
    Version,
    /// A completion script for a shell
    #[command(after_help = "Example:\n  weir completion bash > weir.bash")]
    Completion {
        /// Which shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write a man page for every command
    #[command(after_help = "Example:\n  weir man man1")]
    Man {
        /// Folder for the pages; made if it is not there
        folder: PathBuf,
    },
}

/// What a command line came to.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// Something to do.
    Run(Box<Cli>),
    /// Help or version: text for standard output.
    Show(String),
    /// A mistake: text for standard error.
    Mistake(String),
}

/// Reads a command line.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Parsed {
    match read(args) {
        Ok(cli) => Parsed::Run(Box::new(cli)),
        Err(error) if error.use_stderr() => Parsed::Mistake(error.to_string()),
        Err(error) => Parsed::Show(error.to_string()),
    }
}

fn read(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    let matches = command.try_get_matches_from_mut(args)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    cli.globals.given = Given::of(&matches);
    Ok(cli)
}

/// A man page for every command, as a file's name and its text.
pub(crate) fn man_pages() -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut command = Cli::command();
    command.build();
    let mut pages = Vec::new();
    man_page(&command, "weir", &mut pages)?;
    Ok(pages)
}

fn man_page(
    command: &clap::Command,
    name: &str,
    pages: &mut Vec<(String, Vec<u8>)>,
) -> std::io::Result<()> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name.to_owned()).render(&mut page)?;
    pages.push((format!("{name}.1"), page));
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        man_page(sub, &format!("{name}-{}", sub.get_name()), pages)?;
    }
    Ok(())
}

/// The completion script for `shell`.
pub(crate) fn completion(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "weir", &mut script);
    script
}

#[cfg(test)]
mod tests;
