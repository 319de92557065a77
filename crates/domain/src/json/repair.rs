//! Repairs: changes that make messages of upstreams acceptable. The client SDKs deliver such
//! messages unrepaired; a gateway must forward messages that every client can read.

/// A kind of repair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RepairKind {
    /// Bytes or escapes that stand for no character became U+FFFD.
    Text,
    /// A member of the wrong type was left out of the definition of a prompt.
    MemberLeftOut,
    /// A definition that cannot be listed was left out of its list.
    PromptLeftOut,
    /// A session that the upstream had lost was opened again.
    SessionRenewed,
    /// Base64 was written in its canonical form.
    Base64,
    /// A URI was percent-encoded.
    Uri,
    /// A MIME type was replaced.
    MimeType,
    /// An empty array was read as an empty object.
    EmptyObject,
    /// The list was ended at a cursor that names no page.
    Cursor,
    /// An empty member was left out next to the member with the content.
    EmptyMember,
    /// A list that was written as `null` or as an empty object became an empty list.
    EmptyList,
    /// The id of a response was read in another JSON type than that of the request.
    Id,
}

impl RepairKind {
    /// All kinds, in the order of their declaration.
    pub const ALL: [Self; 12] = [
        Self::Text,
        Self::MemberLeftOut,
        Self::PromptLeftOut,
        Self::SessionRenewed,
        Self::Base64,
        Self::Uri,
        Self::MimeType,
        Self::EmptyObject,
        Self::Cursor,
        Self::EmptyMember,
        Self::EmptyList,
        Self::Id,
    ];

    /// Returns the name in metrics, in the admin API and in `promptgate check --dial`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::MemberLeftOut => "member_left_out",
            Self::PromptLeftOut => "prompt_left_out",
            Self::SessionRenewed => "session_renewed",
            Self::Base64 => "base64",
            Self::Uri => "uri",
            Self::MimeType => "mime_type",
            Self::EmptyObject => "empty_object",
            Self::Cursor => "cursor",
            Self::EmptyMember => "empty_member",
            Self::EmptyList => "empty_list",
            Self::Id => "id",
        }
    }

    /// Describes the repaired mistake, for the log.
    pub fn what(self) -> &'static str {
        match self {
            Self::Text => "bytes or escapes that stand for no character",
            Self::MemberLeftOut => "a member of the wrong type",
            Self::PromptLeftOut => "a prompt that cannot be listed",
            Self::SessionRenewed => "a lost session",
            Self::Base64 => "base64 with line breaks, or without padding",
            Self::Uri => "a URI with characters that must be percent-encoded",
            Self::MimeType => "a malformed MIME type",
            Self::EmptyObject => "an array instead of an empty object",
            Self::Cursor => "a cursor that names no page",
            Self::EmptyMember => "an empty member beside the content",
            Self::EmptyList => "a null or an object instead of an empty list",
            Self::Id => "the id of a request in another JSON type",
        }
    }
}

/// The kinds of repair that were made in one message.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RepairKinds(u16);

impl RepairKinds {
    /// Adds a kind.
    pub fn add(&mut self, kind: RepairKind) {
        self.0 |= 1 << kind as u16;
    }

    /// Returns the kinds, each once.
    pub fn iter(self) -> impl Iterator<Item = RepairKind> {
        RepairKind::ALL.into_iter().filter(move |kind| self.0 & (1 << *kind as u16) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_kept_once_and_in_order() {
        for (index, kind) in RepairKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
        let mut kinds = RepairKinds::default();
        for kind in [RepairKind::Cursor, RepairKind::Text, RepairKind::Cursor] {
            kinds.add(kind);
        }
        assert_eq!(kinds.iter().collect::<Vec<_>>(), [RepairKind::Text, RepairKind::Cursor]);
    }
}
