//! Charts as SVG: panels of bars or lines, composed into a figure. Pure: text out of figures.

mod axis;
mod panel;
mod svg;

pub use panel::{Bar, Content, Group, Line, Marks, Panel, XAxis};
use svg::{Anchor, Style, Svg, text_width};

const MARGIN: f64 = 26.0;
const HEAD: f64 = 62.0;
const PANEL_GAP: f64 = 30.0;
const LEGEND: f64 = 26.0;

/// A chart under way: panels under a title, a legend below them.
#[derive(Debug)]
pub struct Figure {
    /// Its title.
    pub title: String,
    /// A line below the title: what the figures are of.
    pub note: String,
    /// Rows of panels, side by side.
    pub rows: Vec<Vec<Panel>>,
    /// Colours explained below the panels.
    pub legend: Vec<(String, &'static str)>,
    /// Pixels.
    pub width: f64,
}

impl Figure {
    /// The chart as an SVG document; the same figures give the same bytes.
    #[must_use]
    pub fn draw(&self) -> String {
        let row_height =
            |row: &Vec<Panel>| row.iter().map(Panel::height).fold(0.0, f64::max) + PANEL_GAP / 2.0;
        let legend = self.legend_lines();
        let height =
            HEAD + self.rows.iter().map(row_height).sum::<f64>() + legend.len() as f64 * LEGEND + 16.0;
        let mut svg = Svg::new(self.width, height);
        svg.text([MARGIN, 30.0], &self.title, Style::title());
        svg.text([MARGIN, 48.0], &self.note, Style::soft(Anchor::Start));
        let mut y = HEAD;
        for row in &self.rows {
            let n = row.len() as f64;
            let width = (self.width - 2.0 * MARGIN - (n - 1.0) * PANEL_GAP) / n;
            for (i, panel) in row.iter().enumerate() {
                panel.draw(&mut svg, [MARGIN + i as f64 * (width + PANEL_GAP), y], width);
            }
            y += row_height(row);
        }
        for line in legend {
            let mut x = MARGIN;
            for (name, colour) in line {
                svg.rect([x, y], [12.0, 12.0], colour);
                svg.text([x + 17.0, y + 10.5], name, Style::plain(Anchor::Start));
                x += legend_width(name);
            }
            y += LEGEND;
        }
        svg.finish()
    }

    /// The legend in lines that fit the width.
    fn legend_lines(&self) -> Vec<Vec<&(String, &'static str)>> {
        let mut lines: Vec<Vec<&(String, &'static str)>> = Vec::new();
        let mut used = f64::INFINITY;
        for entry in &self.legend {
            let width = legend_width(&entry.0);
            if used + width > self.width - 2.0 * MARGIN {
                lines.push(Vec::new());
                used = 0.0;
            }
            used += width;
            if let Some(line) = lines.last_mut() {
                line.push(entry);
            }
        }
        lines
    }
}

fn legend_width(name: &str) -> f64 {
    text_width(name, 12.0) + 38.0
}
