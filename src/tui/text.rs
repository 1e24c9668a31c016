//! Text for the screen: numbers, widths, and model output made safe.
//!
//! Model text and tool output are foreign: they may hold escape sequences, control characters, wide characters and
//! invisible ones. [`sanitise`] is the only way such text reaches a cell.

use std::borrow::Cow;

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use crate::event::{Nanos, Stamp};

/// What stands for a value that nobody measured.
pub const UNKNOWN: &str = "–";

/// Columns between tab stops.
const TAB: usize = 4;

/// `12345` as `12,345`.
pub fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count, or `–`.
pub fn count(value: Option<u64>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), thousands)
}

/// A difference with its sign: `+1,024`, `-9,216`, `0`.
pub fn signed(value: i64) -> String {
    match value {
        0 => "0".to_owned(),
        v if v > 0 => format!("+{}", thousands(v.unsigned_abs())),
        v => format!("-{}", thousands(v.unsigned_abs())),
    }
}

/// A token count in k units for an axis: `850`, `3.2k`, `62k`.
pub fn kilo(value: u64) -> String {
    match value {
        0..1_000 => value.to_string(),
        1_000..10_000 if !value.is_multiple_of(1_000) => format!("{:.1}k", value as f64 / 1_000.0),
        _ => format!("{}k", value.saturating_add(500) / 1_000),
    }
}

/// A duration with a unit that keeps two or three significant digits: `412µs` is avoided in favour of `0.4ms`.
pub fn duration(value: Option<Nanos>) -> String {
    let Some(value) = value else { return UNKNOWN.to_owned() };
    let seconds = value.seconds();
    match seconds {
        s if s <= 0.0 => "0s".to_owned(),
        s if s < 0.01 => format!("{:.1}ms", s * 1e3),
        s if s < 1.0 => format!("{:.0}ms", s * 1e3),
        s if s < 100.0 => format!("{s:.1}s"),
        s if s < 6_000.0 => format!("{}m{:02}s", s as u64 / 60, s as u64 % 60),
        s => format!("{}h{:02}m", s as u64 / 3_600, s as u64 / 60 % 60),
    }
}

/// A point in the run, as the time since it began.
pub fn clock(at: Stamp) -> String {
    duration(Some(Nanos(at.0)))
}

/// A predicted duration: `≈ 0.31 s`, with two significant digits below 10 s.
pub fn about(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() || s < 0.0 => UNKNOWN.to_owned(),
        s if s < 0.001 => "≈ 0 s".to_owned(),
        s if s < 0.1 => format!("≈ {s:.3} s"),
        s if s < 1.0 => format!("≈ {s:.2} s"),
        s if s < 100.0 => format!("≈ {s:.1} s"),
        s => format!("≈ {}", duration(Some(Nanos::from_seconds(s)))),
    }
}

/// `1st`, `2nd`, `3rd`, `11th`.
pub fn ordinal(number: usize) -> String {
    let ending = match (number % 100, number % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

/// Bytes in binary units.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value} B") } else { format!("{scaled:.1} {}", UNITS[unit]) }
}

/// Columns `text` takes.
pub fn width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.width() }
}

/// `text` cut to at most `columns`, with `…` where something is missing.
pub fn fit(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    let mut used = 0;
    for grapheme in text.graphemes(true) {
        let w = grapheme.width();
        if used + w + 1 > columns {
            break;
        }
        used += w;
        out.push_str(grapheme);
    }
    if columns > 0 {
        out.push('…');
    }
    Cow::Owned(out)
}

/// `text` padded on the left to `columns`.
pub fn right(text: &str, columns: usize) -> String {
    let text = fit(text, columns);
    format!("{}{text}", " ".repeat(columns.saturating_sub(width(&text))))
}

/// `text` padded on the right to `columns`.
pub fn left(text: &str, columns: usize) -> String {
    let text = fit(text, columns);
    let pad = columns.saturating_sub(width(&text));
    format!("{text}{}", " ".repeat(pad))
}

/// Foreign text without anything a terminal would act on: control characters in caret notation (`^[` for escape),
/// C1 controls, bidirectional overrides and invisible formatting as `<U+202E>`, tabs as spaces. Line feeds stay.
pub fn sanitise(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|b| b == b'\n' || (0x20..0x7f).contains(&b)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    let mut column = 0;
    for c in text.chars() {
        let before = out.len();
        match c {
            '\n' => {
                out.push('\n');
                column = 0;
                continue;
            }
            '\t' => out.extend(std::iter::repeat_n(' ', TAB - column % TAB)),
            '\r' if text.len() > 1 => out.push_str("^M"),
            '\0'..='\x1f' => {
                out.push('^');
                out.push(char::from(c as u8 + 0x40));
            }
            '\x7f' => out.push_str("^?"),
            // The variation selector asks for a wide emoji form that terminals disagree about.
            '\u{fe0f}' | '\u{fe0e}' => {}
            c if is_invisible(c) => out.push_str(&format!("<U+{:04X}>", c as u32)),
            c => out.push(c),
        }
        column += width(&out[before..]);
    }
    Cow::Owned(out)
}

fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{80}'..='\u{9f}'
            | '\u{ad}'
            | '\u{61c}'
            | '\u{200b}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// Breaks one line (no line feed in it) into pieces of at most `columns`, after a space where there is one in the
/// latter half of the piece, otherwise between characters. An empty line is one empty piece.
pub fn wrap_line(line: &str, columns: usize, out: &mut Vec<Box<str>>) {
    let columns = columns.max(2);
    let mut rest = line;
    while let Some(cut) = cut_point(rest, columns) {
        out.push(rest[..cut].trim_end_matches(' ').into());
        rest = &rest[cut..];
    }
    out.push(rest.into());
}

/// Where to cut `text` so that the first piece fits: a byte offset at a character boundary, greater than 0; `None`
/// when all of it fits. Looks at no more than one piece, so wrapping a line is linear in its length.
fn cut_point(text: &str, columns: usize) -> Option<usize> {
    let mut used = 0;
    let mut last_space = None;
    for (at, grapheme) in text.grapheme_indices(true) {
        let w = width(grapheme);
        if used + w > columns && at > 0 {
            // A space right behind a full piece belongs to it: the next piece should not begin with it.
            return Some(if grapheme == " " { at + 1 } else { last_space.unwrap_or(at) });
        }
        used += w;
        if grapheme == " " && used * 2 > columns {
            last_space = Some(at + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_a_researcher_writes_them() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_000), "1,000");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(count(None), "–");
        assert_eq!(signed(-9_216), "-9,216");
        assert_eq!(signed(3_072), "+3,072");
        assert_eq!(signed(i64::MIN), "-9,223,372,036,854,775,808");
        assert_eq!((kilo(850), kilo(3_200), kilo(61_900)), ("850".into(), "3.2k".into(), "62k".into()));
        assert_eq!(duration(None), "–");
        assert_eq!(duration(Some(Nanos(0))), "0s");
        assert_eq!(duration(Some(Nanos(412_000))), "0.4ms");
        assert_eq!(duration(Some(Nanos(2_130_000_000))), "2.1s");
        assert_eq!(duration(Some(Nanos(u64::MAX))), "5124095h34m");
        assert_eq!(bytes(1_536), "1.5 KiB");
        assert_eq!(
            [0.0, 0.043, 0.31, 2.66, 1e12].map(about)[..4],
            ["≈ 0 s", "≈ 0.043 s", "≈ 0.31 s", "≈ 2.7 s"]
        );
        assert_eq!((about(f64::NAN), about(61.0)), ("–".into(), "≈ 61.0 s".into()));
        assert_eq!(
            [1, 2, 3, 4, 11, 112, 21].map(ordinal),
            ["1st", "2nd", "3rd", "4th", "11th", "112th", "21st"]
        );
    }

    #[test]
    fn nothing_a_terminal_would_act_on_survives() {
        assert_eq!(sanitise("\x1b[2J\x07"), "^[[2J^G");
        assert_eq!(sanitise("a\r\nb"), "a^M\nb");
        assert_eq!(sanitise("a\tb"), "a   b");
        assert_eq!(sanitise("\u{9b}31m"), "<U+009B>31m");
        assert_eq!(sanitise("x\u{202e}y"), "x<U+202E>y");
        assert_eq!(sanitise("日\tx"), "日  x");
        assert_eq!(sanitise("\x7f"), "^?");
        let every: String = (0..=0x2ff).chain(0x2000..0x2100).filter_map(char::from_u32).collect();
        let safe = sanitise(&every);
        assert!(safe.chars().all(|c| c == '\n' || !c.is_control()));
    }

    #[test]
    fn pieces_never_exceed_the_width_and_lose_only_spaces() {
        let line = "the 日本語 quick brown fox jumps over thelazydogwithoutanyspaceatall ok";
        for columns in 2..40 {
            let mut pieces = Vec::new();
            wrap_line(line, columns, &mut pieces);
            assert!(pieces.iter().all(|p| width(p) <= columns), "{columns}: {pieces:?}");
            let squeeze = |s: &str| s.replace(' ', "");
            assert_eq!(squeeze(&pieces.concat()), squeeze(line));
        }
        let mut empty = Vec::new();
        wrap_line("", 10, &mut empty);
        assert_eq!(empty.len(), 1);
    }

    #[test]
    fn fitting_keeps_wide_characters_whole() {
        assert_eq!(fit("日本語", 4), "日…");
        assert_eq!(fit("abc", 3), "abc");
        assert_eq!(fit("abcd", 3), "ab…");
        assert_eq!(fit("abc", 0), "");
        assert_eq!(right("12", 4), "  12");
        assert_eq!(left("12", 4), "12  ");
    }
}
