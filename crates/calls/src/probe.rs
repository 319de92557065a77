//! Probes: calls by which the gateway learns the texts of prompts and the files of skills. Probes
//! pass the same gate as every call, as the caller `promptgate`, but no limit counts them.

use tokio::time::Instant;

use super::Router;
use super::admitted::Admitted;
use super::arguments::{effective_arguments, without_presets};
use super::bridge::Bridge;
use super::bridged_request::BridgedRequest;
use super::call_channel::CallChannel;
use super::completion::{Completing, complete};
use super::routed_prompt::RoutedPrompt;
use super::skills::{self, AskedFile};
use catalog::approval::{ApprovalRow, DEPTH};
use catalog::listed_item::ListedItem;
use catalog::reply::Reply;
use domain::approval::{NO_ARGUMENTS, canonical_text};
use domain::calls::call::{Call, ClientMessages, ForwardedMeta, NameKind, Request, SkillPart};
use domain::calls::caller::{Caller, PROBER};
use domain::fault::Fault;
use domain::json::document::Document;
use domain::prompts::skill::SkillFile;
use domain::text::chunks::Chunks;
use domain::time::unix_time::UnixSeconds;
use policy::{CallTarget, RecordOutcome, Resolution, ResultDigest};

/// The endpoint that records of probes name.
const ENDPOINT: &str = "approvals";

/// The request of a probe.
#[derive(Clone, Copy)]
pub enum ProbeRequest<'a> {
    /// The text for arguments in canonical form.
    Text(&'a str),
    /// The text for arguments in canonical form, for the approver with this id.
    Trial { arguments: &'a str, by: &'a str },
    /// The values of an argument.
    Values(&'a str),
    /// A file of a skill, with its public URI.
    File { file: &'a SkillFile, uri: &'a str },
}

impl ProbeRequest<'_> {
    fn request(self, public_name: &str) -> Request {
        let name = public_name.to_owned();
        match self {
            Self::Text(arguments) | Self::Trial { arguments, .. } => {
                // Clients without arguments omit the member, too.
                let given = (arguments != NO_ARGUMENTS).then(|| arguments.as_bytes().to_vec());
                let arguments = given.and_then(|given| Document::parse(given, DEPTH).ok());
                Request::Get { name, name_kind: NameKind::Public, arguments, retry: None }
            }
            Self::Values(argument) => {
                let argument = argument.to_owned();
                let value = String::new();
                Request::Complete { name, argument, value, context: None }
            }
            Self::File { uri, .. } => Request::Skill { uri: uri.to_owned(), part: SkillPart::File },
        }
    }
}

/// Makes one call to the upstream of a prompt or skill, recorded like any other, and returns the
/// canonical text of a prompt, the values of an argument as a JSON array, or the result with a
/// file. Its pace is the concern of the caller of this function.
///
/// # Errors
/// As for a get; internal if the upstream does not offer the prompt.
pub async fn probe(
    router: &Router,
    row: &ApprovalRow,
    asked: ProbeRequest<'_>,
) -> Result<String, Fault> {
    let tried_by = match asked {
        ProbeRequest::Trial { by, .. } => Some(by.into()),
        _ => None,
    };
    let item = ListedItem::offered(row).ok_or(Fault::Internal)?;
    let call = Call {
        caller: Caller::new(PROBER),
        subject_token: None,
        endpoint: ENDPOINT.into(),
        address: None,
        tried_by,
        client: ClientMessages::default(),
        forwarded: ForwardedMeta::default(),
        request: asked.request(&row.public_name),
    };
    let record = router.gate.record(&call);
    let got = async {
        let target = CallTarget {
            upstream: item.upstream.as_str(),
            raw_name: &item.raw_name,
            definition: &item.digest,
            state: item.approval.state,
            number: None,
            version: None,
        };
        let resolution = Resolution::Listed(target);
        let authorized = router.gate.authorize(&call, &record, resolution).await?;
        let upstream = router.upstreams.get(&item.upstream).ok_or(Fault::Internal)?;
        let admitted = Admitted { call: &call, authorized, upstream };
        let routed = RoutedPrompt { admitted, item: &item, version: None };
        let got = match (&call.request, asked) {
            (Request::Complete { argument, .. }, _) => get_values(router, &routed, argument).await,
            (Request::Get { arguments, .. }, _) => {
                get_text(router, &routed, arguments.as_ref()).await
            }
            (_, ProbeRequest::File { file, .. }) => get_file(router, &routed, file).await,
            _ => Err(Fault::Internal),
        };
        got.map_err(|fault| without_presets(&item, fault))
    };
    let got = got.await;
    let result = got.as_ref().map(|text| Chunks::from(text.clone()));
    let outcome = match &result {
        Ok(result) => RecordOutcome::Result { result, digest: &ResultDigest::Text },
        Err(fault) => RecordOutcome::Fault(fault),
    };
    router.gate.complete(&record, &call.caller, outcome).await?;
    got
}

/// Returns all values of an argument as a JSON array. The array is empty if the upstream has more
/// values than it returned.
async fn get_values(
    router: &Router,
    routed: &RoutedPrompt<'_>,
    argument: &str,
) -> Result<String, Fault> {
    let completing = Completing { argument, value: "", context: None };
    let deadline = Instant::now() + router.limits.request;
    match complete(routed, completing, &CallChannel::silent(), deadline).await? {
        Reply::Completion { completion, .. } => Ok(match completion.has_more {
            Some(true) => "[]".to_owned(),
            _ => format!("[{}]", completion.values),
        }),
        _ => Err(Fault::Internal),
    }
}

/// Returns the result with a file after checking the file against its skill's entry.
async fn get_file(
    router: &Router,
    routed: &RoutedPrompt<'_>,
    file: &SkillFile,
) -> Result<String, Fault> {
    let deadline = Instant::now() + router.limits.request;
    let asked = AskedFile { item: routed.item, file, deadline };
    let read = skills::read(router, &routed.admitted, asked, &CallChannel::silent()).await?;
    Ok(read.json().text().to_owned())
}

async fn get_text(
    router: &Router,
    routed: &RoutedPrompt<'_>,
    arguments: Option<&Document>,
) -> Result<String, Fault> {
    let effective = effective_arguments(routed, arguments)?;
    // A server request has no answer: the client of a probe has no capabilities, so no state is
    // sealed either.
    let channel = CallChannel::silent();
    let bridge = Bridge {
        router,
        admitted: &routed.admitted,
        channel: &channel,
        request: BridgedRequest::Get {
            prompt: routed,
            arguments: effective.as_ref().or(arguments),
            expected: None,
        },
        deadline: Instant::now() + router.limits.request,
        now: UnixSeconds::default(),
        rounds: 0,
    };
    match bridge.run(None).await? {
        Reply::Prompt(prompt) => Ok(canonical_text(prompt.result.json())),
        _ => Err(Fault::Internal),
    }
}
