//! A small writer of charts: SVG that reads on light and on dark pages, with a title and a description for those who do not see it.

use std::fmt::Write;

/// Styles. Lanes differ in dash and colour; a page's colour scheme decides on ink and paper.
const STYLE: &str = "\
.paper{fill:#fff}.ink{fill:#1f2328}.faint{fill:#59636e}.axis{stroke:#59636e}.grid{stroke:#d1d9e0}\
.l0{fill:#0969da;stroke:#0969da}.l1{fill:#bc4c00;stroke:#bc4c00}.l2{fill:#0f766e;stroke:#0f766e}.l3{fill:#a21caf;stroke:#a21caf}\
.bar,.mark{stroke:none}.pale{fill:#afb8c1;stroke:none}.line{fill:none;stroke-width:2}\
text{font:12px system-ui,sans-serif}.h{font-size:15px;font-weight:600}\
@media(prefers-color-scheme:dark){.paper{fill:#0d1117}.ink{fill:#f0f6fc}.faint{fill:#9198a1}.axis{stroke:#9198a1}.grid{stroke:#3d444d}\
.l0{fill:#58a6ff;stroke:#58a6ff}.l1{fill:#f0883e;stroke:#f0883e}.l2{fill:#2dd4bf;stroke:#2dd4bf}.l3{fill:#e879f9;stroke:#e879f9}\
.bar,.mark,.pale{stroke:none}.pale{fill:#4a525c}.line{fill:none}}";

/// Dashes of the lanes' lines, so that they differ without colour.
const DASHES: [&str; 4] = ["", "6 3", "2 3", "8 3 2 3"];

/// Where a text's anchor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn word(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

/// A chart being drawn. Everything given as text is escaped.
pub(super) struct Svg {
    width: f64,
    height: f64,
    title: String,
    description: String,
    body: String,
}

impl Svg {
    /// An empty chart with its heading. `description` says in words what it shows.
    pub(super) fn new(width: f64, height: f64, title: &str, description: &str) -> Svg {
        let mut svg = Svg {
            width,
            height,
            title: title.to_owned(),
            description: description.to_owned(),
            body: String::new(),
        };
        svg.text(12.0, 22.0, Anchor::Start, "ink h", title);
        svg
    }

    pub(super) fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, text: &str) {
        let (x, y, anchor, text) = (number(x), number(y), anchor.word(), escape(text));
        // Writing to a string does not fail.
        let _ = writeln!(
            self.body,
            r#"<text x="{x}" y="{y}" text-anchor="{anchor}" class="{class}">{text}</text>"#
        );
    }

    /// A text that runs upwards, for the name of a vertical axis.
    pub(super) fn upward_text(&mut self, x: f64, y: f64, text: &str) {
        let (x, y, text) = (number(x), number(y), escape(text));
        let _ = writeln!(
            self.body,
            r#"<text x="{x}" y="{y}" text-anchor="middle" class="faint" transform="rotate(-90 {x} {y})">{text}</text>"#
        );
    }

    /// A filled rectangle; nothing where it has no extent.
    pub(super) fn rect(
        &mut self,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        class: &str,
        opacity: f64,
    ) {
        if width <= 0.0 || height <= 0.0 {
            return;
        }
        let [x, y, width, height, opacity] = [x, y, width, height, opacity].map(number);
        let opacity = if opacity == "1" { String::new() } else { format!(r#" opacity="{opacity}""#) };
        let _ = writeln!(
            self.body,
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" class="{class}"{opacity}/>"#
        );
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(number);
        let _ = writeln!(self.body, r#"<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{class}"/>"#);
    }

    /// The line of a lane, by its place.
    pub(super) fn curve(&mut self, points: &[(f64, f64)], lane: usize) {
        let points: Vec<String> =
            points.iter().map(|(x, y)| format!("{},{}", number(*x), number(*y))).collect();
        let (points, class, dash) = (points.join(" "), lane_class(lane), DASHES[lane % DASHES.len()]);
        let _ = writeln!(
            self.body,
            r#"<polyline points="{points}" class="{class} line" stroke-dasharray="{dash}"/>"#
        );
    }

    /// The whole file.
    pub(super) fn finish(self) -> String {
        let Svg { width, height, title, description, body } = self;
        let ([width, height], [title, description]) =
            ([width, height].map(number), [title, description].map(|t| escape(&t)));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
             aria-labelledby=\"t d\">\n<title id=\"t\">{title}</title>\n<desc id=\"d\">{description}</desc>\n<style>{STYLE}</style>\n\
             <rect width=\"100%\" height=\"100%\" class=\"paper\"/>\n{body}</svg>\n"
        )
    }
}

/// The class that gives a lane its colour.
pub(super) fn lane_class(lane: usize) -> String {
    format!("l{}", lane % DASHES.len())
}

/// A coordinate with at most two decimals.
fn number(value: f64) -> String {
    let value = if value.is_finite() { (value * 100.0).round() / 100.0 } else { 0.0 };
    format!("{value}")
}

/// Text as a part of XML. Characters that XML does not allow become `�`.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\r' | '\t' => safe.push(' '),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {
                safe.push(char::REPLACEMENT_CHARACTER)
            }
            c => safe.push(c),
        }
    }
    safe
}

/// Round values from 0 on for an axis that reaches `max`: about four steps.
pub(super) fn ticks(max: f64) -> Vec<f64> {
    if !max.is_finite() || max <= 0.0 {
        return vec![0.0];
    }
    let rough = max / 4.0;
    let magnitude = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * magnitude).find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    (0..=(max / step).ceil() as usize).map(|n| n as f64 * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_stays_text() {
        let mut svg = Svg::new(10.0, 10.0, "a<script>\u{1b}&", "\"'\u{0}");
        svg.text(1.0, f64::NAN, Anchor::End, "ink", "</svg>");
        let file = svg.finish();
        assert!(
            file.contains("a&lt;script&gt;�&amp;")
                && file.contains("&quot;&#39;�")
                && file.contains("&lt;/svg&gt;")
        );
        assert!(
            !file.contains("<script") && file.matches("</svg>").count() == 1 && !file.contains("NaN"),
            "{file}"
        );
    }

    #[test]
    fn axes_have_round_steps_and_reach_the_greatest_value() {
        assert_eq!(ticks(63_000.0), [0.0, 20_000.0, 40_000.0, 60_000.0, 80_000.0]);
        assert_eq!(ticks(4.0), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(ticks(0.0), [0.0]);
        for max in [1e-6, 0.3, 7.0, 9_999.0, 1e12] {
            let steps = ticks(max);
            assert!(
                (4..=6).contains(&steps.len()) && *steps.last().unwrap() >= max * 0.999,
                "{max}: {steps:?}"
            );
        }
    }

    #[test]
    fn what_has_no_extent_is_not_drawn() {
        let mut svg = Svg::new(10.0, 10.0, "t", "d");
        svg.rect((0.0, 0.0), (0.0, 5.0), "bar", 1.0);
        assert!(!svg.finish().contains("class=\"bar\""));
    }
}
