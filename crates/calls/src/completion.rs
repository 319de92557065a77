//! Completions of arguments.

use serde_json::json;
use tokio::time::Instant;

use super::admitted::CallContext;
use super::call_channel::{CallChannel, CallEvent};
use super::guards::{Guards, Passing};
use super::routed_prompt::{RoutedPrompt, origin};
use catalog::reply::{self, Completion, Reply};
use config::GuardEvent;
use domain::fault::{Fault, UpstreamFault};
use domain::json::Json;
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

/// As [`complete`]; the input of the client and the values pass the guards.
pub(super) async fn complete_guarded(
    guards: &Guards,
    routed: &RoutedPrompt<'_>,
    completing: Completing<'_>,
    context: CallContext<'_>,
) -> Result<Reply, Fault> {
    let event = GuardEvent::Completions;
    if !guards.examine(event) {
        return complete(routed, completing, context.channel, context.deadline).await;
    }
    let Completing { argument, value, context: filled } = completing;
    let others = filled.map_or("{}", |filled| filled.json().text());
    let written = format!(r#"{{"value":{},"context":{others}}}"#, json!(value));
    let written = Document::copy_of(Json::accepted(&written));
    let sent = Passing { event, ..Passing::arguments(routed.listed()) };
    let written = guards.pass(sent, context, written).await?;
    let read = written.json();
    let value = read.get("value").and_then(Json::as_str).ok_or(Fault::Internal)?;
    let filled = read.get("context").map(Document::copy_of).filter(|_| filled.is_some());
    let completing = Completing { argument, value: &value, context: filled.as_ref() };
    let mut reply = complete(routed, completing, context.channel, context.deadline).await?;
    if let Reply::Completion { completion, .. } = &mut reply {
        let values = Document::copy_of(Json::accepted(&format!("[{}]", completion.values)));
        let received = Passing { event, ..Passing::result(routed.listed()) };
        let values = guards.pass(received, context, values).await?;
        completion.values = values.json().text().trim_matches(['[', ']']).to_owned();
    }
    Ok(reply)
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
