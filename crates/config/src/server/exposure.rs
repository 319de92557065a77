//! The exposure of an endpoint: prompts, and tools and skills derived from prompts.

use crate::reader::{Section, table};
use crate::upstream::UpstreamSettings;
use crate::{Config, View};
use domain::name::UpstreamId;

table! {
    /// How the prompts of one endpoint are offered (`expose`, `tools`, `tools_max`).
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct Exposure(section, key, base: &Self) -> Default {
        /// The form in which the endpoint offers its prompts. `"tools"` offers them as tools, for
        /// hosts and models without prompt support. See docs/exposure.md#prompts-as-tools.
        /// `"skills"` offers those without required arguments as skills. See
        /// docs/exposure.md#skills. Without `"prompts"`, the methods for prompts are −32601.
        #[default = ["prompts"]] #[example = ["tools"]]
        let expose: Option<Vec<ExposureKind>> = kinds(section, key);
        /// Whether prompts are offered as prompts.
        field pub prompts: bool [true] = is_exposed(&expose, ExposureKind::Prompts, base.prompts);
        /// Whether prompts without required arguments are offered as skills.
        field pub skills: bool [false] = is_exposed(&expose, ExposureKind::Skills, base.skills);
        /// `"pair"` offers two tools, `find_prompt` and `use_prompt`. `"each"` offers one tool for
        /// each prompt.
        let tools: ToolForm = section.choice(key, base.form, &FORMS);
        field pub form: ToolForm [ToolForm::Pair] = tools;
        /// Whether prompts are offered as tools.
        field pub tools: bool [false] = is_exposed(&expose, ExposureKind::Tools, base.tools);
        /// With `tools = "each"`: the most prompts that an endpoint offers one by one, counted
        /// before access rules. With more, it offers the pair, and the log has a warning.
        pub tools_max: usize [100] = section.count(key, base.tools_max, 1..=100_000);
    }
}

/// The form of the tools that represent prompts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ToolForm {
    /// `find_prompt` and `use_prompt`, for any number of prompts.
    Pair,
    /// One tool for each prompt.
    Each,
}

/// The values of `expose`.
#[derive(Clone, Copy, Eq, PartialEq)]
enum ExposureKind {
    Prompts,
    Tools,
    Skills,
}

const KINDS: [(&str, ExposureKind); 3] = [
    ("prompts", ExposureKind::Prompts),
    ("tools", ExposureKind::Tools),
    ("skills", ExposureKind::Skills),
];

const FORMS: [(&str, ToolForm); 2] = [("pair", ToolForm::Pair), ("each", ToolForm::Each)];

/// Reads `expose`, `tools` and `tools_max`. Keys that are not set are as in `base`.
pub(crate) fn read(section: &mut Section<'_>, base: &Exposure) -> Exposure {
    Exposure::read_keys(section, base)
}

/// Reads `expose`; `None` if it is not set.
fn kinds(section: &mut Section<'_>, key: &'static str) -> Option<Vec<ExposureKind>> {
    let kinds = section.choices(key, &KINDS);
    if section.was_read(key) && kinds.is_empty() {
        let rule = "must name \"prompts\", \"tools\" or \"skills\", or several of them";
        section.mistake(key, rule);
    }
    section.was_read(key).then_some(kinds)
}

fn is_exposed(kinds: &Option<Vec<ExposureKind>>, kind: ExposureKind, base: bool) -> bool {
    kinds.as_ref().map_or(base, |kinds| kinds.contains(&kind))
}

/// Whether an endpoint offers prompts of an upstream as skills.
pub fn offers_as_skills(config: &Config, upstream: &UpstreamId) -> bool {
    let serves = |view: &View| view.exposure.skills && view.upstreams.contains(upstream);
    config.server.exposure.skills || config.views.iter().any(serves)
}

/// Marks the libraries and prompt stores whose prompts are offered as skills.
pub(crate) fn note_skills(config: &mut Config) {
    // Texts of servers are known through approvals only.
    let is_rendered = |upstream: &UpstreamSettings| {
        !upstream.transport.is_server() && offers_as_skills(config, &upstream.id)
    };
    let rendered: Vec<_> = config.upstreams.iter().map(is_rendered).collect();
    for (upstream, is_rendered) in config.upstreams.iter_mut().zip(rendered) {
        upstream.settings.prompts_as_skills = is_rendered;
    }
}
