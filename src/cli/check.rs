//! `promptgate check`: validates the configuration, and the prompts of its libraries.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::args::Output;
use super::failure::Failure;
use super::load::load;
use super::output::{printable, prompts};
use config::error::Origin;
use config::{Config, ConfigError, Transport, variables};
use gateway::upstream::library::LibrarySnapshot;

/// # Errors
/// With exit code 64 for mistakes in the configuration, with 1 for prompt files that are not valid.
/// With `--json` the mistakes are part of the report on standard output.
pub(super) fn run(path: &Path, output: &Output) -> Result<(), Failure> {
    let config = match load(path) {
        Ok(config) => config,
        Err(failure) => {
            if let Some(error) = failure.config_error().filter(|_| output.json) {
                output.print(&mistakes_report(error), "")?;
            }
            return Err(failure);
        }
    };
    let libraries = libraries(&config);
    let invalid: usize = libraries.iter().map(|library| library.invalid.len()).sum();
    output.print(&report(path, &config, &libraries), &text(path, &config, &libraries))?;
    match invalid {
        0 => Ok(()),
        1 => Err(Failure::new("1 prompt file is not valid")),
        n => Err(Failure::new(format!("{n} prompt files are not valid"))),
    }
}

/// The prompts that the gateway would read from one library.
struct Library<'a> {
    upstream: &'a str,
    prompts: usize,
    /// The file and the reason of each prompt that is left out.
    invalid: Vec<String>,
}

fn libraries(config: &Config) -> Vec<Library<'_>> {
    let mut libraries = Vec::new();
    for upstream in &config.upstreams {
        let Transport::Library(folder) = &upstream.transport else { continue };
        let id = upstream.id.as_str();
        let (prompts, invalid) = match LibrarySnapshot::load(folder, id, &upstream.settings) {
            Ok(snapshot) => {
                let malformed = snapshot.listed.malformed.into_iter();
                (snapshot.listed.prompts.len(), malformed.map(|prompt| prompt.reason).collect())
            }
            Err(kind) => (0, vec![kind.diagnosis()]),
        };
        libraries.push(Library { upstream: id, prompts, invalid });
    }
    libraries
}

fn report(path: &Path, config: &Config, libraries: &[Library<'_>]) -> Value {
    let upstreams: Vec<_> = config.upstreams.iter().map(|u| u.id.as_str()).collect();
    let libraries: Vec<_> = libraries
        .iter()
        .map(|library| {
            json!({"upstream": library.upstream, "prompts": library.prompts, "invalid": library.invalid})
        })
        .collect();
    json!({
        "file": path.display().to_string(),
        "valid": true,
        "mistakes": [],
        "upstreams": upstreams,
        "libraries": libraries,
        "unusedVariables": config.unused_variables,
    })
}

/// Returns the report of a configuration with mistakes, in the order of the file.
fn mistakes_report(error: &ConfigError) -> Value {
    let mistakes = error.mistakes.iter().map(|mistake| {
        let mut report = json!({"key": mistake.key, "message": mistake.message});
        match &mistake.origin {
            Origin::Line(line) => report["line"] = (*line).into(),
            Origin::Environment(name) => report["variable"] = name.as_str().into(),
            Origin::Unknown => {}
        }
        report
    });
    json!({"file": error.file, "valid": false, "mistakes": mistakes.collect::<Vec<_>>()})
}

fn text(path: &Path, config: &Config, libraries: &[Library<'_>]) -> String {
    let upstreams: Vec<_> = config.upstreams.iter().map(|u| u.id.as_str()).collect();
    let upstreams = if upstreams.is_empty() { "none".to_owned() } else { upstreams.join(", ") };
    let mut out = format!("{} is valid. Upstreams: {upstreams}", path.display());
    for Library { upstream, prompts: count, invalid } in libraries {
        let _ = write!(out, "\n{upstream}: {}", prompts(*count));
        for reason in invalid {
            let _ = write!(out, "\n{upstream}: left out: {}", printable(reason));
        }
    }
    for name in &config.unused_variables {
        let _ = write!(out, "\n{}", variables::hint(name));
    }
    out
}
