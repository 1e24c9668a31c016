//! A frame as an SVG picture, for the README.

use std::fmt::Write as _;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use unicode_width::UnicodeWidthStr;

/// Size of a cell, pixels.
const CELL: (u32, u32) = (9, 18);
/// Space around the frame, pixels.
const MARGIN: u32 = 12;
const BACKGROUND: &str = "#14171c";
const FOREGROUND: &str = "#d8dee9";

/// The frame as SVG. Runs of equal style become one element; glyphs that must meet their neighbours (blocks and lines) are
/// drawn with the same font metrics as text, so the picture needs any monospaced font.
pub fn svg(buffer: &Buffer) -> String {
    let (columns, rows) = (u32::from(buffer.area.width), u32::from(buffer.area.height));
    let (width, height) = (columns * CELL.0 + 2 * MARGIN, rows * CELL.1 + 2 * MARGIN);
    let mut out = String::new();
    // Writing into a string cannot fail.
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\">\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n\
         <g font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"15\" xml:space=\"preserve\">"
    );
    for y in 0..buffer.area.height {
        for run in runs(buffer, y) {
            draw_run(&mut out, &run, u32::from(y));
        }
    }
    out.push_str("</g>\n</svg>\n");
    out
}

/// Consecutive cells of one look.
struct Run {
    column: u32,
    columns: u32,
    text: String,
    look: Look,
}

#[derive(Clone, PartialEq)]
struct Look {
    foreground: String,
    background: Option<String>,
    bold: bool,
    underlined: bool,
    /// Block elements are drawn as rectangles, so that they meet whatever the font.
    block: Option<char>,
}

fn runs(buffer: &Buffer, y: u16) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut x = 0;
    while x < buffer.area.width {
        let Some(cell) = buffer.cell((buffer.area.x + x, buffer.area.y + y)) else { break };
        let columns = cell.symbol().width().max(1) as u16;
        let look = look(cell);
        match runs.last_mut() {
            Some(run) if run.look == look => {
                run.columns += u32::from(columns);
                run.text.push_str(cell.symbol());
            }
            _ => runs.push(Run {
                column: u32::from(x),
                columns: u32::from(columns),
                text: cell.symbol().to_owned(),
                look,
            }),
        }
        x += columns;
    }
    runs
}

fn look(cell: &Cell) -> Look {
    let modifier = cell.modifier;
    let mut foreground = colour(cell.fg).unwrap_or_else(|| FOREGROUND.to_owned());
    let mut background = colour(cell.bg);
    if modifier.contains(Modifier::REVERSED) {
        let old = background.replace(foreground).unwrap_or_else(|| BACKGROUND.to_owned());
        foreground = old;
    }
    let block = cell.symbol().chars().next().filter(|c| ('▁'..='█').contains(c));
    Look {
        foreground,
        background,
        bold: modifier.contains(Modifier::BOLD),
        underlined: modifier.contains(Modifier::UNDERLINED),
        block,
    }
}

fn draw_run(out: &mut String, run: &Run, row: u32) {
    let (x, y) = (MARGIN + run.column * CELL.0, MARGIN + row * CELL.1);
    let width = run.columns * CELL.0;
    let look = &run.look;
    if let Some(background) = &look.background {
        rectangle(out, (x, f64::from(y)), width, f64::from(CELL.1), background);
    }
    if let Some(block) = look.block {
        let height = f64::from(block as u32 - '▁' as u32 + 1) / 8.0 * f64::from(CELL.1);
        rectangle(out, (x, f64::from(y + CELL.1) - height), width, height, &look.foreground);
        return;
    }
    if run.text.trim().is_empty() {
        return;
    }
    let weight = if look.bold { " font-weight=\"bold\"" } else { "" };
    let line = if look.underlined { " text-decoration=\"underline\"" } else { "" };
    let text = run.text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        out,
        "<text x=\"{x}\" y=\"{}\" textLength=\"{width}\" lengthAdjust=\"spacingAndGlyphs\" fill=\"{}\"{weight}{line}>{text}</text>",
        y + CELL.1 - 5,
        look.foreground
    );
}

fn rectangle(out: &mut String, at: (u32, f64), width: u32, height: f64, fill: &str) {
    let _ = writeln!(
        out,
        "<rect x=\"{}\" y=\"{}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>",
        at.0, at.1
    );
}

/// The colour as CSS, `None` for the terminal's own.
fn colour(color: Color) -> Option<String> {
    let named = match color {
        Color::Reset => return None,
        Color::Rgb(r, g, b) => return Some(format!("#{r:02x}{g:02x}{b:02x}")),
        Color::Indexed(_) | Color::White => "#ffffff",
        Color::Black => "#000000",
        Color::Red => "#e06c75",
        Color::Green => "#98c379",
        Color::Yellow => "#e5c07b",
        Color::Blue => "#61afef",
        Color::Magenta => "#c678dd",
        Color::Cyan => "#56b6c2",
        Color::Gray => "#abb2bf",
        Color::DarkGray => "#7f8897",
        Color::LightRed => "#ff8a93",
        Color::LightGreen => "#b5e890",
        Color::LightYellow => "#ffd999",
        Color::LightBlue => "#8ec5ff",
        Color::LightMagenta => "#e2a1f5",
        Color::LightCyan => "#7fdbe6",
    };
    Some(named.to_owned())
}
