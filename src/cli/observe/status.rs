//! `promptgate status`: shows the state of a running gateway and of its upstreams.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::cli::shared::admin_api::{egress, fetch, fetch_once};
use crate::cli::shared::args::AdminApi;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::CellKind::{Millis, Terminal};
use crate::cli::shared::output::{Column, age, elements, printable, repaired, table};
use crate::cli::shared::reach::Reach;
use crate::cli::shared::runtime::runtime;

pub(crate) fn run(admin: &AdminApi) -> Result<(), Failure> {
    let url = Reach::admin_of(admin)?;
    let state = runtime()?.block_on(async {
        let egress = egress()?;
        let status = fetch(&egress, &url, "/api/v1/status").await?;
        let upstreams = fetch(&egress, &url, "/api/v1/upstreams").await?;
        let cluster = fetch(&egress, &url, "/api/v1/replicas").await;
        // An older gateway has no such document.
        let cluster = cluster.unwrap_or_default();
        let upstreams = &upstreams["upstreams"];
        let may_say_why = |row: &Value| left_out_count(row) > 0 || has_sources(row);
        let unnamed = match elements(upstreams).iter().any(may_say_why) {
            true => unnamed(&fetch(&egress, &url, "/api/v1/catalog").await?),
            false => Vec::new(),
        };
        Ok::<_, Failure>(json!({
            "status": status, "upstreams": upstreams, "cluster": cluster, "unnamed": unnamed
        }))
    })?;
    admin.output.print(&state, &text(&state))?;
    if state["status"]["ready"] == true {
        Ok(())
    } else {
        Err(Failure::new("the gateway is not ready"))
    }
}

/// The columns of the table of upstreams.
const COLUMNS: [Column; 13] = [
    Column::new("UPSTREAM", "upstream"),
    Column::new("TRANSPORT", "transport"),
    Column::new("STATE", "state"),
    Column::new("REVISION", "revision"),
    Column::new("LISTED", "listed"),
    Column::new("HELD", "held"),
    Column::new("AGE", "ageSecs").of(Terminal(age)),
    Column::new("IN FLIGHT", "inFlight"),
    Column::new("BREAKER", "breaker"),
    Column::new("P50", "lastHour.p50Ms").of(Millis),
    Column::new("P95", "lastHour.p95Ms").of(Millis),
    Column::new("FAILED", "lastHour").of(Terminal(failed)),
    Column::new("HTTP", "lastHour.httpStatus"),
];

/// The columns of the table of replicas.
const REPLICA_COLUMNS: [Column; 6] = [
    Column::new("REPLICA", "name"),
    Column::new("VERSION", "version"),
    Column::new("UP", "uptimeSecs").of(Terminal(age)),
    Column::new("SEEN", "seenMs").of(Terminal(millis_ago)),
    Column::new("CONFIGURATION", "configDigest").of(Terminal(short_digest)),
    Column::new("CATALOG", "catalogDigest").of(Terminal(short_digest)),
];

/// Formats how many of the calls of the last hour failed.
fn failed(hour: &Value) -> String {
    match hour["calls"].as_u64() {
        None | Some(0) => "-".to_owned(),
        Some(calls) => format!("{} of {calls}", hour["failures"]),
    }
}

/// Formats the time since something.
fn millis_ago(millis: &Value) -> String {
    millis.as_u64().map_or_else(String::new, |millis| format!("{millis} ms ago"))
}

/// Formats the first digits of a digest.
fn short_digest(digest: &Value) -> String {
    let digits = digest.as_str().and_then(|digest| digest.strip_prefix("sha256:"));
    digits.and_then(|digits| digits.get(..12)).unwrap_or("-").to_owned()
}

/// Describes the replicas; nothing if this one stands alone.
fn replicas_text(cluster: &Value) -> String {
    let rows = elements(&cluster["replicas"]);
    let mut out = String::new();
    if let Some(error) = cluster["error"].as_str() {
        let _ = write!(out, "\nthe store of the cluster is not available: {}\n", printable(error));
    }
    if !rows.is_empty() {
        let _ = write!(out, "\n{}\n", table(&REPLICA_COLUMNS, rows));
    }
    let others = [
        ("differing", "with another configuration file or another catalog"),
        ("unreadable", "with another server.seal_key: nothing is shared with them"),
    ];
    for (member, how) in others {
        if let Some(count) = cluster[member].as_u64().filter(|count| *count > 0) {
            let _ = writeln!(out, "  {count} {how}");
        }
    }
    out
}

/// Says how many prompts of an upstream wait for approval.
fn awaiting(row: &Value) -> Option<String> {
    let waiting = row["approvals"].as_str()?;
    Some(printable(&format!("{}: {waiting}", row["upstream"].as_str().unwrap_or_default())))
}

/// Returns a line for each upstream whose prompts wait for approval; empty if the admin API does
/// not answer.
pub(crate) async fn waiting_lines(url: &str) -> Vec<String> {
    let upstreams = fetch_once(url, "/api/v1/upstreams").await.unwrap_or_default();
    elements(&upstreams["upstreams"]).iter().filter_map(awaiting).collect()
}

/// The elements of the list of an upstream that are not listed because of a mistake.
fn left_out_count(row: &Value) -> u64 {
    row["leftOut"].as_u64().unwrap_or_default()
}

/// Whether the gateway reads the sources of an upstream's prompts: prompts with mistakes may be
/// served in earlier texts.
fn has_sources(row: &Value) -> bool {
    let transports = ["library", "git", "mlflow", "phoenix", "langfuse"];
    row["transport"].as_str().is_some_and(|transport| transports.contains(&transport))
}

/// Most mistakes of one upstream whose reasons are shown.
const MAX_UNNAMED: usize = 10;

/// The left-out elements of a catalog that are mistakes: of files, and of elements without a name.
fn unnamed(catalog: &Value) -> Vec<Value> {
    let left_out = elements(&catalog["leftOut"]).iter();
    let is_shown =
        |one: &&Value| one["name"] == "" || one["by"] == "defect" || one["by"] == "stale";
    left_out.filter(is_shown).cloned().collect()
}

/// Returns how many prompts of an upstream are not listed, and the reasons for elements without a
/// name.
fn unlisted(row: &Value, unnamed: &Value) -> Vec<String> {
    let upstream = row["upstream"].as_str().map(printable).unwrap_or_default();
    let own = elements(unnamed).iter().filter(|one| one["upstream"] == row["upstream"]);
    let own: Vec<&Value> = own.take(MAX_UNNAMED).collect();
    let reasons = own.iter().filter_map(|one| one["reason"].as_str());
    let mut lines: Vec<_> =
        reasons.map(|reason| format!("{upstream}: {}", printable(reason))).collect();
    let shown = own.iter().filter(|one| one["by"] != "stale").count() as u64;
    let count = left_out_count(row);
    if count > shown {
        let has = row["prompts"].as_u64().unwrap_or_default();
        let dial = if row["transport"] == "library" { "" } else { " --dial" };
        let part = if shown > 0 { format!(", {shown} of {count} shown") } else { String::new() };
        lines.push(format!(
            "{upstream}: {count} of {has} prompts are not listed{part}; `promptgate check{dial}` \
             says which"
        ));
    }
    lines
}

fn text(state: &Value) -> String {
    let word = |value: &Value| value.as_str().map(printable).unwrap_or_default();
    let status = &state["status"];
    let readiness = if status["ready"] == true { "ready" } else { "not ready" };
    let verified = &status["auditVerified"];
    let verified_ago = match verified["problems"].as_array() {
        Some(problems) if problems.is_empty() => {
            format!(", verified {} ago", age(&verified["ageSecs"]))
        }
        Some(_) => ", NOT INTACT".to_owned(),
        None => String::new(),
    };
    let export = &status["auditExport"];
    let refused = match export["refused"].as_u64() {
        Some(refused) if refused > 0 => format!(", {refused} refused by the collector"),
        _ => String::new(),
    };
    let exported = match export["waiting"].as_u64() {
        Some(0) => ", exported".to_owned(),
        Some(waiting) => format!(", {waiting} to export, oldest {}", age(&export["lagSecs"])),
        None => String::new(),
    };
    let mut out = format!(
        "promptgate {}, {readiness}, up {}, audit {}{verified_ago}{exported}{refused}\nconfiguration {}\n",
        word(&status["version"]),
        age(&status["uptimeSecs"]),
        word(&status["audit"]),
        word(&status["configDigest"])
    );
    let reloads = &status["reloads"];
    let problems = [
        ("not ready", &status["why"]),
        ("the audit log is not intact", &verified["problems"]),
        ("the audit log cannot be exported", &json!([export["error"]])),
        ("the configuration file was rejected", &reloads["mistakes"]),
        ("needs a restart", &reloads["needsRestart"]),
        ("the configuration file has removed a protection", &reloads["removed"]),
    ];
    for (problem, details) in problems {
        for detail in elements(details).iter().filter(|detail| !detail.is_null()) {
            let _ = writeln!(out, "  {problem}: {}", word(detail));
        }
    }
    for certificate in elements(&status["certificates"]) {
        if let Some(warning) = certificate["warning"].as_str() {
            let _ = writeln!(out, "  {}", printable(warning));
        }
    }
    out += &replicas_text(&state["cluster"]);
    let rows = elements(&state["upstreams"]);
    let _ = write!(out, "\n{}", table(&COLUMNS, rows));
    let notes: Vec<_> = rows.iter().flat_map(|row| notes(row, &state["unnamed"])).collect();
    if !notes.is_empty() {
        let _ = write!(out, "\n\n{}", notes.join("\n"));
    }
    out
}

/// Returns the lines about an upstream that follow the table.
fn notes(row: &Value, unnamed: &Value) -> Vec<String> {
    let upstream = row["upstream"].as_str().map(printable).unwrap_or_default();
    let message = row["error"]["message"].as_str().or(row["note"].as_str()).map(printable);
    let repaired = Some(repaired(row)).filter(|repaired| !repaired.is_empty());
    let restarts = row["driverRestarts"].as_u64().filter(|count| *count > 0);
    let restarts =
        restarts.map(|count| format!("its driver has failed {count} times and was started again"));
    let own = [message, repaired, restarts].into_iter().flatten();
    let mut notes: Vec<_> = own.map(|note| format!("{upstream}: {note}")).collect();
    notes.extend(awaiting(row));
    notes.extend(unlisted(row, unnamed));
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_prompts_that_are_not_listed_counts_those_whose_reasons_are_shown() {
        let unnamed = |count: usize| -> Value {
            (0..count).map(|n| json!({"upstream": "team", "reason": format!("{n}.md")})).collect()
        };
        let row = |left_out: usize, prompts: usize| json!({"upstream": "team", "transport": "library", "leftOut": left_out, "prompts": prompts});
        let lines = unlisted(&row(24, 33), &unnamed(24));
        assert_eq!((lines.len(), lines[9].as_str()), (11, "team: 9.md"));
        assert_eq!(
            lines[10],
            "team: 24 of 33 prompts are not listed, 10 of 24 shown; `promptgate check` says which"
        );
        assert_eq!(unlisted(&row(2, 33), &unnamed(2)).len(), 2, "each reason is shown");
        assert_eq!(
            unlisted(&row(1, 3), &unnamed(0)),
            ["team: 1 of 3 prompts are not listed; `promptgate check` says which"]
        );
        assert!(unlisted(&row(0, 33), &unnamed(0)).is_empty());
    }
}
