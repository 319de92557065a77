//! Skills: answers reads of an entry, a file or a folder, behind the same gate as prompts. Entries
//! and folders come from the catalog, files from the upstream.

pub mod file;
pub(super) mod get_prompt;
mod kept;

use std::sync::Arc;

use tokio::time::Instant;

use super::Router;
use super::admitted::{Admitted, CallContext};
use super::call_channel::CallChannel;
use super::completion::response;
use super::guards::Passing;
use super::resolution::held;
use super::routed_prompt::origin;
use super::withheld_text::count_tolerated;
use catalog::approval::Availability;
use catalog::listed_item::{ListedItem, ListedSkill};
use catalog::reply::{Reply, SkillBody, SkillReply};
use catalog::skills::catalog::{FoundPart, FoundSkill};
use catalog::snapshot::Catalog;
use domain::approval::ApprovalState;
use domain::calls::call::SkillPart;
use domain::calls::caller::Caller;
use domain::fault::{Fault, RequestFault, UpstreamFaultKind as Kind};
use domain::json::document::Document;
use domain::json::{Json, JsonKind};
use domain::name::UpstreamId;
use domain::prompts::skill::{SkillFile, checked_path, public_uri};
use domain::text::percent;
use domain::uri::normal_form::normal;
use policy::Resolution;
use upstream::Upstream;
use upstream::call::request::{RequestParams, UpstreamRequest};
use upstream::call::result_memory;

/// The part of a skill that a call asks for.
pub(super) struct AskedSkill<'a> {
    pub uri: &'a str,
    pub part: SkillPart,
}

/// Answers a call for a skill.
///
/// # Errors
/// -32602, alike for a part that is unknown, denied or withheld; the other refusals of
/// [`Gate::authorize`](policy::Gate::authorize); and the faults of the upstream, one of which is a
/// file that differs from its entry.
pub(super) async fn answer(
    router: &Router,
    asked: AskedSkill<'_>,
    context: CallContext<'_>,
) -> Result<Reply, Fault> {
    let CallContext { call, record, channel, began, deadline, .. } = context;
    let AskedSkill { uri, part } = asked;
    let catalog = router.lists.catalog_for_skill(call, record, (uri, part), deadline).await;
    let views = &router.lists.views;
    let method = call.request.method();
    let may_use = |item: &ListedItem| views.allows(&call.caller, method, &call.endpoint, item);
    let found = views.endpoints.skills_at(&catalog.skills, &call.endpoint).find(uri, part, may_use);
    let found = found.and_then(|found| {
        let upstream = router.upstreams.get(&found.item.upstream)?;
        Some((found, upstream))
    });
    if let Some((FoundSkill { item, .. }, _)) = &found {
        record.part_of(&item.public_name, uri);
    }
    let resolution = match &found {
        Some((found, _)) => router.listed(call, found.item, None),
        None => catalog.held_skill(uri, part).map_or(Resolution::Unknown, held),
    };
    let prompt = found.as_ref().and_then(|(found, _)| found.item.prompt_name());
    if let Some(prompt) = prompt.filter(|_| part == SkillPart::File) {
        record.stands_for(prompt);
    }
    let authorized = router.gate.authorize(call, record, resolution).await;
    let authorized = authorized.map_err(|fault| match fault {
        Fault::Request(RequestFault::UnknownPrompt) => unknown(uri),
        fault => fault,
    })?;
    let (found, upstream) = found.ok_or(Fault::Internal)?;
    let admitted = Admitted { call, authorized, upstream };
    let item = found.item;
    let mut is_snapshot = item.approval.availability == Availability::SnapshotOnly;
    let (mut ttl, mut scope) = router.lists.hints(&catalog, call, &item.upstream);
    let body = match found.part {
        FoundPart::Entry(entry) => SkillBody::Entry(entry.to_owned()),
        FoundPart::Directory(elements) => SkillBody::Directory(elements),
        FoundPart::File(file, ListedSkill { skill, text, .. }) => {
            let asking = AskedFile { item, file, deadline };
            let result = match text {
                Some(text) => text.clone(),
                None => {
                    let served = serve(router, &admitted, asking, channel).await?;
                    is_snapshot = served.is_snapshot;
                    served.result
                }
            };
            let result = examined(router, item, context, result).await?;
            let skill = Some(skill).filter(|skill| skill.own_file() == Some(file)).cloned();
            SkillBody::File { uri: uri.to_owned(), result, skill }
        }
        // A snapshot does not contain files of dynamic skills.
        FoundPart::DynamicFile(_) if is_snapshot => return Err(unknown(uri)),
        FoundPart::DynamicFile(file) => {
            let asking = AskedUri { item, uri: file.into(), deadline };
            let result = read_dynamic(&admitted, asking, uri, channel).await?;
            let result = router.guards.pass(Passing::result(item), context, result).await?;
            let (fresh_for, whose) = router.lists.hints_of(result.json(), call);
            (ttl, scope) = (ttl.min(fresh_for), scope.max(whose));
            SkillBody::File { uri: uri.to_owned(), result, skill: None }
        }
    };
    router.count_use(call, item, began);
    count_tolerated(&router.shared, item);
    Ok(Reply::Skill(SkillReply { body, origin: origin(item), ttl, scope, is_snapshot }))
}

/// Takes a file past the guards, unless an approval covers it by the digest in its entry.
async fn examined(
    router: &Router,
    item: &ListedItem,
    context: CallContext<'_>,
    file: Document,
) -> Result<Document, Fault> {
    if item.approval.state == ApprovalState::Approved {
        return Ok(file);
    }
    router.guards.pass(Passing::result(item), context, file).await
}

/// A file to read at its upstream.
pub(super) struct AskedFile<'a> {
    pub item: &'a ListedItem,
    pub file: &'a SkillFile,
    pub deadline: Instant,
}

/// A served file.
pub(super) struct ServedFile {
    pub result: Document,
    /// Whether the result is the approved file instead of the upstream's.
    pub is_snapshot: bool,
}

/// Reads a file; serves the approved file if the upstream's differs or the upstream is down.
pub(super) async fn serve(
    router: &Router,
    admitted: &Admitted<'_>,
    asked: AskedFile<'_>,
    channel: &CallChannel,
) -> Result<ServedFile, Fault> {
    let AskedFile { item, file, .. } = asked;
    if item.approval.availability == Availability::SnapshotOnly {
        let result = kept::file(item, file).await.ok_or_else(|| {
            let why = Kind::Unavailable("it does not offer the approved files".to_owned());
            Fault::upstream(item.upstream.as_str(), why)
        })?;
        return Ok(ServedFile { result, is_snapshot: true });
    }
    match read(router, admitted, asked, channel).await {
        Ok(result) => Ok(ServedFile { result, is_snapshot: false }),
        Err(fault) => {
            let result = kept::file_or(admitted.upstream, item, file, fault).await?;
            Ok(ServedFile { result, is_snapshot: true })
        }
    }
}

/// Reads a whole file, and checks it against its entry.
pub(super) async fn read(
    router: &Router,
    admitted: &Admitted<'_>,
    asked: AskedFile<'_>,
    channel: &CallChannel,
) -> Result<Document, Fault> {
    let AskedFile { item, file, deadline } = asked;
    // Reserve memory before the read: a library returns the whole file at once.
    let size = usize::try_from(file.size).unwrap_or(usize::MAX);
    let has_room = result_memory::grow_to(size.saturating_add(ENVELOPE));
    has_room.map_err(|kind| Fault::upstream(item.upstream.as_str(), kind))?;
    let asking = AskedUri { item, uri: file.uri.clone(), deadline };
    let result = ask(admitted, &asking, channel).await;
    if result.as_ref().is_err_and(is_unknown_file) {
        // The upstream no longer has a file that its list names.
        doubt_list(router, admitted.upstream, &admitted.call.caller);
    }
    let result = result?;
    let refused = file::verified(result.json(), file).err();
    match refused {
        None => Ok(result),
        Some(why) => {
            doubt_list(router, admitted.upstream, &admitted.call.caller);
            Err(Fault::upstream(item.upstream.as_str(), Kind::Protocol(why)))
        }
    }
}

/// Whether an upstream's URI names a file of a skill; skill files have separate rules, digests and
/// approvals. A server may treat another spelling, or a URI with a query, as the same file.
pub(super) fn is_file(
    router: &Router,
    catalog: &Catalog,
    upstream: &UpstreamId,
    uri: &str,
) -> bool {
    let Some(prefix) = router.lists.prefixes.get(upstream) else { return false };
    let plain = uri.split(['?', '#']).next().unwrap_or_default();
    let decoded = percent::decoded(plain).unwrap_or_default();
    let respelled = decoded.split_once("://");
    let respelled =
        respelled.map(|(scheme, path)| [scheme, "://", &percent::encoded_path(path)].concat());
    let normal = normal(plain);
    let spellings = std::iter::once(plain).chain(respelled.as_deref()).chain(normal.as_deref());
    spellings.filter_map(checked_path).any(|path| {
        let public = public_uri(prefix, &path);
        catalog.skills.find(&public, SkillPart::File, |_| true).is_some()
            || catalog.held_skill(&public, SkillPart::File).is_some()
    })
}

/// Has an upstream's list fetched again soon, because a read contradicts the list.
fn doubt_list(router: &Router, upstream: &Upstream, caller: &Caller) {
    let private = router.lists.caller_lists.as_ref();
    match private.filter(|_| upstream.config().lists_per_caller()) {
        Some(lists) => lists.doubt(caller, &upstream.config().id),
        None => upstream.doubt_list(),
    }
}

/// Whether the upstream reports the file as unknown.
fn is_unknown_file(fault: &Fault) -> bool {
    let is_unknown = |kind: &Kind| matches!(kind, Kind::Error { code: -32602 | -32002, .. });
    matches!(fault, Fault::Upstream(own) if is_unknown(&own.kind))
}

/// Reads a file of a dynamic skill, which `uri` names for clients.
async fn read_dynamic(
    admitted: &Admitted<'_>,
    asking: AskedUri<'_>,
    uri: &str,
    channel: &CallChannel,
) -> Result<Document, Fault> {
    let result = ask(admitted, &asking, channel).await;
    let is_unknown = result.as_ref().is_err_and(is_unknown_file);
    let result = if is_unknown { Err(unknown(uri)) } else { result }?;
    check_dynamic(admitted.upstream, &asking, &result)?;
    Ok(result)
}

/// Checks the URI and the form of a file of a dynamic skill, for which no entry states a digest.
fn check_dynamic(
    upstream: &Upstream,
    asked: &AskedUri<'_>,
    result: &Document,
) -> Result<(), Fault> {
    let content = file::only_content(result.json());
    let is_own = |content: &Json<'_>| {
        let has = |member| content.get(member).is_some_and(|own| own.kind() == JsonKind::String);
        content.get("uri").is_some_and(|uri| uri.is(&asked.uri)) && has("text") != has("blob")
    };
    if content.as_ref().is_some_and(is_own) {
        return Ok(());
    }
    let why =
        "the result must have one content with a `text` or a `blob`, of the URI that was asked for";
    Err(Fault::upstream(upstream.config().id.as_str(), Kind::Protocol(why.to_owned())))
}

/// A file of a skill by the URI of its upstream.
struct AskedUri<'a> {
    item: &'a ListedItem,
    uri: Arc<str>,
    deadline: Instant,
}

/// Reads a whole file from the upstream without a check.
async fn ask(
    admitted: &Admitted<'_>,
    asked: &AskedUri<'_>,
    channel: &CallChannel,
) -> Result<Document, Fault> {
    let AskedUri { item, uri, deadline } = asked;
    let params = RequestParams::ReadFile { skill: item.raw_name.clone(), uri: uri.clone() };
    let request = UpstreamRequest::of_call(admitted.call, params, None);
    let exchange = admitted.upstream.call(&admitted.authorized, request, *deadline);
    Ok(response(exchange, channel).await?)
}

/// Most bytes of a result in addition to its file, not counting JSON escapes.
const ENVELOPE: usize = 4 << 10;

fn unknown(uri: &str) -> Fault {
    RequestFault::unknown_resource(true, uri).into()
}
