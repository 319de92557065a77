//! Requests that the bridge sends, and the replies that it makes of their results.

use std::sync::Arc;

use super::Router;
use super::routed_prompt::RoutedPrompt;
use super::withheld_text::withhold_other_text;
use base::seal;
use catalog::approval::ExpectedText;
use catalog::listed_item::ListedItem;
use catalog::reply::{self, Reply};
use domain::approval::DigestText;
use domain::calls::passthrough::PassthroughRequest;
use domain::fault::Fault;
use domain::json::Json;
use domain::json::document::Document;
use domain::prompts::call_overlay::CallOverlay;
use upstream::Upstream;
use upstream::call::request::{InputResponses, RequestParams};

/// A request whose upstream may ask the client, and the same request again with the answers.
#[derive(Clone, Copy)]
pub(super) enum BridgedRequest<'a> {
    Get {
        prompt: &'a RoutedPrompt<'a>,
        /// The arguments for the upstream.
        arguments: Option<&'a Document>,
        /// The approved text for the arguments of the client, where texts are compared.
        expected: Option<&'a ExpectedText<'a>>,
    },
    Passthrough(&'a PassthroughRequest),
}

impl BridgedRequest<'_> {
    /// The name of the target, to which the state of a suspended call belongs.
    pub(super) fn name(self) -> String {
        match self {
            Self::Get { prompt, .. } => prompt.item.public_name.to_string(),
            Self::Passthrough(request) => format!("{} {}", request.method, request.name),
        }
    }

    /// The changes by overlays to a get.
    pub(super) fn overlay(self) -> Option<Arc<CallOverlay>> {
        match self {
            Self::Get { prompt, .. } => prompt.item.overlay.clone(),
            Self::Passthrough(_) => None,
        }
    }

    /// The parameters for the upstream, with the answers of the client.
    pub(super) fn params(self, answers: Option<InputResponses>) -> RequestParams {
        match self {
            Self::Get { prompt, arguments, .. } => RequestParams::Get {
                name: prompt.item.raw_name.clone(),
                arguments: arguments.cloned(),
                answers,
                source: approved_source(prompt.item),
            },
            Self::Passthrough(request) => {
                RequestParams::Passthrough { request: request.clone(), answers }
            }
        }
    }

    /// Whether the upstream may send server requests: a list causes none.
    pub(super) fn may_ask(self) -> bool {
        match self {
            Self::Get { .. } => true,
            Self::Passthrough(request) => request.list().is_none(),
        }
    }

    /// The digest of the arguments, to which the state of a suspended call belongs.
    pub(super) fn digest(self) -> [u8; 32] {
        match self {
            Self::Get { arguments, .. } => digest_of(arguments),
            Self::Passthrough(request) => seal::digest([&*request.params]),
        }
    }

    /// Checks the result of the upstream, and adds the messages of overlays.
    pub(super) async fn reply(
        self,
        router: &Router,
        upstream: &Upstream,
        result: Document,
    ) -> Result<Reply, Fault> {
        let Self::Get { prompt, expected, .. } = self else {
            return reply::passthrough(result, &upstream.config().id);
        };
        let hidden_text = upstream.config().settings.content;
        let mut reply = reply::prompt(result, prompt.origin(), hidden_text)?;
        upstream.repairs().count_all(reply.repairs);
        if let Some(expected) = expected {
            reply.is_proved =
                withhold_other_text(&router.shared, prompt, expected, &reply.result).await?;
        }
        reply.overlay.clone_from(&prompt.item.overlay);
        Ok(Reply::Prompt(reply))
    }
}

/// Returns the digest of the approved source: a library serves only this source.
fn approved_source(item: &ListedItem) -> Option<DigestText> {
    let approved = item.approval.approved.as_ref().filter(|approval| approval.is_enforced)?;
    approved.version.source.clone()
}

/// A digest of arguments that does not depend on their order.
fn digest_of(arguments: Option<&Document>) -> [u8; 32] {
    let members = arguments.iter().flat_map(|a| a.json().members()).map(|(key, value)| {
        let text = |json: Json<'_>| json.as_str().unwrap_or_default().into_owned();
        (text(key), text(value))
    });
    let mut members: Vec<_> = members.collect();
    members.sort();
    seal::digest(members.iter().flat_map(|(key, value)| [key.as_str(), value.as_str()]))
}
