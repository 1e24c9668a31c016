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

/// The frame as SVG. Runs of equal style become one element; glyphs that must meet their neighbours (blocks, shades and
/// lines) are drawn as shapes, so the picture looks the same with any monospaced font.
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
    /// A glyph that is drawn as a shape.
    shape: Option<char>,
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
    let shape = cell.symbol().chars().next().filter(|c| is_shape(*c));
    Look {
        foreground,
        background,
        bold: modifier.contains(Modifier::BOLD),
        underlined: modifier.contains(Modifier::UNDERLINED),
        shape,
    }
}

fn is_shape(glyph: char) -> bool {
    matches!(glyph, '▁'..='█' | '░'..='▓' | '─' | '━' | '│' | '┃' | '┌' | '┐' | '└' | '┘')
}

fn draw_run(out: &mut String, run: &Run, row: u32) {
    let (x, y) = (MARGIN + run.column * CELL.0, MARGIN + row * CELL.1);
    let width = run.columns * CELL.0;
    let look = &run.look;
    if let Some(background) = &look.background {
        rectangle(out, (x, f64::from(y)), width, f64::from(CELL.1), background);
    }
    if let Some(shape) = look.shape {
        draw_shape(out, shape, (x, y), run.columns, &look.foreground);
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

/// `columns` times `glyph` from the pixel `at` on.
fn draw_shape(out: &mut String, glyph: char, at: (u32, u32), columns: u32, fill: &str) {
    let (x, y) = (at.0, f64::from(at.1));
    let width = columns * CELL.0;
    let (cell_width, cell_height) = (f64::from(CELL.0), f64::from(CELL.1));
    match glyph {
        '▁'..='█' => {
            let height = f64::from(glyph as u32 - '▁' as u32 + 1) / 8.0 * cell_height;
            rectangle(out, (x, y + cell_height - height), width, height, fill);
        }
        '░'..='▓' => {
            let opacity = 0.1 + f64::from(glyph as u32 - '░' as u32 + 1) / 4.0;
            rectangle(out, (x, y), width, cell_height, &format!("{fill}\" fill-opacity=\"{opacity}"));
        }
        '─' => rectangle(out, (x, y + cell_height / 2.0 - 0.5), width, 1.0, fill),
        '━' => rectangle(out, (x, y + cell_height / 2.0 - 1.0), width, 2.0, fill),
        _ => {
            let stroke = if glyph == '┃' { 2 } else { 1 };
            let (half, middle_y, bottom) = (cell_width / 2.0, y + cell_height / 2.0, y + cell_height);
            for column in 0..columns {
                let middle = f64::from(x + column * CELL.0) + cell_width / 2.0;
                let path = match glyph {
                    '┌' => format!("M{middle} {bottom} V{middle_y} h{half}"),
                    '┐' => format!("M{middle} {bottom} V{middle_y} h-{half}"),
                    '└' => format!("M{middle} {y} V{middle_y} h{half}"),
                    '┘' => format!("M{middle} {y} V{middle_y} h-{half}"),
                    _ => format!("M{middle} {y} v{cell_height}"),
                };
                let _ = writeln!(
                    out,
                    "<path d=\"{path}\" stroke=\"{fill}\" stroke-width=\"{stroke}\" fill=\"none\"/>"
                );
            }
        }
    }
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
