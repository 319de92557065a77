//! Trace context (W3C Trace Context, W3C Baggage), in `_meta` members and in HTTP headers of the
//! same names.

use crate::json::Json;
use crate::json::object::ObjectWriter;

/// The trace context of a call. Every part is a safe header value.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Trace {
    /// `traceparent`
    pub parent: Option<String>,
    /// `tracestate`; `None` without `traceparent`, since both belong together.
    pub state: Option<String>,
    /// `baggage`
    pub baggage: Option<String>,
}

pub const PARENT: &str = "traceparent";
pub const STATE: &str = "tracestate";
pub const BAGGAGE: &str = "baggage";

/// The maximum length of `tracestate` in bytes: the length that W3C Trace Context asks every
/// implementation to propagate. A longer value is dropped.
const MAX_STATE: usize = 512;
/// The maximum length of `baggage` in bytes: the length that W3C Baggage asks every implementation
/// to propagate. A longer value is dropped.
const MAX_BAGGAGE: usize = 8192;

impl Trace {
    /// Reads the trace context from a request's `_meta`, or otherwise from its headers. Malformed
    /// parts are dropped.
    pub fn read<'a>(meta: Option<Json<'_>>, header: impl Fn(&str) -> Option<&'a str>) -> Self {
        let in_meta = |key: &str| {
            let text = meta?.get(key)?.as_str()?;
            Some(text.into_owned())
        };
        let in_header = |key: &str| header(key).map(str::to_owned);
        // `traceparent` and `tracestate` belong together: both are read from the same source.
        let source: &dyn Fn(&str) -> Option<String> =
            if in_meta(PARENT).is_some() { &in_meta } else { &in_header };
        let parent = source(PARENT).filter(|text| is_parent(text));
        let state = source(STATE).filter(|text| parent.is_some() && is_printable(text, MAX_STATE));
        let baggage = in_meta(BAGGAGE).or_else(|| in_header(BAGGAGE));
        Self { parent, state, baggage: baggage.filter(|text| is_printable(text, MAX_BAGGAGE)) }
    }

    /// Returns the id of the trace.
    pub fn id(&self) -> Option<&str> {
        self.parent.as_deref()?.split('-').nth(1)
    }

    /// Returns the present parts with their names.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let parts = [(PARENT, &self.parent), (STATE, &self.state), (BAGGAGE, &self.baggage)];
        parts.into_iter().filter_map(|(name, part)| Some((name, part.as_deref()?)))
    }

    /// Adds the present parts to a `_meta` object.
    pub fn write(&self, meta: &mut ObjectWriter<'_>) {
        for (name, part) in self.parts() {
            meta.text(name, part);
        }
    }
}

/// Returns whether `text` is `version-traceid-parentid-flags` in lower-case hexadecimal, with ids
/// that are not zero.
fn is_parent(text: &str) -> bool {
    let parts: Vec<_> = text.split('-').collect();
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let id = |part: &str, length| hex(part, length) && part.bytes().any(|b| b != b'0');
    match parts.as_slice() {
        [version, trace, parent, flags, rest @ ..] => {
            // Later versions may have more parts; an implementation of version 00 passes them on.
            let has_known_parts = *version != "00" || rest.is_empty();
            hex(version, 2)
                && *version != "ff"
                && id(trace, 32)
                && id(parent, 16)
                && hex(flags, 2)
                && has_known_parts
                && is_printable(text, 128)
        }
        _ => false,
    }
}

fn is_printable(text: &str, limit: usize) -> bool {
    !text.is_empty() && text.len() <= limit && text.bytes().all(|b| matches!(b, b' '..=b'~'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn read(meta: &str, headers: &[(&str, &'static str)]) -> Trace {
        let meta = Json::parse(meta.as_bytes(), 8).unwrap();
        let header = |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        Trace::read(Some(meta), header)
    }

    #[test]
    fn meta_comes_before_headers() {
        let other = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203332-00";
        let meta = format!(r#"{{"traceparent":"{GOOD}","baggage":"a=1"}}"#);
        let headers = [(PARENT, other), (STATE, "x=y")];
        let trace = read(&meta, &headers);
        assert_eq!(trace.parent.as_deref(), Some(GOOD));
        assert_eq!(trace.state, None, "the header's state belongs to the header's parent");
        assert_eq!(trace.parts().count(), 2);
        let trace = read("{}", &headers);
        assert_eq!((trace.parent.as_deref(), trace.state.as_deref()), (Some(other), Some("x=y")));
    }

    #[test]
    fn malformed_context_is_dropped() {
        for bad in [
            "",
            "00-0-0-00",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
        ] {
            let meta = format!(r#"{{"traceparent":"{bad}","tracestate":"a=b"}}"#);
            assert_eq!(read(&meta, &[]), Trace::default(), "{bad}");
        }
        let injected = read(r#"{"baggage":"a=1\r\nAuthorization: x"}"#, &[]);
        assert_eq!(injected, Trace::default());
        let long = format!(r#"{{"baggage":"{}"}}"#, "x".repeat(MAX_BAGGAGE));
        assert!(read(&long, &[]).baggage.is_some());
        let longer = format!(r#"{{"baggage":"{}"}}"#, "x".repeat(MAX_BAGGAGE + 1));
        assert!(read(&longer, &[]).baggage.is_none());
    }
}
