//! Writers that append JSON objects and arrays to a text.

use std::fmt::{Display, Write as _};

use super::{Json, write_str};

/// Writer of the members of one JSON object. The writer adds the commas; its user must not write a
/// key twice.
#[derive(Debug)]
pub struct ObjectWriter<'a> {
    out: &'a mut String,
    /// Whether no member is written yet.
    is_empty: bool,
}

/// Appends an object with the members that `write` adds.
pub fn write_object(out: &mut String, write: impl FnOnce(&mut ObjectWriter<'_>)) {
    out.push('{');
    write_members(out, write);
    out.push('}');
}

/// Appends members without the braces, as [`ObjectWriter::members`] takes them.
pub fn write_members(out: &mut String, write: impl FnOnce(&mut ObjectWriter<'_>)) {
    write(&mut ObjectWriter { out, is_empty: true });
}

/// Appends members, each after a comma. `out` must end in an object that is not closed and has a
/// member.
pub(crate) fn append_members(out: &mut String, write: impl FnOnce(&mut ObjectWriter<'_>)) {
    write(&mut ObjectWriter { out, is_empty: false });
}

/// Appends an array. `write` appends the element for each item.
pub(crate) fn write_array<T>(
    out: &mut String,
    items: impl IntoIterator<Item = T>,
    write: impl Fn(T, &mut String),
) {
    out.push('[');
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write(item, out);
    }
    out.push(']');
}

impl ObjectWriter<'_> {
    /// Adds a string.
    pub fn text(&mut self, key: &str, text: &str) -> &mut Self {
        self.written(key, |out| write_str(text, out))
    }

    /// Adds a value that is JSON text.
    pub fn json(&mut self, key: &str, json: &str) -> &mut Self {
        self.written(key, |out| out.push_str(json))
    }

    /// Adds a value whose `Display` is JSON text: an integer or a boolean.
    pub fn display(&mut self, key: &str, value: impl Display) -> &mut Self {
        self.written(key, |out| {
            // Writing to a string cannot fail.
            let _ = write!(out, "{value}");
        })
    }

    /// Adds the value that `write` appends.
    pub fn written(&mut self, key: &str, write: impl FnOnce(&mut String)) -> &mut Self {
        self.comma();
        write_str(key, self.out);
        self.out.push(':');
        write(self.out);
        self
    }

    /// Adds an object.
    pub fn object(&mut self, key: &str, write: impl FnOnce(&mut ObjectWriter<'_>)) -> &mut Self {
        self.written(key, |out| write_object(out, write))
    }

    /// Adds an object, unless `write` adds no member to it.
    pub fn object_unless_empty(
        &mut self,
        key: &str,
        write: impl FnOnce(&mut ObjectWriter<'_>),
    ) -> &mut Self {
        let start = self.out.len();
        let was_empty = self.is_empty;
        self.object(key, write);
        if self.out.ends_with(":{}") {
            self.out.truncate(start);
            self.is_empty = was_empty;
        }
        self
    }

    /// Adds an array. `write` appends the element for each item.
    pub fn array<T>(
        &mut self,
        key: &str,
        items: impl IntoIterator<Item = T>,
        write: impl Fn(T, &mut String),
    ) -> &mut Self {
        self.written(key, |out| write_array(out, items, write))
    }

    /// Copies a member of a scanned object. The key keeps its spelling.
    pub fn member(&mut self, key: Json<'_>, value: Json<'_>) -> &mut Self {
        self.rewritten(key, |out| out.push_str(value.text()))
    }

    /// Adds the value that `write` appends, under a key of a scanned object.
    pub fn rewritten(&mut self, key: Json<'_>, write: impl FnOnce(&mut String)) -> &mut Self {
        self.comma();
        self.out.push_str(key.text());
        self.out.push(':');
        write(self.out);
        self
    }

    /// Adds all members of a text that [`write_members`] wrote.
    pub fn members(&mut self, members: &str) -> &mut Self {
        if !members.is_empty() {
            self.comma();
            self.out.push_str(members);
        }
        self
    }

    fn comma(&mut self) {
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(',');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_separated_and_empty_objects_can_be_omitted() {
        let mut members = String::new();
        write_members(&mut members, |o| {
            o.json("k", "[1]").text("l", "\"");
        });
        assert_eq!(members, r#""k":[1],"l":"\"""#);
        let mut out = String::new();
        write_object(&mut out, |o| {
            o.object_unless_empty("none", |_| {});
            o.members("").members(&members).display("n", 7).object("o", |_| {});
            o.object_unless_empty("none", |_| {});
            o.object_unless_empty("p", |p| {
                p.json("e", "{}");
            });
            o.array("a", ["x", "y"], write_str);
        });
        assert_eq!(out, r#"{"k":[1],"l":"\"","n":7,"o":{},"p":{"e":{}},"a":["x","y"]}"#);
        append_members(&mut members, |o| {
            o.text("m", "");
        });
        assert_eq!(members, r#""k":[1],"l":"\"","m":"""#);
    }
}
