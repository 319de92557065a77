//! The exposure of an endpoint: prompts, tools that stand for prompts, or both.

use super::reader::Section;

/// How the prompts of one endpoint are offered (`expose`, `tools`, `tools_max`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Exposure {
    /// Whether prompts are offered as prompts.
    pub prompts: bool,
    /// Whether prompts are offered as tools.
    pub tools: bool,
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
}

impl Default for Exposure {
    fn default() -> Self {
        Self { prompts: true, tools: false, form: ToolForm::Pair, tools_max: 100 }
    }
}

/// The keys that `[server]` and views have.
const KEYS: &str = r#"
expose = ["prompts"], such as ["tools"]: The form in which the endpoint offers its prompts. `"tools"`
    offers them as tools, for hosts and models that know no prompts. Without `"prompts"`, the
    methods for prompts are −32601. See docs/tools.md.
tools: `"pair"` offers two tools, `find_prompt` and `use_prompt`. `"each"` offers one tool for each
    prompt.
tools_max: With `tools = "each"`: the most prompts that an endpoint offers one by one, counted
    before access rules. With more, it offers the pair, and the log has a warning.
"#;

/// Reads `expose`, `tools` and `tools_max`. Keys that are not set are as in `base`.
pub(super) fn read(section: &mut Section<'_>, base: &Exposure) -> Exposure {
    section.explain(KEYS);
    let kinds = section
        .choices("expose", &[("prompts", ExposureKind::Prompts), ("tools", ExposureKind::Tools)]);
    let is_set = section.was_read("expose");
    if is_set && kinds.is_empty() {
        section.mistake("expose", "must name \"prompts\", \"tools\" or both");
    }
    let forms = [("pair", ToolForm::Pair), ("each", ToolForm::Each)];
    Exposure {
        prompts: if is_set { kinds.contains(&ExposureKind::Prompts) } else { base.prompts },
        tools: if is_set { kinds.contains(&ExposureKind::Tools) } else { base.tools },
        form: section.choice("tools", base.form, &forms),
        tools_max: section.count("tools_max", base.tools_max, 1..=100_000),
    }
}
