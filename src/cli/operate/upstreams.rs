//! `promptgate upstreams`: applies a removal of prompts that a running gateway holds back.

use serde_json::json;

use crate::cli::shared::admin_api::send_once;
use crate::cli::shared::args::UpstreamsCommand;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::reach::Reach;
use crate::cli::shared::runtime::runtime;
use crate::cli::shared::user::user;
use domain::text::percent;

/// Runs the command.
pub(crate) fn run(
    UpstreamsCommand::Accept { id, why, admin }: &UpstreamsCommand,
) -> Result<(), Failure> {
    let path = format!("/api/v1/upstreams/{}/accept", percent::encoded_segment(id));
    let body = json!({"by": user(), "why": why});
    let accepted = runtime()?.block_on(send_once(&Reach::admin_of(admin)?, &path, &body))?;
    let said = format!(
        "Accepted: {id} lists {} prompts, of {} that are served. It is read again at once, on all replicas.",
        accepted["listed"], accepted["served"]
    );
    admin.output.print(&accepted, &said)
}
