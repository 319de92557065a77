//! Plots as SVG, drawn on the server, each with its numbers in a table.

use std::fmt::Write as _;

use askama::Template;

/// One plot over time: bars where it counts things, else lines.
#[derive(Template)]
#[template(path = "plot.html")]
pub(crate) struct Plot {
    pub title: String,
    /// Unit of the values; empty for numbers of things, which are drawn as bars.
    pub unit: &'static str,
    /// The length of a step, such as "5 min".
    pub step: String,
    /// The times of the values, as people read them.
    pub times: Vec<String>,
    pub lines: Vec<PlotLine>,
}

/// One line of a plot. Its values belong to the times of the plot; `None` leaves a gap.
pub(crate) struct PlotLine {
    pub name: &'static str,
    /// Style of the line: 1 is the main line, 2 counts failures, 3 is a secondary line.
    pub style: u8,
    pub values: Vec<Option<f64>>,
}

/// The size of the drawing, in user units.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 120.0;

/// The maximum number of rows in the table of a plot.
const TABLE_ROWS: usize = 48;

/// Steps of the axis of values, of a plot that is higher than one step.
const TICKS: f64 = 4.0;

/// Times on the axis of times: more would not fit a narrow plot.
const TIMES: usize = 4;

impl Plot {
    fn has_bars(&self) -> bool {
        self.unit.is_empty()
    }

    /// The largest value, at least 1.
    fn most(&self) -> f64 {
        let values = self.lines.iter().flat_map(|line| line.values.iter().flatten());
        values.copied().fold(1.0, f64::max)
    }

    fn most_text(&self) -> String {
        format!("{}{}", number(self.most()), self.unit)
    }

    /// The step of the axis of values: 1, 2 or 5 times a power of ten, and whole for bars.
    fn tick(&self) -> f64 {
        let least = self.most() / TICKS;
        let power = 10_f64.powf(least.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        let tick = steps.into_iter().find(|step| *step >= least).unwrap_or(least);
        if self.has_bars() { tick.max(1.0) } else { tick }
    }

    /// The number of steps of the axis of values.
    fn ticks(&self) -> u32 {
        (self.most() / self.tick()).ceil() as u32
    }

    /// The value at the top of the drawing.
    fn top(&self) -> f64 {
        f64::from(self.ticks()) * self.tick()
    }

    /// The labels of the axis of values, the highest first.
    fn value_axis(&self) -> Vec<String> {
        let tick = self.tick();
        let label = |step: u32| number(f64::from(step) * tick) + self.unit;
        (0..=self.ticks()).rev().map(label).collect()
    }

    /// The lines of the grid, in SVG.
    fn grid(&self) -> String {
        let ticks = self.ticks();
        let y = |step: u32| HEIGHT - HEIGHT * f64::from(step) / f64::from(ticks);
        (0..=ticks).fold(String::new(), |mut path, step| {
            // Writing to a string cannot fail.
            let _ = write!(path, "M0 {:.1}H600", y(step));
            path
        })
    }

    /// Some times, evenly spaced, with the first and the last one.
    fn time_axis(&self) -> Vec<&str> {
        let last = self.times.len().saturating_sub(1);
        let count = TIMES.min(self.times.len());
        let at = |index: usize| last * index / count.saturating_sub(1).max(1);
        (0..count).map(|index| self.times[at(index)].as_str()).collect()
    }

    /// The steps, each with its left edge, its width, and its values as people read them.
    fn columns(&self) -> Vec<(String, String, String)> {
        let width = self.step_width();
        let column = |(index, time): (usize, &String)| {
            let values = self.lines.iter().map(|line| {
                let value = line.values.get(index).copied().flatten();
                let value = value.map_or("no data".to_owned(), |value| number(value) + self.unit);
                format!("{}: {value}", line.name)
            });
            let text = format!("{time}: {}", values.collect::<Vec<_>>().join(", "));
            (format!("{:.2}", index as f64 * width), format!("{width:.2}"), text)
        };
        self.times.iter().enumerate().map(column).collect()
    }

    fn step_width(&self) -> f64 {
        WIDTH / self.times.len().max(1) as f64
    }

    /// The path of a line, in SVG.
    fn path(&self, line: &PlotLine) -> String {
        if self.has_bars() { self.bars(line) } else { self.polyline(line) }
    }

    /// Bars from the ground up, one line before the other: failures are among uses. A secondary
    /// line, which is not, has narrow bars.
    fn bars(&self, line: &PlotLine) -> String {
        let (width, top) = (self.step_width(), self.top());
        let mut path = String::new();
        for (index, value) in line.values.iter().enumerate() {
            let Some(value) = value.filter(|value| *value > 0.0) else { continue };
            // A small value among large ones can be seen, too.
            let height = (value / top * HEIGHT).max(1.0);
            let bar = if line.style == 3 { width * 0.3 } else { width * 0.8 };
            let left = index as f64 * width + (width - bar) / 2.0;
            let _ = write!(path, "M{left:.1} {HEIGHT}v-{height:.1}h{bar:.1}v{height:.1}z");
        }
        path
    }

    fn polyline(&self, line: &PlotLine) -> String {
        let (width, top) = (self.step_width(), self.top());
        let (mut path, mut is_drawn) = (String::new(), false);
        for (index, value) in line.values.iter().enumerate() {
            let Some(value) = value else {
                is_drawn = false;
                continue;
            };
            let (x, y) = ((index as f64 + 0.5) * width, HEIGHT - value / top * HEIGHT);
            let command = if is_drawn { 'L' } else { 'M' };
            // A point alone is drawn as a short line.
            let dot = if is_drawn { "" } else { "h4" };
            let _ = write!(path, "{command}{x:.1} {y:.1}{dot}");
            is_drawn = true;
        }
        path
    }

    /// The width of the time at the begin of which nothing is known, in user units; 0 if none.
    fn unknown(&self) -> f64 {
        let known = |line: &PlotLine| line.values.iter().position(Option::is_some);
        let first = self.lines.iter().filter_map(known).min().unwrap_or_default();
        if self.has_bars() { first as f64 * self.step_width() } else { 0.0 }
    }

    /// Whether there is anything to draw.
    fn is_empty(&self) -> bool {
        !self.lines.iter().flat_map(|line| &line.values).flatten().any(|value| *value > 0.0)
    }

    /// The rows of the table, newest first: those with a value.
    fn rows(&self) -> Vec<(&str, Vec<String>)> {
        let values = |index: usize| {
            self.lines.iter().map(move |line| line.values.get(index).copied().flatten())
        };
        let rows = self.times.iter().enumerate().rev();
        let rows = rows.filter(|(index, _)| values(*index).flatten().any(|value| value > 0.0));
        let cells = |index| {
            values(index)
                .map(|value| value.map_or("–".to_owned(), |v| number(v) + self.unit))
                .collect()
        };
        rows.take(TABLE_ROWS).map(|(index, time)| (time.as_str(), cells(index))).collect()
    }
}

/// The height of a small drawing without axes, and the width of its steps, in user units.
const SPARK: (f64, usize) = (16.0, 8);

/// Returns the bars of a small drawing, in SVG: the highest fills it.
pub(crate) fn spark_bars(values: &[u64]) -> String {
    let (height, width) = SPARK;
    let most = values.iter().copied().max().unwrap_or_default().max(1) as f64;
    let mut path = String::new();
    for (index, value) in values.iter().enumerate().filter(|(_, value)| **value > 0) {
        let high = (*value as f64 / most * height).max(1.0);
        let _ = write!(path, "M{} {height}v-{high:.1}h6v{high:.1}z", index * width + 1);
    }
    path
}

/// Returns a number with as many digits as people need.
pub(crate) fn number(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1}M", v / 1e6),
        v if v >= 1e4 => format!("{:.1}k", v / 1e3),
        v if v.fract() == 0.0 || v >= 100.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(unit: &'static str, values: Vec<Option<f64>>) -> Plot {
        let times = (0..values.len()).map(|minute| format!("10:{minute:02}")).collect();
        let lines = vec![PlotLine { name: "gets", style: 1, values }];
        Plot { title: "Gets".into(), unit, step: "1 min".to_owned(), times, lines }
    }

    #[test]
    fn a_line_stays_inside_the_drawing_and_breaks_at_gaps() {
        let plot = plot(" ms", vec![Some(0.0), Some(50.0), None, Some(200.0)]);
        let path = plot.path(&plot.lines[0]);
        assert_eq!(path, "M75.0 120.0h4L225.0 90.0M525.0 0.0h4");
        assert_eq!(
            plot.rows(),
            [("10:03", vec!["200 ms".to_owned()]), ("10:01", vec!["50 ms".to_owned()])]
        );
        assert_eq!(plot.most_text(), "200 ms");
        assert_eq!(plot.value_axis(), ["200 ms", "150 ms", "100 ms", "50 ms", "0 ms"]);
        assert_eq!(plot.columns()[2].2, "10:02: gets: no data");
    }

    #[test]
    fn counts_are_bars_with_an_axis_of_whole_numbers() {
        let plot = plot("", vec![Some(3.0), None, Some(0.0), Some(1.0)]);
        assert_eq!(
            plot.path(&plot.lines[0]),
            "M15.0 120v-120.0h120.0v120.0zM465.0 120v-40.0h120.0v40.0z"
        );
        assert_eq!(plot.value_axis(), ["3", "2", "1", "0"]);
        assert_eq!(plot.time_axis(), ["10:00", "10:01", "10:02", "10:03"]);
        assert_eq!(plot.columns()[3], ("450.00".into(), "150.00".into(), "10:03: gets: 1".into()));
    }

    #[test]
    fn the_axis_of_values_has_few_round_numbers_and_ends_above_the_highest() {
        for most in [1.0, 2.0, 7.0, 10.0, 11.0, 99.0, 101.0, 1234.0, 5e6] {
            for unit in ["", " ms"] {
                let plot = plot(unit, vec![Some(most)]);
                assert!(plot.top() >= most && plot.top() <= most * 2.0, "{most}: {}", plot.top());
                assert!((2..=5).contains(&plot.value_axis().len()), "{:?}", plot.value_axis());
            }
        }
    }

    #[test]
    fn time_before_the_first_known_value_is_a_gap_and_not_zero() {
        let known = plot("", vec![None, Some(0.0), Some(3.0), Some(1.0)]);
        assert!((known.unknown() - 150.0).abs() < f64::EPSILON);
        assert!(
            known.render().unwrap().contains("class=\"unknown\" x=\"0\" y=\"0\" width=\"150\"")
        );
        assert_eq!(known.columns()[0].2, "10:00: gets: no data");
        assert_eq!(known.columns()[1].2, "10:01: gets: 0");
        let whole = plot("", vec![Some(0.0), Some(3.0)]).render().unwrap();
        assert!(!whole.contains("unknown"), "{whole}");
    }

    #[test]
    fn a_small_drawing_has_a_bar_for_each_day_with_uses() {
        assert_eq!(spark_bars(&[0, 4, 1]), "M9 16v-16.0h6v16.0zM17 16v-4.0h6v4.0z");
        assert_eq!(spark_bars(&[1, 1000]), "M1 16v-1.0h6v1.0zM9 16v-16.0h6v16.0z");
        assert_eq!(spark_bars(&[0; 7]), "");
    }

    #[test]
    fn nothing_is_a_plot_too() {
        for values in [vec![], vec![None], vec![Some(0.0)]] {
            let plot = plot("", values);
            assert!(plot.is_empty());
            assert!(plot.render().unwrap().contains("Nothing"), "it says so");
        }
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (1.25, "1.2"),
            (99.96, "100.0"),
            (1234.0, "1234"),
            (12_345.0, "12.3k"),
            (2.5e6, "2.5M"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
