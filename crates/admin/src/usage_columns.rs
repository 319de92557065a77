//! The columns of usage, of the page as well as of the command line.

use super::table::CellKind::{Millis, Number, Time};
use super::table::Column;
use audit::usage::{Dimension, Row, UsedKind};

/// The dimensions by their names, with the columns of the keys.
pub const DIMENSIONS: [(&str, Dimension, Column); 5] = [
    ("prompt", Dimension::Prompt, Column::new("PROMPT", "key").titled("Prompt")),
    ("upstream", Dimension::Upstream, Column::new("UPSTREAM", "key").titled("Upstream")),
    ("caller", Dimension::Caller, Column::new("CALLER", "key").titled("Caller")),
    ("group", Dimension::Group, Column::new("GROUP", "key").titled("Group")),
    ("view", Dimension::View, Column::new("VIEW", "key").titled("Endpoint")),
];

/// The columns behind the key. The 50th percentile is in CSV alone.
pub const COUNTS: [Column; 11] = [
    Column::new("UPSTREAM", "upstream").titled("Upstream"),
    Column::new("USES", "uses").of(Number).titled("Uses"),
    Column::new("BEFORE", "before").of(Number).titled("Uses before"),
    Column::new("FAILURES", "failures").of(Number).titled("Failures"),
    Column::new("DENIED", "denied").of(Number).titled("Denied"),
    Column::new("LIMITED", "limited").of(Number).titled("Refused by limits"),
    Column::new("MEAN", "meanMs").of(Millis).titled("Mean"),
    Column::new("", "p50Ms").of(Millis),
    Column::new("P95", "p95Ms").of(Millis).titled("95th percentile"),
    Column::new("LAST USE", "last").of(Time).titled("Last"),
    Column::new("KIND", "kind"),
];

/// Returns the columns of a table of these rows. The upstream, the percentile and the kind are left
/// out where they say nothing about any row.
pub fn of_rows(by: Dimension, rows: &[Row]) -> impl Iterator<Item = Column> {
    let has_percentiles = rows.iter().any(|row| row.p95_ms.is_some());
    let has_skills = rows.iter().any(|row| row.kind == Some(UsedKind::Skill));
    let keys = DIMENSIONS.into_iter().filter(move |(_, own, _)| *own == by);
    keys.map(|(.., keys)| keys).chain(COUNTS).filter(move |column| match column.member {
        "upstream" => by == Dimension::Prompt,
        // The index has no distribution by group and view, and with a filter by another key.
        "p95Ms" => has_percentiles,
        "kind" => has_skills,
        _ => true,
    })
}
