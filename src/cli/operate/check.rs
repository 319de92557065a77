//! `promptgate check`: validates the configuration, and the prompts of its libraries.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::endpoint_bounds;
use super::git::tracks;
use super::unmatched::KnownPrompts;
use crate::cli::shared::args::Output;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::load::load;
use crate::cli::shared::output::{printable, prompts};
use crate::cli::shared::running::Running;
use base::platform::wall_clock;
use config::error::Origin;
use config::{Config, ConfigError, Transport, UpstreamSettings, variables};
use library::git::missing_program;
use library::prompt_list::PromptList;
use library::{LibraryLabels, LibrarySnapshot};
use net::certificates::CertificateEnd;

/// # Errors
/// With exit code 64 for mistakes in the configuration, with 1 for prompt files that are not valid.
/// With `--json` the mistakes are part of the report on standard output.
pub(crate) fn run(path: &Path, output: &Output) -> Result<(), Failure> {
    let config = match load(path) {
        Ok(config) => config,
        Err(failure) => {
            if let Some(error) = failure.config_error().filter(|_| output.json) {
                output.print(&mistakes_report(error), "")?;
            }
            return Err(failure);
        }
    };
    let (libraries, lists) = libraries(&config);
    let warnings = warnings(path, &config, &lists);
    let invalid: usize = libraries.iter().map(|library| library.invalid.len()).sum();
    let report = report(path, &config, &libraries, &warnings);
    output.print(&report, &text(path, &config, &libraries, &warnings))?;
    match invalid {
        0 => Ok(()),
        1 => Err(Failure::new("1 prompt file is not valid")),
        n => Err(Failure::new(format!("{n} prompt files are not valid"))),
    }
}

/// Compares the file with the gateway that runs with it, if there is one.
///
/// # Errors
/// With exit code 64 if that gateway would hold the file back.
pub(crate) fn against_running(path: &Path) -> Result<(), Failure> {
    match held_back(path, &load(path)?).as_slice() {
        [] => Ok(()),
        held => Err(Failure::usage(held.join("\n"))),
    }
}

/// Returns why the gateway that runs with the file would hold it back.
fn held_back(path: &Path, config: &Config) -> Vec<String> {
    let running = Running::find(path).into_iter();
    let reasons = running.flat_map(|running| config.held_back(&running.protections));
    let said = |why| format!("The gateway that runs with this file would hold it back: {why}");
    reasons.map(said).collect()
}

/// The prompts that the gateway would read from one library.
struct Library<'a> {
    upstream: &'a str,
    prompts: usize,
    /// The file and the reason of each prompt that is left out.
    invalid: Vec<String>,
}

/// Reads the libraries. The lists are those of all upstreams, in the order of the configuration;
/// `None` for an upstream that is no library, or cannot be read.
fn libraries(config: &Config) -> (Vec<Library<'_>>, Vec<Option<PromptList>>) {
    let (mut libraries, mut lists) = (Vec::new(), Vec::new());
    for upstream in &config.upstreams {
        let Transport::Library(library) = &upstream.transport else {
            lists.push(None);
            continue;
        };
        let id = upstream.id.as_str();
        let (folder, labels) = (&library.folder, LibraryLabels::new(&library.label));
        let loaded = LibrarySnapshot::load(folder, id, &upstream.settings, &labels);
        let (prompts, invalid) = match loaded {
            Ok(LibrarySnapshot { listed, .. }) => {
                let malformed = listed.malformed.iter().map(|prompt| prompt.reason.clone());
                let plain = listed.prompts.iter().filter(|prompt| !prompt.is_version());
                let found = (plain.count(), malformed.collect());
                lists.push(Some(listed));
                found
            }
            Err(kind) => {
                lists.push(None);
                (0, vec![kind.diagnosis()])
            }
        };
        libraries.push(Library { upstream: id, prompts, invalid });
    }
    (libraries, lists)
}

/// Returns warnings about a valid configuration, one line each with its place: what the running
/// gateway would hold back, remarks on prompts, names that match nothing known, lists of several
/// pages, and secret files that git tracks.
pub(crate) fn warnings(path: &Path, config: &Config, lists: &[Option<PromptList>]) -> Vec<String> {
    let remarks = lists.iter().flatten().flat_map(|list| list.remarks.clone());
    let mut warnings = held_back(path, config);
    warnings.extend(remarks);
    let known = KnownPrompts::new(config, lists);
    warnings.extend(known.warnings(path));
    warnings.extend(endpoint_bounds::warnings(config, known.catalog()));
    let is_git = |up: &&UpstreamSettings| matches!(up.transport, Transport::Git(_));
    if let Some(upstream) = config.upstreams.iter().find(is_git) {
        let id = &upstream.id;
        warnings.extend(missing_program().map(|missing| format!("upstreams.{id}: {missing}")));
    }
    warnings.extend(config.server.trusted_proxies.too_wide().map(|network| {
        format!("server.trusted_proxies: {network} holds strangers, too, and each of them chooses an address by X-Forwarded-For: name the networks of the proxies alone")
    }));
    let claim = config.auth.jwt.as_ref().map(|jwt| jwt.groups_claim.as_str());
    warnings.extend(claim.filter(|claim| claim.starts_with(['/', '$'])).map(|claim| {
        format!("auth.jwt.groups_claim: {claim:?} is the name of a claim: write a path as a.b")
    }));
    let files = config.server.tls.as_ref().and_then(|tls| tls.read().ok());
    let ends = files.iter().flat_map(CertificateEnd::of_files);
    warnings.extend(ends.filter_map(|end| end.warning(wall_clock())));
    let audit = config.audit.as_ref();
    let written = [
        audit.map(config::Audit::key_file),
        audit.map(|audit| audit.path.as_path()),
        config.admin.as_ref().and_then(|admin| admin.usage.path.as_deref()),
        config.logins.as_ref().map(|logins| logins.path.as_path()),
    ];
    let tracked = written.into_iter().flatten().filter(|path| path.exists() && tracks(path));
    warnings.extend(tracked.map(|path| {
        let path = path.display();
        format!("{path} is tracked by git: `git rm -r --cached {path}`, and add it to .gitignore; a key that was published must be replaced")
    }));
    warnings
}

/// Returns the warnings as lines that follow a text.
pub(crate) fn warning_lines(warnings: &[String]) -> String {
    warnings.iter().map(|warning| format!("\nwarning: {}", printable(warning))).collect()
}

fn report(path: &Path, config: &Config, libraries: &[Library<'_>], warnings: &[String]) -> Value {
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
        "passthrough": config.passthrough.as_ref().map(domain::name::UpstreamId::as_str),
        "libraries": libraries,
        "warnings": warnings,
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

fn text(path: &Path, config: &Config, libraries: &[Library<'_>], warnings: &[String]) -> String {
    let upstreams: Vec<_> = config.upstreams.iter().map(|u| u.id.as_str()).collect();
    let upstreams = if upstreams.is_empty() { "none".to_owned() } else { upstreams.join(", ") };
    let mut out = format!("{} is valid. Upstreams: {upstreams}", path.display());
    if let Some(rest) = &config.passthrough {
        let _ = write!(
            out,
            "\nrest: tools, resources and other methods are those of {rest}; approvals, content \
             checks and overlays do not apply to them"
        );
    }
    for Library { upstream, prompts: count, invalid } in libraries {
        let _ = write!(out, "\n{upstream}: {}", prompts(*count));
        for reason in invalid {
            let _ = write!(out, "\n{upstream}: left out: {}", printable(reason));
        }
    }
    for name in &config.unused_variables {
        let _ = write!(out, "\n{}", variables::hint(name));
    }
    out + &warning_lines(warnings)
}
