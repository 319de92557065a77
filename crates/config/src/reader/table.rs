//! Declaration of a table of the configuration: its struct, its keys with their meanings, and its
//! reader, in one place.

/// Declares a table as a struct whose fields are read from keys of the same names.
///
/// ```text
/// table! {
///     /// `[listing]`: how lists are merged and served.
///     #[derive(Debug)]
///     pub struct Listing(section, key) {
///         /// Prompts on one page of `prompts/list`.
///         pub page_size: usize = section.count(key, 1_000, 1..=100_000);
///     }
/// }
/// ```
///
/// `Listing::read_keys` then reads the keys in this order, where `key` is the name of each. Further
/// parameters of the struct are parameters of `read_keys`. A later key may use the value of an
/// earlier one. `Listing::read_table` also ends the table: other keys are unknown.
///
/// The comment of a key is its meaning, as in [`meaning`](super::meaning); paragraphs after the
/// first are for developers only. `#[default = …]` is a default that the call does not state, and
/// `#[example = …]` a value where there is no default.
///
/// - `field` begins a field that is no key.
/// - `let` begins a key that is no field.
/// - `required` begins a key whose value is an `Option`: without it there is no table, and
///   `read_keys` of a `struct … -> Option` returns `None`.
/// - `[…]` after a type is the value in `Default`, for a `struct … -> Default`.
macro_rules! table {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident($section:ident, $key:ident $(, $param:ident: $kind:ty)* $(,)?)
        $(-> $mode:ident)? { $($body:tt)* }
    ) => {
        table! { @keys [$(#[$meta])* $vis] $name ($section, $key $(, $param: $kind)*) [$($mode)?]
            [] [] [] [] $($body)* }
    };
    // A field that is no key.
    (@keys $head:tt $name:ident $params:tt $mode:tt
        [$($fields:tt)*] [$($reads:tt)*] [$($names:tt)*] [$($defaults:tt)*]
        $(#[doc = $doc:literal])*
        field $vis:vis $field:ident: $type:ty $([$default:expr])? = $value:expr; $($rest:tt)*
    ) => {
        table! { @keys $head $name $params $mode
            [$($fields)* $(#[doc = $doc])* $vis $field: $type,]
            [$($reads)* let $field: $type = $value;]
            [$($names)* $field,] [$($defaults)* $($field: $default,)?] $($rest)* }
    };
    // A key that is no field.
    (@keys $head:tt $name:ident ($section:ident, $key:ident $($params:tt)*) $mode:tt
        $fields:tt [$($reads:tt)*] $names:tt $defaults:tt
        $(#[doc = $doc:literal])* $(#[default = $known:tt])? $(#[example = $example:tt])?
        let $field:ident: $type:ty = $value:expr; $($rest:tt)*
    ) => {
        table! { @keys $head $name ($section, $key $($params)*) $mode $fields
            [$($reads)* table! { @read $section $key $field [$type] [$value]
                [$($doc)*] [$($known)?] [$($example)?] }]
            $names $defaults $($rest)* }
    };
    // A key without which there is no table.
    (@keys $head:tt $name:ident ($section:ident, $key:ident $($params:tt)*) $mode:tt
        [$($fields:tt)*] [$($reads:tt)*] [$($names:tt)*] $defaults:tt
        $(#[doc = $doc:literal])* $(#[default = $known:tt])? $(#[example = $example:tt])?
        required $vis:vis $field:ident: $type:ty = $value:expr; $($rest:tt)*
    ) => {
        table! { @keys $head $name ($section, $key $($params)*) $mode
            [$($fields)* $(#[doc = $doc])* $vis $field: $type,]
            [$($reads)* table! { @read $section $key $field [Option<$type>] [$value]
                [$($doc)*] [$($known)?] [$($example)?] }]
            [$($names)* $field: $field?,] $defaults $($rest)* }
    };
    // A key that is a field.
    (@keys $head:tt $name:ident ($section:ident, $key:ident $($params:tt)*) $mode:tt
        [$($fields:tt)*] [$($reads:tt)*] [$($names:tt)*] [$($defaults:tt)*]
        $(#[doc = $doc:literal])* $(#[default = $known:tt])? $(#[example = $example:tt])?
        $vis:vis $field:ident: $type:ty $([$default:expr])? = $value:expr; $($rest:tt)*
    ) => {
        table! { @keys $head $name ($section, $key $($params)*) $mode
            [$($fields)* $(#[doc = $doc])* $vis $field: $type,]
            [$($reads)* table! { @read $section $key $field [$type] [$value]
                [$($doc)*] [$($known)?] [$($example)?] }]
            [$($names)* $field,] [$($defaults)* $($field: $default,)?] $($rest)* }
    };
    (@keys [$($head:tt)*] $name:ident ($section:ident, $key:ident $(, $param:ident: $kind:ty)*)
        [$($mode:ident)?] [$($fields:tt)*] [$($reads:tt)*] $names:tt $defaults:tt
    ) => {
        $($head)* struct $name { $($fields)* }

        impl $name {
            /// Reads the keys of the table; the caller checks rules between keys.
            fn read_keys(
                $section: &mut $crate::reader::Section<'_>
                $(, $param: $kind)*
            ) -> table!(@result $($mode)?) {
                $($reads)*
                table!(@made $names $($mode)?)
            }

            /// Reads the whole table, where there are no such rules.
            #[allow(dead_code, reason = "many tables have rules between keys")]
            pub(crate) fn read_table(
                mut $section: $crate::reader::Section<'_>
                $(, $param: $kind)*
            ) -> table!(@result $($mode)?) {
                let table = Self::read_keys(&mut $section $(, $param)*);
                $section.finish();
                table
            }
        }

        table! { @default $name $defaults $($mode)? }
    };
    (@read $section:ident $key:ident $field:ident [$type:ty] [$value:expr]
        [$($doc:literal)*] [$($known:tt)?] [$($example:tt)?]
    ) => {
        $section.explain_key(concat!(
            stringify!($field),
            $(" = ", stringify!($known),)?
            $(", such as ", stringify!($example),)?
            ":", $($doc, "\n",)*
        ));
        let $field: $type = {
            #[allow(unused_variables, reason = "some values are read by functions of one key")]
            let $key = stringify!($field);
            $value
        };
    };
    (@result) => { Self };
    (@result Default) => { Self };
    (@result Option) => { Option<Self> };
    (@made [$($names:tt)*]) => { Self { $($names)* } };
    (@made [$($names:tt)*] Default) => { Self { $($names)* } };
    (@made [$($names:tt)*] Option) => { Some(Self { $($names)* }) };
    (@default $name:ident [$($defaults:tt)*] Default) => {
        impl Default for $name {
            fn default() -> Self {
                Self { $($defaults)* }
            }
        }
    };
    (@default $($other:tt)*) => {};
}

pub(crate) use table;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::Path;

    use serde_json::json;

    use crate::reader::raw::Raw;
    use crate::reader::{Context, Section};

    table! {
        /// A table with a key of each form.
        #[derive(Debug, PartialEq)]
        struct Shelf(section, key, owner: &str) -> Option {
            /// Name of the shelf.
            required name: String = section.required(key, "a name", |text| Some(text.to_owned()));
            /// Boards of the shelf.
            ///
            /// Never more than the wall is high.
            boards: usize = section.count(key, 3, 1..=9);
            /// Colours of the paint.
            #[default = ["white"]] #[example = ["red", "blue"]]
            let paint: Vec<String> = section.texts(key);
            /// Whether it was painted.
            field is_painted: bool = !paint.is_empty();
            field owner: String = owner.to_owned();
        }
    }

    table! {
        #[derive(Debug, PartialEq)]
        struct Board(section, key, base: &Self) -> Default {
            /// Length of the board.
            length: usize [80] = section.count(key, base.length, 1..=900);
            field is_new: bool [true] = false;
        }
    }

    /// Reads a table from TOML; returns it with its mistakes and the schema of its keys.
    fn read<T>(
        toml: &str,
        read: impl FnOnce(&mut Section<'_>) -> T,
    ) -> (T, String, serde_json::Value) {
        let raw = Raw::read("g", toml, []).unwrap();
        let recorder = Some(RefCell::default());
        let context = Context { recorder, ..Context::new(raw.origins, &|_| None, Path::new("")) };
        let mut section = Section::root(raw.root, &context);
        let table = read(&mut section);
        section.finish();
        let schema = context.recorder.map(RefCell::into_inner).unwrap_or_default().schema();
        let mistakes = context.mistakes.into_result("g", &[]).err();
        (table, mistakes.map(|error| error.to_string()).unwrap_or_default(), schema)
    }

    #[test]
    fn one_declaration_is_a_struct_its_reader_and_the_meaning_of_its_keys() {
        let toml = "name = \"tall\"\npaint = [\"red\"]\n";
        let (shelf, mistakes, schema) = read(toml, |section| Shelf::read_keys(section, "library"));
        let expected = Shelf {
            name: "tall".to_owned(),
            boards: 3,
            is_painted: true,
            owner: "library".to_owned(),
        };
        assert_eq!((shelf, mistakes.as_str()), (Some(expected), ""));
        let keys = &schema["properties"];
        assert_eq!(keys["boards"]["description"], "Boards of the shelf.");
        assert_eq!(keys["boards"]["default"], 3);
        assert_eq!(keys["paint"]["default"], json!(["white"]));
        assert_eq!(keys["name"]["description"], "Name of the shelf. Must be a name.");
        assert!(keys["is_painted"].is_null() && schema["required"] == json!(["name"]));
    }

    #[test]
    fn without_a_required_key_all_keys_are_read_and_there_is_no_table() {
        let (shelf, mistakes, _) =
            read("boards = 10\nsize = 1\n", |section| Shelf::read_keys(section, ""));
        assert_eq!(shelf, None);
        for mistake in ["name: is required", "boards: must be a whole number", "size: unknown"] {
            assert!(mistakes.contains(mistake), "{mistakes}");
        }
    }

    #[test]
    fn a_default_is_the_base_of_what_is_read() {
        assert_eq!(Board::default(), Board { length: 80, is_new: true });
        let (board, _, schema) =
            read("", |section| Board::read_keys(section, &Board { length: 7, is_new: true }));
        assert_eq!(board, Board { length: 7, is_new: false });
        assert_eq!(schema["properties"]["length"]["default"], 7);
    }
}
