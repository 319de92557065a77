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
enum Kind {
    Prompts,
    Tools,
}

impl Default for Exposure {
    fn default() -> Self {
        Self { prompts: true, tools: false, form: ToolForm::Pair, tools_max: 100 }
    }
}

/// Reads `expose`, `tools` and `tools_max`. Keys that are not set are as in `base`.
pub(super) fn read(section: &mut Section<'_>, base: &Exposure) -> Exposure {
    let kinds = section.choices("expose", &[("prompts", Kind::Prompts), ("tools", Kind::Tools)]);
    let is_set = section.was_read("expose");
    if is_set && kinds.is_empty() {
        section.mistake("expose", "must name \"prompts\", \"tools\" or both");
    }
    let forms = [("pair", ToolForm::Pair), ("each", ToolForm::Each)];
    Exposure {
        prompts: if is_set { kinds.contains(&Kind::Prompts) } else { base.prompts },
        tools: if is_set { kinds.contains(&Kind::Tools) } else { base.tools },
        form: section.choice("tools", base.form, &forms),
        tools_max: section.count("tools_max", base.tools_max, 1..=100_000),
    }
}
