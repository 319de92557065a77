//! `promptgate accounts`: lists and revokes accounts of callers at upstreams, in a running gateway.

use serde_json::{Value, json};

use crate::cli::shared::admin_api::{fetch_once, send_once};
use crate::cli::shared::args::AccountsCommand;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::CellKind::Terminal;
use crate::cli::shared::output::{Column, age, elements, print, table_or};
use crate::cli::shared::reach::Reach;
use crate::cli::shared::runtime::runtime;

const PATH: &str = "/api/v1/accounts";

/// Runs one of the commands.
pub(crate) fn run(command: &AccountsCommand) -> Result<(), Failure> {
    match command {
        AccountsCommand::List(admin) => {
            let document = runtime()?.block_on(fetch_once(&Reach::admin_of(admin)?, PATH))?;
            let accounts = &document["accounts"];
            admin.output.print(accounts, &table_or(NONE, &COLUMNS, elements(accounts)))
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
            let rows = elements(revoked);
            admin.output.print(revoked, &table_or(NONE_ENDED, &REVOKED_COLUMNS, rows))?;
            if admin.output.json || rows.is_empty() {
                return Ok(());
            }
            print(LOCAL)
        }
    }
}

const COLUMNS: [Column; 8] = [
    Column::new("UPSTREAM", "upstream"),
    Column::new("CALLER", "caller"),
    Column::new("METHOD", "method"),
    Column::new("ISSUER", "issuer"),
    Column::new("WAY", "way"),
    Column::new("SIGNED IN", "signedInAt"),
    Column::new("EXPIRES IN", "expiresInSecs").of(Terminal(age)),
    Column::new("IDLE", "idleSecs").of(Terminal(age)),
];

const REVOKED_COLUMNS: [Column; 6] = [
    Column::new("UPSTREAM", "upstream"),
    Column::new("CALLER", "caller"),
    Column::new("METHOD", "method"),
    Column::new("ISSUER", "issuer"),
    Column::new("WAY", "way"),
    Column::new("AT PROVIDER", "revokedAtProvider").of(Terminal(at_provider)),
];

fn at_provider(is_ended: &Value) -> String {
    if *is_ended == true { "revoked" } else { "not revoked" }.to_owned()
}

const NONE: &str = "No caller has an access token or connection of its own at an upstream of this replica. The operator's \
                    sign-ins: `promptgate logins`.";

const NONE_ENDED: &str = "Nothing was revoked: no account of this replica matches. Other replicas have accounts of their own: ask each.";

const LOCAL: &str = "Ended in this replica, with the calls that used them. A token that its provider has not revoked is valid there until it \
                     expires. The next call of a caller gets a new token, unless its \
                     authorization server refuses: to keep a caller out, change its rights there, or in [[access.rules]] here.";
