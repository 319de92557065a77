//! Settings of upstreams: `[defaults]`, which each upstream may override.

use std::time::Duration;

use crate::reader::{MILLISECOND, Section, secs, table};
use domain::approval::Mode;
use domain::prompts::hidden_text::HiddenText;
use domain::protocol::server_request::ClientCapabilities;

table! {
    /// Timeouts, limits and policies of one upstream. Keys that are not set are as in `base`.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Settings(section, key, base: &Self) -> Default {
        /// Timeout for opening a connection.
        pub connect: Duration [secs(3)] = section.duration(key, base.connect, MILLISECOND);
        /// Longest time from the start of a child process to the end of its handshake; `uvx` and
        /// `npx` may install packages first. Then the child is ended, and started again with
        /// backoff.
        pub startup: Duration [secs(60)] = section.duration(key, base.startup, MILLISECOND);
        /// Time to answer the first request of the handshake, for a child process shorter than
        /// `startup`. Without an answer the legacy era is tried, too. A late answer still counts.
        pub probe: Duration [secs(10)] = section.duration(key, base.probe, MILLISECOND);
        /// Timeout of one get or completion, for the whole exchange.
        pub timeout: Duration [secs(30)] = section.duration(key, base.timeout, MILLISECOND);
        /// Timeout of one page of a list.
        pub page_timeout: Duration [secs(10)] =
            section.duration(key, base.page_timeout, MILLISECOND);
        /// Timeout of a whole list.
        pub walk_timeout: Duration [secs(30)] =
            section.duration(key, base.walk_timeout, MILLISECOND);
        /// Pages of a list. A list that exceeds this or the next two bounds fails as a whole: a
        /// partial list is never served.
        pub max_pages: usize [100] = section.count(key, base.max_pages, 1..=100_000);
        /// Prompts of a list.
        pub max_prompts: usize [10_000] = section.count(key, base.max_prompts, 1..=1_000_000);
        /// Size of all pages of a list.
        pub max_walk: usize [32 << 20] = section.size(key, base.max_walk, 1 << 10..=1 << 30);
        /// Size of one message, or of one rendered prompt.
        pub max_message: usize [12 << 20] = section.size(key, base.max_message, 1 << 10..=1 << 30);
        /// Polling interval for the list of an upstream that does not announce changes
        /// (`listChanged`) or has skills. `"0s"` disables polling.
        pub poll: Duration [secs(60)] = section.duration(key, base.poll, Duration::ZERO);
        /// Age at which a list is fetched again, even without a reason.
        pub max_age: Duration [secs(300)] = section.duration(key, base.max_age, MILLISECOND);
        /// How long the removal of many prompts from a git repository or a prompt store is held
        /// back. `"0s"`: not at all. See docs/sources.md#removals-of-many-prompts.
        pub hold_removals: Duration [secs(600)] =
            section.duration(key, base.hold_removals, Duration::ZERO);
        /// Concurrent calls.
        pub in_flight: usize [64] = section.count(key, base.in_flight, 1..=100_000);
        /// Calls that may wait for a place of `in_flight`. More are refused at once with
        /// `upstream_busy`.
        pub queue: usize [256] = section.count(key, base.queue, 0..=1_000_000);
        /// Longest wait for a place.
        pub queue_wait: Duration [secs(1)] = section.duration(key, base.queue_wait, Duration::ZERO);
        /// Circuit breaker. While it is open, calls are refused and the list is still served. It
        /// counts calls without an answer (unreachable, broken connection, timeout, HTTP 5xx), not
        /// JSON-RPC errors. The failures of one caller or of one prompt do not open it while the
        /// upstream answers a ping. Not for calls with `per_caller`. See
        /// docs/operating.md#circuit-breaker.
        pub breaker: Breaker [Breaker::default()] = breaker(section.section(key), base.breaker);
        /// Refuse a get that lacks a required argument, or has a value outside the `choices` of an
        /// overlay, before the upstream is called.
        pub validate_arguments: bool [true] = section.flag(key, base.validate_arguments);
        /// Hidden text in messages and links: zero-width and bidirectional marks, tags, control
        /// characters; and URIs that execute their content (`javascript:`, `data:text/html`).
        /// `allow` passes it. `flag` reports it in `_meta["promptgate/hiddenText"]` and
        /// `_meta["promptgate/unsafeUris"]`. `strip` removes it and reports where it was. `reject`
        /// refuses the prompt. Lists never have it.
        pub content: HiddenText [HiddenText::Flag] = section.choice(key, base.content, &CONTENT);
        /// Links in messages to resources of the upstream, and embedded resources. `as_is` passes
        /// their URIs on. `sealed` replaces them by URIs that their caller can read at the gateway.
        /// See docs/exposure.md#links-in-prompts.
        pub links: Links [Links::AsIs] = section.choice(key, base.links, &LINKS);
        /// Server requests that the upstream may send to the client during a get: `elicitation` (a
        /// form), `elicitation-url` (a page to visit), `sampling`, `roots`. Not set:
        /// `["elicitation"]` with `transport = "http"`, else none. See
        /// docs/revisions.md#server-requests.
        #[example = ["elicitation"]]
        pub server_requests: ClientCapabilities [ClientCapabilities::NONE] =
            server_requests(section).unwrap_or(base.server_requests);
        /// Whether `server_requests` is the default rather than configured.
        field pub server_requests_by_default: bool [true] =
            base.server_requests_by_default && !section.was_read("server_requests");
        /// `true`: all callers share one session on which a legacy upstream may send server
        /// requests, instead of one session for each caller.
        pub share_interactive_session: bool [false] =
            section.flag(key, base.share_interactive_session);
        /// Put the upstream's id in front of the message of an elicitation, so that users see which
        /// upstream asks.
        pub label_elicitations: bool [true] = section.flag(key, base.label_elicitations);
        /// Ask prompts for their texts with made-up arguments, so that people approve these as
        /// templates. `false` for an upstream whose gets act on the world. See
        /// docs/approvals.md#probes.
        pub approval_probes: bool [true] = section.flag(key, base.approval_probes);
        /// Environment variables of the gateway that a child process inherits beside `PATH`,
        /// `HOME`, `LANG`, `TMPDIR` and those of proxies and certificates. See
        /// docs/proxies.md#the-way-out.
        #[example = ["NPM_TOKEN"]]
        pub inherit: Vec<String> [Vec::new()] = inherit(section, &base.inherit);
        /// Whether the prompts are rendered when they are read, since an endpoint offers them as
        /// skills. Noted once all endpoints are read.
        field pub prompts_as_skills: bool [false] = false;
    }
}

/// Treatment of links to resources of an upstream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Links {
    /// Links are passed on.
    AsIs,
    /// Callers get a link that they can read at the gateway.
    Sealed,
}

impl Settings {
    /// Returns how long an upstream may be busy with a call before it responds to another request:
    /// the timeout of a call or a list.
    pub fn patience(&self) -> Duration {
        self.walk_timeout.max(self.timeout)
    }
}

table! {
    /// Circuit breaker of an upstream. Keys that are not set are as in `base`.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct Breaker(section, key, base: Self) -> Default {
        /// Consecutive failed calls that open it.
        pub failures: usize [5] = section.count(key, base.failures, 1..=1_000_000);
        /// Time until the next probe. Each failed probe doubles the next wait.
        pub open_min: Duration [secs(1)] = section.duration(key, base.open_min, MILLISECOND);
        /// Longest wait. At least as long as `open_min`.
        pub open_max: Duration [secs(60)] = section.duration(key, base.open_max, MILLISECOND);
    }
}

const CONTENT: [(&str, HiddenText); 4] = [
    ("allow", HiddenText::Allow),
    ("flag", HiddenText::Flag),
    ("strip", HiddenText::Strip),
    ("reject", HiddenText::Reject),
];

const LINKS: [(&str, Links); 2] = [("as_is", Links::AsIs), ("sealed", Links::Sealed)];

/// The modes of approvals.
pub(crate) const MODES: [(&str, Mode); 3] =
    [("off", Mode::Off), ("warn", Mode::Warn), ("enforce", Mode::Enforce)];

/// Reads the mode of approvals of one upstream; `None` if the upstream does not set it.
pub(crate) fn approval(section: &mut Section<'_>) -> Option<Mode> {
    let mode = section.choice("approval", Mode::Off, &MODES);
    section.was_read("approval").then_some(mode)
}

/// Reads the settings of one table.
pub(crate) fn settings(section: &mut Section<'_>, base: &Settings) -> Settings {
    let settings = Settings::read_keys(section, base);
    // A mistake in the defaults is reported once, and not again for every upstream.
    let is_own = section.was_read("probe") || section.was_read("startup");
    if is_own && settings.probe >= settings.startup {
        section.mistake("probe", "must be shorter than startup, which includes it");
    }
    settings
}

/// Reads `inherit`, and adds the names in the defaults.
fn inherit(section: &mut Section<'_>, base: &[String]) -> Vec<String> {
    let own = section.texts("inherit");
    if own.iter().any(|name| name.is_empty() || name.contains(['=', '\0', '*'])) {
        section.mistake("inherit", "must be names of variables, such as \"NPM_TOKEN\"");
    }
    base.iter().cloned().chain(own).collect()
}

fn breaker(mut section: Section<'_>, base: Breaker) -> Breaker {
    let breaker = Breaker::read_keys(&mut section, base);
    // A mistake in the defaults is reported once, and not again for every upstream.
    let is_own = section.was_read("open_min") || section.was_read("open_max");
    if is_own && breaker.open_max < breaker.open_min {
        section.mistake("open_max", "must be at least as long as open_min");
    }
    section.finish();
    breaker
}

/// Reads `server_requests = ["elicitation", …]`; `None` if the key is not set.
fn server_requests(section: &mut Section<'_>) -> Option<ClientCapabilities> {
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
