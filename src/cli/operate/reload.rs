//! `promptgate reload`: makes a running gateway read its files again.

use serde_json::{Value, json};

use crate::cli::shared::admin_api::{fetch_once, send_once};
use crate::cli::shared::args::AdminApi;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::{elements, printable};
use crate::cli::shared::reach::Reach;
use crate::cli::shared::runtime::runtime;

/// Requests a reload; accepts the held file if `accept` is set.
pub(crate) fn run(accept: bool, admin: &AdminApi) -> Result<(), Failure> {
    let url = Reach::admin_of(admin)?;
    let reloads = runtime()?.block_on(async {
        // Accepts the file that the gateway has seen, not a file that has replaced it.
        let held = match accept {
            true => fetch_once(&url, "/api/v1/status").await?["reloads"]["held"].clone(),
            false => Value::Null,
        };
        if accept && held.is_null() {
            return Err(Failure::new(
                "no configuration file is held back: see `promptgate status`",
            ));
        }
        send_once(&url, "/api/v1/reload", &json!({"accept": held})).await
    })?;
    let mistakes: Vec<_> =
        elements(&reloads["mistakes"]).iter().filter_map(Value::as_str).collect();
    if !mistakes.is_empty() {
        return Err(Failure::new(printable(&mistakes.join("\n"))));
    }
    admin.output.print(&reloads, "The configuration is reloaded.")
}
