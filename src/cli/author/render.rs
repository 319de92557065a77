//! `promptgate render`: the messages of a prompt file, without a gateway.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::client::{check_arguments, definition, document, messages_text, with_values};
use crate::cli::shared::args::Output;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::printable;
use config::Settings;
use domain::fault::RequestFault;
use domain::json::document::Document;
use domain::prompts::prompt::Argument;
use library::LibrarySnapshot;

/// # Errors
/// With exit code 1 for a file that is not a prompt, and for unknown or missing arguments.
pub(crate) fn run(
    file: &Path,
    library: Option<PathBuf>,
    arguments: &[(String, String)],
    output: &Output,
) -> Result<(), Failure> {
    let failed = |why: &dyn ToString| Failure::new(printable(&why.to_string()));
    let folder = library.unwrap_or_else(|| folder_of(file));
    let snapshot = LibrarySnapshot::of_file(&folder, file, &Settings::default());
    let snapshot = snapshot.map_err(|why| failed(&why))?;
    let arguments = with_values(arguments, &mut io::stdin().lock())?;
    for prompt in &snapshot.listed.prompts {
        check_arguments(&definition(prompt), &arguments).map_err(Failure::new)?;
        let is_given = |name: &str| arguments.iter().any(|(given, _)| given == name);
        let is_missing = |argument: &&Argument| argument.required && !is_given(&argument.name);
        if let Some(Argument { name, .. }) = prompt.arguments.iter().find(is_missing) {
            return Err(failed(&RequestFault::MissingArgument { argument: name.clone() }));
        }
        let given = document(&arguments);
        let result = snapshot.get(&prompt.name, given.as_ref().map(Document::json), None);
        let result = result.map_err(|kind| failed(&kind))?;
        let result: Value = serde_json::from_str(result.json().text()).unwrap_or_default();
        output.print(&result, &messages_text(&result))?;
    }
    Ok(())
}

/// Returns the folder of the library: versions of `refund` are in `refund/versions`.
fn folder_of(file: &Path) -> PathBuf {
    let parent = Path::new(".").join(file.parent().unwrap_or(file));
    if parent.ends_with("versions") { parent.join("../..") } else { parent }
}
