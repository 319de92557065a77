//! Settings of upstreams: `[defaults]`, which each upstream may override.

use std::time::Duration;

use super::reader::{MILLISECOND, Section};
use domain::approval::Mode;
use domain::hidden_text::HiddenText;
use domain::server_request::ClientCapabilities;

/// Timeouts, limits and policies of one upstream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    /// Timeout for opening a connection.
    pub connect: Duration,
    /// Longest time from the start of a child process to its first answer.
    pub startup: Duration,
    /// Time for one request of the handshake, after which a child process that has not answered is
    /// asked in the legacy era, too.
    pub probe: Duration,
    /// Timeout of one `prompts/get` or `completion/complete`, for the whole exchange.
    pub timeout: Duration,
    /// Timeout of one page of a list.
    pub page_timeout: Duration,
    /// Timeout of a whole pagination walk.
    pub walk_timeout: Duration,
    /// Pages of a list.
    pub max_pages: usize,
    /// Prompts of a list.
    pub max_prompts: usize,
    /// Size of all pages of a list, in bytes.
    pub max_walk: usize,
    /// Size of one message, in bytes.
    pub max_message: usize,
    /// Polling interval for the list of an upstream that sends no `list_changed` or has skills;
    /// zero disables polling.
    pub poll: Duration,
    /// Age at which a list is fetched again, even without a reason.
    pub max_age: Duration,
    /// Concurrent calls.
    pub in_flight: usize,
    /// Calls that may wait for a place of `in_flight`.
    pub queue: usize,
    /// Longest wait for a place.
    pub queue_wait: Duration,
    pub breaker: Breaker,
    /// Whether a get that lacks a required argument is refused before the upstream is called.
    pub validate_arguments: bool,
    /// Treatment of hidden text in messages.
    pub content: HiddenText,
    /// Treatment of links in messages that only the upstream can resolve.
    pub links: Links,
    pub on_changed_definition: OnChangedDefinition,
    /// Server requests that the upstream may send during a get, as the capabilities that the
    /// gateway declares to it.
    pub server_requests: ClientCapabilities,
    /// Whether `server_requests` is the default rather than configured.
    pub server_requests_by_default: bool,
    /// Whether all callers share one dedicated connection to a legacy upstream.
    pub share_interactive_session: bool,
    /// Whether the upstream's id is put in front of the message of an elicitation.
    pub label_elicitations: bool,
    /// Whether texts with arguments are learnt for approvals, by gets with markers.
    pub approval_probes: bool,
    /// Environment variables that a child process inherits beside those that each inherits.
    pub inherit: Vec<String>,
    /// Whether the prompts are rendered when they are read, since an endpoint offers them as
    /// skills.
    pub prompts_as_skills: bool,
}

/// Treatment of a prompt whose definition changes under the same name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnChangedDefinition {
    /// The new definition is served.
    Allow,
    /// The definition that was first seen is listed, until the next start or applied reload.
    Hold,
    /// The prompt is left out while its definition differs from the first one.
    Block,
}

/// Treatment of links to resources of an upstream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Links {
    /// They are passed on.
    AsIs,
    /// Callers get a link that they can read at the gateway.
    Sealed,
}

impl Settings {
    /// How long an upstream may be busy with a call before it responds to something else: a call or
    /// a list may have this long.
    pub fn patience(&self) -> Duration {
        self.walk_timeout.max(self.timeout)
    }
}

/// Circuit breaker of an upstream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Breaker {
    /// Consecutive failed calls that open it.
    pub failures: usize,
    /// Time until the first probe. Each failed probe doubles the time until the next one.
    pub open_min: Duration,
    /// Longest time until the next probe.
    pub open_max: Duration,
}

const CONTENT: [(&str, HiddenText); 4] = [
    ("allow", HiddenText::Allow),
    ("flag", HiddenText::Flag),
    ("strip", HiddenText::Strip),
    ("reject", HiddenText::Reject),
];

const LINKS: [(&str, Links); 2] = [("as_is", Links::AsIs), ("sealed", Links::Sealed)];

const ON_CHANGED_DEFINITION: [(&str, OnChangedDefinition); 3] = [
    ("allow", OnChangedDefinition::Allow),
    ("hold", OnChangedDefinition::Hold),
    ("block", OnChangedDefinition::Block),
];

/// The modes of approvals.
pub(super) const MODES: [(&str, Mode); 3] =
    [("off", Mode::Off), ("warn", Mode::Warn), ("enforce", Mode::Enforce)];

/// The mistake of definitions that are compared in two ways.
pub(super) const COMPARED_TWICE: &str = "compares definitions with the lock file; remove on_changed_definition, which compares them without one";

/// Reads the mode of approvals of one upstream; `None` if it has none of its own.
pub(super) fn approval(section: &mut Section<'_>, settings: Option<&Settings>) -> Option<Mode> {
    let mode = section.choice("approval", Mode::Off, &MODES);
    let mode = section.was_read("approval").then_some(mode)?;
    let is_held = settings
        .is_some_and(|settings| settings.on_changed_definition != OnChangedDefinition::Allow);
    if mode != Mode::Off && is_held {
        section.mistake("approval", COMPARED_TWICE);
    }
    Some(mode)
}

/// The keys of `[defaults]` that every upstream has, too.
const KEYS: &str = r#"
connect: Timeout for opening a connection.
startup: Longest time from the start of a child process to the end of its handshake; `uvx` and `npx`
    may install packages first. Then the child is ended, and started again with backoff.
probe: Time for a child process to answer the first request of the handshake, shorter than
    `startup`. Without an answer it is asked in the legacy era, too. A late answer still counts.
timeout: Timeout of one get or completion, for the whole exchange.
page_timeout: Timeout of one page of a list.
walk_timeout: Timeout of a whole list.
max_pages: Pages of a list. A list that exceeds this or the next two bounds fails as a whole: a
    partial list is never served.
max_prompts: Prompts of a list.
max_walk: Size of all pages of a list.
max_message: Size of one message, or of one rendered prompt.
poll: Polling interval for the list of an upstream that does not announce changes (`listChanged`) or
    has skills. `"0s"` disables polling.
max_age: Age at which a list is fetched again, even without a reason.
in_flight: Concurrent calls.
queue: Calls that may wait for a place of `in_flight`. More are refused at once with
    `upstream_busy`.
queue_wait: Longest wait for a place.
breaker: Circuit breaker. While it is open, calls are refused and the list is still served. It
    counts calls without an answer (unreachable, broken connection, timeout, HTTP 5xx), not JSON-RPC
    errors. What one caller or one prompt meets is held against these alone. Not for calls with
    `per_caller`. See docs/operating.md#circuit-breaker.
validate_arguments: Refuse a get that lacks a required argument, or has a value outside the
    `choices` of an overlay, before the upstream is called.
content: Hidden text in messages and links: zero-width and bidirectional marks, tags, control
    characters; and URIs that execute their content (`javascript:`, `data:text/html`). `allow`
    passes it. `flag` reports it in `_meta["promptgate/hiddenText"]` and
    `_meta["promptgate/unsafeUris"]`. `strip` removes it and reports where it was. `reject` refuses
    the prompt. Lists never have it.
links: Links in messages to resources of the upstream, and embedded resources. `as_is` passes their
    URIs on. `sealed` replaces them by URIs that their caller can read at the gateway. See
    docs/rest.md#links-in-prompts.
on_changed_definition: A prompt whose definition changed under the same name, where no
    lock file covers it. `allow` serves the new definition, `hold` lists the first one, `block` leaves the
    prompt out. `hold` and `block` last until the next start, or until `allow` for the upstream. With
    approvals it must be `allow`. See docs/operating.md#definition-changes.
server_requests, such as ["elicitation"]: Server requests that the upstream may send to the client during
    a get: `elicitation` (a form), `elicitation-url` (a page to visit), `sampling`, `roots`. Not
    set: `["elicitation"]` with `transport = "http"`, else none. See
    docs/revisions.md#server-requests.
share_interactive_session: `true`: all callers share one session on which a legacy upstream may send server
    requests, instead of one session for each caller.
label_elicitations: Put the upstream's id in front of the message of an elicitation, so that users see
    which upstream asks.
approval_probes: Ask prompts for their texts with made-up arguments, so that people approve these as
    templates. `false` for an upstream whose gets act on the world. See docs/approvals.md#probes.
inherit, such as ["NPM_TOKEN"]: Environment variables of the gateway that a child process inherits
    beside `PATH`, `HOME`, `LANG`, `TMPDIR` and those of proxies and certificates. See
    docs/company-network.md.
"#;

/// Reads the settings of one table. Keys that are not set are as in `base`, except
/// `server_requests`, which the caller sets.
pub(super) fn settings(section: &mut Section<'_>, base: &Settings) -> Settings {
    section.explain(KEYS);
    let settings = read(section, base);
    // A mistake in the defaults is reported there, and not again in every upstream.
    let is_own = section.was_read("probe") || section.was_read("startup");
    if is_own && settings.probe >= settings.startup {
        section.mistake("probe", "must be shorter than startup, of which it is a part");
    }
    settings
}

fn read(section: &mut Section<'_>, base: &Settings) -> Settings {
    Settings {
        connect: section.duration("connect", base.connect, MILLISECOND),
        startup: section.duration("startup", base.startup, MILLISECOND),
        probe: section.duration("probe", base.probe, MILLISECOND),
        timeout: section.duration("timeout", base.timeout, MILLISECOND),
        page_timeout: section.duration("page_timeout", base.page_timeout, MILLISECOND),
        walk_timeout: section.duration("walk_timeout", base.walk_timeout, MILLISECOND),
        max_pages: section.count("max_pages", base.max_pages, 1..=100_000),
        max_prompts: section.count("max_prompts", base.max_prompts, 1..=1_000_000),
        max_walk: section.size("max_walk", base.max_walk, 1 << 10..=1 << 30),
        max_message: section.size("max_message", base.max_message, 1 << 10..=1 << 30),
        poll: section.duration("poll", base.poll, Duration::ZERO),
        max_age: section.duration("max_age", base.max_age, MILLISECOND),
        in_flight: section.count("in_flight", base.in_flight, 1..=100_000),
        queue: section.count("queue", base.queue, 0..=1_000_000),
        queue_wait: section.duration("queue_wait", base.queue_wait, Duration::ZERO),
        breaker: breaker(section.section("breaker"), base.breaker),
        validate_arguments: section.flag("validate_arguments", base.validate_arguments),
        content: section.choice("content", base.content, &CONTENT),
        links: section.choice("links", base.links, &LINKS),
        on_changed_definition: section.choice(
            "on_changed_definition",
            base.on_changed_definition,
            &ON_CHANGED_DEFINITION,
        ),
        server_requests: base.server_requests,
        server_requests_by_default: base.server_requests_by_default,
        share_interactive_session: section
            .flag("share_interactive_session", base.share_interactive_session),
        label_elicitations: section.flag("label_elicitations", base.label_elicitations),
        approval_probes: section.flag("approval_probes", base.approval_probes),
        inherit: inherit(section, &base.inherit),
        // Noted once all endpoints are read.
        prompts_as_skills: false,
    }
}

/// Reads `inherit`, beside the names in the defaults.
fn inherit(section: &mut Section<'_>, base: &[String]) -> Vec<String> {
    let own = section.texts("inherit");
    if own.iter().any(|name| name.is_empty() || name.contains(['=', '\0', '*'])) {
        section.mistake("inherit", "must be names of variables, such as \"NPM_TOKEN\"");
    }
    base.iter().cloned().chain(own).collect()
}

/// The keys of `breaker`.
const BREAKER_KEYS: &str = r#"
failures: Consecutive failed calls that open it.
open_min: Time until the next probe. Each failed probe doubles the next wait.
open_max: Longest wait. At least as long as `open_min`.
"#;

fn breaker(mut section: Section<'_>, base: Breaker) -> Breaker {
    section.explain(BREAKER_KEYS);
    let breaker = Breaker {
        failures: section.count("failures", base.failures, 1..=1_000_000),
        open_min: section.duration("open_min", base.open_min, MILLISECOND),
        open_max: section.duration("open_max", base.open_max, MILLISECOND),
    };
    // A mistake in the defaults is reported there, and not again in every upstream.
    let is_own = section.was_read("open_min") || section.was_read("open_max");
    if is_own && breaker.open_max < breaker.open_min {
        section.mistake("open_max", "must be at least as long as open_min");
    }
    section.finish();
    breaker
}

/// Reads `server_requests = ["elicitation", …]`; `None` if the key is not set.
pub(super) fn server_requests(section: &mut Section<'_>) -> Option<ClientCapabilities> {
    let sampling =
        ClientCapabilities::SAMPLING.or(ClientCapabilities::TOOLS).or(ClientCapabilities::CONTEXT);
    let known = [
        ("elicitation", ClientCapabilities::FORM),
        ("elicitation-url", ClientCapabilities::URL),
        ("sampling", sampling),
        ("roots", ClientCapabilities::ROOTS),
    ];
    let chosen = section.choices("server_requests", &known);
    let chosen = chosen.into_iter().fold(ClientCapabilities::NONE, ClientCapabilities::or);
    section.was_read("server_requests").then_some(chosen)
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(3),
            startup: Duration::from_secs(60),
            probe: Duration::from_secs(10),
            timeout: Duration::from_secs(30),
            page_timeout: Duration::from_secs(10),
            walk_timeout: Duration::from_secs(30),
            max_pages: 100,
            max_prompts: 10_000,
            max_walk: 32 << 20,
            max_message: 12 << 20,
            poll: Duration::from_secs(60),
            max_age: Duration::from_secs(300),
            in_flight: 64,
            queue: 256,
            queue_wait: Duration::from_secs(1),
            breaker: Breaker {
                failures: 5,
                open_min: Duration::from_secs(1),
                open_max: Duration::from_secs(60),
            },
            validate_arguments: true,
            content: HiddenText::Flag,
            links: Links::AsIs,
            on_changed_definition: OnChangedDefinition::Allow,
            server_requests: ClientCapabilities::NONE,
            server_requests_by_default: true,
            share_interactive_session: false,
            label_elicitations: true,
            approval_probes: true,
            inherit: Vec::new(),
            prompts_as_skills: false,
        }
    }
}
