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
