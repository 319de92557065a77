//! `[[guards]]`: what texts of calls may hold.

use std::sync::Arc;
use std::time::Duration;

use crate::reader::{MILLISECOND, Section, secs, table};
use crate::server::Server;
use crate::server::views::{View, all, globs, upstream_ids};
use crate::telemetry::TelemetrySettings;
use crate::upstream::UpstreamSettings;
use crate::upstream::webhook::{self, Webhook};
use domain::calls::caller::Caller;
use domain::guards::pattern::Pattern;
use domain::guards::text_guard::TextGuard;
use domain::name::UpstreamId;
use domain::text::glob::Glob;

table! {
    /// A guard: the texts that it examines, and what it does with findings.
    #[derive(Clone, Debug)]
    pub struct Guard(
        section,
        key,
        server: &Server,
        known: (&[UpstreamSettings], &[UpstreamId]),
        views: &[View],
        telemetry: &TelemetrySettings,
    ) -> Option {
        /// Name that callers, records and metrics get, of the same characters as that of a limit.
        #[example = "no secrets"]
        required pub name: String = section.name();
        /// Examined texts: `arguments`, `results`, `completions`, `offered` (for approval), and
        /// `passthrough`.
        #[example = ["arguments", "results"]]
        pub on: Vec<GuardEvent> = section.choices(key, &EVENTS);
        /// Patterns of the ids of callers. Not set: all.
        #[example = ["ci-*"]]
        callers: Vec<Glob> = globs(section, key).unwrap_or_else(all);
        /// Callers that are in one of the groups. Not set: all.
        #[example = ["support"]]
        groups: Vec<String> = section.texts(key);
        /// Patterns of public names, URIs of skills, or names of `passthrough`. Not set: all.
        #[example = ["library__*"]]
        prompts: Vec<Glob> = globs(section, key).unwrap_or_else(all);
        /// Upstreams. Not set: all.
        #[example = ["library"]]
        upstreams: Option<Vec<UpstreamId>> = upstream_ids(section, known.0, known.1);
        /// Views at which calls arrive. Not set: all endpoints.
        #[example = ["support"]]
        views: Option<Vec<String>> = paths(section, server, views);
        /// `observe`: decisions are recorded. `enforce`: they take effect.
        let mode: bool = section.choice(key, false, &[("observe", false), ("enforce", true)]);
        field pub is_enforced: bool = mode;
        /// Patterns of hosts whose links `foreign_link` does not find.
        #[example = ["docs.example"]]
        let hosts: Vec<Glob> = globs(section, key).unwrap_or_default();
        /// Patterns (docs/guards.md#patterns) whose texts are refused.
        #[example = ["private_key", "/(?i)project x/"]]
        let deny: Vec<Pattern> = patterns(section, key, &hosts);
        /// Patterns that are replaced by `***`.
        #[example = ["email"]]
        let mask: Vec<Pattern> = patterns(section, key, &hosts);
        /// Server that decides (docs/guards.md#hooks).
        pub http: Option<GuardHook> = hook(section, telemetry);
        field pub patterns: Arc<TextGuard> = Arc::new(text_guard(section, deny, mask));
    }
}

/// A server that decides.
#[derive(Clone, Debug)]
pub struct GuardHook {
    pub webhook: Webhook,
    /// Longest wait for a place among the requests at a time, and for the answer.
    pub timeout: Duration,
    /// Whether texts on which the hook does not decide are refused.
    pub refuses_on_failure: bool,
}

/// The texts that a guard examines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GuardEvent {
    Arguments,
    Results,
    Completions,
    /// The texts that are examined for an approval.
    Offered,
    /// Requests for the upstream of `[passthrough]`, and its results.
    Passthrough,
}

const EVENTS: [(&str, GuardEvent); 5] = [
    ("arguments", GuardEvent::Arguments),
    ("results", GuardEvent::Results),
    ("completions", GuardEvent::Completions),
    ("offered", GuardEvent::Offered),
    ("passthrough", GuardEvent::Passthrough),
];

impl Guard {
    /// Whether the guard examines the texts of a caller at an endpoint.
    pub fn selects(&self, caller: &Caller, endpoint: &str) -> bool {
        let is_in = |group| caller.groups().contains(group);
        self.callers.iter().any(|glob| glob.matches(caller.id()))
            && (self.groups.is_empty() || self.groups.iter().any(is_in))
            && self.views.as_ref().is_none_or(|own| own.iter().any(|path| path == endpoint))
    }

    /// Whether the guard examines such texts of a prompt.
    pub fn examines(&self, event: GuardEvent, upstream: &UpstreamId, name: &str) -> bool {
        self.on.contains(&event)
            && self.upstreams.as_ref().is_none_or(|own| own.contains(upstream))
            && self.prompts.iter().any(|glob| glob.matches(name))
    }
}

impl GuardEvent {
    /// The name in the configuration.
    pub fn as_str(self) -> &'static str {
        EVENTS.iter().find(|(_, event)| *event == self).map_or("", |(name, _)| name)
    }
}

pub(crate) fn read_all(
    root: &mut Section<'_>,
    server: &Server,
    known: (&[UpstreamSettings], &[UpstreamId]),
    views: &[View],
    telemetry: &TelemetrySettings,
) -> Vec<Arc<Guard>> {
    let mut guards: Vec<Arc<Guard>> = Vec::new();
    for mut table in root.tables("guards") {
        for key in ["name", "on"].into_iter().filter(|key| !table.has(key)) {
            table.mistake(key, "is required: set it (docs/guards.md)");
        }
        table.reject_empty(&["on", "callers", "groups", "prompts", "upstreams", "views"]);
        if let Some(guard) = Guard::read_keys(&mut table, server, known, views, telemetry) {
            if guards.iter().any(|other| other.name == guard.name) {
                table.mistake("name", "another guard already has this name; set another one");
            }
            if guard.http.is_some() && guard.on.contains(&GuardEvent::Offered) {
                table.mistake("on", "has offered, which only patterns examine: add another guard");
            }
            guards.push(Arc::new(guard));
        }
        table.finish();
    }
    guards
}

/// Reads the key `views`: the paths of the named views.
fn paths(section: &mut Section<'_>, server: &Server, views: &[View]) -> Option<Vec<String>> {
    let names = section.texts("views");
    for name in names.iter().filter(|name| !views.iter().any(|view| view.name == **name)) {
        section.mistake("views", format!("there is no view {name:?}; add [views.{name}]"));
    }
    section.was_read("views").then(|| names.iter().map(|name| server.view_path(name)).collect())
}

fn patterns(section: &mut Section<'_>, key: &'static str, hosts: &[Glob]) -> Vec<Pattern> {
    let texts = section.texts(key);
    let parsed = texts.iter().filter_map(|text| {
        let pattern = Pattern::parse(text, hosts);
        pattern.map_err(|mistake| section.mistake(key, mistake)).ok()
    });
    parsed.collect()
}

/// The keys of `http`, besides those of a receiver.
const HOOK_KEYS: &str = r#"
timeout: Longest wait for a place, and for the answer.
on_failure: `refuse` texts without a decision, or `observe`: let them pass.
"#;

fn hook(section: &mut Section<'_>, telemetry: &TelemetrySettings) -> Option<GuardHook> {
    if !section.has("http") {
        return None;
    }
    let mut section = section.section("http");
    section.explain(HOOK_KEYS);
    let webhook = webhook::receiver(&mut section, telemetry);
    let timeout = section.duration("timeout", secs(2), MILLISECOND);
    let choices = [("refuse", true), ("observe", false)];
    let refuses_on_failure = section.choice("on_failure", true, &choices);
    section.finish();
    Some(GuardHook { webhook: webhook?, timeout, refuses_on_failure })
}

/// Makes a guard of patterns; without any if a hook decides.
fn text_guard(section: &Section<'_>, deny: Vec<Pattern>, mask: Vec<Pattern>) -> TextGuard {
    let given = [!deny.is_empty(), !mask.is_empty(), section.was_read("http")];
    let is_rejected = section.is_rejected("deny") || section.is_rejected("mask");
    if given.iter().filter(|is_given| **is_given).count() != 1 && !is_rejected {
        section
            .mistake("", "must have exactly one of deny = [\"…\"], mask = [\"…\"] and http = {…}");
    }
    let masks = deny.is_empty();
    TextGuard { masks, patterns: if masks { mask } else { deny } }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Config, schema_check};

    fn read(keys: &str) -> Result<Config, String> {
        let toml = format!(
            "[upstreams.a]\ntransport = \"library\"\npath = \".\"\n[views.v]\n\
             [[guards]]\nname = \"g\"\non = [\"arguments\"]\n{keys}"
        );
        schema_check::parse("g", &toml, Path::new(""), &[]).map_err(|error| error.to_string())
    }

    #[test]
    fn a_guard_observes_the_calls_that_its_selection_names() {
        let config = read(
            "deny = [\"email\"]\ncallers = [\"ci-*\"]\ngroups = [\"g\"]\nprompts = [\"a__*\"]\n\
             upstreams = [\"a\"]\nviews = [\"v\"]\n",
        );
        let config = config.unwrap();
        let guard = &config.guards[0];
        assert!(!guard.is_enforced, "the default is to observe");
        let caller = Caller::in_groups("ci-1", &["g".to_owned()]);
        let id = |text| UpstreamId::parse(text).unwrap();
        assert!(guard.selects(&caller, "/mcp/v") && !guard.selects(&caller, "/mcp"));
        assert!(!guard.selects(&Caller::new("ci-1"), "/mcp/v"), "not in the group");
        assert!(!guard.selects(&Caller::in_groups("x", &["g".to_owned()]), "/mcp/v"));
        let examines = |event, upstream, name| guard.examines(event, &id(upstream), name);
        assert!(examines(GuardEvent::Arguments, "a", "a__p"));
        assert!(!examines(GuardEvent::Results, "a", "a__p"));
        assert!(!examines(GuardEvent::Arguments, "b", "a__p"));
        assert!(!examines(GuardEvent::Arguments, "a", "b__p"));
    }

    #[test]
    fn mistakes_in_guards_name_what_is_allowed() {
        for (keys, mistake) in [
            ("".to_owned(), "guards.1: must have exactly one of deny"),
            ("deny = [\"email\"]\nmask = [\"email\"]\n".to_owned(), "guards.1: must have exactly"),
            ("deny = []\n".to_owned(), "guards.1: must have exactly one of deny"),
            ("deny = [\"email\"]\nhttp = {}\n".to_owned(), "guards.1: must have exactly one"),
            ("http = {}\n".to_owned(), "guards.1.http.url: is required"),
            (hooked(", on_failure = \"pass\""), "guards.1.http.on_failure: must be one of"),
            (hooked(", retries = 1"), "guards.1.http.retries: unknown key"),
            ("deny = [\"emial\"]\n".to_owned(), "guards.1.deny: \"emial\" is neither a built-in"),
            ("deny = [\"/(/\"]\n".to_owned(), "guards.1.deny: \"/(/\" cannot be compiled"),
            (
                "deny = [\"email\"]\nviews = [\"w\"]\n".to_owned(),
                "guards.1.views: there is no view",
            ),
            ("deny = [\"email\"]\nmode = \"on\"\n".to_owned(), "guards.1.mode: must be one of"),
        ] {
            let error = read(&keys).unwrap_err();
            assert!(error.contains(mistake), "{keys}: {error}");
        }
        let twice = "deny = [\"email\"]\n[[guards]]\nname = \"g\"\ndeny = [\"email\"]\n";
        let error = read(twice).unwrap_err();
        assert!(error.contains("guards.2.name: another guard"), "{error}");
        assert!(error.contains("guards.2.on: is required"), "{error}");
        let offered = "deny = [\"email\"]\n[[guards]]\nname = \"h\"\non = [\"offered\"]\n";
        let error = read(&(offered.to_owned() + &hooked(""))).unwrap_err();
        assert!(error.contains("guards.2.on: has offered, which only patterns"), "{error}");
    }

    fn hooked(more: &str) -> String {
        format!(
            "http = {{ url = \"http://127.0.0.1:9/\", secret = {{ value = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\" }}{more} }}\n"
        )
    }

    #[test]
    fn a_hook_refuses_what_it_does_not_decide_on_unless_the_file_says_otherwise() {
        for (more, expected) in
            [("", (2, true)), (", timeout = \"5s\", on_failure = \"observe\"", (5, false))]
        {
            let config = read(&hooked(more)).unwrap();
            let hook = config.guards[0].http.as_ref().unwrap();
            let GuardHook { webhook, timeout, refuses_on_failure } = hook;
            assert_eq!((timeout.as_secs(), *refuses_on_failure), expected);
            assert_eq!(webhook.uri().unwrap().port_u16(), Some(9));
        }
    }
}
