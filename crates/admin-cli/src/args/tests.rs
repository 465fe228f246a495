//! Every help text is held to its word.

use clap::{CommandFactory, Parser};

use super::Cli;

#[test]
fn the_grammar_is_sound() {
    Cli::command().debug_assert();
}

/// Splits an example as a shell would, as far as examples go: blanks, and double quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in line.split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(ToOwned::to_owned));
        }
    }
    words.into_iter().take_while(|word| word != ">").collect()
}

fn examples_of(command: &clap::Command, path: &str, into: &mut Vec<(String, String)>) {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let lines: Vec<&str> = help.lines().filter(|line| line.starts_with("  weir")).collect();
    assert!(!lines.is_empty(), "the help of `{path}` ends without an example");
    for line in lines {
        assert!(line.trim().starts_with(path), "`{line}` is no example of `{path}`");
        into.push((path.to_owned(), line.to_owned()));
    }
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        examples_of(sub, &format!("{path} {}", sub.get_name()), into);
    }
}

#[test]
fn every_help_ends_with_an_example_that_parses() {
    let mut examples = Vec::new();
    examples_of(&Cli::command(), "weir", &mut examples);
    assert!(examples.len() > 40, "only {} examples", examples.len());
    for (path, line) in examples {
        if let Err(error) = Cli::try_parse_from(words(&line)) {
            panic!("the example of `{path}` does not parse: {error}");
        }
    }
}

fn silent_arguments(command: &clap::Command, path: &str, into: &mut Vec<String>) {
    let silent = command.get_arguments().filter(|argument| argument.get_help().is_none());
    into.extend(silent.map(|argument| format!("{path} {argument}")));
    for sub in command.get_subcommands() {
        silent_arguments(sub, &format!("{path} {}", sub.get_name()), into);
    }
}

#[test]
fn every_argument_says_what_it_is() {
    let mut silent = Vec::new();
    silent_arguments(&Cli::command(), "weir", &mut silent);
    assert!(silent.is_empty(), "{silent:#?}");
}

fn help(args: &[&str]) -> String {
    Cli::try_parse_from(args).unwrap_err().to_string()
}

#[test]
fn what_every_command_takes_stands_apart_from_its_own_flags() {
    let help = help(&["weir", "plan", "set", "--help"]);
    let (own, global) = help.split_once("\nGlobal options:\n").unwrap();
    let global = global.split("Example:").next().unwrap();
    assert!(own.contains("--burst") && !own.contains("--context"), "{help}");
    assert!(global.contains("--context") && !global.contains("--burst"), "{help}");
}

#[test]
fn the_help_of_the_gate_says_what_the_number_is() {
    use wire::gate::{LINE_ONE_IN, PAIRS_MIN};
    let help = help(&["weir", "gate", "--help"]);
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = format!("1 in {LINE_ONE_IN}, over at least {PAIRS_MIN} pairs");
    assert!(words.contains("different decisions") && words.contains(&line), "{help}");
}

#[test]
fn a_misspelt_command_gets_a_suggestion() {
    let error = Cli::try_parse_from(["weir", "plan", "lst"]).unwrap_err().to_string();
    assert!(error.contains("list"), "{error}");
}

#[test]
fn wait_has_a_usual_length() {
    let cli = Cli::try_parse_from(["weir", "client", "resume", "a", "--wait"]).unwrap();
    assert!(format!("{cli:?}").contains("wait: Some(30s)"), "{cli:?}");
}

fn changing(command: &clap::Command, path: &str, into: &mut Vec<(String, Vec<String>)>) {
    let flags: Vec<String> =
        command.get_arguments().filter_map(|flag| flag.get_long().map(ToOwned::to_owned)).collect();
    if flags.iter().any(|flag| flag == "reason") {
        into.push((path.to_owned(), flags));
    }
    for sub in command.get_subcommands() {
        changing(sub, &format!("{path} {}", sub.get_name()), into);
    }
}

#[test]
fn what_changes_something_can_be_tried_awaited_and_confirmed() {
    let mut all = Vec::new();
    changing(&Cli::command(), "weir", &mut all);
    assert!(all.len() > 20, "only {} commands change something", all.len());
    for (path, flags) in &all {
        for flag in ["dry-run", "wait", "yes"] {
            assert!(flags.iter().any(|has| has == flag), "`{path}` has no --{flag}");
        }
    }
}
