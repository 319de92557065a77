//! The exposure of an endpoint: prompts, and tools and skills that stand for prompts.

use super::reader::Section;
use super::upstream::UpstreamSettings;
use super::{Config, View};
use domain::name::UpstreamId;

/// How the prompts of one endpoint are offered (`expose`, `tools`, `tools_max`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Exposure {
    /// Whether prompts are offered as prompts.
    pub prompts: bool,
    /// Whether prompts are offered as tools.
    pub tools: bool,
    /// Whether prompts without required arguments are offered as skills.
    pub skills: bool,
    pub form: ToolForm,
    /// Most prompts of the endpoint for [`ToolForm::Each`]; with more, the form is
    /// [`ToolForm::Pair`].
    pub tools_max: usize,
}

/// The tools that stand for prompts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ToolForm {
    /// `find_prompt` and `use_prompt`, however many prompts there are.
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

impl Default for Exposure {
    fn default() -> Self {
        Self { prompts: true, tools: false, skills: false, form: ToolForm::Pair, tools_max: 100 }
    }
}

/// The keys that `[server]` and views have.
const KEYS: &str = r#"
expose = ["prompts"], such as ["tools"]: The form in which the endpoint offers its prompts. `"tools"`
    offers them as tools, for hosts and models that know no prompts. See docs/tools.md. `"skills"`
    offers those without required arguments as skills. See docs/skills.md. Without `"prompts"`, the
    methods for prompts are −32601.
tools: `"pair"` offers two tools, `find_prompt` and `use_prompt`. `"each"` offers one tool for each
    prompt.
tools_max: With `tools = "each"`: the most prompts that an endpoint offers one by one, counted
    before access rules. With more, it offers the pair, and the log has a warning.
"#;

/// Reads `expose`, `tools` and `tools_max`. Keys that are not set are as in `base`.
pub(super) fn read(section: &mut Section<'_>, base: &Exposure) -> Exposure {
    section.explain(KEYS);
    let kinds = section.choices(
        "expose",
        &[
            ("prompts", ExposureKind::Prompts),
            ("tools", ExposureKind::Tools),
            ("skills", ExposureKind::Skills),
        ],
    );
    let is_set = section.was_read("expose");
    if is_set && kinds.is_empty() {
        section.mistake(
            "expose",
            "must name \"prompts\", \"tools\" or \"skills\", or several of them",
        );
    }
    let is_exposed = |kind, base| if is_set { kinds.contains(&kind) } else { base };
    let forms = [("pair", ToolForm::Pair), ("each", ToolForm::Each)];
    Exposure {
        prompts: is_exposed(ExposureKind::Prompts, base.prompts),
        tools: is_exposed(ExposureKind::Tools, base.tools),
        skills: is_exposed(ExposureKind::Skills, base.skills),
        form: section.choice("tools", base.form, &forms),
        tools_max: section.count("tools_max", base.tools_max, 1..=100_000),
    }
}

/// Whether an endpoint offers prompts of an upstream as skills.
pub fn offers_as_skills(config: &Config, upstream: &UpstreamId) -> bool {
    let serves = |view: &View| view.exposure.skills && view.upstreams.contains(upstream);
    config.server.exposure.skills || config.views.iter().any(serves)
}

/// Notes the libraries and prompt stores whose prompts are offered as skills.
pub(super) fn note_skills(config: &mut Config) {
    // Texts of servers are known by approvals alone.
    let is_rendered = |upstream: &UpstreamSettings| {
        !upstream.transport.is_server() && offers_as_skills(config, &upstream.id)
    };
    let rendered: Vec<_> = config.upstreams.iter().map(is_rendered).collect();
    for (upstream, is_rendered) in config.upstreams.iter_mut().zip(rendered) {
        upstream.settings.prompts_as_skills = is_rendered;
    }
}
