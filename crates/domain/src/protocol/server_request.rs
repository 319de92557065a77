//! Server requests in the middle of a `prompts/get`, the client capabilities that they require, and
//! their form for the client (MCP 2025-11-25 and 2026-07-28: elicitation, sampling, roots).

use crate::json::document::Document;
use crate::json::object::{ObjectWriter, write_object};
use crate::json::{Json, JsonKind};
use crate::protocol::meta;
use crate::protocol::revision::Revision;
use crate::redaction::Secrets;

/// The client capabilities for server requests: a bit set of the part of MCP's `ClientCapabilities`
/// that concerns elicitation, sampling and roots.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ClientCapabilities(u8);

/// A well-formed server request.
#[derive(Clone, Debug)]
pub struct ServerRequest {
    kind: ServerRequestKind,
    /// The `params`; an object if present.
    params: Option<Document>,
}

/// The kind of a server request: its method, and for elicitations its mode.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ServerRequestKind {
    /// `elicitation/create` in form mode: a form for the user.
    Form,
    /// `elicitation/create` in URL mode: a page for the user to visit.
    Url,
    /// `sampling/createMessage`
    Sampling,
    /// `roots/list`
    Roots,
}

/// The answer to a server request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The result: an object of the form that the server request requires.
    Result(Document),
    /// An error from the client, or from the gateway if the client did not get the server request.
    Error { code: i64, message: String },
}

/// The reason why a message is not a server request.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ServerRequestError {
    #[error("unknown server request")]
    Unknown,
    #[error("{0}")]
    Malformed(&'static str),
}

/// The parameters for writing a server request to a client.
#[derive(Clone, Copy, Debug)]
pub struct Presentation<'a> {
    /// The id of the upstream that sent the server request.
    pub upstream: &'a str,
    /// Whether the message of an elicitation starts with the upstream's id in brackets.
    pub label: bool,
    /// The client's revision.
    pub revision: Revision,
    /// The `elicitationId` for a URL elicitation if the upstream sent none and the client's
    /// revision requires it (2025-11-25).
    pub id: &'a str,
}

pub const ELICIT: &str = "elicitation/create";
pub const SAMPLE: &str = "sampling/createMessage";
pub const ROOTS: &str = "roots/list";

impl ClientCapabilities {
    pub const NONE: Self = Self(0);
    pub const FORM: Self = Self(1);
    pub const URL: Self = Self(2);
    pub const SAMPLING: Self = Self(4);
    /// Sampling with tools.
    pub const TOOLS: Self = Self(8);
    /// Sampling with the context of other servers.
    pub const CONTEXT: Self = Self(16);
    pub const ROOTS: Self = Self(32);

    pub fn bits(self) -> u8 {
        self.0
    }

    pub fn from_bits(bits: u8) -> Self {
        Self(bits & 63)
    }

    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub fn contains(self, other: Self) -> bool {
        self.and(other) == other
    }

    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Reads `ClientCapabilities` by the rules of the revision in which they are declared.
    pub fn declared(capabilities: Option<Json<'_>>, revision: Revision) -> Self {
        let object = |name: &str| capabilities?.get(name)?.object();
        let has_modes = revision >= Revision::V2025_11_25;
        let mut capabilities = Self::NONE;
        let mut add = |condition: bool, capability: Self| {
            if condition {
                capabilities = capabilities.or(capability);
            }
        };
        if let Some(elicitation) = object("elicitation")
            && revision >= Revision::V2025_06_18
        {
            let has_url = has_modes && elicitation.get("url").is_some();
            // Without modes, elicitation means form mode, the only mode before 2025-11-25.
            add(elicitation.get("form").is_some() || !has_url, Self::FORM);
            add(has_url, Self::URL);
        }
        if let Some(sampling) = object("sampling") {
            add(true, Self::SAMPLING);
            add(has_modes && sampling.get("tools").is_some(), Self::TOOLS);
            // Before 2025-11-25 sampling included the context of other servers.
            add(!has_modes || sampling.get("context").is_some(), Self::CONTEXT);
        }
        add(object("roots").is_some(), Self::ROOTS);
        capabilities
    }

    /// Appends the capabilities as a `ClientCapabilities` object.
    pub fn write(self, out: &mut String) {
        write_object(out, |out| {
            if self.contains(Self::URL) {
                out.object("elicitation", |modes| {
                    self.write_flag(Self::FORM, "form", modes);
                    self.write_flag(Self::URL, "url", modes);
                });
            } else {
                // Form mode alone is written as in revisions without modes.
                self.write_flag(Self::FORM, "elicitation", out);
            }
            if self.contains(Self::SAMPLING) {
                out.object("sampling", |parts| {
                    self.write_flag(Self::TOOLS, "tools", parts);
                    self.write_flag(Self::CONTEXT, "context", parts);
                });
            }
            self.write_flag(Self::ROOTS, "roots", out);
        });
    }

    fn write_flag(self, capability: Self, key: &str, out: &mut ObjectWriter<'_>) {
        if self.contains(capability) {
            out.json(key, "{}");
        }
    }
}

impl ServerRequest {
    /// Reads a server request of an upstream.
    ///
    /// # Errors
    /// If the method or the elicitation mode is unknown, or if `params` are malformed.
    pub fn read(method: &str, params: Option<Json<'_>>) -> Result<Self, ServerRequestError> {
        let member = |name: &str| params.and_then(|p| p.get(name));
        let is = |name: &str, kind: JsonKind| member(name).is_some_and(|m| m.kind() == kind);
        let must =
            |is_true: bool, what| is_true.then_some(()).ok_or(ServerRequestError::Malformed(what));
        let kind = match method {
            ELICIT => {
                must(is("message", JsonKind::String), "an elicitation needs `message`")?;
                match member("mode").map(|mode| (mode.is("form"), mode.is("url"))) {
                    None | Some((true, _)) => {
                        must(
                            is("requestedSchema", JsonKind::Object),
                            "a form elicitation needs `requestedSchema`",
                        )?;
                        ServerRequestKind::Form
                    }
                    Some((_, true)) => {
                        let url = member("url").and_then(Json::as_str).unwrap_or_default();
                        must(is_web_page(&url), "`url` must be an http or https URL")?;
                        ServerRequestKind::Url
                    }
                    Some(_) => return Err(ServerRequestError::Unknown),
                }
            }
            SAMPLE => {
                must(is("messages", JsonKind::Array), "sampling needs `messages`")?;
                must(is("maxTokens", JsonKind::Number), "sampling needs `maxTokens`")?;
                ServerRequestKind::Sampling
            }
            ROOTS => ServerRequestKind::Roots,
            _ => return Err(ServerRequestError::Unknown),
        };
        Ok(Self { kind, params: params.map(Document::copy_of) })
    }

    /// Returns the server request without secrets in its texts; `None` if the rest is not valid.
    pub fn without(mut self, secrets: &Secrets) -> Option<Self> {
        if let Some(params) = self.params.take() {
            self.params = Some(secrets.redact_document(params)?);
        }
        Some(self)
    }

    /// Returns the size of `params` in bytes.
    pub fn text_size(&self) -> usize {
        self.params.as_ref().map_or(0, |params| params.json().text().len())
    }

    pub fn kind(&self) -> ServerRequestKind {
        self.kind
    }

    pub fn method(&self) -> &'static str {
        match self.kind {
            ServerRequestKind::Form | ServerRequestKind::Url => ELICIT,
            ServerRequestKind::Sampling => SAMPLE,
            ServerRequestKind::Roots => ROOTS,
        }
    }

    /// Returns the `elicitationId` of a URL elicitation; `None` if the upstream's revision does not
    /// define it, and for other server requests.
    pub fn elicitation_id(&self) -> Option<String> {
        let id = self.member("elicitationId").and_then(Json::as_str);
        id.filter(|_| self.kind == ServerRequestKind::Url).map(|id| id.into_owned())
    }

    /// Returns the capabilities that a client must declare to get this server request.
    pub fn required_capabilities(&self) -> ClientCapabilities {
        match self.kind {
            ServerRequestKind::Form => ClientCapabilities::FORM,
            ServerRequestKind::Url => ClientCapabilities::URL,
            ServerRequestKind::Roots => ClientCapabilities::ROOTS,
            ServerRequestKind::Sampling => {
                let has = |name| self.member(name).is_some();
                let context = self.member("includeContext").is_some_and(|c| !c.is("none"));
                let mut needs = ClientCapabilities::SAMPLING;
                if has("tools") || has("toolChoice") {
                    needs = needs.or(ClientCapabilities::TOOLS);
                }
                if context {
                    needs = needs.or(ClientCapabilities::CONTEXT);
                }
                needs
            }
        }
    }

    /// Returns a text that is equal for two server requests exactly if they request the same: the
    /// method, and all members of `params` except `_meta`.
    pub fn identity(&self) -> String {
        let mut text = self.method().to_owned();
        for (key, value) in self.params.iter().flat_map(|p| p.json().members()) {
            if !key.is("_meta") {
                text.extend([",", key.text(), ":", value.text()]);
            }
        }
        text
    }

    /// Appends `params` for the client, with the id of the upstream: the user must see which
    /// upstream sent the server request.
    pub fn write_params(&self, presentation: Presentation<'_>, out: &mut String) {
        write_object(out, |params| {
            self.write_members(presentation, params);
            params.object("_meta", |meta| {
                if let Some(theirs) = self.member("_meta") {
                    meta::write_foreign(theirs, meta);
                }
                meta.text("promptgate/upstream", presentation.upstream);
            });
        });
    }

    fn write_members(&self, presentation: Presentation<'_>, out: &mut ObjectWriter<'_>) {
        let has_modes = presentation.revision >= Revision::V2025_11_25;
        for (key, value) in self.params.iter().flat_map(|p| p.json().members()) {
            let key = key.as_str().unwrap_or_default();
            match (&*key, value.as_str()) {
                ("_meta" | "task", _) => continue,
                ("mode", _) if !has_modes => continue,
                ("message", Some(message)) if presentation.label && self.method() == ELICIT => {
                    out.text("message", &format!("[{}] {message}", presentation.upstream));
                }
                _ => {
                    out.json(&key, value.text());
                }
            }
        }
        if self.kind == ServerRequestKind::Url
            && presentation.revision == Revision::V2025_11_25
            && self.member("elicitationId").is_none()
        {
            out.text("elicitationId", presentation.id);
        }
    }

    /// Checks the client's result and copies it without the `_meta` keys that a client may not set.
    /// Returns `None` if the result does not match the server request.
    pub fn read_answer(&self, result: Json<'_>) -> Option<Document> {
        let is = |name: &str, kind: JsonKind| result.get(name).is_some_and(|m| m.kind() == kind);
        let is_valid = match self.kind {
            ServerRequestKind::Form | ServerRequestKind::Url => {
                let actions = ["accept", "decline", "cancel"];
                let action = result.get("action");
                action.is_some_and(|action| actions.iter().any(|known| action.is(known)))
                    && result.get("content").is_none_or(|content| content.is_object())
            }
            ServerRequestKind::Sampling => {
                let content = is("content", JsonKind::Object) || is("content", JsonKind::Array);
                is("role", JsonKind::String) && is("model", JsonKind::String) && content
            }
            ServerRequestKind::Roots => result.get("roots").is_some_and(|roots| {
                let uri =
                    |root: Json<'_>| root.get("uri").is_some_and(|u| u.kind() == JsonKind::String);
                roots.kind() == JsonKind::Array && roots.elements().all(uri)
            }),
        };
        is_valid.then(|| meta::without_reserved(result))
    }

    /// Returns the answer if the user was not reached, for a modern upstream, which accepts only
    /// results: `cancel` for an elicitation, `None` for other server requests.
    pub fn cancel_answer(&self) -> Option<Document> {
        let cancel = || Document::parse(br#"{"action":"cancel"}"#.to_vec(), 2).ok();
        matches!(self.kind, ServerRequestKind::Form | ServerRequestKind::Url).then(cancel)?
    }

    fn member(&self, name: &str) -> Option<Json<'_>> {
        self.params.as_ref().and_then(|params| params.json().get(name))
    }
}

/// Returns whether a URL is an http or https URL without control, hidden and white-space
/// characters. Other schemes could start programs.
fn is_web_page(url: &str) -> bool {
    let lower = url.get(..8).unwrap_or_default().to_ascii_lowercase();
    (lower.starts_with("https://") || lower.starts_with("http://"))
        && !url.contains(|c: char| c.is_control() || c.is_whitespace() || crate::name::is_hidden(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Document {
        Document::parse(text.as_bytes().to_vec(), 16).unwrap()
    }

    fn server_request(method: &str, params: &str) -> Result<ServerRequest, ServerRequestError> {
        ServerRequest::read(method, Some(json(params).json()))
    }

    const FORM: &str = r#"{"message":"Who?","mode":"form","task":{},"requestedSchema":{"type":"object"},
        "_meta":{"promptgate/upstream":"evil","k":1,"progressToken":7}}"#;

    #[test]
    fn declared_capabilities_follow_the_rules_of_their_revision() {
        let declared =
            |text, revision| ClientCapabilities::declared(Some(json(text).json()), revision);
        let june = Revision::V2025_06_18;
        let november = Revision::V2025_11_25;
        let both = ClientCapabilities::FORM.or(ClientCapabilities::URL);
        assert_eq!(
            declared(r#"{"elicitation":{}}"#, Revision::V2025_03_26),
            ClientCapabilities::NONE
        );
        assert_eq!(declared(r#"{"elicitation":{"url":{}}}"#, june), ClientCapabilities::FORM);
        assert_eq!(declared(r#"{"elicitation":{}}"#, november), ClientCapabilities::FORM);
        assert_eq!(declared(r#"{"elicitation":{"url":{}}}"#, november), ClientCapabilities::URL);
        assert_eq!(declared(r#"{"elicitation":{"form":{},"url":{}}}"#, november), both);
        let sampling = ClientCapabilities::SAMPLING.or(ClientCapabilities::CONTEXT);
        assert_eq!(declared(r#"{"sampling":{"tools":{}}}"#, june), sampling);
        let tools = ClientCapabilities::SAMPLING.or(ClientCapabilities::TOOLS);
        assert_eq!(declared(r#"{"sampling":{"tools":{}},"x":{}}"#, november), tools);
        assert_eq!(declared(r#"{"roots":{"listChanged":true}}"#, june), ClientCapabilities::ROOTS);
        assert_eq!(ClientCapabilities::declared(None, november), ClientCapabilities::NONE);
        assert_eq!(declared(r#"{"elicitation":[]}"#, november), ClientCapabilities::FORM);
        assert_eq!(declared("[]", november), ClientCapabilities::NONE);
    }

    #[test]
    fn written_capabilities_read_back() {
        let written = |capabilities: ClientCapabilities| {
            let mut out = String::new();
            capabilities.write(&mut out);
            out
        };
        for bits in 0..64 {
            let capabilities = ClientCapabilities::from_bits(bits);
            // Tools and context are parts of sampling.
            if capabilities.contains(ClientCapabilities::SAMPLING)
                || capabilities.and(ClientCapabilities(8 | 16)).is_none()
            {
                let text = written(capabilities);
                let read =
                    ClientCapabilities::declared(Some(json(&text).json()), Revision::V2025_11_25);
                assert_eq!(read, capabilities, "{text}");
            }
        }
        assert_eq!(written(ClientCapabilities::FORM), r#"{"elicitation":{}}"#);
    }

    #[test]
    fn malformed_server_requests_are_refused() {
        for (method, params) in [
            (ELICIT, r#"{"requestedSchema":{}}"#),
            (ELICIT, r#"{"message":"x"}"#),
            (ELICIT, r#"{"message":"x","mode":"url","url":"file:///etc/passwd"}"#),
            (ELICIT, r#"{"message":"x","mode":"url","url":"javascript:alert(1)"}"#),
            (ELICIT, r#"{"message":"x","mode":"url","url":"https://a b"}"#),
            (SAMPLE, r#"{"messages":[]}"#),
        ] {
            let read = server_request(method, params);
            assert!(matches!(read, Err(ServerRequestError::Malformed(_))), "{params}: {read:?}");
        }
        let odd = server_request(ELICIT, r#"{"message":"x","mode":"telepathy"}"#);
        assert!(matches!(odd, Err(ServerRequestError::Unknown)));
        assert!(matches!(server_request("tools/call", "{}"), Err(ServerRequestError::Unknown)));
        assert_eq!(
            server_request(ELICIT, FORM).unwrap().required_capabilities(),
            ClientCapabilities::FORM
        );
        let url =
            server_request(ELICIT, r#"{"message":"x","mode":"url","url":"https://a.example/b"}"#);
        assert_eq!(url.unwrap().required_capabilities(), ClientCapabilities::URL);
        let sampling = server_request(
            SAMPLE,
            r#"{"messages":[],"maxTokens":1,"tools":[],"includeContext":"none"}"#,
        );
        assert_eq!(
            sampling.unwrap().required_capabilities(),
            ClientCapabilities::SAMPLING.or(ClientCapabilities::TOOLS)
        );
        assert_eq!(
            ServerRequest::read(ROOTS, None).unwrap().required_capabilities(),
            ClientCapabilities::ROOTS
        );
    }

    #[test]
    fn a_server_request_names_its_upstream_to_the_user() {
        let written = |label, revision| {
            let mut out = String::new();
            let presentation = Presentation { upstream: "up", label, revision, id: "1" };
            server_request(ELICIT, FORM).unwrap().write_params(presentation, &mut out);
            out
        };
        let meta = r#""_meta":{"k":1,"promptgate/upstream":"up"}}"#;
        assert_eq!(
            written(true, Revision::V2025_06_18),
            [r#"{"message":"[up] Who?","requestedSchema":{"type":"object"},"#, meta].concat()
        );
        assert_eq!(
            written(false, Revision::V2026_07_28),
            [r#"{"message":"Who?","mode":"form","requestedSchema":{"type":"object"},"#, meta]
                .concat()
        );
    }

    #[test]
    fn a_url_elicitation_gets_the_id_that_the_clients_revision_requires() {
        let page = r#"{"message":"x","mode":"url","url":"https://a.example"}"#;
        let written = |params: &str, revision| {
            let mut out = String::new();
            let presentation = Presentation { upstream: "up", label: false, revision, id: "mine" };
            server_request(ELICIT, params).unwrap().write_params(presentation, &mut out);
            json(&out).json().get("elicitationId").map(|id| id.as_str().unwrap().into_owned())
        };
        assert_eq!(written(page, Revision::V2025_11_25).as_deref(), Some("mine"));
        assert_eq!(written(page, Revision::V2026_07_28), None);
        let named = page.replace("{\"message", "{\"elicitationId\":\"theirs\",\"message");
        assert_eq!(written(&named, Revision::V2025_11_25).as_deref(), Some("theirs"));
    }

    #[test]
    fn the_identity_ignores_meta() {
        let other = FORM.replace("\"k\":1", "\"k\":2");
        let identity = |params: &str| server_request(ELICIT, params).unwrap().identity();
        assert_eq!(identity(FORM), identity(&other));
        assert_ne!(identity(FORM), identity(&FORM.replace("Who", "Why")));
    }

    #[test]
    fn answers_are_checked_and_cleaned() {
        let form = server_request(ELICIT, FORM).unwrap();
        let answer = |text: &str| form.read_answer(json(text).json());
        let good = r#"{"action":"accept","content":{"a":"b"},"_meta":{"promptgate/x":1,"k":2}}"#;
        let expected = r#"{"action":"accept","content":{"a":"b"},"_meta":{"k":2}}"#;
        assert_eq!(answer(good).unwrap().json().text(), expected);
        for bad in [r#"{}"#, r#"{"action":"maybe"}"#, r#"{"action":"accept","content":"x"}"#] {
            assert!(answer(bad).is_none(), "{bad}");
        }
        let roots = ServerRequest::read(ROOTS, None).unwrap();
        assert!(roots.read_answer(json(r#"{"roots":[{"uri":"file:///a"}]}"#).json()).is_some());
        assert!(roots.read_answer(json(r#"{"roots":[{"name":"a"}]}"#).json()).is_none());
    }
}
