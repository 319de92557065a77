//! Plots as SVG, drawn on the server, each with its numbers in a table.

use std::fmt::Write as _;

use askama::Template;

/// One plot of lines over time.
#[derive(Template)]
#[template(path = "plot.html")]
pub(crate) struct Plot {
    pub title: String,
    /// Unit of the values; empty for numbers of things.
    pub unit: &'static str,
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

/// The maximum number of rows in the table beside a plot.
const TABLE_ROWS: usize = 48;

impl Plot {
    /// The largest value, at least 1.
    fn most(&self) -> f64 {
        let values = self.lines.iter().flat_map(|line| line.values.iter().flatten());
        values.copied().fold(1.0, f64::max)
    }

    fn most_text(&self) -> String {
        format!("{}{}", number(self.most()), self.unit)
    }

    /// The path of a line, in SVG.
    fn path(&self, line: &PlotLine) -> String {
        let most = self.most();
        let steps = (line.values.len().max(2) - 1) as f64;
        let (mut path, mut is_drawn) = (String::new(), false);
        for (index, value) in line.values.iter().enumerate() {
            let Some(value) = value else {
                is_drawn = false;
                continue;
            };
            let (x, y) =
                (index as f64 * WIDTH / steps, HEIGHT - value / most * (HEIGHT - 4.0) - 1.0);
            let command = if is_drawn { 'L' } else { 'M' };
            // A point alone is drawn as a short line.
            let dot = if is_drawn { "" } else { "h1" };
            let _ = write!(path, "{command}{x:.1} {y:.1}{dot}");
            is_drawn = true;
        }
        path
    }

    /// Whether there is anything to draw.
    fn is_empty(&self) -> bool {
        !self.lines.iter().flat_map(|line| &line.values).flatten().any(|value| *value > 0.0)
    }

    fn first_time(&self) -> &str {
        self.times.first().map_or("", String::as_str)
    }

    fn last_time(&self) -> &str {
        self.times.last().map_or("", String::as_str)
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

    fn plot(values: Vec<Option<f64>>) -> Plot {
        let times = (0..values.len()).map(|minute| format!("10:{minute:02}")).collect();
        let lines = vec![PlotLine { name: "gets", style: 1, values }];
        Plot { title: "Gets".into(), unit: "", times, lines }
    }

    #[test]
    fn a_line_stays_inside_the_drawing_and_breaks_at_gaps() {
        let plot = plot(vec![Some(0.0), Some(50.0), None, Some(200.0)]);
        let path = plot.path(&plot.lines[0]);
        assert_eq!(path, "M0.0 119.0h1L200.0 90.0M600.0 3.0h1");
        assert_eq!(
            plot.rows(),
            [("10:03", vec!["200".to_owned()]), ("10:01", vec!["50".to_owned()])]
        );
        assert_eq!(plot.most_text(), "200");
    }

    #[test]
    fn nothing_is_a_plot_too() {
        for values in [vec![], vec![None], vec![Some(0.0)]] {
            let plot = plot(values);
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
