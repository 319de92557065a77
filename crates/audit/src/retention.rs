//! Retention: the oldest segments leave beyond `audit.keep_size` and `audit.keep_for`.

use std::io;
use std::time::{Duration, SystemTime};

use tracing::warn;

use super::log::Log;
use super::record::Stamp;
use super::segments::closed_segment::ClosedSegment;
use super::segments::folder::{segment_modified, segment_numbers};
use super::segments::recover::header_time;

/// The state of removals.
#[derive(Debug, Default)]
pub(super) struct Retention {
    /// The segment whose removal was recorded last; its file may still exist.
    recorded: Option<u64>,
    /// Why a segment could not be removed, as it was logged last.
    error: Option<String>,
    /// Since when the oldest segment is beyond `keep_for`, as an `up` stamp.
    old_since: Option<Duration>,
}

/// A segment that must leave.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Surplus {
    pub segment: ClosedSegment,
    pub is_exported: bool,
}

/// The time for which a segment must stay too old: a clock that is wrong briefly removes nothing.
const WRONG_CLOCK: Duration = Duration::from_secs(600);

impl Retention {
    /// Removes the oldest segments that must leave. Each removal is on the disk as a record with a
    /// signature before the file is removed, so that an auditor without the secret can believe it.
    /// A segment that cannot be removed stays, and is tried again at the next call: records can be
    /// written all the same.
    /// Segments from `unexported` on wait for the export, within its reserve.
    pub(super) fn remove_surplus(
        &mut self,
        log: &mut Log,
        unexported: u64,
        now: Stamp,
    ) -> io::Result<()> {
        loop {
            let surplus = match self.oldest_surplus(log, unexported, now) {
                Ok(Some(surplus)) => surplus,
                Ok(None) => break self.error = None,
                Err(error) => break self.warn(log, &error),
            };
            let Surplus { segment, is_exported } = surplus;
            let ClosedSegment { number, .. } = segment;
            if self.recorded != Some(number) {
                let mut event = segment.event("segment_removed");
                if !is_exported {
                    event = event.json("exported", "false");
                    warn!(
                        path = %log.path().display(),
                        segment = number,
                        "an unexported audit segment is removed"
                    );
                }
                log.append(std::iter::once((&event, now)), now)?;
                log.sign(now)?;
                log.sync(now)?;
                self.recorded = Some(number);
            }
            if let Err(error) = log.remove(number) {
                break self.warn(log, &error);
            }
        }
        Ok(())
    }

    /// Returns the oldest closed segment, if it must leave: beyond `keep_size`, with room for the
    /// segment that is written, or beyond `keep_for`. If it is not exported, it stays until the
    /// reserve of the export is used up, too.
    pub(super) fn oldest_surplus(
        &mut self,
        log: &Log,
        unexported: u64,
        now: Stamp,
    ) -> io::Result<Option<Surplus>> {
        let settings = log.settings();
        let room = settings.keep_size - settings.closing_size();
        let is_full = !settings.refuses_when_full && log.size() > room;
        let &[number, second, ..] = segment_numbers(log.path())?.as_slice() else {
            return Ok(None);
        };
        if !self.is_too_old(log, number, second, now) && !is_full {
            return Ok(None);
        }
        let reserve = settings.export_reserve.filter(|_| number >= unexported);
        if let Some(reserve) = reserve
            && (settings.refuses_when_full || log.size() <= room.saturating_add(reserve))
        {
            return Ok(None);
        }
        // The header of a later segment would claim that those between were removed, too.
        let segment = ClosedSegment::read(log.path(), number, second)?;
        Ok(Some(Surplus { segment, is_exported: reserve.is_none() }))
    }

    /// Whether the oldest segment is beyond `keep_for`, by the time of its file and by that of the
    /// header after it, and has been for [`WRONG_CLOCK`].
    fn is_too_old(&mut self, log: &Log, oldest: u64, next: u64, now: Stamp) -> bool {
        let is_beyond = |time: Option<SystemTime>| {
            let age = time.and_then(|time| now.wall.duration_since(time).ok());
            age.is_some_and(|age| age > log.settings().keep_for)
        };
        let is_old = is_beyond(segment_modified(log.path(), oldest))
            && is_beyond(header_time(log.path(), next).ok());
        self.old_since = is_old.then(|| self.old_since.unwrap_or(now.up));
        self.old_since.is_some_and(|since| now.up.saturating_sub(since) >= WRONG_CLOCK)
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
