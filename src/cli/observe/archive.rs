//! `promptgate audit archive`: copies closed segments of the audit log to a folder.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use serde_json::json;
use tokio::runtime::Runtime;

use super::audit::{cannot_read, log_with_keys};
use crate::cli::shared::admin_api::send_once;
use crate::cli::shared::args::AdminApi;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::reach::Reach;
use crate::cli::shared::runtime::runtime;
use crate::cli::shared::user::user;
use audit::Audit;
use audit::archive::{Archive, CopyState, CopyStatement, SegmentCopy};

/// The path of the records of copies in the admin API.
const PATH: &str = "/api/v1/audit/archived";

/// The writer of the records of copies.
struct Recorder {
    runtime: Runtime,
    log: Writer,
}

enum Writer {
    /// No gateway writes the log: the command writes the record.
    Own(Audit),
    /// A running gateway writes the log; the URL is that of its admin API.
    Running(String),
}

/// The outcome of a run.
#[derive(Default)]
struct Outcome {
    copied: Vec<String>,
    present: usize,
    differing: Vec<String>,
}

/// Copies the closed segments that the archive does not have.
pub(crate) fn run(dir: &Path, admin: &AdminApi) -> Result<(), Failure> {
    let log = log_with_keys(&admin.file.config)?.0.path;
    let cannot_write = |error: io::Error| {
        let why = match error.kind() {
            io::ErrorKind::WouldBlock => "another `audit archive` writes into it".to_owned(),
            _ => error.to_string(),
        };
        Failure::new(format!("cannot archive {} to {}: {why}", log.display(), dir.display()))
    };
    let archive = Archive::open(&log, dir).map_err(cannot_write)?;
    let closed =
        archive.closed().map_err(|error| cannot_read(&log.display().to_string(), &error))?;
    let (mut outcome, mut recorder) = (Outcome::default(), None);
    let done = closed.into_iter().try_for_each(|number| {
        let copy = match copied(&archive, number, &mut outcome) {
            // The segment has left the log meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            copy => copy.map_err(cannot_write)?,
        };
        let Some(copy) = copy else { return Ok(()) };
        let recorder = match &mut recorder {
            Some(recorder) => recorder,
            None => recorder.insert(Recorder::find(admin)?),
        };
        recorder.record(copy.statement(dir, &user()))?;
        archive.keep(&copy).map_err(cannot_write)?;
        outcome.copied.push(copy.name().to_owned());
        Ok(())
    });
    if let Some(Recorder { log: Writer::Own(log), .. }) = recorder {
        log.close();
    }
    outcome.print(dir, admin)?;
    done
}

/// Copies a segment; `None` where the archive has it already, whole or in part.
fn copied(
    archive: &Archive,
    number: u64,
    outcome: &mut Outcome,
) -> io::Result<Option<SegmentCopy>> {
    match archive.state(number)? {
        CopyState::Missing | CopyState::Incomplete => match archive.copy(number) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                outcome.differing.push(format!("segment {number} is damaged"));
            }
            copy => return copy.map(Some),
        },
        CopyState::Complete => outcome.present += 1,
        CopyState::Different => outcome.differing.push(archive.name(number)?),
    }
    Ok(None)
}

impl Recorder {
    /// Opens the log, or finds the gateway that writes it.
    fn find(admin: &AdminApi) -> Result<Self, Failure> {
        let opened = match &admin.url {
            Some(_) => Err(io::ErrorKind::WouldBlock.into()),
            None => Audit::open(Some(&log_with_keys(&admin.file.config)?.0)),
        };
        let log = match opened {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Writer::Running(Reach::admin_of(admin)?)
            }
            opened => Writer::Own(opened.map_err(|error| Failure::new(error.to_string()))?),
        };
        Ok(Self { runtime: runtime()?, log })
    }

    /// Records a copy.
    fn record(&self, copy: CopyStatement) -> Result<(), Failure> {
        match &self.log {
            Writer::Own(log) => {
                let recorded = self.runtime.block_on(copy.record(log));
                recorded.map_err(|error| Failure::new(format!("cannot record a copy: {error}")))
            }
            Writer::Running(url) => {
                self.runtime.block_on(send_once(url, PATH, &json!(copy))).map(drop)
            }
        }
    }
}

impl Outcome {
    fn print(&self, dir: &Path, admin: &AdminApi) -> Result<(), Failure> {
        let Self { copied, present, differing } = self;
        let mut out = String::new();
        for name in copied {
            let _ = writeln!(out, "{name}");
        }
        let _ =
            write!(out, "copied to {}: {}; there already: {present}", dir.display(), copied.len());
        let document = json!({"copied": copied, "present": present, "differing": differing});
        admin.output.print(&document, &out)?;
        if differing.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!(
            "not archived, since a copy differs or the segment is damaged: {}; `promptgate audit verify` of the log and of {} says which is right",
            differing.join(", "),
            dir.display()
        )))
    }
}
