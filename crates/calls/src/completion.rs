//! Completions of arguments.

use tokio::time::Instant;

use super::call_channel::{CallChannel, CallEvent};
use super::routed_prompt::{RoutedPrompt, origin};
use catalog::reply::{self, Completion, Reply};
use domain::fault::{Fault, UpstreamFault};
use domain::json::document::Document;
use upstream::call::correlator::InterimMessage;
use upstream::call::exchange::{CallExchange, ExchangeEvent};
use upstream::call::request::{RequestParams, UpstreamRequest};

/// An argument that a client wants completed.
pub(super) struct Completing<'a> {
    pub argument: &'a str,
    /// The input so far.
    pub value: &'a str,
    pub context: Option<&'a Document>,
}

/// Completes an argument: from the choices of an overlay, or by the upstream.
pub(super) async fn complete(
    routed: &RoutedPrompt<'_>,
    completing: Completing<'_>,
    channel: &CallChannel,
    deadline: Instant,
) -> Result<Reply, Fault> {
    let RoutedPrompt { admitted, item, .. } = routed;
    let Completing { argument, value, context } = completing;
    if item.skill().is_some() {
        return Ok(Reply::Completion { completion: Completion::of(&[]), origin: origin(item) });
    }
    let mut effective = None;
    if let Some(overlay) = &item.overlay {
        effective = overlay.context(argument, context.map(Document::json))?;
        if let Some(choices) = overlay.completed(argument, value) {
            let completion = Completion::of(&choices);
            return Ok(Reply::Completion { completion, origin: routed.origin() });
        }
    }
    let params = RequestParams::Complete {
        prompt: item.raw_name.clone(),
        argument: argument.to_owned(),
        value: value.to_owned(),
        context: effective.or_else(|| context.cloned()),
    };
    let request = UpstreamRequest::of_call(admitted.call, params, item.overlay.clone());
    let exchange = admitted.upstream.call(&admitted.authorized, request, deadline);
    reply::completion(response(exchange, channel).await?, routed.origin())
}

/// Waits for a response that only progress messages may precede.
pub(super) async fn response(
    mut exchange: CallExchange,
    channel: &CallChannel,
) -> Result<Document, UpstreamFault> {
    loop {
        match exchange.next().await? {
            ExchangeEvent::Interim(InterimMessage::Progress(params)) => {
                channel.tell(CallEvent::Progress(params));
            }
            ExchangeEvent::Interim(_) => {}
            ExchangeEvent::Response(result) => return Ok(result),
        }
    }
}
