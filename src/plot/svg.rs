//! A small SVG writer: shapes and text with fixed decimals, so that the same figures give the same bytes.

use std::fmt::Write as _;

/// Where a text's position is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

/// How a text looks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) size: f64,
    pub(super) colour: &'static str,
    pub(super) anchor: Anchor,
    pub(super) is_bold: bool,
}

/// Dark text; also the colour of titles.
pub(super) const INK: &str = "#222222";
/// Axis labels, ticks and notes.
pub(super) const SOFT_INK: &str = "#5c5c5c";
/// Grid lines.
pub(super) const GRID: &str = "#e3e3e3";

impl Style {
    pub(super) const fn plain(anchor: Anchor) -> Self {
        Self { size: 12.0, colour: INK, anchor, is_bold: false }
    }

    pub(super) const fn soft(anchor: Anchor) -> Self {
        Self { size: 11.0, colour: SOFT_INK, anchor, is_bold: false }
    }

    pub(super) const fn title() -> Self {
        Self { size: 16.0, colour: INK, anchor: Anchor::Start, is_bold: true }
    }

    pub(super) const fn panel_title() -> Self {
        Self { size: 13.0, colour: INK, anchor: Anchor::Start, is_bold: true }
    }
}

/// A drawing under way; lengths are pixels, y grows downwards.
pub(super) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    pub(super) fn text(&mut self, [x, y]: [f64; 2], text: &str, style: Style) {
        let weight = if style.is_bold { " font-weight=\"600\"" } else { "" };
        self.push(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{:.0}\" fill=\"{}\" text-anchor=\"{}\"{weight}>{}</text>",
            style.size,
            style.colour,
            style.anchor.name(),
            escaped(text)
        ));
    }

    pub(super) fn line(&mut self, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], colour: &str, width: f64) {
        self.push(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" stroke-width=\"{width:.1}\"/>"
        ));
    }

    pub(super) fn rect(&mut self, [x, y]: [f64; 2], [width, height]: [f64; 2], colour: &str) {
        self.push(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
        ));
    }

    pub(super) fn circle(&mut self, [x, y]: [f64; 2], radius: f64, colour: &str) {
        self.push(format_args!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\" fill=\"{colour}\" stroke=\"white\" stroke-width=\"1\"/>"
        ));
    }

    pub(super) fn polyline(&mut self, points: &[[f64; 2]], colour: &str, width: f64) {
        self.push(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width:.1}\" stroke-linejoin=\"round\"/>",
            listed(points)
        ));
    }

    /// A filled, mostly transparent area.
    pub(super) fn band(&mut self, points: &[[f64; 2]], colour: &str) {
        self.push(format_args!(
            "<polygon points=\"{}\" fill=\"{colour}\" fill-opacity=\"0.14\"/>",
            listed(points)
        ));
    }

    pub(super) fn finish(self) -> String {
        let (width, height) = (self.width, self.height);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
            self.body
        )
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.body, "{element}");
    }
}

fn listed(points: &[[f64; 2]]) -> String {
    points.iter().map(|[x, y]| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// About how wide a text is; charts leave room by it.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.6
}
