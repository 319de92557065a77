//! `[[overlays]]`: changes of the prompts that upstreams offer.

use serde_json::{Value, json};

use super::reader::Section;
use super::server::views::known_id;
use super::upstream::UpstreamSettings;
use domain::name::UpstreamId;
use domain::prompts::call_overlay::{AddedMessage, Preset};
pub(crate) use domain::prompts::overlay::{ArgumentChange, Change, Overlay, OverlayAction, Rename};
use domain::text::glob::{Glob, MAX_PATTERN};
use domain::uri::is_unsafe;

/// The keys of `[[overlays]]`.
const KEYS: &str = r#"
upstream, such as "remote": Id of the upstream.
prompt, such as "draft-*": Pattern of raw names, where `*` matches any text.
rename, such as "summary-{1}": Name in the place of the raw name. `{1}` is the text that the first
    `*` of `prompt` matched (the shortest possible), `{2}` that of the second. With a `*` in
    `prompt`, at least one of them is needed. The prompt is not available under its old name.
title, such as "Summary": Title in the place of the upstream's. `""` changes nothing.
description, such as "Summarises a text.": Description in the place of the upstream's. `""` changes
    nothing.
icons: Icons in the place of the upstream's, as in MCP 2025-11-25. `[]` changes nothing.
tags = [], such as ["support"]: Tags in the place of the upstream's. Clients get them as
    `_meta.tags`.
drop: `true` leaves the prompt out of the catalog. No other change beside it.
arguments: Changes of arguments that the prompt declares, by their names.
before: A text message before those of the upstream.
after: A text message after those of the upstream.
"#;

/// Reads all overlays, in the order of the file.
pub(super) fn read_all(
    root: &mut Section<'_>,
    upstreams: &[UpstreamSettings],
    disabled: &[UpstreamId],
) -> Vec<Overlay> {
    let mut overlays: Vec<Overlay> = Vec::new();
    for (index, mut section) in root.tables("overlays").into_iter().enumerate() {
        let overlay = read(index + 1, &mut section, upstreams, disabled);
        if let Some(overlay) = overlay {
            let found = overlays.iter().flat_map(|earlier| overlay.contradictions(earlier));
            found.for_each(|contradiction| section.mistake(&contradiction.key, contradiction.why));
            overlays.push(overlay);
        }
        section.finish();
    }
    overlays
}

fn read(
    number: usize,
    section: &mut Section<'_>,
    upstreams: &[UpstreamSettings],
    disabled: &[UpstreamId],
) -> Option<Overlay> {
    section.explain(KEYS);
    let named = section.unread_text("upstream");
    if named.is_some_and(|id| section.is_broken(&format!("upstreams.{id}"))) {
        section.ignore_rest();
        return None;
    }
    let mistakes = section.mistake_count();
    let ids: Vec<_> =
        upstreams.iter().map(|upstream| format!("{:?}", upstream.id.as_str())).collect();
    let rule = if ids.is_empty() {
        "the id of an upstream; the file has no upstream".to_owned()
    } else {
        format!("the id of an upstream: one of {}", ids.join(", "))
    };
    section.record_text("upstream", "the id of an upstream", None);
    let find = |id: &str| known_id(id, upstreams, disabled);
    let upstream = section.required("upstream", &rule, find);
    let rule = format!(
        "a pattern of raw names with 1 to {MAX_PATTERN} bytes; * stands for any characters"
    );
    let prompt = section.required("prompt", &rule, Glob::parse);
    let change = change(section, prompt.as_ref());
    let action = match (section.flag("drop", false), change == Change::default()) {
        (true, true) => OverlayAction::Drop,
        (true, false) => {
            section.mistake("drop", "removes the prompt; remove the other keys, or `drop`");
            return None;
        }
        (false, false) => OverlayAction::Change(Box::new(change)),
        (false, true) => {
            if section.mistake_count() == mistakes {
                section.mistake("", "changes nothing: set rename, title, description, icons, tags, arguments, before, after or drop");
            }
            return None;
        }
    };
    let (upstream, prompt): (UpstreamId, Glob) = upstream.zip(prompt)?;
    Some(Overlay { number, upstream, prompt, action })
}

/// Reads the changes of an overlay; empty texts and lists change nothing.
fn change(section: &mut Section<'_>, pattern: Option<&Glob>) -> Change {
    let text =
        |section: &mut Section<'_>, key| Some(section.text(key, "")).filter(|t| !t.is_empty());
    let rename = text(section, "rename").zip(pattern).and_then(|(rename, pattern)| {
        Rename::parse(&rename, pattern).map_err(|why| section.mistake("rename", why)).ok()
    });
    let change = Change {
        rename,
        title: text(section, "title"),
        description: text(section, "description"),
        icons: icons(section),
        tags: section.texts("tags"),
        arguments: arguments(section),
        before: message(section.section("before")),
        after: message(section.section("after")),
    };
    if change.tags.iter().any(String::is_empty) {
        section.mistake("tags", "must not hold an empty tag");
    }
    change
}

/// The keys of `arguments.NAME`.
const ARGUMENT_KEYS: &str = r#"
default, such as "en": Value that is sent where the client gives none. The argument is no longer
    required.
preset, such as "acme": Value that the gateway sets, a text or a secret. The argument is not listed,
    and a client that gives it gets `preset_argument`. The value is sent where the prompt declares
    the argument, and removed from error texts; a secret also from progress, completions and
    questions. If the upstream puts it into a prompt, clients see it.
choices, such as ["short", "long"]: The only values that are accepted; others get `no_choice`,
    unless `validate_arguments` is `false`. The gateway completes them. Clients get them as
    `_meta.choices`, and tools list them as `enum`.
required: `true`: clients must give a value, although the upstream needs none.
"#;

fn arguments(section: &mut Section<'_>) -> Vec<(String, ArgumentChange)> {
    let mut arguments = Vec::new();
    for (name, mut section) in section.sections("arguments") {
        section.explain(ARGUMENT_KEYS);
        section.reject_empty(&["choices"]);
        let argument = ArgumentChange {
            default: section.optional_text("default"),
            preset: section.text_or_secret("preset").map(|secret| Preset {
                is_secret: !secret.is_plain(),
                value: secret.expose().to_owned(),
            }),
            choices: Some(section.texts("choices")).filter(|choices| !choices.is_empty()),
            is_required: section.flag("required", false),
        };
        if section.was_read("required") && !argument.is_required {
            section.mistake(
                "required",
                "can only be true; an argument with a default is not required",
            );
        }
        if let Some(why) = argument.contradiction(&argument) {
            section.mistake("", why);
        }
        section.finish();
        arguments.push((name, argument));
    }
    arguments
}

/// The keys of one icon.
const ICON_KEYS: &str = r#"
src, such as "https://example.com/icon.png": URI of the image.
mimeType, such as "image/png": Its media type.
sizes = [], such as ["48x48"]: Its sizes.
theme, such as "dark": Background that it is for: `light` or `dark`.
"#;

/// Reads `icons = [{ src = "https://…", mimeType = "image/png", sizes = ["48x48"], theme = "dark"
/// }]` (MCP 2025-11-25, icons).
fn icons(section: &mut Section<'_>) -> Option<String> {
    let mut icons = Vec::new();
    for mut icon in section.tables("icons") {
        icon.explain(ICON_KEYS);
        let rule = "an https, http or data URI of an image";
        let src = icon.required("src", rule, |src| {
            (!src.is_empty() && !is_unsafe(src)).then(|| src.to_owned())
        });
        let mut members = json!({ "src": src.unwrap_or_default() });
        if let Some(media_type) = icon.optional_text("mimeType") {
            members["mimeType"] = media_type.into();
        }
        let sizes = icon.texts("sizes");
        if !sizes.is_empty() {
            members["sizes"] = sizes.into();
        }
        let theme = icon.parsed("theme", "\"light\" or \"dark\"", |theme| {
            matches!(theme, "light" | "dark").then(|| theme.to_owned())
        });
        if let Some(theme) = theme {
            members["theme"] = theme.into();
        }
        icon.finish();
        icons.push(members);
    }
    (!icons.is_empty()).then(|| Value::from(icons).to_string())
}

/// The keys of `before` and `after`.
const MESSAGE_KEYS: &str = r#"
role: Role of the message: `user` or `assistant`.
text, such as "Answer as the support team of Acme.": Text of the message. Required.
"#;

/// Reads `{ role = "user", text = "…" }`; `None` for an empty table.
fn message(mut section: Section<'_>) -> Option<AddedMessage> {
    section.explain(MESSAGE_KEYS);
    let is_given = section.has("role") || section.has("text");
    let role = section.choice("role", "user", &[("user", "user"), ("assistant", "assistant")]);
    let text = section.text("text", "");
    if is_given && text.is_empty() {
        section.mistake("text", "is required: the text of the message");
    }
    section.finish();
    (!text.is_empty()).then(|| AddedMessage::new(role, &text))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::schema_check;

    const UPSTREAMS: &str = "[upstreams.a]\ntransport = \"library\"\npath = \"src\"\n\
                             [upstreams.b]\ntransport = \"library\"\npath = \"src\"\n";

    fn parse(overlays: &str) -> Result<Vec<Overlay>, String> {
        let text = format!("{UPSTREAMS}{overlays}");
        let config = schema_check::parse(
            "g",
            &text,
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")),
            &[],
        );
        config.map(|config| config.overlays).map_err(|error| error.to_string())
    }

    const OVERLAY: &str = "[[overlays]]\nupstream = \"a\"\nprompt = \"x*\"\n";

    #[test]
    fn every_key_is_read() {
        let overlays = parse(&format!(
            "{OVERLAY}rename = \"y{{1}}\"\ntitle = \"T\"\ndescription = \"D\"\ntags = [\"t\"]\n\
             icons = [{{ src = \"https://example.com/i.png\", sizes = [\"48x48\"], theme = \"dark\" }}]\n\
             arguments.one = {{ default = \"en\", choices = [\"en\", \"de\"] }}\n\
             arguments.two = {{ preset = \"acme\" }}\narguments.three = {{ required = true }}\n\
             before = {{ role = \"assistant\", text = \"B\" }}\nafter = {{ text = \"A\" }}\n\
             [[overlays]]\nupstream = \"b\"\nprompt = \"*\"\ndrop = true\n"
        ))
        .unwrap();
        let OverlayAction::Change(change) = &overlays[0].action else { panic!("{overlays:?}") };
        assert_eq!(
            change.icons.as_deref(),
            Some(r#"[{"src":"https://example.com/i.png","sizes":["48x48"],"theme":"dark"}]"#)
        );
        assert_eq!(change.before, Some(AddedMessage::new("assistant", "B")));
        assert_eq!(change.after, Some(AddedMessage::new("user", "A")));
        assert_eq!(change.arguments.len(), 3);
        assert!(!format!("{change:?}").contains("acme"));
        assert_eq!((&overlays[1].action, overlays[1].number), (&OverlayAction::Drop, 2));
        let empty = format!(
            "{OVERLAY}title = \"\"\nicons = []\ntags = []\ndrop = false\nafter = {{}}\nrename = \"z{{1}}\"\n"
        );
        let OverlayAction::Change(change) = &parse(&empty).unwrap()[0].action else { panic!() };
        assert_eq!((&change.title, &change.icons, &change.after), (&None, &None, &None));
    }

    #[test]
    fn contradictions_and_mistakes_are_reported_where_they_are() {
        let other = "[[overlays]]\nupstream = \"a\"\n";
        for (text, expected) in [
            (
                "[[overlays]]\nupstream = \"c\"\nprompt = \"x\"\n".to_owned(),
                "overlays.1.upstream: must be the id of an upstream",
            ),
            (OVERLAY.to_owned(), "overlays.1: changes nothing"),
            (
                format!("{OVERLAY}drop = true\ntitle = \"T\"\n"),
                "overlays.1.drop: removes the prompt",
            ),
            (format!("{OVERLAY}rename = \"y\"\n"), "overlays.1.rename: must hold {1}"),
            (
                format!("{OVERLAY}arguments.l = {{ preset = \"x\", default = \"y\" }}\n"),
                "overlays.1.arguments.l: a preset argument is not for clients",
            ),
            (
                format!("{OVERLAY}arguments.l = {{ required = true, default = \"y\" }}\n"),
                "overlays.1.arguments.l: a required argument needs no default",
            ),
            (
                format!("{OVERLAY}arguments.l = {{ choices = [\"x\"], default = \"y\" }}\n"),
                "overlays.1.arguments.l: the default must be one of the choices",
            ),
            (
                format!("{OVERLAY}arguments.l = {{ choices = [] }}\n"),
                "overlays.1.arguments.l.choices: must hold",
            ),
            (
                format!("{OVERLAY}arguments.l = {{ required = false }}\n"),
                "overlays.1.arguments.l.required: can only be true",
            ),
            (
                format!("{OVERLAY}icons = [{{ src = \"javascript:x\" }}]\n"),
                "overlays.1.icons.1.src: must be an https",
            ),
            (
                format!("{OVERLAY}before = {{ role = \"system\", text = \"x\" }}\n"),
                "overlays.1.before.role: must be one of",
            ),
            (
                format!("{OVERLAY}before = {{ role = \"user\" }}\n"),
                "overlays.1.before.text: is required",
            ),
            (
                format!("{OVERLAY}title = \"A\"\n{OVERLAY}title = \"B\"\n"),
                "overlays.2.title: is set by an earlier overlay",
            ),
            (
                format!("{OVERLAY}title = \"A\"\n{OVERLAY}drop = true\n"),
                "overlays.2: an earlier overlay has the same pattern",
            ),
            (
                format!(
                    "{OVERLAY}arguments.l = {{ preset = \"x\" }}\n{other}prompt = \"*y\"\narguments.l = {{ default = \"y\" }}\n"
                ),
                "overlays.2.arguments.l: a preset argument is not for clients",
            ),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(expected), "{error}\n{expected}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        for text in [
            format!("{OVERLAY}title = \"A\"\n{other}prompt = \"xy\"\ntitle = \"B\"\n"),
            format!("{OVERLAY}title = \"A\"\n{OVERLAY}description = \"B\"\n"),
            format!(
                "{OVERLAY}arguments.l = {{ preset = \"x\" }}\n{other}prompt = \"y*\"\narguments.l = {{ default = \"y\" }}\n"
            ),
        ] {
            assert_eq!(parse(&text).map(|overlays| overlays.len()), Ok(2));
        }
    }
}
