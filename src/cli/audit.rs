//! `promptgate audit`: checks the log, and tells the digests that stand in it.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::text::{print, printable};
use super::{Failure, load};
use crate::audit::digest::value_digest;
use crate::audit::keys::{Keys, PublicKey};
use crate::audit::verify::{self, Kept, Known, Mistake, Report};
use crate::config::{self, Config};

/// Numbers of records that are listed one by one.
const LISTED: usize = 10;

/// Checks the log in `dir`.
pub(super) fn verify(
    dir: Option<&Path>,
    config: &Path,
    public_key: Option<&str>,
    checkpoints: Option<&Path>,
) -> Result<(), Failure> {
    let mut known = Known::default();
    let mut folder = dir.map(Path::to_owned);
    match public_key {
        Some(text) => {
            let key = PublicKey::parse(text);
            known.public = Some(key.ok_or_else(|| Failure::usage("--public-key is no key"))?);
        }
        None => {
            let audit = settings(config)?;
            folder.get_or_insert_with(|| audit.path.clone());
            known.keys = Some(keys(&audit)?);
        }
    }
    let folder = match folder {
        Some(folder) => folder,
        None => settings(config)?.path,
    };
    if let Some(file) = checkpoints {
        let text = fs::read_to_string(file);
        let text = text.map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
        known.checkpoints = text.lines().filter_map(Kept::read).collect();
        if known.checkpoints.is_empty() {
            let file = file.display();
            return Err(Failure::new(format!("{file} holds no checkpoint; is it JSON lines?")));
        }
    }
    let public = known.keys.as_ref().map(|keys| keys.public().to_string());
    let report = verify::verify(&folder, known).map_err(|error| failed(&folder, &error))?;
    print(&text(&folder, &report, public.as_deref()))?;
    match report.mistakes.is_empty() {
        true => Ok(()),
        false => Err(Failure::new("the log is not as it was written")),
    }
}

/// Tells the digest of what stands on standard input.
pub(super) fn hash(config: &Path) -> Result<(), Failure> {
    let keys = keys(&settings(config)?)?;
    let mut value = Vec::new();
    io::stdin().read_to_end(&mut value).map_err(|error| Failure::new(error.to_string()))?;
    let value = value.strip_suffix(b"\n").unwrap_or(&value);
    print(&format!("{} (key {})", value_digest(&keys, value), keys.digest_id()))
}

/// `[audit]` of the configuration, or its defaults where there is no file.
fn settings(path: &Path) -> Result<config::Audit, Failure> {
    let config = match path.exists() {
        true => load(path)?,
        false => {
            let env: Vec<_> = std::env::vars().collect();
            Config::parse(&path.display().to_string(), "", Path::new(""), &env)?
        }
    };
    let off = "the configuration keeps no audit log (audit.path is \"\")";
    config.audit.ok_or_else(|| Failure::new(off))
}

fn keys(audit: &config::Audit) -> Result<Keys, Failure> {
    let key = audit.key().map_err(|error| Failure::new(error.to_string()))?;
    let none =
        "there is no audit key: set PROMPTGATE_AUDIT_KEY, or name the configuration with --config";
    key.map(|key| Keys::new(&key)).ok_or_else(|| Failure::new(none))
}

fn failed(folder: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("cannot read {}: {error}", PathBuf::from(folder).display()))
}

fn text(folder: &Path, report: &Report, public: Option<&str>) -> String {
    let Report { first, last, records, segments, .. } = report;
    let mut out = String::new();
    let (folder, noun) = (folder.display(), if *segments == 1 { "segment" } else { "segments" });
    let _ = match records {
        0 => writeln!(out, "{folder}: no records in {segments} {noun}"),
        _ => writeln!(out, "{folder}: records {first} to {last} in {segments} {noun}"),
    };
    if let Some(public) = public {
        let _ = writeln!(out, "public key: {public}");
    }
    if report.removed > 0 {
        let _ = writeln!(out, "records 1 to {} were removed, as audit.keep says", report.removed);
    }
    match report.checkpoint {
        Some(seq) => {
            let _ = writeln!(out, "last checkpoint: record {seq}");
        }
        None => out.push_str("no checkpoint\n"),
    }
    for range in &report.missing {
        let (from, to) = (range.start(), range.end());
        let _ = writeln!(out, "records {from} to {to} were never written, as the log itself says");
    }
    if !report.unknown.is_empty() {
        let listed: Vec<_> = report.unknown.iter().take(LISTED).map(u64::to_string).collect();
        let more = report.unknown.len().saturating_sub(LISTED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let _ = writeln!(
            out,
            "outcome unknown: {} calls were received and their end was not recorded (records {}{more})",
            report.unknown.len(),
            listed.join(", ")
        );
    }
    if report.unfinished > 0 {
        let _ = writeln!(
            out,
            "unfinished: {} bytes at the end are being written, or were when the gateway was \
             killed; its next start puts them aside",
            report.unfinished
        );
    }
    for Mistake { segment, seq, what } in &report.mistakes {
        let place = seq.map(|seq| format!("record {seq}: ")).unwrap_or_default();
        let segment = if segment.is_empty() { String::new() } else { format!("{segment}: ") };
        let _ = writeln!(out, "WRONG {segment}{place}{}", printable(what));
    }
    out.push_str(if report.mistakes.is_empty() { "whole" } else { "NOT WHOLE" });
    out
}
