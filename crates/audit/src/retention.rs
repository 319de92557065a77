//! Retention: the oldest segments leave beyond `audit.keep_size` and `audit.keep_for`.

use std::io;

use tracing::warn;

use super::checkpoint::Checkpoint;
use super::closed_segment::ClosedSegment;
use super::log::Log;
use super::record::Stamp;

/// The state of removals.
#[derive(Debug, Default)]
pub(super) struct Retention {
    /// The segment whose removal was recorded last: it may be there still.
    recorded: Option<u64>,
    /// Why a segment could not be removed, as it was logged last.
    error: Option<String>,
}

impl Retention {
    /// Removes the oldest segments that must leave. Each removal is on the disk as a record with a
    /// signature, which is added to `signed`, before the file is removed, so that an auditor
    /// without the secret can believe it. A segment that cannot be removed stays, and is tried
    /// again at the next call: records can be written all the same.
    ///
    /// # Errors
    /// When a record cannot be written.
    pub(super) fn remove_surplus(
        &mut self,
        log: &mut Log,
        signed: &mut Vec<Checkpoint>,
        now: Stamp,
    ) -> io::Result<()> {
        loop {
            let surplus = match log.oldest_surplus(now) {
                Ok(Some(surplus)) => surplus,
                Ok(None) => break self.error = None,
                Err(error) => break self.warn(log, &error),
            };
            let ClosedSegment { number, .. } = surplus;
            if self.recorded != Some(number) {
                log.append(std::iter::once((&surplus.event("segment_removed"), now)), now)?;
                signed.push(log.sign(now)?);
                log.sync(now)?;
                self.recorded = Some(number);
            }
            if let Err(error) = log.remove(number) {
                break self.warn(log, &error);
            }
        }
        Ok(())
    }

    /// Logs why a segment cannot be removed, once.
    fn warn(&mut self, log: &Log, error: &io::Error) {
        let reason = Some(error.to_string());
        if self.error == reason {
            return;
        }
        self.error = reason;
        warn!(
            path = %log.path().display(),
            %error,
            "old audit segments beyond audit.keep_size or audit.keep_for cannot be removed; retrying"
        );
    }
}
