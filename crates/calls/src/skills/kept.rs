//! Serves approved skill files from the lock file if the upstream's files differ or it is down.

use std::sync::Arc;

use tracing::error;

use super::is_unknown_file;
use crate::withheld_text::is_gone;
use catalog::approval::DEPTH;
use catalog::listed_item::ListedItem;
use domain::fault::{Fault, UpstreamFault, UpstreamFaultKind as Kind};
use domain::json::document::Document;
use domain::prompts::skill::SkillFile;
use library::file_contents;
use upstream::Upstream;

/// Answers a failed read with the approved file, as a `resources/read` result, if a snapshot exists
/// and the upstream is down or has another file.
pub(super) async fn file_or(
    upstream: &Upstream,
    item: &ListedItem,
    asked: &SkillFile,
    fault: Fault,
) -> Result<Document, Fault> {
    let Fault::Upstream(UpstreamFault { kind, .. }) = &fault else { return Err(fault) };
    let is_other = matches!(kind, Kind::Protocol(_)) || is_unknown_file(&fault);
    let is_gone = is_gone(kind, upstream.config().acts_as_caller());
    if !is_other && !is_gone {
        return Err(fault);
    }
    file(item, asked).await.ok_or(fault)
}

/// Returns an approved file, as a `resources/read` result; `None` without a snapshot, or if the
/// snapshot cannot be read.
pub(super) async fn file(item: &ListedItem, file: &SkillFile) -> Option<Document> {
    let approved = item.approval.approved.as_ref().filter(|approved| approved.has_snapshot)?;
    let read = approved.file(&Arc::from(&*file.digest)).await;
    let name = &*item.public_name;
    let bytes = read.inspect_err(|error| error!(%error, name, "snapshot cannot be read")).ok()?;
    Document::parse(file_contents(&file.uri, bytes).into_bytes(), DEPTH).ok()
}
