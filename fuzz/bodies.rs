//! Properties that hold for any bytes. The fuzz targets call these, and `cargo test` replays the
//! corpus through them (`tests/corpus.rs`).

use std::fs;
use std::path::Path;

use access::RuleSet;
use admin::hosts::{FileEntry, Format, with_entry};
use base::seal::{SealKeys, Sealer, TokenKind};
use config::labels::{self, LabelFile, LabelMove};
use config::lock::Lock;
use config::{Config, Settings, Transport};
use domain::approval::template::{MAX_FORM, differing_form, fill, is_filled, template};
use domain::approval::{canonical_text, markdown};
use domain::calls::cursor::PagePosition;
use domain::calls::link::Link;
use domain::calls::request_state::RequestState;
use domain::guards::hook_answer;
use domain::guards::text_guard::{Decision, Texts};
use domain::json::document::Document;
use domain::json::jsonrpc::Frame;
use domain::json::{Json, JsonError};
use domain::name::{Naming, Prefix};
use domain::prompts::content;
use domain::protocol::mcp_name;
use domain::protocol::revision::Revision;
use domain::protocol::server_request::{ELICIT, Presentation, ROOTS, SAMPLE, ServerRequest};
use domain::protocol::translate;
use domain::time::unix_time::UnixSeconds;
use domain::uri::{self, normal_form};
use domain::{text::line_decoder, text::sse_decoder};
use front::downstream::HookKey;
use http::{HeaderMap, HeaderName, HeaderValue};
use library::{LibraryLabels, LibrarySnapshot};
use net::jwks::KeySet;
use opentelemetry_proto::tonic::collector::{logs, metrics, trace};
use prost::Message;
use serde_json::Value;
use upstream::stores::paths_after;

const DEPTH: usize = 64;

/// A text that the strict scan accepts is read by serde_json, and read alike after it was written
/// without nulls.
pub fn json(data: &[u8]) {
    let theirs = serde_json::from_slice::<serde_json::Value>(data);
    match Json::parse(data, DEPTH) {
        Err(JsonError::DuplicateMember { .. } | JsonError::TooDeep { .. }) => {}
        Err(error) => assert!(theirs.is_err(), "{error}, but serde_json reads it"),
        Ok(json) => {
            theirs.expect("serde_json reads what we accept");
            let written = Document::copy_of(json);
            let text = written.json().text();
            let again = Json::parse(text.as_bytes(), DEPTH).expect("what we write is acceptable");
            assert_eq!(Document::copy_of(again).json().text(), text);
            assert!(!has_null(again), "{text}");
            // A document is read by its outline.
            let outlined = Document::parse(text.as_bytes().to_vec(), DEPTH).expect("the same");
            assert_eq!(Document::copy_of(outlined.json()).json().text(), text);
            let _ = (Frame::read(json), Frame::read_strict(json));
        }
    }
}

fn has_null(json: Json<'_>) -> bool {
    json.members().any(|(_, value)| value.text() == "null" || has_null(value))
        || json.elements().any(|value| value.text() == "null" || has_null(value))
}

/// The events of a stream do not depend on how it is cut, and hold no more than the limit.
pub fn sse(data: &[u8]) {
    const LIMIT: usize = 256;
    let decode = |size: usize| {
        let (mut decoder, mut events) = (sse_decoder::SseDecoder::new(LIMIT), Vec::new());
        let mut result = Ok(());
        for piece in data.chunks(size) {
            result = result.and_then(|()| decoder.feed(piece, &mut events));
        }
        result.map(|()| events)
    };
    let whole = decode(data.len().max(1));
    for size in [1, 2, 3, 7] {
        assert_eq!(decode(size), whole, "cut in pieces of {size}");
    }
    if let Ok(events) = whole {
        assert!(events.iter().all(|event| event.data.len() <= LIMIT));
    }
}

/// The lines of a stream do not depend on how it is cut, and none is empty or too long.
pub fn stdio(data: &[u8]) {
    const LIMIT: usize = 64;
    let decode = |size: usize| {
        let (mut decoder, mut lines) = (line_decoder::LineDecoder::new(LIMIT), Vec::new());
        for piece in data.chunks(size) {
            decoder.feed(piece, &mut lines);
        }
        lines
    };
    let whole = decode(data.len().max(1));
    for size in [1, 2, 5] {
        assert_eq!(decode(size), whole, "cut in pieces of {size}");
    }
    let fits = |line: &line_decoder::DecodedLine| match line {
        line_decoder::DecodedLine::Whole(line) => !line.is_empty() && line.len() <= LIMIT,
        line_decoder::DecodedLine::TooLong => true,
    };
    assert!(whole.iter().all(fits));
}

/// A text for markers, `|`, two values, and another text: the filled template is the text that a
/// slow reference makes, and the form of the other text gives it again.
pub fn approval(data: &[u8]) {
    const MARKERS: [&str; 2] = ["mkOne1", "mkTwo2"];
    const NAMES: [&str; 2] = ["a", "b } c"];
    let input = String::from_utf8_lossy(data);
    let mut fields = input.split('|');
    let [made, one, two, other] = [(); 4].map(|()| fields.next().unwrap_or_default());
    let text_of = |text: &str| {
        let content = serde_json::json!({"type": "text", "text": text});
        let result = serde_json::json!({"messages": [{"role": "user", "content": content}]});
        let result = Document::parse(result.to_string().into_bytes(), DEPTH).expect("JSON");
        canonical_text(result.json())
    };
    let named = [0, 1].map(|at| (NAMES[at].to_owned(), MARKERS[at].to_owned()));
    let Some(template) = template(&text_of(made), &named) else { return };
    let arguments = serde_json::json!({NAMES[0]: one, NAMES[1]: two}).to_string();
    let arguments = Json::accepted(&arguments);
    let parts = made.split(MARKERS[0]).map(|part| part.split(MARKERS[1]).collect::<Vec<_>>());
    let reference = parts.map(|part| part.join(two)).collect::<Vec<_>>().join(one);
    let reference = text_of(&reference);
    assert_eq!(fill(&template, arguments, reference.len()).as_ref(), Some(&reference));
    assert!(is_filled(&template, arguments, &reference));
    let other = text_of(other);
    if let Some(form) = differing_form(&template, arguments, &other) {
        assert!(form.len() <= MAX_FORM);
        assert!(is_filled(&form, arguments, &other));
        assert_eq!(markdown::read(&markdown::write(&form)), Some(form));
    }
}

/// Every name comes back from its header; two names never share a public name.
pub fn names(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let header = mcp_name::encode(&text);
    assert_eq!(mcp_name::decode(&header).as_deref(), Some(&*text));
    let _ = mcp_name::decode(&text);
    let (one, other) = text.split_once('\n').unwrap_or((&text, ""));
    let naming = Naming::new("__", 128);
    for (left, right) in [("a", "a"), ("a", "b"), ("a-1", "a")] {
        let public = |prefix: &str, raw: &str| naming.public(&Prefix::parse(prefix)?, raw).ok();
        if let (Some(first), Some(second)) = (public(left, one), public(right, other)) {
            assert_eq!(first == second, (left, one) == (right, other), "{first} {second}");
        }
    }
}

/// An answer of a guard's hook changes texts of the document, and nothing else of it.
pub fn hook_answer(data: &[u8]) {
    let document = r#"{"messages":[{"role":"user","content":{"type":"text","text":"a","a/b~c":"d"}},
        {"role":"user","content":{"type":"resource","resource":{"uri":"a:b","blob":"AAAA"}}}]}"#;
    let document = Document::parse(document.as_bytes().to_vec(), DEPTH).expect("a result");
    match hook_answer::decision(data.to_vec(), &document, Texts::Content) {
        Err(rule) => assert!(rule.len() < 200),
        Ok(Decision::Allowed) => {}
        Ok(Decision::Denied { code, advice }) => {
            assert!((1..=64).contains(&code.len()) && advice.len() <= 256);
        }
        Ok(Decision::Masked(_, masked)) => {
            let [before, mut after] = [&document, &masked]
                .map(|own| serde_json::from_str::<Value>(own.json().text()).expect("JSON"));
            let texts = ["/messages/0/content/text", "/messages/0/content/a~1b~0c"];
            for pointer in texts.into_iter().chain(["/messages/1/content/resource/uri"]) {
                let text = after.pointer_mut(pointer).expect("each member is there");
                assert!(text.is_string());
                *text = before.pointer(pointer).expect("each member is there").clone();
            }
            assert_eq!(before, after);
        }
    }
}

/// Header lines, an empty line, and a body: a delivery with a signature of ours has none with
/// another body.
pub fn hooks(data: &[u8]) {
    const NOW: UnixSeconds = UnixSeconds(1_795_710_400);
    let end = data.windows(2).position(|pair| pair == b"\n\n").unwrap_or(data.len());
    let (head, body) = (&data[..end], data.get(end + 2..).unwrap_or_default());
    let mut headers = HeaderMap::new();
    for line in head.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let [name, value] = [(); 2].map(|()| parts.next().unwrap_or_default().trim_ascii());
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            headers.append(name, value);
        }
    }
    for key in HookKey::of_each_scheme(b"lab-secret") {
        if key.has_signed(&headers, body, NOW) && !key.is_sent_itself(&headers) {
            let other = [body, b" "].concat();
            assert!(!key.has_signed(&headers, &other, NOW));
        }
    }
}

/// No answer of a store has the gateway ask for what is no path of the store's interface.
pub fn stores(data: &[u8]) {
    let Ok(answer) = Json::parse(data, DEPTH) else { return };
    for (kind, root) in [("mlflow", "/api/2.0/"), ("phoenix", "/v1/"), ("langfuse", "/api/public/")]
    {
        let toml = format!(
            "[upstreams.s]\ntransport = \"{kind}\"\nurl = \"http://s.example\"\nlabels = [\"x\"]\n"
        );
        let config = Config::parse("g", &toml, Path::new(""), &[]).expect("a store");
        let Transport::Store(store) = &config.upstreams[0].transport else { panic!("no store") };
        for path in paths_after(store, answer) {
            let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
            let is_below =
                path.starts_with(root) && !path.split(['/', '?']).any(|part| part == "..");
            assert!(is_plain && is_below, "{path}");
        }
    }
}

/// A normal form is its own, and has no spelling that servers may read differently.
pub fn uris(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for spelling in text.lines() {
        let Some(form) = normal_form::normal(spelling) else { continue };
        assert_eq!(normal_form::normal(&form).as_ref(), Some(&form), "{spelling}");
        assert!(!uri::is_resolved(&form), "{form}");
    }
}

/// A file of labels is read whole or not at all; a move leaves a file that is read again, with the
/// label moved.
pub fn labels(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let moving = LabelMove {
        prompt: "refund".to_owned(),
        label: "candidate".to_owned(),
        version: Some(7),
        is_new: true,
        by: "ada".to_owned(),
        why: None,
    };
    let Ok((after, from)) = labels::moved(&text, &moving) else { return };
    let (before, after) = (LabelFile::parse(&text), LabelFile::parse(&after));
    let (before, mut after) = (before.expect("it was moved"), after.expect("it was written"));
    let labels = after.prompts.get_mut("refund").expect("its labels");
    assert_eq!(labels.insert("candidate".to_owned(), 0), Some(7));
    let known = before.prompts.get("refund").and_then(|labels| labels.get("candidate"));
    assert_eq!(known.copied(), from);
    let others = |file: &LabelFile| file.prompts.keys().filter(|name| *name != "refund").count();
    assert_eq!(others(&before), others(&after));
}

/// No bytes are a token of ours; a place that can be read is written as it was.
pub fn cursor(data: &[u8]) {
    if let Some(place) = PagePosition::decode(data) {
        assert_eq!(place.encode(), data);
    }
    let keys = SealKeys::new(vec![[7; 32]]).expect("one key");
    let sealer = Sealer::new(&keys);
    let token = String::from_utf8_lossy(data);
    let kinds = [TokenKind::Cursor, TokenKind::Event, TokenKind::Link];
    for kind in kinds.into_iter().chain([TokenKind::Session, TokenKind::State]) {
        assert_eq!(sealer.open(kind, "/mcp", &token), None);
    }
}

/// A state or link that can be read is written as it was.
pub fn state(data: &[u8]) {
    if let Some(link) = Link::decode(data) {
        assert_eq!(link.encode(), data);
    }
    if let Some(state) = RequestState::decode(data) {
        assert_eq!(state.encode(), data);
    }
}

/// A result that passes the checks still passes them once it is written for an older client, and a
/// server request that can be read can be written for each revision.
pub fn translate(data: &[u8]) {
    let Ok(document) = Document::parse(data.to_vec(), DEPTH) else {
        return;
    };
    let json = document.json();
    for revision in Revision::ALL {
        if let (Ok(()), Some(messages)) = (content::check_result(json), json.get("messages")) {
            let mut text = String::from("{\"messages\":");
            translate::write_messages(messages.elements(), "up__p", revision, &mut text);
            text.push('}');
            let written = Json::parse(text.as_bytes(), DEPTH + 2).expect("what we write is JSON");
            assert_eq!(content::check_result(written), Ok(()), "{text}");
        }
        for method in [ELICIT, SAMPLE, ROOTS] {
            if let Ok(server_request) = ServerRequest::read(method, Some(json)) {
                let mut text = String::new();
                let presentation = Presentation { upstream: "up", label: true, revision, id: "1" };
                server_request.write_params(presentation, &mut text);
                let written = Json::parse(text.as_bytes(), DEPTH).expect("what we write is JSON");
                let meta = written.get("_meta").and_then(|meta| meta.get("promptgate/upstream"));
                assert!(meta.is_some_and(|upstream| upstream.is("up")), "{text}");
            }
        }
    }
}

/// Policies of any text are read or refused, and those that are read are read again.
pub fn cedar(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let read = || RuleSet::default().add_file(&text).is_ok();
    assert_eq!(read(), read());
}

/// An entry is in a file of a host once, however often it is written.
pub fn host_file(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for format in [Format::Json, Format::Toml, Format::Yaml] {
        let place = FileEntry {
            file: None,
            format,
            container: "servers",
            entry: serde_json::json!({"url": "http://127.0.0.1/mcp"}),
            input: None,
        };
        if let Ok(written) = with_entry(&text, &place, "prompts") {
            assert_eq!(with_entry(&written, &place, "prompts").as_ref(), Ok(&written));
        }
    }
}

/// A key set has a key, or is refused.
pub fn jwks(data: &[u8]) {
    if let Ok(document) = serde_json::from_slice(data)
        && let Ok(keys) = KeySet::parse(&document)
    {
        assert!(!keys.ids().is_empty());
    }
}

/// A prompt of any file of an author, with its front matter and templates, is served within
/// `max_message`, or left out with a reason.
pub fn library(data: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.md"), data).expect("a file");
    fs::write(folder.path().join("b.txt"), "embedded").expect("a file");
    let settings = Settings { max_message: 16 << 10, ..Settings::default() };
    let snapshot =
        LibrarySnapshot::load(folder.path(), "lib", &settings, &LibraryLabels::default());
    let snapshot = snapshot.expect("a folder");
    for prompt in &snapshot.listed.prompts {
        let names = prompt.arguments.iter().map(|argument| argument.name.clone());
        let arguments: serde_json::Map<_, _> =
            names.map(|name| (name, "some words\nof a caller".into())).collect();
        let arguments = serde_json::Value::from(arguments).to_string();
        if let Ok(result) = snapshot.get(&prompt.name, Some(Json::accepted(&arguments)), None) {
            assert!(result.json().text().len() <= settings.max_message);
        }
    }
}

/// A lock file that can be read is read again as it is written, and so is the Markdown of a text.
pub fn lock(data: &[u8]) {
    let form = String::from_utf8_lossy(data);
    if let Some(text) = markdown::read(&form) {
        assert_eq!(markdown::write(&text), form);
    }
    if let Ok(lock) = Lock::parse(&String::from_utf8_lossy(data)) {
        let written = lock.to_text();
        assert_eq!(Lock::parse(&written).map(|lock| lock.to_text()), Ok(written));
    }
}

/// Answers of a collector are read or refused.
pub fn otlp(data: &[u8]) {
    let _ = trace::v1::ExportTraceServiceResponse::decode(data);
    let _ = metrics::v1::ExportMetricsServiceResponse::decode(data);
    let _ = logs::v1::ExportLogsServiceResponse::decode(data);
}
