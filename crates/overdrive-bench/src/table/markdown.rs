//! A table in Markdown, padded so that its source reads well too.

use super::{Align, Table};

/// The table, with a line break at its end.
pub fn markdown_table(table: &Table) -> String {
    // A bar in a cell would end it.
    let escaped = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let titles: Vec<String> = table.columns.iter().map(|column| escaped(&column.title)).collect();
    let rows: Vec<Vec<String>> =
        table.rows.iter().map(|row| row.iter().map(|text| escaped(text)).collect()).collect();
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .chain([titles[column].chars().count(), 3])
            .max()
            .unwrap_or(3)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let line = |cells: &[String]| {
        let padded =
            cells.iter().zip(&widths).zip(&table.columns).map(|((text, width), column)| {
                let gap = " ".repeat(width - text.chars().count());
                match column.align {
                    Align::Left => format!("{text}{gap}"),
                    Align::Right => format!("{gap}{text}"),
                }
            });
        format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
    };
    let rule = table.columns.iter().zip(&widths).map(|(column, width)| match column.align {
        Align::Left => "-".repeat(*width),
        Align::Right => format!("{}:", "-".repeat(width - 1)),
    });
    let rule = format!("| {} |\n", rule.collect::<Vec<_>>().join(" | "));
    let body: String = rows.iter().map(|row| line(row)).collect();
    line(&titles) + &rule + &body
}
