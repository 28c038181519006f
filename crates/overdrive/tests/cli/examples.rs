//! Examples at the end of each command's help: the shell takes every one, and those that need no
//! file and little time end well.

use crate::invocation::Folder;

/// Beginnings of examples that are not run, and why.
const LEFT_OUT: [(&str, &str); 14] = [
    ("run ", "takes minutes"),
    ("bench ", "takes a minute"),
    ("profile ", "takes a minute"),
    ("eval ", "needs a file of inputs"),
    ("generate ", "needs a model of language"),
    ("tokens ", "needs a text and a tokenizer"),
    ("train ", "needs data"),
    ("optimize ", "needs data"),
    ("quantize ", "needs data"),
    ("report ", "needs results"),
    ("regress ", "needs two programs"),
    ("compare ", "needs two results"),
    ("history ", "needs results"),
    ("info --install ", "fetches an engine"),
];

/// Every example, without the name of the program.
fn examples() -> Vec<String> {
    let folder = Folder::new();
    let help = folder.line("--help").ends(0, &["Commands:"]).stdout.clone();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let names = commands.lines().map(|line| line.split_whitespace().next().unwrap());
    let mut all = vec![];
    for name in names.filter(|name| *name != "help") {
        let help = folder.line(&format!("help {name}")).ends(0, &["Examples:"]).stdout.clone();
        let (_, examples) = help.split_once("Examples:\n").unwrap();
        let lines = examples.lines().map(|line| line.trim().strip_prefix("overdrive ").unwrap());
        all.extend(lines.map(str::to_owned));
    }
    all
}

#[test]
fn every_example_of_a_help_text_is_a_command_line() {
    for example in examples() {
        // The help is printed once all words before it are accepted.
        Folder::new().shell(&format!("overdrive {example} --help")).ends(0, &["Usage:"]);
    }
}

#[test]
fn examples_that_need_no_file_end_well() {
    let all = examples();
    let is_left_out =
        |example: &&String| LEFT_OUT.iter().any(|(start, _)| example.starts_with(start));
    for (start, why) in LEFT_OUT {
        assert!(all.iter().any(|example| example.starts_with(start)), "no `{start}`, which {why}");
    }
    let run: Vec<&String> = all.iter().filter(|example| !is_left_out(example)).collect();
    assert!(run.iter().any(|example| example.contains("--memory-limit")), "{run:?}");
    for example in run {
        Folder::new().shell(&format!("overdrive {example}")).ends(0, &[]);
    }
}
