//! A table for a terminal, in lines of at most a width. Words and numbers are never cut. If the
//! columns do not fit, texts wrap between words. If that is not enough, each row becomes a
//! paragraph of titles and cells.

use super::{Align, Table, UNKNOWN};

/// Between two columns.
const GAP: usize = 2;
/// Texts are not wrapped to fewer columns than this: a tower of words is no table.
const LEAST: usize = 20;

/// The table, without a line break at its end.
pub fn terminal_table(source: &Table, width: u16) -> String {
    let room = usize::from(width);
    let widths: Vec<usize> =
        (0..source.columns.len()).map(|column| natural(source, column)).collect();
    match fitted(source, widths, room) {
        Some(widths) => grid(source, &widths),
        None => paragraphs(source, room),
    }
}

/// How wide a text is drawn; everything that is printed is one column a character.
fn length(text: &str) -> usize {
    text.chars().count()
}

fn cells(source: &Table, column: usize) -> impl Iterator<Item = &str> {
    let title = source.columns[column].title.as_ref();
    std::iter::once(title).chain(source.rows.iter().map(move |row| row[column].as_str()))
}

fn natural(source: &Table, column: usize) -> usize {
    cells(source, column).map(length).max().unwrap_or(0)
}

/// Takes from the widest texts until all columns fit; `None` where they do not. Figures keep their
/// line: only texts, which stand on the left, wrap.
fn fitted(source: &Table, mut widths: Vec<usize>, room: usize) -> Option<Vec<usize>> {
    let least: Vec<usize> = (0..widths.len())
        .map(|column| match source.columns[column].align {
            Align::Right => widths[column],
            Align::Left => {
                let words = cells(source, column).flat_map(words);
                words.map(|word| length(&word)).max().unwrap_or(0).max(LEAST.min(widths[column]))
            }
        })
        .collect();
    let gaps = GAP * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > room {
        let may = (0..widths.len()).filter(|&column| widths[column] > least[column]);
        let widest = may.max_by_key(|&column| widths[column])?;
        widths[widest] -= 1;
    }
    Some(widths)
}

fn grid(source: &Table, widths: &[usize]) -> String {
    let titles: Vec<String> =
        source.columns.iter().map(|column| column.title.to_string()).collect();
    let rule = "─".repeat(widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1));
    let mut lines = row(source, &titles, widths);
    lines.push(rule);
    lines.extend(source.rows.iter().flat_map(|cells| row(source, cells, widths)));
    lines.join("\n")
}

/// The lines of one row.
fn row(source: &Table, cells: &[String], widths: &[usize]) -> Vec<String> {
    let wrapped: Vec<Vec<String>> =
        cells.iter().zip(widths).map(|(cell, width)| wrap(cell, *width)).collect();
    let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
    let line = |at: usize| {
        let placed =
            wrapped.iter().zip(widths).zip(&source.columns).map(|((lines, width), column)| {
                let text = lines.get(at).map_or("", String::as_str);
                let gap = " ".repeat(width.saturating_sub(length(text)));
                match column.align {
                    Align::Left => format!("{text}{gap}"),
                    Align::Right => format!("{gap}{text}"),
                }
            });
        placed.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned()
    };
    (0..height).map(line).collect()
}

/// Each row as its names, which stand before the first figure, and below them all else with its
/// title.
fn paragraphs(source: &Table, room: usize) -> String {
    let names = source.columns.iter().take_while(|column| column.align == Align::Left).count();
    let mut lines = Vec::new();
    for cells in &source.rows {
        let is_known = |cell: &&String| !cell.is_empty() && cell.as_str() != UNKNOWN;
        let named: Vec<&String> = cells[..names].iter().filter(is_known).collect();
        let titled: Vec<String> = source.columns[names..]
            .iter()
            .zip(&cells[names..])
            .filter(|(_, cell)| is_known(cell))
            .map(|(column, cell)| format!("{} {cell}", column.title))
            .collect();
        lines.extend(packed(&named, room, ""));
        lines.extend(packed(&titled, room, "    "));
    }
    lines.join("\n")
}

/// Parts with two blanks between them, as many on a line as fit.
fn packed(parts: &[impl AsRef<str>], room: usize, indent: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts.iter().map(AsRef::as_ref) {
        match lines.last_mut() {
            Some(line) if length(line) + GAP + length(part) <= room => {
                *line += &format!("{}{part}", " ".repeat(GAP));
            }
            _ => lines.extend(indented(part, room, if lines.is_empty() { indent } else { "    " })),
        }
    }
    lines
}

/// A text in lines of at most `width`, broken between words, all of them indented.
pub fn indented(text: &str, width: usize, indent: &str) -> Vec<String> {
    let room = width.saturating_sub(length(indent)).max(1);
    wrap(text, room).into_iter().map(|line| format!("{indent}{line}")).collect()
}

/// A text in lines of at most `width`, broken between words; a word that is longer stands alone and
/// whole.
fn wrap(text: &str, width: usize) -> Vec<String> {
    if length(text) <= width {
        return vec![text.to_owned()];
    }
    let mut lines = vec![String::new()];
    for word in words(text) {
        let line = lines.last_mut().expect("there is always a line");
        if line.is_empty() {
            *line += &word;
        } else if length(line) + 1 + length(&word) <= width {
            *line += &format!(" {word}");
        } else {
            lines.push(word);
        }
    }
    lines
}

/// The words of a text; a number stays with its unit and with its interval: `215 µs [204, 249]`.
fn words(text: &str) -> Vec<String> {
    const UNITS: [&str; 12] =
        ["%", "ns", "µs", "ms", "s", "B", "KiB", "MiB", "GiB", "TiB", "min", "x"];
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let bare = word.trim_end_matches([',', ';', '.', ':', ')', ']']);
        let belongs = |last: &String| {
            let is_open = last.rfind('[') > last.rfind(']');
            let is_number = last.ends_with(|c: char| c.is_ascii_digit());
            let is_interval = word.starts_with('[') && last.chars().any(|c| c.is_ascii_digit());
            is_open || (is_number && UNITS.contains(&bare)) || is_interval
        };
        match words.last_mut().filter(|last| belongs(last)) {
            Some(last) => *last += &format!(" {word}"),
            None => words.push(word.to_owned()),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example that cut mode and precision out of a cell: a GPU's name in the configuration.
    fn gpu() -> Table {
        let mut table = Table::new(&[
            ("Workload", Align::Left),
            ("Configuration", Align::Left),
            ("Time per call [95 %]", Align::Right),
            ("Speed-up [95 %]", Align::Right),
            ("Verdict", Align::Left),
        ]);
        let name = "cuda@NVIDIA H200 NVL 141GB HBM3e graph bf16 t2 rematerialized";
        for (workload, time) in
            [("gpt-125m B=16,T=1024", "1,234.5 ms [1,230.1, 1,240.9]"), ("mlp", "9 ns")]
        {
            let cells = [workload, name, time, "12.34x [11.20, 13.50]", "excellent"];
            table.push(cells.map(str::to_owned).into());
        }
        table
    }

    #[test]
    fn no_line_is_too_long_and_no_word_is_cut() {
        let source = gpu();
        let whole: Vec<&str> =
            source.rows.iter().flatten().flat_map(|cell| cell.split_whitespace()).collect();
        for width in 40..200 {
            let text = terminal_table(&source, width);
            for line in text.lines() {
                assert!(length(line) <= usize::from(width), "{width}: {line}");
            }
            let found: Vec<&str> = text.split_whitespace().collect();
            for word in &whole {
                assert!(found.contains(word), "{width}: `{word}` was cut: {text}");
            }
        }
    }

    #[test]
    fn figures_stay_on_one_line() {
        let text = terminal_table(&gpu(), 120);
        assert!(
            text.contains("1,234.5 ms [1,230.1, 1,240.9]")
                && text.contains("12.34x [11.20, 13.50]"),
            "{text}"
        );
        let narrow = terminal_table(&gpu(), 60);
        assert!(narrow.contains("Speed-up [95 %] 12.34x [11.20, 13.50]"), "{narrow}");
    }

    #[test]
    fn a_number_is_not_parted_from_its_unit_and_interval() {
        assert_eq!(
            words("of 245 % at 9.5 ms [9.1, 9.9]; no less"),
            ["of", "245 %", "at", "9.5 ms [9.1, 9.9];", "no", "less"]
        );
    }

    #[test]
    fn what_fits_is_a_grid() {
        let mut small = Table::new(&[("Name", Align::Left), ("n", Align::Right)]);
        small.push(vec!["a".to_owned(), "20".to_owned()]);
        assert_eq!(terminal_table(&small, 80), "Name   n\n────────\na     20");
    }
}
