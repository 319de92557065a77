//! `promptgate audit`: verifies the audit log, and computes digests of values.

use std::fmt::{self, Write as _};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cli::shared::args::Verify;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::{print, print_json, printable};
use audit::digest::value_digest;
use audit::keys::{Keys, PublicKey};
use audit::verify::exported::{ExportedLines, ExportedLogReport};
use audit::verify::{KeptCheckpoint, TrustAnchors, VerificationReport};
use config::{Audit, Records, load_audit};

/// Record numbers that are listed one by one: enough to find the calls, short enough for a
/// terminal.
const MAX_LISTED: usize = 10;

/// Verifies a log, or exported logs, and prints the report. Fails if a log is not intact.
pub(crate) fn verify(args: &Verify) -> Result<(), Failure> {
    let config = &args.file.config;
    let mut anchors = TrustAnchors::default();
    if let Some(text) = &args.public_key {
        let invalid = "--public-key is not a public key: copy public_key from the log line `audit log opened`";
        anchors.public = Some(PublicKey::parse(text).ok_or_else(|| Failure::usage(invalid))?);
    } else {
        anchors.keys = Some(keys(config)?.into());
    }
    if let Some(file) = &args.from {
        return verify_exported(file, &anchors);
    }
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => folder(config)?,
    };
    if let Some(file) = &args.checkpoints {
        anchors.checkpoints = checkpoints(file)?;
    }
    let public = anchors.keys.as_ref().map(|keys| keys.public().to_string());
    let extent = Extent::of(&anchors);
    let named = dir.display().to_string();
    let report = audit::verify::verify(&dir, anchors);
    let report = report.map_err(|error| cannot_read(&named, &error))?;
    let verdict = VerificationResult::of(&report, extent);
    print(&text(&named, &report, public.as_deref(), &verdict))?;
    verdict.demand_intact(&named)
}

/// Verifies the logs in a file of a collector, or on standard input.
fn verify_exported(file: &Path, anchors: &TrustAnchors) -> Result<(), Failure> {
    let named = file.display().to_string();
    let failed = |error: io::Error| cannot_read(&named, &error);
    let input: Box<dyn Read> = match named.as_str() {
        "-" => Box::new(io::stdin()),
        _ => Box::new(fs::File::open(file).map_err(failed)?),
    };
    let lines = ExportedLines::read(io::BufReader::new(input)).map_err(failed)?;
    let logs = lines.verify(anchors);
    if logs.is_empty() {
        return Err(Failure::new(format!(
            "{named} holds no line of an audit log; name the JSON lines that a collector has written"
        )));
    }
    let mut outcome = Ok(());
    for ExportedLogReport { instance, repeated, report } in &logs {
        let named = printable(&format!("log {instance}"));
        let verdict = VerificationResult::of(report, Extent::of(anchors));
        if *repeated > 0 {
            print(&format!("{named}: {repeated} lines came more than once, and count once"))?;
        }
        print(&text(&named, report, None, &verdict))?;
        outcome = outcome.and(verdict.demand_intact(&named));
    }
    outcome
}

/// Prints a record with the proof that a checkpoint has signed it.
pub(crate) fn prove(call: u64, dir: Option<PathBuf>, config: &Path) -> Result<(), Failure> {
    let dir = dir.map_or_else(|| folder(config), Ok)?;
    let named = dir.display().to_string();
    let proof = audit::proof::prove(&dir, call).map_err(|error| cannot_read(&named, &error))?;
    let missing = format!("{named} does not have the record {call}; `audit find` lists records");
    let proof = proof.ok_or_else(|| Failure::new(missing))?;
    if proof.checkpoint.is_empty() {
        return Err(Failure::new(format!(
            "no checkpoint has signed the record {call} yet; try again after audit.checkpoint.every"
        )));
    }
    print_json(&json!(proof))
}

/// The extent of a verification.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Extent {
    /// Every line, with the secret.
    Everything,
    /// The lines below the last checkpoint, with the public key; of the others the order.
    SignedLines,
}

/// The result of a verification.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum VerificationResult {
    Intact,
    /// These records are intact; only the order of the other records was checked.
    SignedIntact {
        first: u64,
        last: u64,
    },
    NotIntact,
    /// Only the order was checked.
    NotVerified,
    /// There is no record.
    Empty,
}

impl Extent {
    fn of(anchors: &TrustAnchors) -> Self {
        if anchors.keys.is_some() { Self::Everything } else { Self::SignedLines }
    }
}

impl VerificationResult {
    /// Fails if the log is not intact, or was not verified.
    fn demand_intact(self, named: &str) -> Result<(), Failure> {
        match self {
            Self::Intact | Self::SignedIntact { .. } => Ok(()),
            Self::NotIntact => {
                Err(Failure::new("the audit log is not intact: see the lines with WRONG"))
            }
            Self::Empty => Err(Failure::new(format!(
                "{named} holds no audit log; name the folder of audit.path"
            ))),
            Self::NotVerified => Err(Failure::new(
                "no checkpoint signs the lines of this log: verify it with its secret (--config)",
            )),
        }
    }

    fn of(report: &VerificationReport, extent: Extent) -> Self {
        match (&report.signed, extent) {
            _ if !report.mistakes.is_empty() => Self::NotIntact,
            _ if report.records == 0 => Self::Empty,
            (_, Extent::Everything) => Self::Intact,
            (Some(signed), Extent::SignedLines) => {
                Self::SignedIntact { first: *signed.start(), last: *signed.end() }
            }
            (None, Extent::SignedLines) => Self::NotVerified,
        }
    }
}

impl fmt::Display for VerificationResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Intact => f.write_str("intact"),
            Self::SignedIntact { first, last } => write!(
                f,
                "records {first} to {last} are intact, as signed; of other records only the order was checked"
            ),
            Self::NotIntact => f.write_str("NOT INTACT"),
            Self::NotVerified => {
                f.write_str("NOT VERIFIED: only the order of the records was checked")
            }
            Self::Empty => f.write_str("NO RECORDS"),
        }
    }
}

/// Reads the checkpoints in a file of JSON lines; other lines are skipped.
fn checkpoints(file: &Path) -> Result<Vec<KeptCheckpoint>, Failure> {
    let text = fs::read_to_string(file)
        .map_err(|error| cannot_read(&file.display().to_string(), &error))?;
    let checkpoints: Vec<_> = text.lines().filter_map(KeptCheckpoint::read).collect();
    if checkpoints.is_empty() {
        return Err(Failure::new(format!(
            "{} contains no checkpoint; it must be a copy of checkpoints.jsonl in the folder of the log",
            file.display()
        )));
    }
    Ok(checkpoints)
}

/// Prints the digest of the value on standard input.
pub(crate) fn hash(config: &Path) -> Result<(), Failure> {
    let keys = keys(config)?;
    let value = read_input()?;
    let value = value.strip_suffix(b"\n").unwrap_or(&value);
    print(&format!("{} (key {})", value_digest(&keys, value), keys.digest_id()))
}

/// Reads standard input to its end.
pub(super) fn read_input() -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    let read = io::stdin().read_to_end(&mut value);
    read.map_err(|error| Failure::new(format!("cannot read standard input: {error}")))?;
    Ok(value)
}

/// Returns the folder of the audit log of a configuration file, or the default one if the file does
/// not exist.
pub(crate) fn folder(config: &Path) -> Result<PathBuf, Failure> {
    Records::load(config)?.audit_log.ok_or_else(disabled)
}

fn disabled() -> Failure {
    Failure::new("the audit log is disabled: audit.path is \"\" in the configuration")
}

/// Returns `[audit]` of a configuration file, with the keys of its log.
pub(crate) fn log_with_keys(config: &Path) -> Result<(Audit, Keys), Failure> {
    let audit = load_audit(config)?.ok_or_else(disabled)?;
    let key = audit.key().map_err(|error| Failure::new(error.to_string()))?;
    let missing = "there is no audit key: set PROMPTGATE_AUDIT_KEY, or give the configuration file with --config";
    let keys = key.map(|key| Keys::new(&key)).ok_or_else(|| Failure::new(missing))?;
    Ok((audit, keys))
}

fn keys(config: &Path) -> Result<Keys, Failure> {
    Ok(log_with_keys(config)?.1)
}

pub(crate) fn cannot_read(what: &str, error: &io::Error) -> Failure {
    Failure::new(format!("cannot read {what}: {error}"))
}

fn text(
    dir: &str,
    report: &VerificationReport,
    public: Option<&str>,
    verdict: &VerificationResult,
) -> String {
    let VerificationReport { first, last, records, segments, .. } = report;
    let mut out = String::new();
    let noun = if *segments == 1 { "segment" } else { "segments" };
    let _ = match records {
        0 => writeln!(out, "{dir}: no records in {segments} {noun}"),
        _ => writeln!(out, "{dir}: records {first} to {last} in {segments} {noun}"),
    };
    if let Some(public) = public {
        let _ = writeln!(out, "public key: {public}");
    }
    if report.removed > 0 {
        let _ = writeln!(
            out,
            "records 1 to {} have left, as audit.keep_size and audit.keep_for say",
            report.removed
        );
    }
    let _ = match report.checkpoint {
        Some(seq) => writeln!(out, "last checkpoint: record {seq}"),
        None => writeln!(out, "last checkpoint: none"),
    };
    for range in &report.missing {
        let first = range.start();
        let last = range.end();
        let _ = writeln!(out, "missing: records {first} to {last}, as the log itself declares");
    }
    if !report.refused.is_empty() {
        let count = report.refused.len();
        let records = listed(&report.refused);
        let _ =
            writeln!(out, "refused by the collector: {count} records, as the log says ({records})");
    }
    unknown_outcomes(&mut out, &report.unknown);
    if report.unfinished > 0 {
        let _ = writeln!(
            out,
            "unfinished: {} bytes at the end. The gateway is writing them now, or was killed while it \
             wrote them; then its next start moves them to a .torn file",
            report.unfinished
        );
    }
    for violation in &report.mistakes {
        let _ = writeln!(out, "WRONG {}", printable(&violation.to_string()));
    }
    if report.more_mistakes > 0 {
        let _ = writeln!(out, "and {} more", report.more_mistakes);
    }
    if report.abandoned > 0
        && matches!(
            verdict,
            VerificationResult::SignedIntact { .. } | VerificationResult::NotVerified
        )
    {
        let _ = writeln!(
            out,
            "not checked: {} bytes in abandoned segments; their lines were written again",
            report.abandoned
        );
    }
    let _ = write!(out, "{verdict}");
    out
}

/// Lists the calls with `received` but without `completed`, by their record numbers.
fn unknown_outcomes(out: &mut String, records: &[u64]) {
    if records.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "outcome unknown: {} calls were received, but their end was not recorded (records {})",
        records.len(),
        listed(records)
    );
}

/// Lists the first record numbers.
fn listed(records: &[u64]) -> String {
    let listed: Vec<_> = records.iter().take(MAX_LISTED).map(u64::to_string).collect();
    let more = records.len().saturating_sub(MAX_LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    listed.join(", ") + &more
}
