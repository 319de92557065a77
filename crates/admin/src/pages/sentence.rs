//! Entries of the audit log as sentences.

use std::borrow::Cow;

use serde_json::Value;

use crate::console::page_of;
use crate::console::text::{Html, ShownText, digest};
use audit::search::{DENIED, EventKinds, LogEntry};
use domain::prompts::skill::{SCHEME, is_skill_uri};
use domain::text::percent::encoded_segment;

/// The sentences of events. `{…}` is a member, `{…:noun}` a number with its noun; a part in `[…]`
/// is left out if one of its members is missing, and text between `*` is bad news.
const SENTENCES: &[(&str, &str)] = &[
    ("account_revoked", "{by} ended what {caller} had of its own at {upstream}"),
    ("admin_login", "{by} signed in to the console[ as {role}][ from {address}]"),
    (
        "admin_login_failed",
        "A sign-in to the console[ by {by}][ from {address}] *failed*: {reason}",
    ),
    ("admin_logout", "{by} signed out of the console"),
    ("checkpoint", "The gateway signed {count:record}"),
    ("child_ended", "The process of {upstream} ended[ ({pid})]"),
    ("child_started", "The process of {upstream} started[ ({pid})]"),
    ("cluster_store_available", "The store of the cluster is *back*[ with {replicas:replica}]"),
    ("cluster_store_lost", "The store of the cluster *cannot be used*: {error}"),
    ("commit_refused", "A commit of {upstream} was *refused*: {reason}"),
    ("commit_served", "{upstream} serves the commit {commit}"),
    ("config_loaded", "The gateway started with the configuration {digest}"),
    ("config_rejected", "A configuration was *rejected* for {mistakes:mistake}"),
    ("config_reloaded", "The configuration was reloaded[: {digest}][ after {before}]"),
    ("definition_changed", "The definition of {prompt} changed[ by {overlays}]"),
    ("definitions_changed", "{count:definition} of {upstream} changed, from {first} to {last}"),
    ("driver_failed", "The connection task of {upstream} *failed*"),
    ("export_refused", "The collector *refused* a line of the log[, record {record}]: {why}"),
    ("gap", "{count:record} *could not be written*, from number {from_seq} on"),
    ("guard", "The guard {guard} examined {on} of {name}: *{outcome}*[, {code}][: {error}]"),
    (
        "label_moved",
        "The label {label} of {prompt} moved to version {to}[ by {by}][ ({via})][: {why}]",
    ),
    ("label_removed", "The label {label} of {prompt} was removed[ by {by}][ ({via})][: {why}]"),
    ("list_changed", "The list of prompts changed: {prompts:prompt}"),
    ("list_slowed", "The list of {upstream} changes again and again and is fetched less often"),
    ("log_replaced", "The audit log continues in another folder[: {by}]"),
    ("log_replaces", "The audit log continues that of {path}"),
    ("login_changed", "The sign-in of the gateway at {upstream} changed"),
    ("login_failed", "The gateway *cannot sign in* at {upstream}: {reason}"),
    ("login_forgotten", "The unused sign-in at {upstream} was removed"),
    ("nearly_full", "The disk of the audit log is *{percent} % full*"),
    ("omitted", "{count:record} of {of} *found no room*"),
    ("panic", "The gateway *panicked*; its own log has the place"),
    ("prompt_approved", "{by} approved {prompt}[: {why}]"),
    ("prompt_approved_by_one", "{by} approved {prompt} as the first of two people[: {why}]"),
    ("prompt_rejected", "{by} rejected {prompt}[: {why}]"),
    ("prompt_rolled_back", "{by} rolled back {prompt}[: {why}]"),
    ("prompt_state", "{prompt} is now {state}[, was {before}][: {reason}]"),
    ("prompt_states", "{count:state} of prompts of {upstream} changed, from {first} to {last}"),
    ("prompt_withdrawn", "{by} withdrew {prompt}[: {why}]"),
    ("recovered", "The audit log was recovered after a crash, behind record {last_seq}"),
    ("refused", "*Refused* {count:request} of {who}: {reason}[ ({by})]"),
    ("reload_requested", "{by} requested a reload[, and accepted the file {accepted}]"),
    (
        "removal_accepted",
        "{by} accepted that {upstream} lists {listed:prompt}, of {served} before[: {why}]",
    ),
    ("removal_held", "{upstream} lists {listed:prompt}; the {served} of before *stay served*"),
    ("resumed", "The audit log can be written again[, after {after}]"),
    ("rollout_changed", "{by} set the rollout of {prompt} to {to}: share {share}[: {why}]"),
    ("rollout_ended", "{by} ended the rollout of {prompt} to {to}[: {why}]"),
    ("rollout_rearmed", "{by} began the rollout of {prompt} to {to} again[: {why}]"),
    (
        "rollout_rolled_back",
        "The rollout of {prompt} to {to} was *rolled back*[ by {by}][: {failed} of {gets:get} failed]",
    ),
    ("rollout_started", "{by} started the rollout of {prompt} to {to}: share {share}[: {why}]"),
    ("segment_lost", "The file of the audit log was *damaged by others*: {damage}"),
    ("segment_removed", "The oldest log file {name} was removed, with {count:record}"),
    ("set_aside", "The file {name} is no part of the log and was *set aside*"),
    ("sign_in_asked", "{caller} was asked to sign in to {upstream}: {reason}"),
    ("sign_in_done", "{caller} signed in to {upstream}"),
    ("sign_in_ended", "The sign-in of {caller} to {upstream} was ended"),
    ("sign_in_refused", "A sign-in to {upstream} for {caller} was *refused*: {reason}[, {error}]"),
    ("started", "The audit log was opened[ by version {version}]"),
    ("stopped", "The audit log was closed"),
    ("stream_ended", "A stream of notifications ended[ for {caller}]"),
    ("stream_started", "{who} opened a stream of notifications"),
    ("streams", "{count:more stream} of notifications for {who}"),
    ("task_failed", "The task {task} of the gateway *failed* ({how})"),
    ("text_not_approved", "{prompt} has a text that *is not approved*: {outcome}"),
    ("token_issued", "{caller} got an access token for {upstream}"),
    ("token_refused", "{caller} *got no access token* for {upstream}: {reason}"),
    ("verified", "The gateway verified {records:record} of the audit log: {outcome}[, {why}]"),
];

/// Members of other events that are shown; a line has 16 KiB.
const SHOWN_MEMBERS: usize = 8;

/// One row of a list of entries: an entry, or several decisions of one person in a row.
pub(crate) struct EntryRow<'a> {
    /// The newest one.
    pub entry: &'a LogEntry,
    /// All entries, if there are several.
    pub several: &'a [LogEntry],
}

/// Returns rows of entries that stand in their order. Decisions of one kind by one person in a row
/// are one, and so are a call and the record that its text is not approved.
pub(crate) fn rows(entries: &[LogEntry]) -> Vec<EntryRow<'_>> {
    let decisions = EventKinds::from("decisions");
    let is_same = |one: &LogEntry, other: &LogEntry| {
        decisions.has(&one.event)
            && (&one.event, &one.replica) == (&other.event, &other.replica)
            && ["by", "via", "why"]
                .iter()
                .all(|name| one.members.get(*name) == other.members.get(*name))
    };
    let rows = entries.chunk_by(is_same).filter_map(EntryRow::of);
    rows.filter(|row| !entries.iter().any(|call| row.entry.is_part_of(call))).collect()
}

impl<'a> EntryRow<'a> {
    fn of(several: &'a [LogEntry]) -> Option<Self> {
        let entry = several.first()?;
        Some(Self { entry, several: if several.len() > 1 { several } else { &[] } })
    }

    pub(crate) fn sentence(&self) -> Html {
        let form = form(self.entry);
        match self.several.len() {
            0 => sentence(self.entry),
            count => fill(&form.replace("{prompt}", &format!("{count} prompts")), self.entry),
        }
    }
}

/// Returns the sentence of an entry, with links. Texts of others are escaped.
pub(crate) fn sentence(entry: &LogEntry) -> Html {
    fill(&form(entry), entry)
}

/// Returns the sentence with its places.
fn form(entry: &LogEntry) -> Cow<'static, str> {
    if ["call", "completed"].contains(&entry.event.as_str()) {
        return call_form(entry).into();
    }
    match SENTENCES.iter().find(|(event, _)| *event == entry.event) {
        Some((_, form)) => Cow::Borrowed(form),
        None => "{event}".into(),
    }
}

fn call_form(entry: &LogEntry) -> String {
    let wanted = match entry.method.as_deref() {
        Some("prompts/get") => "{prompt}",
        Some("completion/complete") => "values for {argument} of {prompt}",
        Some("prompts/list") => "the list of prompts",
        Some("skills/list") => "the list of skills",
        Some("skills/get") => "the entry of {prompt}",
        Some("resources/read") if entry.prompt.is_some() => "{prompt}",
        _ => "{method}",
    };
    let is_denied = entry.decision.as_deref() == Some(DENIED) || entry.rule.is_some();
    match entry.outcome.as_deref() {
        _ if is_denied => format!("{{who}} *was denied* {wanted}[ {{rule}}]"),
        Some("ok") => format!("{{who}} got {wanted}"),
        Some("cancelled") => format!("{{who}} *cancelled* the call for {wanted}"),
        Some(_) => format!("{{who}} *did not get* {wanted}[ from {{upstream}}]: {{outcome}}"),
        None => format!("{{who}} asked for {wanted}; its end is not on record yet"),
    }
}

/// Fills the places of a sentence. A sentence with a missing member outside of brackets is replaced
/// by the name of the event and its members.
fn fill(form: &str, entry: &LogEntry) -> Html {
    let mut out = String::new();
    for (index, part) in form.split(['[', ']']).enumerate() {
        match (fill_part(part, entry), index % 2) {
            (Some(part), _) => out.push_str(&part),
            (None, 1) => {}
            (None, _) => return Html(members(entry)),
        }
    }
    Html(out)
}

/// Returns a part with its places filled; `None` if a member is missing.
fn fill_part(part: &str, entry: &LogEntry) -> Option<String> {
    let mut out = String::new();
    let mut is_bad = false;
    let mut rest = part;
    while let Some(at) = rest.find(['{', '*']) {
        out.push_str(&rest[..at]);
        rest = match rest[at..].strip_prefix('*') {
            Some(rest) => {
                is_bad = !is_bad;
                out.push_str(if is_bad { "<span class=\"bad\">" } else { "</span>" });
                rest
            }
            None => {
                let (name, rest) = rest[at + 1..].split_once('}')?;
                out.push_str(&place(name, entry)?);
                rest
            }
        };
    }
    out.push_str(rest);
    Some(out)
}

/// Returns the content of a place; `None` if the entry does not have it.
fn place(name: &str, entry: &LogEntry) -> Option<String> {
    if let Some((member, noun)) = name.split_once(':') {
        let count = entry.members.get(member)?.as_u64()?;
        return Some(format!("{count} {noun}{}", if count == 1 { "" } else { "s" }));
    }
    Some(match name {
        "who" => who(entry),
        "caller" => caller(entry.caller.as_deref()?),
        "address" => ShownText(entry.address.as_deref()?).to_string(),
        "upstream" => link("/upstreams/", entry.upstream.as_deref()?, ""),
        "prompt" => prompt(entry)?,
        "rule" => rule(entry.rule.as_deref()?),
        "outcome" => code(entry.outcome.as_deref()?),
        "method" => code(entry.method.as_deref()?),
        "event" => return None,
        "error" => ShownText(entry.error.as_deref()?).to_string(),
        "name" => code(entry.name.as_deref()?),
        "by" | "role" | "state" | "why" | "reason" => {
            ShownText(entry.members.get(name)?.as_str()?).to_string()
        }
        _ => match entry.members.get(name)? {
            Value::String(text) if text.starts_with("sha256:") => digest(text).0,
            Value::String(text) => code(text),
            other => code(&other.to_string()),
        },
    })
}

/// Returns the originator of an entry: a caller, a person with its rights, or an address.
fn who(entry: &LogEntry) -> String {
    let tried_by = entry.members.get("tried_by").and_then(Value::as_str);
    match (entry.caller.as_deref(), tried_by, entry.address.as_deref()) {
        (Some(id), Some(by), _) => format!("{}, as {},", ShownText(by), caller(id)),
        (Some(id), None, _) => caller(id),
        (None, _, Some(address)) => ShownText(address).to_string(),
        (None, _, None) => "others".to_owned(),
    }
}

fn caller(id: &str) -> String {
    link("/audit?caller=", id, "")
}

/// Returns the prompt of an entry: the name that was called, or that of the upstream.
fn prompt(entry: &LogEntry) -> Option<String> {
    match (entry.name.as_deref(), entry.prompt.as_deref(), entry.upstream.as_deref()) {
        // Only the `SKILL.md` of a skill has a page.
        (Some(name), _, Some(_)) if name.starts_with(SCHEME) && !is_skill_uri(name) => {
            Some(code(name))
        }
        (Some(name), _, Some(_)) => Some(link_to(&page_of(name), name)),
        (Some(name), ..) => Some(code(name)),
        (None, Some(raw), Some(upstream)) => {
            let of = format!("&amp;upstream={}", encoded_segment(upstream));
            let upstream = link("/upstreams/", upstream, "");
            Some(format!("{} of {upstream}", link("/prompts?q=", raw, &of)))
        }
        (None, raw, _) => raw.map(code),
    }
}

/// Returns why a call was denied.
fn rule(rule: &str) -> String {
    let (kind, rest) = rule.split_once('.').unwrap_or((rule, ""));
    match (kind, rest) {
        ("none", "") => "because no rule allows it".to_owned(),
        ("views", view) => format!("because the view {} leaves it out", code(view)),
        ("approvals", "text") => "because its text is not the approved one".to_owned(),
        ("approvals", state) => format!("because it is {}", ShownText(state)),
        ("arguments", argument) => format!("because of the argument {}", code(argument)),
        ("access", _) => format!("by rule {}", link("/configuration?q=", rule, "")),
        _ => format!("by rule {}", code(rule)),
    }
}

/// Returns the event of an entry and its members.
fn members(entry: &LogEntry) -> String {
    let fields = [
        ("caller", &entry.caller),
        ("address", &entry.address),
        ("upstream", &entry.upstream),
        ("prompt", &entry.prompt),
        ("outcome", &entry.outcome),
        ("error", &entry.error),
    ];
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name, value.clone()?)));
    let others = entry.members.iter().map(|(name, value)| {
        (name.as_str(), value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    });
    let mut out = code(&entry.event);
    for (name, value) in fields.chain(others).take(SHOWN_MEMBERS) {
        out.push(' ');
        out.push_str(&code(&format!("{name}={value}")));
    }
    out
}

/// Returns a link whose address ends with a name, and perhaps more.
fn link(path: &str, name: &str, more: &str) -> String {
    link_to(&[path, &encoded_segment(name), more].concat(), name)
}

fn link_to(page: &str, name: &str) -> String {
    format!("<a href=\"{page}\">{}</a>", ShownText(name))
}

fn code(text: &str) -> String {
    format!("<code>{}</code>", ShownText(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(value: Value) -> LogEntry {
        serde_json::from_value(value).unwrap()
    }

    /// The sentence without its marks.
    fn plain(entry: &LogEntry) -> String {
        let Html(html) = sentence(entry);
        let texts = html.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text));
        texts.collect::<String>().replace("Copy", "")
    }

    fn call(more: Value) -> LogEntry {
        let mut call = json!({"event": "call", "caller": "bot", "method": "prompts/get", "name": "team__notes",
            "upstream": "team", "prompt": "notes"});
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        entry(call)
    }

    #[test]
    fn a_call_is_a_sentence_with_its_end() {
        for (more, expected) in [
            (json!({"outcome": "ok"}), "bot got team__notes"),
            (json!({"outcome": "cancelled"}), "bot cancelled the call for team__notes"),
            (
                json!({"outcome": "upstream_timeout"}),
                "bot did not get team__notes from team: upstream_timeout",
            ),
            (json!({}), "bot asked for team__notes; its end is not on record yet"),
            (
                json!({"decision": "denied", "rule": "access.rules.2", "outcome": "unknown_prompt"}),
                "bot was denied team__notes by rule access.rules.2",
            ),
            (
                json!({"decision": "denied", "rule": "support-only"}),
                "bot was denied team__notes by rule support-only",
            ),
            (
                json!({"decision": "denied", "rule": "none"}),
                "bot was denied team__notes because no rule allows it",
            ),
            (json!({"decision": "denied"}), "bot was denied team__notes"),
            (
                json!({"rule": "arguments.tone"}),
                "bot was denied team__notes because of the argument tone",
            ),
            (
                json!({"rule": "approvals.pending"}),
                "bot was denied team__notes because it is pending",
            ),
            (
                json!({"outcome": "ok", "method": "completion/complete", "members": {"argument": "city"}}),
                "bot got values for city of team__notes",
            ),
            (json!({"outcome": "ok", "method": "prompts/list"}), "bot got the list of prompts"),
            (
                json!({"outcome": "ok", "members": {"tried_by": "ada"}}),
                "ada, as bot, got team__notes",
            ),
        ] {
            assert_eq!(plain(&call(more.clone())), expected, "{more}");
        }
        let Html(html) = sentence(&call(json!({"outcome": "ok"})));
        assert_eq!(
            html,
            "<a href=\"/audit?caller=bot\">bot</a> got <a href=\"/prompts/team__notes\">team__notes</a>"
        );
        let unknown = entry(
            json!({"event": "call", "caller": "<b>", "method": "prompts/get", "name": "x", "outcome": "unknown_prompt"}),
        );
        assert_eq!(
            sentence(&unknown).0,
            "<a href=\"/audit?caller=%3Cb%3E\">&lt;b&gt;</a> <span class=\"bad\">did not get</span> <code>x</code>: <code>unknown_prompt</code>"
        );
    }

    #[test]
    fn an_event_is_a_sentence_and_an_unknown_one_has_its_name_and_members() {
        for (value, expected) in [
            (
                json!({"event": "prompt_approved", "upstream": "lib", "prompt": "p", "members": {"by": "ada", "via": "admin"}}),
                "ada approved p of lib",
            ),
            (
                json!({"event": "prompt_rejected", "upstream": "lib", "prompt": "p", "members": {"by": "ada", "why": "no"}}),
                "ada rejected p of lib: no",
            ),
            (
                json!({"event": "admin_login", "address": "::1", "members": {"by": "ada", "role": "approver"}}),
                "ada signed in to the console as approver from ::1",
            ),
            (
                json!({"event": "refused", "caller": "bot", "members": {"count": 3, "reason": "rate_limited", "by": "limits.1"}}),
                "Refused 3 requests of bot: rate_limited (limits.1)",
            ),
            (
                json!({"event": "refused", "members": {"count": 1, "reason": "others"}}),
                "Refused 1 request of others: others",
            ),
            (json!({"event": "stopped"}), "The audit log was closed"),
            (
                json!({"event": "config_rejected", "members": {"mistakes": 1}}),
                "A configuration was rejected for 1 mistake",
            ),
            (
                json!({"event": "later", "upstream": "lib", "members": {"n": 7}}),
                "later upstream=lib n=7",
            ),
            (
                json!({"event": "prompt_approved", "members": {"via": "cli"}}),
                "prompt_approved via=cli",
            ),
        ] {
            assert_eq!(plain(&entry(value.clone())), expected, "{value}");
        }
    }

    #[test]
    fn decisions_of_one_person_in_a_row_are_one() {
        let decision = |by: &str, prompt: &str| {
            entry(
                json!({"event": "prompt_approved", "upstream": "lib", "prompt": prompt, "members": {"by": by}}),
            )
        };
        let entries = [
            decision("ada", "a"),
            decision("ada", "b"),
            decision("ada", "c"),
            decision("bob", "d"),
            call(json!({})),
            call(json!({})),
        ];
        let rows = rows(&entries);
        let counts: Vec<_> = rows.iter().map(|row| row.several.len()).collect();
        assert_eq!(counts, [3, 0, 0, 0]);
        assert_eq!(rows[0].sentence().0, "ada approved 3 prompts");
    }

    #[test]
    fn texts_of_others_stay_texts() {
        let bad = "<img src=x>{by}*[";
        let hostile = json!({"caller": bad, "name": bad, "upstream": bad, "prompt": bad, "rule": bad,
            "outcome": bad, "error": bad, "address": bad, "members": {"by": bad, "why": bad, "reason": bad, "x": bad}});
        for event in SENTENCES.iter().map(|(event, _)| *event).chain(["call", bad]) {
            for name in [Some(bad), None] {
                let mut value = hostile.clone();
                (value["event"], value["name"]) = (event.into(), name.into());
                let Html(html) = sentence(&entry(value));
                assert!(!html.contains("<img") && !html.contains("=\"<"), "{html}");
            }
        }
    }

    /// The page names every event that the documentation has.
    #[test]
    fn every_documented_event_has_a_sentence() {
        let document = include_str!("../../../../docs/audit.md");
        let (_, table) = document.split_once("| event | when |").unwrap();
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let events =
            rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2));
        let events: Vec<_> =
            events.filter(|event| !["received", "completed"].contains(event)).collect();
        assert!(events.len() > 40, "{events:?}");
        for event in events {
            assert!(SENTENCES.iter().any(|(known, _)| *known == event), "{event}");
        }
    }
}
