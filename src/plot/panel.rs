//! The two kinds of panel: horizontal bars and lines with confidence bands.

use super::axis::{Axis, labelled, short};
use super::svg::{Anchor, GRID, SOFT_INK, Style, Svg, text_width};

/// One bar.
#[derive(Debug)]
pub struct Bar {
    /// Its length, in the panel's unit.
    pub value: f64,
    /// Half a confidence interval, 0 for none.
    pub half: f64,
    /// Its colour.
    pub colour: &'static str,
}

/// Bars under one label.
#[derive(Debug)]
pub struct Group {
    /// What the bars are of.
    pub label: String,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

/// A line with a band.
#[derive(Debug)]
pub struct Line {
    /// x, y and half a confidence interval of y.
    pub points: Vec<[f64; 3]>,
    /// Its colour.
    pub colour: &'static str,
    /// How it is drawn.
    pub marks: Marks,
}

/// How a line is drawn. Strong ones lie above the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// Joined points.
    Line,
    /// Joined points, larger.
    StrongLine,
    /// Points alone.
    Points,
    /// The line alone.
    Stroke,
}

impl Marks {
    const fn is_strong(self) -> bool {
        matches!(self, Self::StrongLine)
    }
}

/// How the x axis runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XAxis {
    /// Over the points, with a tick at each x.
    Each,
    /// The same, logarithmic.
    EachLog,
    /// Over the points, with round ticks.
    Round,
    /// From zero with round ticks, and y too: straight lines stay straight.
    FromZero,
}

/// What is drawn into a panel.
#[derive(Debug)]
pub enum Content {
    /// Horizontal bars.
    Bars(Vec<Group>),
    /// Lines over a common x axis.
    Lines {
        /// The lines; the first is drawn last.
        lines: Vec<Line>,
        /// What x is.
        x_label: &'static str,
        /// How x runs.
        x_axis: XAxis,
    },
}

/// A titled part of a chart.
#[derive(Debug)]
pub struct Panel {
    /// What y is.
    pub title: &'static str,
    /// What is drawn.
    pub content: Content,
}

/// Pixels.
const BAR: f64 = 15.0;
const BAR_GAP: f64 = 3.0;
const GROUP_GAP: f64 = 11.0;
const TITLE: f64 = 26.0;
const AXIS: f64 = 24.0;
const X_LABEL: f64 = 18.0;
const PLOT_HEIGHT: f64 = 210.0;

impl Panel {
    /// Height it needs.
    pub(super) fn height(&self) -> f64 {
        match &self.content {
            Content::Bars(groups) => TITLE + groups.iter().map(group_height).sum::<f64>() + AXIS,
            Content::Lines { .. } => TITLE + PLOT_HEIGHT + AXIS + X_LABEL,
        }
    }

    pub(super) fn draw(&self, svg: &mut Svg, [x, y]: [f64; 2], width: f64) {
        svg.text([x, y + 13.0], self.title, Style::panel_title());
        let top = y + TITLE;
        match &self.content {
            Content::Bars(groups) => draw_bars(svg, groups, [x, top], width),
            Content::Lines { lines, x_label, x_axis } => {
                let frame = Frame { left: x + 46.0, right: x + width - 14.0, top, bottom: top + PLOT_HEIGHT };
                draw_lines(svg, lines, &frame, *x_axis);
                let middle = f64::midpoint(frame.left, frame.right);
                svg.text([middle, frame.bottom + AXIS + 10.0], x_label, Style::soft(Anchor::Middle));
            }
        }
    }
}

fn group_height(group: &Group) -> f64 {
    group.bars.len() as f64 * (BAR + BAR_GAP) + GROUP_GAP
}

fn draw_bars(svg: &mut Svg, groups: &[Group], [x, top]: [f64; 2], width: f64) {
    let label_width = groups.iter().map(|g| text_width(&g.label, 12.0)).fold(0.0, f64::max) + 10.0;
    let bars = || groups.iter().flat_map(|group| &group.bars);
    let max = bars().map(|bar| bar.value + bar.half).fold(0.0, f64::max);
    // Room for the longest value behind its bar.
    let value_width = bars().map(|bar| text_width(&labelled(bar.value), 11.0)).fold(0.0, f64::max) + 12.0;
    let axis = Axis::from_zero(max, [x + label_width, x + width - value_width]);
    let bottom = top + groups.iter().map(group_height).sum::<f64>();
    for tick in &axis.ticks {
        svg.line([axis.at(*tick), top], [axis.at(*tick), bottom], GRID, 1.0);
        svg.text([axis.at(*tick), bottom + 15.0], &short(*tick), Style::soft(Anchor::Middle));
    }
    let mut y = top + GROUP_GAP / 2.0;
    for group in groups {
        let middle = y + (group.bars.len() as f64 * (BAR + BAR_GAP) - BAR_GAP) / 2.0;
        svg.text([x + label_width - 8.0, middle + 4.0], &group.label, Style::plain(Anchor::End));
        for bar in &group.bars {
            let end = axis.at(bar.value);
            svg.rect([axis.at(0.0), y], [end - axis.at(0.0), BAR], bar.colour);
            let mut text_at = end;
            if bar.half > 0.0 {
                let (from, to) = (axis.at(bar.value - bar.half), axis.at(bar.value + bar.half));
                let whisker_y = y + BAR / 2.0;
                svg.line([from, whisker_y], [to, whisker_y], SOFT_INK, 1.2);
                text_at = to;
            }
            svg.text([text_at + 5.0, y + BAR - 3.5], &labelled(bar.value), Style::soft(Anchor::Start));
            y += BAR + BAR_GAP;
        }
        y += GROUP_GAP;
    }
    svg.line([axis.at(0.0), top], [axis.at(0.0), bottom], SOFT_INK, 1.0);
}

/// Pixels of a plot's sides.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

fn draw_lines(svg: &mut Svg, lines: &[Line], frame: &Frame, kind: XAxis) {
    let points = || lines.iter().flat_map(|line| &line.points);
    let mut xs: Vec<f64> = points().map(|[x, ..]| *x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let ys: Vec<f64> = points().map(|[_, y, _]| *y).collect();
    let tops: Vec<f64> = points().map(|[_, y, half]| y + half).chain(ys.iter().copied()).collect();
    // The outer points stand a little inside the frame.
    let pixels = [frame.left + 14.0, frame.right - 14.0];
    let x_axis = match kind {
        XAxis::Each | XAxis::EachLog => Axis::over(&xs, kind == XAxis::EachLog, pixels),
        XAxis::Round => Axis::rounded(&xs, pixels),
        XAxis::FromZero => Axis::from_zero(xs.last().copied().unwrap_or_default(), pixels),
    };
    let y_pixels = [frame.bottom, frame.top];
    let y_axis = match kind {
        XAxis::Each | XAxis::EachLog | XAxis::Round => Axis::around(&tops, y_pixels),
        XAxis::FromZero => Axis::from_zero(tops.iter().copied().fold(0.0, f64::max), y_pixels),
    };
    for tick in &y_axis.ticks {
        let y = y_axis.at(*tick);
        svg.line([frame.left, y], [frame.right, y], GRID, 1.0);
        svg.text([frame.left - 6.0, y + 4.0], &short(*tick), Style::soft(Anchor::End));
    }
    for tick in &x_axis.ticks {
        svg.text([x_axis.at(*tick), frame.bottom + 17.0], &short(*tick), Style::soft(Anchor::Middle));
    }
    svg.line([frame.left, frame.bottom], [frame.right, frame.bottom], SOFT_INK, 1.0);
    for line in lines.iter().filter(|line| line.points.iter().any(|[.., half]| *half > 0.0)) {
        let edge = |sign: f64| move |[x, y, half]: &[f64; 3]| [*x, y + sign * half];
        let upper = line.points.iter().map(edge(1.0));
        let lower = line.points.iter().rev().map(edge(-1.0));
        let around: Vec<_> = upper.chain(lower).map(|[x, y]| [x_axis.at(x), y_axis.at(y)]).collect();
        svg.band(&around, line.colour);
    }
    // The strong ones last, on top, the first of all above everything.
    for is_strong in [false, true] {
        for line in lines.iter().rev().filter(|line| line.marks.is_strong() == is_strong) {
            let at: Vec<_> = line.points.iter().map(|[x, y, _]| [x_axis.at(*x), y_axis.at(*y)]).collect();
            if line.marks != Marks::Points {
                svg.polyline(&at, line.colour, if is_strong { 2.6 } else { 1.6 });
            }
            if line.marks != Marks::Stroke {
                at.iter()
                    .for_each(|point| svg.circle(*point, if is_strong { 4.0 } else { 3.0 }, line.colour));
            }
        }
    }
}
