//! `promptgate rollouts`: lists and restarts rollouts in a running gateway.

use serde_json::{Value, json};

use crate::cli::shared::admin_api::{fetch_once, send_once};
use crate::cli::shared::args::RolloutsCommand;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::CellKind::Terminal;
use crate::cli::shared::output::{Column, elements, printable_line, table_or};
use crate::cli::shared::reach::Reach;
use crate::cli::shared::runtime::runtime;

const PATH: &str = "/api/v1/rollouts";

/// Runs one of the commands.
pub(crate) fn run(command: &RolloutsCommand) -> Result<(), Failure> {
    match command {
        RolloutsCommand::List(admin) => {
            let document = runtime()?.block_on(fetch_once(&Reach::admin_of(admin)?, PATH))?;
            admin.output.print(&document["rollouts"], &text(elements(&document["rollouts"])))
        }
        RolloutsCommand::Rearm { name, admin } => {
            let (url, path) = (Reach::admin_of(admin)?, format!("{PATH}/rearm"));
            let body = json!({"prompt": name});
            let document = runtime()?.block_on(send_once(&url, &path, &body))?;
            let said = if document["rearmed"] == true { REARMED } else { NOT_ROLLED_BACK };
            admin.output.print(&document, said)
        }
    }
}

const COLUMNS: [Column; 7] = [
    Column::new("PROMPT", "prompt"),
    Column::new("FROM", "from"),
    Column::new("TO", "to"),
    Column::new("SHARE", "share").of(Terminal(percent)),
    Column::new("GETS", "gets"),
    Column::new("FAILED", "failed"),
    Column::new("STATE", "state"),
];

fn percent(share: &Value) -> String {
    format!("{} %", (share.as_f64().unwrap_or_default() * 10_000.0).round() / 100.0)
}

fn text(rows: &[Value]) -> String {
    let reasons = rows.iter().filter_map(|row| {
        let (prompt, why) = (row["prompt"].as_str()?, row["why"].as_str()?);
        Some(format!("\n{}: {}", printable_line(prompt), printable_line(why)))
    });
    table_or(NONE, &COLUMNS, rows) + &reasons.collect::<String>()
}

const NONE: &str = "No [[rollouts]] are configured.";

const REARMED: &str =
    "The rollout begins again, on all replicas: its share of the callers gets the new version.";

const NOT_ROLLED_BACK: &str = "Nothing to do: the rollout was not rolled back.";
