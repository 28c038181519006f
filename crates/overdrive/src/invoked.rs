//! The command line as it was typed, for results that say how to repeat them and for interrupted
//! commands that go on.

/// The command as it was typed, without the program's path.
pub(crate) fn command_line() -> String {
    line(words())
}

/// The same command without these options and their values, and with `added` behind it.
pub(crate) fn command_with(without: &[&str], added: &str) -> String {
    format!("{} {added}", line(left(words(), without)))
}

/// A word as a shell reads it back.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./:=,@+~^".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn words() -> Vec<String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

fn line(words: Vec<String>) -> String {
    let words = words.iter().map(|word| quoted(word));
    std::iter::once("overdrive".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

fn left(words: Vec<String>, without: &[&str]) -> Vec<String> {
    let mut rest = words.into_iter();
    let mut left = Vec::new();
    while let Some(word) = rest.next() {
        if without.contains(&word.as_str()) {
            rest.next();
        } else if !without.iter().any(|option| word.starts_with(&format!("{option}="))) {
            left.push(word);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_go_with_their_values() {
        let words = "run kernels --out a --out=b --quick".split(' ').map(str::to_owned).collect();
        assert_eq!(line(left(words, &["--out"])), "overdrive run kernels --quick");
    }

    #[test]
    fn a_shell_reads_back_what_was_typed() {
        assert_eq!(
            line(vec!["a b".to_owned(), "it's".to_owned(), "--x=1".to_owned()]),
            r"overdrive 'a b' 'it'\''s' --x=1"
        );
    }
}
