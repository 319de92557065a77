//! The MCP headers of a request, as the transport received them (MCP 2025-11-25 and 2026-07-28,
//! Streamable HTTP).

use std::fmt;

use http::header::AsHeaderName;
use http::{HeaderMap, HeaderValue};

use domain::protocol::revision::{Era, Revision};
use domain::protocol::trace;

/// The value of a header that may occur once.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Field<'a> {
    #[default]
    Absent,
    /// One value, without surrounding white space.
    Once(&'a str),
    /// Several values, or a value that is not visible ASCII. It is treated as invalid, never as
    /// absent.
    Unreadable,
}

impl<'a> Field<'a> {
    /// Reads a header that may occur once. A repeated header is unreadable: readers behind the
    /// gateway might use another of its values.
    pub(crate) fn read(headers: &'a HeaderMap, name: impl AsHeaderName) -> Self {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (None, _) => Field::Absent,
            (Some(value), None) => Field::once(value),
            (Some(_), Some(_)) => Field::Unreadable,
        }
    }

    /// Reads the only value of a header.
    pub(crate) fn once(value: &'a HeaderValue) -> Self {
        match value.to_str() {
            Ok(text) => Field::Once(text.trim_matches([' ', '\t'])),
            Err(_) => Field::Unreadable,
        }
    }
}

/// The headers of one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Headers<'a> {
    /// `Mcp-Session-Id`
    pub session: Field<'a>,
    /// `MCP-Protocol-Version`
    pub version: Field<'a>,
    /// `Mcp-Method`
    pub method: Field<'a>,
    /// `Mcp-Name`
    pub name: Field<'a>,
    /// `traceparent`, `tracestate`, `baggage` (W3C Trace Context and Baggage)
    pub trace: [Field<'a>; 3],
    /// `Mcp-Param-*`
    pub params: ParamFields<'a>,
}

/// The headers that repeat arguments of tools, among all headers of a request.
#[derive(Clone, Copy, Default)]
pub struct ParamFields<'a>(pub Option<&'a HeaderMap>);

// The others may be credentials.
impl fmt::Debug for ParamFields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ParamFields")
    }
}

impl<'a> ParamFields<'a> {
    /// Returns a header by its name.
    pub fn get(self, name: &str) -> Field<'a> {
        self.0.map_or(Field::Absent, |headers| Field::read(headers, name))
    }
}

impl<'a> Headers<'a> {
    /// Returns a header of the trace context by its name.
    pub fn trace(&self, name: &str) -> Option<&'a str> {
        let names = [trace::PARENT, trace::STATE, trace::BAGGAGE];
        let at = names.iter().position(|known| *known == name)?;
        self.trace[at].value()
    }
}

impl<'a> Field<'a> {
    /// Returns the value, if there is exactly one and it is readable.
    pub fn value(self) -> Option<&'a str> {
        match self {
            Field::Once(value) => Some(value),
            Field::Absent | Field::Unreadable => None,
        }
    }

    /// Returns whether the request does not have the header at all.
    pub fn is_absent(self) -> bool {
        self == Field::Absent
    }
}

/// Returns whether the version header names a modern revision or an unknown one, or is unreadable.
pub(super) fn is_modern_version(headers: &Headers<'_>) -> bool {
    let version = headers.version.value().map(Revision::parse);
    match version {
        Some(Some(revision)) => revision.era() == Era::Modern,
        Some(None) => true,
        None => !headers.version.is_absent(),
    }
}
