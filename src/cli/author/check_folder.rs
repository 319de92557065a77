//! `promptgate check DIR`: checks a folder of prompts without a configuration.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use crate::cli::shared::args::Output;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::{counted, printable};
use config::Settings;
use library::prompt_list::PromptList;
use library::{LibraryLabels, LibrarySnapshot};

/// Prints a line for each mistake and each warning, then the numbers. Exit code: 1 if there is a
/// mistake.
pub(crate) fn run(folder: &Path, output: &Output) -> Result<ExitCode, Failure> {
    let shown = folder.display();
    if !folder.is_dir() {
        let why = format!("{shown} is not a folder; a configuration follows --config");
        return Err(Failure::usage(why));
    }
    let labels = LibraryLabels::default();
    let loaded = LibrarySnapshot::load(folder, "library", &Settings::default(), &labels);
    let loaded = loaded.map_err(|kind| Failure::new(format!("{shown}: {}", kind.diagnosis())))?;
    let PromptList { prompts, skills, malformed, remarks, .. } = loaded.listed;
    let plain = prompts.iter().filter(|prompt| !prompt.is_version()).count();
    let mistakes: Vec<_> = malformed.into_iter().map(|mistake| mistake.reason).collect();
    let report = json!({
        "folder": shown.to_string(),
        "prompts": plain,
        "skills": skills.len(),
        "invalid": mistakes,
        "warnings": remarks,
    });
    let warnings = remarks.iter().map(|remark| format!("warning: {remark}"));
    let mut lines: Vec<_> = mistakes.iter().cloned().chain(warnings).collect();
    let counts = [(plain, "prompt"), (skills.len(), "skill"), (mistakes.len(), "mistake")];
    lines.push(counts.map(|(count, noun)| counted(count, noun)).join(", "));
    output.print(&report, &printable(&lines.join("\n")))?;
    Ok(ExitCode::from(u8::from(!mistakes.is_empty())))
}
