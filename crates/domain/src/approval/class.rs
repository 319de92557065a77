//! Classes of approvals: the parts of a get that are compared with the approved version.

use super::Version;

/// The class of an approved version.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Class {
    /// The definition alone.
    Definition,
    /// The definition, and texts for fixed arguments.
    Text,
    /// The definition, and one text with placeholders for arguments.
    Template,
    /// The definition, and several texts: at least one has placeholders, or several are for the
    /// same arguments.
    Variants,
    /// The definition, and the source of a library prompt.
    Source,
    /// The entry of a skill, and its files.
    Files,
}

impl Class {
    /// Returns the name of the class in commands and in the admin API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Definition => "definition",
            Self::Text => "text",
            Self::Template => "template",
            Self::Variants => "variants",
            Self::Source => "source",
            Self::Files => "files",
        }
    }

    /// Says in one sentence which parts are compared.
    pub fn compared(self) -> &'static str {
        match self {
            Self::Definition => {
                "Compared at each list: the definition, which is name, description and arguments."
            }
            Self::Text => {
                "Compared at each get with these arguments: every message; and the definition at each list."
            }
            Self::Template => {
                "Compared at each get: every message, with the caller's values where {{ name }} stands; and the \
                 definition at each list."
            }
            Self::Variants => {
                "Compared at each get: every message, with one of the approved texts for the arguments that are given, \
                 and the caller's values where {{ name }} stands; and the definition at each list."
            }
            Self::Source => {
                "Compared at each get, whatever its arguments: the file and the files that it embeds; and the \
                 definition at each list."
            }
            Self::Files => {
                "Compared at each list: the front matter, and the digest and size of each file; at each read, the file."
            }
        }
    }

    /// Says in one sentence which parts are not compared.
    pub fn not_compared(self) -> &'static str {
        match self {
            Self::Definition => {
                "Not compared: any text, so the upstream can answer each get as it likes."
            }
            Self::Text => {
                "Not compared: gets with other arguments that the prompt declares, and contents behind links."
            }
            Self::Template | Self::Variants => {
                "Not compared: the values that callers give, and contents behind links."
            }
            Self::Source | Self::Files => "Not compared: contents behind links.",
        }
    }
}

impl Version {
    /// Returns the class of an approval of this version.
    pub fn class(&self) -> Class {
        let texts = self.texts.len() + self.variants.len();
        if !self.files.is_empty() {
            return Class::Files;
        }
        match (&self.source, texts) {
            (Some(_), _) => Class::Source,
            (None, 0) => Class::Definition,
            (None, 1) if self.has_templates() => Class::Template,
            (None, _) if self.has_templates() || !self.variants.is_empty() => Class::Variants,
            (None, _) => Class::Text,
        }
    }
}
