//! Removes secrets from the messages of one call, because the upstream may repeat them.

use std::borrow::Cow;
use std::sync::Arc;

use super::correlator::InterimMessage;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::Json;
use domain::json::document::Document;
use domain::prompts::call_overlay::CallOverlay;
use domain::protocol::method::Method;
use domain::redaction::Secrets;

/// A source of the current secrets of an upstream.
pub trait SecretSource: Send + Sync {
    fn secrets(&self) -> Cow<'_, Secrets>;
}

/// The secrets that the messages of one call may contain: the secrets of the upstream, and the
/// presets of overlays.
#[derive(Clone)]
pub struct CallSecrets {
    pub held: Arc<dyn SecretSource>,
    pub overlay: Option<Arc<CallOverlay>>,
    pub method: Method,
}

impl CallSecrets {
    /// Bytes of a message before the response, all of which are searched.
    pub(super) fn searched_interim(message: &InterimMessage) -> usize {
        match message {
            InterimMessage::Progress(params)
            | InterimMessage::Log(params)
            | InterimMessage::UrlElicitationComplete(params) => params.json().text().len(),
            InterimMessage::ServerRequest { server_request, .. } => server_request.text_size(),
        }
    }

    /// Bytes of a response that are searched; see [`Self::remove_from_response`].
    pub(super) fn searched_response(&self, response: &Document) -> usize {
        let is_request = |kind: Json<'_>| kind.is("input_required");
        let is_result = !response.json().get("resultType").is_some_and(is_request);
        match self.method {
            Method::Get | Method::ReadLink | Method::Passthrough if is_result => 0,
            _ => response.json().text().len(),
        }
    }

    /// Removes the secrets from an interim message; `None` if the message must be dropped.
    pub(super) fn remove_from_interim(&self, message: InterimMessage) -> Option<InterimMessage> {
        Some(match message {
            InterimMessage::Progress(params) => InterimMessage::Progress(self.remove(params)?),
            InterimMessage::Log(params) => InterimMessage::Log(self.remove(params)?),
            InterimMessage::UrlElicitationComplete(params) => {
                InterimMessage::UrlElicitationComplete(self.remove(params)?)
            }
            InterimMessage::ServerRequest { server_request, answer } => {
                let server_request = server_request.without(&self.held.secrets());
                let server_request = match &self.overlay {
                    Some(overlay) => server_request?.without(overlay.secrets()),
                    None => server_request,
                };
                InterimMessage::ServerRequest { server_request: server_request?, answer }
            }
        })
    }

    /// Removes the secrets from a response. Prompt messages, linked resources and results of
    /// `[passthrough]` are not searched: they may be large, and their content comes from the
    /// upstream.
    pub(super) fn remove_from_response(&self, response: Document) -> Result<Document, Kind> {
        if self.searched_response(&response) == 0 {
            return Ok(response);
        }
        let why = "the response repeats a credential in a way that cannot be removed";
        self.remove(response).ok_or_else(|| Kind::Protocol(why.to_owned()))
    }

    fn remove(&self, document: Document) -> Option<Document> {
        let document = self.held.secrets().redact_document(document)?;
        match &self.overlay {
            Some(overlay) => overlay.secrets().redact_document(document),
            None => Some(document),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::sync::oneshot;

    use super::*;
    use domain::protocol::server_request::{ELICIT, Presentation, ServerRequest};

    struct Fixed(Secrets);

    impl SecretSource for Fixed {
        fn secrets(&self) -> Cow<'_, Secrets> {
            Cow::Borrowed(&self.0)
        }
    }

    const WRITTEN: &str = "sk%2Flive%2Bkey";

    fn secrets(method: Method) -> CallSecrets {
        let configured = Secrets::new(["sk/live+key"]);
        CallSecrets { held: Arc::new(Fixed(configured)), overlay: None, method }
    }

    fn document(value: &Value) -> Document {
        Document::parse(value.to_string().into_bytes(), 64).unwrap()
    }

    #[test]
    fn no_message_before_the_response_has_a_secret() {
        let secrets = secrets(Method::Get);
        let progress = document(&json!({"progress": 1, "message": format!("GET /?key={WRITTEN}")}));
        let told = secrets.remove_from_interim(InterimMessage::Progress(progress)).unwrap();
        let InterimMessage::Progress(params) = told else { panic!("{told:?}") };
        assert!(params.json().get("message").unwrap().is("GET /?key=[redacted]"));

        let asked = json!({"message": format!("Is {WRITTEN} right?"), "requestedSchema": {}});
        let asked = ServerRequest::read(ELICIT, Some(document(&asked).json())).unwrap();
        let asked =
            InterimMessage::ServerRequest { server_request: asked, answer: oneshot::channel().0 };
        let told = secrets.remove_from_interim(asked).unwrap();
        let InterimMessage::ServerRequest { server_request, .. } = told else { panic!("{told:?}") };
        let upstream = "up";
        let revision = domain::protocol::revision::Revision::V2025_11_25;
        let mut written = String::new();
        let presentation = Presentation { upstream, label: false, revision, id: "1" };
        server_request.write_params(presentation, &mut written);
        assert!(written.contains("Is [redacted] right?"), "{written}");
    }

    #[test]
    fn completions_and_questions_have_no_secret_and_prompts_stay_as_they_are() {
        let values = json!({"completion": {"values": ["a", WRITTEN]}});
        let asks = json!({"resultType": "input_required", "inputRequests": {"a": WRITTEN}});
        let prompt = json!({"messages": [{"content": WRITTEN}]});
        for (method, response, is_clean) in [
            (Method::Complete, &values, true),
            (Method::Complete, &prompt, true),
            (Method::Get, &asks, true),
            (Method::Get, &prompt, false),
        ] {
            let cleaned = secrets(method).remove_from_response(document(response)).unwrap();
            assert_eq!(!cleaned.json().text().contains(WRITTEN), is_clean, "{response}");
        }
    }
}
