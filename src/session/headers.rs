//! The headers of MCP as the transport received them.

use crate::domain::trace;

/// A header that may come once.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Field<'a> {
    #[default]
    Absent,
    /// One value, without white space around it.
    Once(&'a str),
    /// Several values, or one that is no visible ASCII: nothing may be read into it.
    Unreadable,
}

/// What MCP puts into the head of a request.
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
    /// `traceparent`, `tracestate`, `baggage`
    pub trace: [Field<'a>; 3],
}

impl<'a> Headers<'a> {
    /// A header of the trace context, by its name.
    pub fn trace(&self, name: &str) -> Option<&'a str> {
        let names = [trace::PARENT, trace::STATE, trace::BAGGAGE];
        let at = names.iter().position(|known| *known == name)?;
        self.trace[at].value()
    }
}

impl<'a> Field<'a> {
    pub fn value(self) -> Option<&'a str> {
        match self {
            Field::Once(value) => Some(value),
            Field::Absent | Field::Unreadable => None,
        }
    }

    pub fn is_absent(self) -> bool {
        self == Field::Absent
    }
}
