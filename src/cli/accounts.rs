//! `promptgate accounts`: lists and revokes accounts of callers at upstreams, in a running gateway.

use serde_json::{Value, json};

use super::args::AccountsCommand;
use super::failure::Failure;
use super::output::{Column, age, print, table};
use super::reach::Reach;
use super::runtime::runtime;
use super::status::{fetch_once, send_once};

const PATH: &str = "/api/v1/accounts";

/// Runs one of the commands.
pub(super) fn run(command: &AccountsCommand) -> Result<(), Failure> {
    match command {
        AccountsCommand::List(admin) => {
            let document = runtime()?.block_on(fetch_once(&Reach::admin_of(admin)?, PATH))?;
            admin.output.print(&document["accounts"], &text(&COLUMNS, &document["accounts"], NONE))
        }
        AccountsCommand::Revoke { caller, upstream, all, admin } => {
            if caller.is_none() && upstream.is_none() && !all {
                let what = "say whose accounts to revoke: --caller ID, --upstream ID, or --all";
                return Err(Failure::usage(what));
            }
            let body = json!({"caller": caller, "upstream": upstream});
            let (url, path) = (Reach::admin_of(admin)?, format!("{PATH}/revoke"));
            let document = runtime()?.block_on(send_once(&url, &path, &body))?;
            let revoked = &document["revoked"];
            admin.output.print(revoked, &text(&REVOKED_COLUMNS, revoked, NONE_ENDED))?;
            let has_ended = revoked.as_array().is_some_and(|rows| !rows.is_empty());
            if admin.output.json || !has_ended {
                return Ok(());
            }
            print(LOCAL)
        }
    }
}

const COLUMNS: [Column; 6] = [
    Column::new("UPSTREAM", "upstream"),
    Column::new("CALLER", "caller"),
    Column::new("METHOD", "method"),
    Column::new("ISSUER", "issuer"),
    Column { heading: "EXPIRES IN", member: "expiresInSecs", format: age },
    Column { heading: "IDLE", member: "idleSecs", format: age },
];

const REVOKED_COLUMNS: [Column; 5] = [
    Column::new("UPSTREAM", "upstream"),
    Column::new("CALLER", "caller"),
    Column::new("METHOD", "method"),
    Column::new("ISSUER", "issuer"),
    Column { heading: "AT PROVIDER", member: "revokedAtProvider", format: at_provider },
];

fn at_provider(is_ended: &Value) -> String {
    if *is_ended == true { "revoked" } else { "not revoked" }.to_owned()
}

fn text(columns: &[Column], accounts: &Value, none: &str) -> String {
    match accounts.as_array() {
        Some(rows) if !rows.is_empty() => table(columns, rows),
        _ => none.to_owned(),
    }
}

const NONE: &str = "No caller has an access token or connection of its own at an upstream of this replica. The operator's \
                    sign-ins: `promptgate logins`.";

const NONE_ENDED: &str = "Nothing was revoked: no account of this replica matches. Other replicas have accounts of their own: ask each.";

const LOCAL: &str = "Ended in this replica, with the calls that used them. A token that its provider has not revoked is valid there until it \
                     expires. The next call of a caller gets a new token, unless its \
                     authorization server refuses: to keep a caller out, change its rights there, or in [[access.rules]] here.";
