//! Colours by meaning, and the ASCII fallback of every glyph.
//!
//! Panes ask for a [`Tone`]; a [`Theme`] says what it looks like. Each tone that carries a meaning is always drawn
//! together with a marker or a word, so `mono` loses nothing but comfort.

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};

use crate::config::ThemeName;
use crate::event::{LaneId, Segment};

/// What a piece of the screen means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Ordinary text.
    Text,
    /// Secondary text: units, legends, hints.
    Dim,
    /// Headlines and figures that matter.
    Strong,
    /// A pane's frame.
    Border,
    /// The frame of the focused pane.
    BorderFocused,
    /// A key in a hint.
    Key,
    /// A loss, a cliff, an incomplete view: the one warning colour.
    Warn,
    /// Something that works as it should.
    Good,
    /// The selected row, block or entry.
    Selected,
    /// The reusable checkpoint.
    Checkpoint,
    /// The uncached suffix.
    Suffix,
    /// The prompt's upper edge.
    Prompt,
    /// The accent of a lane.
    Lane(LaneId),
    /// Text that a drafter guessed and the target accepted.
    Accepted,
    /// Tokens or text of a segment.
    Segment(Segment),
}

/// A set of styles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Theme {
    name: ThemeName,
    ascii: bool,
}

/// The colours a coloured theme is made of.
struct Palette {
    text: Color,
    dim: Color,
    warn: Color,
    good: Color,
    accent: Color,
    prompt: Color,
    selected: Style,
    lanes: [Color; 4],
    /// System, tool schema, user, assistant, tool call, tool result, template, injected.
    segments: [Color; 8],
}

const ANSI: Palette = Palette {
    text: Color::Reset,
    dim: Color::DarkGray,
    warn: Color::Red,
    good: Color::Green,
    accent: Color::Cyan,
    prompt: Color::Blue,
    selected: Style::new().add_modifier(Modifier::REVERSED),
    lanes: [Color::Cyan, Color::Magenta, Color::Yellow, Color::Green],
    segments: [
        Color::Magenta,
        Color::Blue,
        Color::Green,
        Color::Cyan,
        Color::LightBlue,
        Color::Yellow,
        Color::DarkGray,
        Color::LightMagenta,
    ],
};

const DARK: Palette = Palette {
    text: Color::Rgb(0xd8, 0xde, 0xe9),
    dim: Color::Rgb(0x8a, 0x93, 0xa5),
    warn: Color::Rgb(0xff, 0x6b, 0x6b),
    good: Color::Rgb(0x8f, 0xd6, 0x8f),
    accent: Color::Rgb(0x6c, 0xd0, 0xe0),
    prompt: Color::Rgb(0x7d, 0x9f, 0xe8),
    selected: Style::new().bg(Color::Rgb(0x33, 0x3b, 0x4d)).add_modifier(Modifier::BOLD),
    lanes: [
        Color::Rgb(0x6c, 0xd0, 0xe0),
        Color::Rgb(0xd8, 0x9b, 0xe8),
        Color::Rgb(0xe8, 0xc8, 0x6c),
        Color::Rgb(0x8f, 0xd6, 0x8f),
    ],
    segments: [
        Color::Rgb(0xd8, 0x9b, 0xe8),
        Color::Rgb(0x7d, 0x9f, 0xe8),
        Color::Rgb(0x8f, 0xd6, 0x8f),
        Color::Rgb(0x6c, 0xd0, 0xe0),
        Color::Rgb(0x9a, 0xb8, 0xff),
        Color::Rgb(0xe8, 0xc8, 0x6c),
        Color::Rgb(0x8a, 0x93, 0xa5),
        Color::Rgb(0xff, 0x9e, 0xd2),
    ],
};

const LIGHT: Palette = Palette {
    text: Color::Rgb(0x22, 0x26, 0x2e),
    dim: Color::Rgb(0x6b, 0x72, 0x80),
    warn: Color::Rgb(0xb4, 0x1e, 0x1e),
    good: Color::Rgb(0x1f, 0x7a, 0x33),
    accent: Color::Rgb(0x0b, 0x6e, 0x82),
    prompt: Color::Rgb(0x2a, 0x4d, 0xa8),
    selected: Style::new().bg(Color::Rgb(0xdb, 0xe4, 0xf0)).add_modifier(Modifier::BOLD),
    lanes: [
        Color::Rgb(0x0b, 0x6e, 0x82),
        Color::Rgb(0x86, 0x2d, 0x9c),
        Color::Rgb(0x8a, 0x5a, 0x00),
        Color::Rgb(0x1f, 0x7a, 0x33),
    ],
    segments: [
        Color::Rgb(0x86, 0x2d, 0x9c),
        Color::Rgb(0x2a, 0x4d, 0xa8),
        Color::Rgb(0x1f, 0x7a, 0x33),
        Color::Rgb(0x0b, 0x6e, 0x82),
        Color::Rgb(0x3b, 0x62, 0xc4),
        Color::Rgb(0x8a, 0x5a, 0x00),
        Color::Rgb(0x6b, 0x72, 0x80),
        Color::Rgb(0xb0, 0x2a, 0x7a),
    ],
};

impl Theme {
    /// A theme; with `ascii`, drawn without any character beyond ASCII.
    pub const fn new(name: ThemeName, ascii: bool) -> Theme {
        Theme { name, ascii }
    }

    /// The theme the environment asks for: `NO_COLOR` (set and not empty) means mono, a locale that is not UTF-8
    /// means ASCII. `lookup` reads an environment variable.
    pub fn from_environment(name: ThemeName, ascii: bool, lookup: impl Fn(&str) -> Option<String>) -> Theme {
        let no_color = lookup("NO_COLOR").is_some_and(|v| !v.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .into_iter()
            .find_map(|name| lookup(name).filter(|value| !value.is_empty()));
        let utf8 = locale.is_some_and(|value| {
            let value = value.to_ascii_lowercase();
            value.contains("utf-8") || value.contains("utf8")
        });
        Theme { name: if no_color { ThemeName::Mono } else { name }, ascii: ascii || !utf8 }
    }

    /// Whether only ASCII may be drawn.
    pub fn ascii(&self) -> bool {
        self.ascii
    }

    /// The style of `tone`.
    pub fn style(&self, tone: Tone) -> Style {
        match self.name {
            ThemeName::Mono => mono(tone),
            ThemeName::Ansi => coloured(&ANSI, tone),
            ThemeName::Dark => coloured(&DARK, tone),
            ThemeName::Light => coloured(&LIGHT, tone),
        }
    }

    /// Makes a finished frame presentable on this terminal: with ASCII, every other character is replaced by its
    /// nearest one-column equivalent. Doing it once, on the buffer, means no pane can forget a glyph.
    pub fn finish(&self, buffer: &mut Buffer) {
        if !self.ascii {
            return;
        }
        for cell in &mut buffer.content {
            if !cell.symbol().is_ascii() {
                let replacement = cell.symbol().chars().next().map_or(' ', ascii_twin);
                cell.set_char(replacement);
            }
        }
    }
}

fn coloured(palette: &Palette, tone: Tone) -> Style {
    let fg = |color| Style::new().fg(color);
    match tone {
        Tone::Text => fg(palette.text),
        Tone::Dim | Tone::Border => fg(palette.dim),
        Tone::Strong => fg(palette.text).add_modifier(Modifier::BOLD),
        Tone::BorderFocused => fg(palette.accent).add_modifier(Modifier::BOLD),
        Tone::Key => fg(palette.accent).add_modifier(Modifier::BOLD),
        Tone::Warn => fg(palette.warn).add_modifier(Modifier::BOLD),
        Tone::Good => fg(palette.good),
        Tone::Selected => palette.selected,
        Tone::Checkpoint => fg(palette.good),
        Tone::Suffix => fg(palette.segments[5]),
        Tone::Prompt => fg(palette.prompt),
        Tone::Lane(lane) => fg(palette.lanes[lane.0 as usize % palette.lanes.len()]),
        Tone::Accepted => fg(palette.accent).add_modifier(Modifier::UNDERLINED),
        Tone::Segment(segment) => fg(palette.segments[segment_index(segment)]),
    }
}

fn mono(tone: Tone) -> Style {
    let plain = Style::new();
    match tone {
        Tone::Strong | Tone::Key | Tone::BorderFocused | Tone::Checkpoint => {
            plain.add_modifier(Modifier::BOLD)
        }
        Tone::Warn => plain.add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
        Tone::Selected => plain.add_modifier(Modifier::REVERSED),
        Tone::Accepted => plain.add_modifier(Modifier::UNDERLINED),
        Tone::Dim | Tone::Border => plain.add_modifier(Modifier::DIM),
        _ => plain,
    }
}

fn segment_index(segment: Segment) -> usize {
    Segment::ALL.iter().position(|s| *s == segment).unwrap_or_default()
}

/// The ASCII character that stands for `glyph`.
pub(super) fn ascii_twin(glyph: char) -> char {
    match glyph {
        '─' | '┄' | '–' | '−' | '—' => '-',
        '━' | '═' => '=',
        '│' | '┆' | '┃' => '|',
        '┌' | '┐' | '└' | '┘' | '├' | '┤' | '┬' | '┴' | '┼' => '+',
        '▣' => '$',
        '✗' => 'X',
        '◉' => '@',
        '◌' => 'd',
        '≈' => '~',
        '≥' => '>',
        '≤' => '<',
        '○' => 'o',
        '␣' => '_',
        '↵' => '$',
        '⇥' => '>',
        '█' | '■' | '▄' | '▅' | '▆' | '▇' => '#',
        '▁' | '▂' | '▃' => '_',
        '▒' | '▓' => '%',
        '░' => ':',
        '□' => 'o',
        '▫' => 'e',
        '▼' => 'v',
        '▲' => '^',
        '▸' | '→' | '›' | '▶' => '>',
        '◂' | '‹' => '<',
        '·' => '.',
        '…' => '~',
        '●' | '▌' => '*',
        'Δ' => 'd',
        'Σ' => 'S',
        '×' => 'x',
        '✓' => 'y',
        _ => '?',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
    }

    #[test]
    fn no_color_means_mono_and_the_first_locale_variable_that_is_set_decides_about_ascii() {
        let of = |pairs| Theme::from_environment(ThemeName::Ansi, false, environment(pairs));
        assert_eq!(of(&[("LANG", "en_GB.UTF-8")]), Theme::new(ThemeName::Ansi, false));
        assert_eq!(of(&[("LANG", "en_GB.UTF-8"), ("NO_COLOR", "1")]), Theme::new(ThemeName::Mono, false));
        assert_eq!(
            of(&[("LANG", "C.utf8"), ("NO_COLOR", "")]),
            Theme::new(ThemeName::Ansi, false),
            "an empty NO_COLOR is not set"
        );
        assert!(of(&[("LC_ALL", "C"), ("LANG", "en_GB.UTF-8")]).ascii());
        assert!(of(&[]).ascii());
    }

    #[test]
    fn mono_never_sets_a_colour() {
        let theme = Theme::new(ThemeName::Mono, false);
        let mut tones = vec![
            Tone::Text,
            Tone::Dim,
            Tone::Strong,
            Tone::Border,
            Tone::BorderFocused,
            Tone::Key,
            Tone::Warn,
            Tone::Good,
            Tone::Selected,
            Tone::Checkpoint,
            Tone::Suffix,
            Tone::Prompt,
            Tone::Lane(LaneId(3)),
            Tone::Accepted,
        ];
        tones.extend(Segment::ALL.map(Tone::Segment));
        for tone in tones {
            let style = theme.style(tone);
            assert_eq!((style.fg, style.bg), (None, None), "{tone:?}");
        }
    }
}
