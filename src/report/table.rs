//! Aligned tables.

use std::fmt;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Text that Markdown shows as it is.
pub(super) fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '!' | '~' => {
                safe.push('\\');
                safe.push(c);
            }
            c => safe.push(c),
        }
    }
    safe
}

/// What stands between columns.
const SEPARATOR: &str = "  ";

/// Which side of a column its cells stand on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table: a header, and rows of as many cells. Columns are as wide as their widest cell on a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    header: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these columns.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        let header = columns.iter().map(|(title, align)| (printable(title), *align)).collect();
        Table { header, rows: Vec::new() }
    }

    /// Adds a row. Missing cells are empty, surplus ones are dropped; control characters are made harmless.
    pub fn row<I: IntoIterator<Item = S>, S: AsRef<str>>(&mut self, cells: I) {
        let mut row: Vec<_> =
            cells.into_iter().take(self.header.len()).map(|cell| printable(cell.as_ref())).collect();
        row.resize(self.header.len(), String::new());
        self.rows.push(row);
    }

    /// How many columns of a terminal its widest line takes.
    pub fn width(&self) -> usize {
        self.widths().iter().sum::<usize>() + SEPARATOR.len() * self.header.len().saturating_sub(1)
    }

    /// The table in Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let marks = self.header.iter().map(|(_, align)| match align {
            Align::Left => "---".to_owned(),
            Align::Right => "--:".to_owned(),
        });
        let titles = self.header.iter().map(|(title, _)| plain(title));
        let head = line(titles.collect()) + &line(marks.collect());
        let rows = self.rows.iter().map(|row| line(row.iter().map(|cell| plain(cell)).collect()));
        head + &rows.collect::<String>()
    }

    fn widths(&self) -> Vec<usize> {
        let cells = |column: usize| self.rows.iter().map(move |row| row[column].width());
        let titles = self.header.iter().map(|(title, _)| title.width());
        titles.enumerate().map(|(column, title)| cells(column).fold(title, usize::max)).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titles: Vec<_> = self.header.iter().map(|(title, _)| title.clone()).collect();
        let lines = || std::iter::once(&titles).chain(&self.rows);
        let widths = self.widths();
        for line in lines() {
            let mut text = String::new();
            for ((cell, (_, align)), width) in line.iter().zip(&self.header).zip(&widths) {
                let padding = " ".repeat(width - cell.width());
                match align {
                    Align::Left => text.extend([cell.as_str(), &padding]),
                    Align::Right => text.extend([padding.as_str(), cell]),
                }
                text.push_str(SEPARATOR);
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// `text` without anything a terminal would act on: control characters and characters that reorder text become
/// `�`, line ends and tabs become a space.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\r' | '\t' => ' ',
            c if c.is_control() || reorders_text(c) => char::REPLACEMENT_CHARACTER,
            c => c,
        })
        .collect()
}

fn reorders_text(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || c.width().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_by_terminal_width() {
        let mut table = Table::new(&[("name", Align::Left), ("tokens", Align::Right)]);
        table.row(["日本", "1,024"]);
        table.row(["plain", "–"]);
        assert_eq!(table.to_string(), "name   tokens\n日本    1,024\nplain       –\n");
    }

    #[test]
    fn short_and_long_rows_are_made_to_fit() {
        let mut table = Table::new(&[("a", Align::Left), ("b", Align::Left)]);
        table.row(["1"]);
        table.row(["1", "2", "3"]);
        assert_eq!(table.to_string(), "a  b\n1\n1  2\n");
    }

    #[test]
    fn nothing_a_terminal_acts_on_survives() {
        assert_eq!(printable("a\x1b[31mb\nc\u{9b}d\u{202e}e"), "a�[31mb c�d�e");
        assert_eq!(printable("–▼日本µ"), "–▼日本µ");
    }
}
