//! `promptgate rollouts`: lists and changes rollouts in a running gateway.

use serde_json::{Value, json};

use crate::cli::shared::admin_api::{fetch_once, send_once};
use crate::cli::shared::args::{RolloutArgs, RolloutsCommand};
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::CellKind::Terminal;
use crate::cli::shared::output::{Column, elements, printable_line, table_or};
use crate::cli::shared::reach::Reach;
use crate::cli::shared::runtime::runtime;
use crate::cli::shared::user::user;
use domain::text::percent;

const PATH: &str = "/api/v1/rollouts";

/// Runs one of the commands.
pub(crate) fn run(command: &RolloutsCommand) -> Result<(), Failure> {
    let (rollout, mut change, done) = match command {
        RolloutsCommand::List(admin) => {
            let document = runtime()?.block_on(fetch_once(&Reach::admin_of(admin)?, PATH))?;
            let rollouts = &document["rollouts"];
            return admin.output.print(rollouts, &text(elements(rollouts)));
        }
        RolloutsCommand::Start { to, share, from, group, rollback, rollout } => {
            let change = json!({"action": "start", "to": to, "share": share, "from": from,
                "groups": group, "rollback": rollback});
            (rollout, change, "The rollout begins: its share of the callers gets the new version.")
        }
        RolloutsCommand::Share { rollout, share } => {
            (rollout, json!({"action": "share", "share": share}), "The share is changed.")
        }
        RolloutsCommand::Pause(rollout) => {
            (rollout, json!({"action": "pause"}), "Paused: all callers get the old version.")
        }
        RolloutsCommand::Resume(rollout) => {
            (rollout, json!({"action": "resume"}), "The new version is served to its share again.")
        }
        RolloutsCommand::End(rollout) => {
            (rollout, json!({"action": "end"}), "Ended: all callers get the plain prompt.")
        }
        RolloutsCommand::Rollback(rollout) => {
            (rollout, json!({"action": "roll_back"}), "Rolled back, on all replicas.")
        }
        RolloutsCommand::Rearm(rollout) => (rollout, json!({"action": "rearm"}), REARMED),
    };
    let RolloutArgs { name, why, admin } = rollout;
    (change["by"], change["why"]) = (user().into(), json!(why));
    let path = format!("{PATH}/{}", percent::encoded_segment(name));
    let document = runtime()?.block_on(send_once(&Reach::admin_of(admin)?, &path, &change))?;
    let said = if document["changed"] == true { done } else { "Nothing to do." };
    admin.output.print(&document, said)
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

const NONE: &str = "No prompt has a rollout; begin with `promptgate rollouts start NAME`.";

const REARMED: &str =
    "The rollout begins again, on all replicas: its share of the callers gets the new version.";
