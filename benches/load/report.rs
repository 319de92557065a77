//! Figures, as a table and as JSON.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

/// The measurements of one figure.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The median; `None` without a measurement.
    pub fn median(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }
}

/// A table whose cells are texts.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Prints it as Markdown.
    pub fn print(&self) {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (index, row) in self.rows.iter().enumerate() {
            let cells = widths.iter().enumerate().map(|(column, width)| {
                let cell = row.get(column).map_or("", String::as_str);
                format!("{cell:<width$}")
            });
            println!("| {} |", cells.collect::<Vec<_>>().join(" | "));
            if index == 0 {
                let lines: Vec<_> = widths.iter().map(|width| "-".repeat(*width)).collect();
                println!("| {} |", lines.join(" | "));
            }
        }
        println!();
    }
}

/// All figures of a run, for machines.
#[derive(Debug, Default)]
pub struct Figures(Map<String, Value>);

impl Figures {
    pub fn set(&mut self, row: &str, system: &str, figure: &str, value: f64) {
        let row = self.0.entry(row).or_insert_with(|| json!({}));
        row[system][figure] = json!(value);
    }

    pub fn write(&self, path: &Path) {
        let text = serde_json::to_string_pretty(&self.0).expect("numbers");
        fs::write(path, text + "\n").expect("the file can be written");
    }
}

/// A figure with its ratio to the unit.
pub fn with_ratio(value: Option<f64>, unit: Option<f64>, digits: usize) -> String {
    match (value, unit) {
        (Some(value), Some(unit)) if unit > 0. => {
            format!("{value:.digits$} = {:.2} ×", value / unit)
        }
        (Some(value), _) => format!("{value:.digits$}"),
        (None, _) => "–".to_owned(),
    }
}
