//! Properties that hold for any bytes. The fuzz targets call these, and `cargo test` replays the
//! corpus through them (`tests/corpus.rs`).

use base::seal::{SealKeys, Sealer, TokenKind};
use domain::content;
use domain::cursor::PagePosition;
use domain::document::Document;
use domain::json::{Json, JsonError};
use domain::jsonrpc::Frame;
use domain::mcp_name;
use domain::name::{Naming, Prefix};
use domain::request_state::RequestState;
use domain::revision::Revision;
use domain::server_request::{ELICIT, Presentation, ROOTS, SAMPLE, ServerRequest};
use domain::translate;
use domain::{line_decoder, sse_decoder};

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

/// No bytes are a token of ours; a place that can be read is written as it was.
pub fn cursor(data: &[u8]) {
    if let Some(place) = PagePosition::decode(data) {
        assert_eq!(place.encode(), data);
    }
    let keys = SealKeys::new(vec![[7; 32]]).expect("one key");
    let sealer = Sealer::new(&keys);
    let token = String::from_utf8_lossy(data);
    for kind in [TokenKind::Cursor, TokenKind::Event, TokenKind::Session, TokenKind::State] {
        assert_eq!(sealer.open(kind, "/mcp", &token), None);
    }
}

/// A state that can be read is written as it was.
pub fn state(data: &[u8]) {
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
