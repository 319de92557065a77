//! Waits and bounds towards upstreams: `[defaults]`, and what each upstream overrides.

use std::time::Duration;

use super::reader::Section;
use crate::domain::hidden_text::HiddenText;
use crate::domain::server_request::ClientCapabilities;

/// Waits and bounds towards one upstream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    pub connect: Duration,
    /// Of a child's answer to the first question.
    pub probe: Duration,
    /// Of one get or complete, whole exchange.
    pub timeout: Duration,
    pub page_timeout: Duration,
    pub walk_timeout: Duration,
    pub max_pages: usize,
    pub max_prompts: usize,
    /// Bytes of all pages of a walk.
    pub max_walk: usize,
    /// Bytes of one message.
    pub max_message: usize,
    /// Between walks of an upstream that sends no notices; zero switches polling off.
    pub poll: Duration,
    /// A list older than this is walked again even without a reason.
    pub max_age: Duration,
    /// Calls at once.
    pub in_flight: usize,
    /// Calls that may wait for a place, and how long.
    pub queue: usize,
    pub queue_wait: Duration,
    pub breaker: Breaker,
    pub validate_arguments: bool,
    /// What becomes of hidden text in its messages.
    pub content: HiddenText,
    pub on_changed_definition: OnChangedDefinition,
    /// What it may ask the caller during a get.
    pub questions: ClientCapabilities,
    /// Whether nobody said so in the file.
    pub questions_by_default: bool,
    /// Whether all callers share one session on which a legacy upstream may ask.
    pub share_asking: bool,
    /// Whether the message of an elicitation is led by the upstream's id.
    pub label_questions: bool,
}

/// What becomes of a prompt that is another one under the same name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnChangedDefinition {
    Allow,
    /// It is listed as it was when it was first seen, until the next start.
    Hold,
    /// It is left out.
    Block,
}

/// When an upstream is left alone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Breaker {
    /// Failures in a row.
    pub failures: usize,
    /// How long at first, doubled each time it fails again, and at most.
    pub open_min: Duration,
    pub open_max: Duration,
}

const CONTENT: [(&str, HiddenText); 4] = [
    ("allow", HiddenText::Allow),
    ("flag", HiddenText::Flag),
    ("strip", HiddenText::Strip),
    ("reject", HiddenText::Reject),
];

const ON_CHANGED_DEFINITION: [(&str, OnChangedDefinition); 3] = [
    ("allow", OnChangedDefinition::Allow),
    ("hold", OnChangedDefinition::Hold),
    ("block", OnChangedDefinition::Block),
];

/// Reads the settings of one table; what it does not say is as in `base`.
pub(super) fn settings(section: &mut Section<'_>, base: &Settings) -> Settings {
    let millis = Duration::from_millis(1);
    Settings {
        connect: section.duration("connect", base.connect, millis),
        probe: section.duration("probe", base.probe, millis),
        timeout: section.duration("timeout", base.timeout, millis),
        page_timeout: section.duration("page_timeout", base.page_timeout, millis),
        walk_timeout: section.duration("walk_timeout", base.walk_timeout, millis),
        max_pages: section.count("max_pages", base.max_pages, 1..=100_000),
        max_prompts: section.count("max_prompts", base.max_prompts, 1..=1_000_000),
        max_walk: section.size("max_walk", base.max_walk, 1 << 10..=1 << 30),
        max_message: section.size("max_message", base.max_message, 1 << 10..=1 << 30),
        poll: section.duration("poll", base.poll, Duration::ZERO),
        max_age: section.duration("max_age", base.max_age, millis),
        in_flight: section.count("in_flight", base.in_flight, 1..=100_000),
        queue: section.count("queue", base.queue, 0..=1_000_000),
        queue_wait: section.duration("queue_wait", base.queue_wait, Duration::ZERO),
        breaker: breaker(section.section("breaker"), base.breaker),
        validate_arguments: section.flag("validate_arguments", base.validate_arguments),
        content: section.choice("content", base.content, &CONTENT),
        on_changed_definition: section.choice(
            "on_changed_definition",
            base.on_changed_definition,
            &ON_CHANGED_DEFINITION,
        ),
        questions: base.questions,
        questions_by_default: base.questions_by_default,
        share_asking: section.flag("share_asking", base.share_asking),
        label_questions: section.flag("label_questions", base.label_questions),
    }
}

fn breaker(mut section: Section<'_>, base: Breaker) -> Breaker {
    let millis = Duration::from_millis(1);
    let breaker = Breaker {
        failures: section.count("failures", base.failures, 1..=1_000_000),
        open_min: section.duration("open_min", base.open_min, millis),
        open_max: section.duration("open_max", base.open_max, millis),
    };
    if breaker.open_max < breaker.open_min {
        section.mistake("open_max", "must not be shorter than open_min");
    }
    section.finish();
    breaker
}

/// `questions = ["elicitation", …]`; absent where the key is.
pub(super) fn questions(section: &mut Section<'_>) -> Option<ClientCapabilities> {
    if !section.has("questions") {
        return None;
    }
    let sampling =
        ClientCapabilities::SAMPLING.or(ClientCapabilities::TOOLS).or(ClientCapabilities::CONTEXT);
    let known = [
        ("elicitation", ClientCapabilities::FORM),
        ("elicitation-url", ClientCapabilities::URL),
        ("sampling", sampling),
        ("roots", ClientCapabilities::ROOTS),
    ];
    Some(
        section
            .choices("questions", &known)
            .into_iter()
            .fold(ClientCapabilities::NONE, ClientCapabilities::or),
    )
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(3),
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
            on_changed_definition: OnChangedDefinition::Allow,
            questions: ClientCapabilities::NONE,
            questions_by_default: true,
            share_asking: false,
            label_questions: true,
        }
    }
}
