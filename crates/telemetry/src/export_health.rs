//! The health of the export to a collector, and which of its changes are worth a log line.

/// The outcome of the last request to the collector, and of the last log line on it.
#[derive(Debug, Default)]
pub(super) struct ExportHealth {
    /// Why the last request failed; `None` after a success.
    failure: Option<String>,
    /// The failure that was reported last; `None` since a success was reported.
    reported: Option<String>,
}

/// A change since the last report.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum HealthChange {
    /// The export fails, or fails for a different reason than before.
    Failing(String),
    /// The export still fails for the same reason.
    StillFailing(String),
    /// The export works again.
    Recovered,
}

impl ExportHealth {
    /// Records the outcome of a request.
    pub(super) fn record(&mut self, outcome: Result<(), String>) {
        self.failure = outcome.err();
    }

    /// Returns the change since the last call; `None` while the export works.
    pub(super) fn report(&mut self) -> Option<HealthChange> {
        let before = std::mem::replace(&mut self.reported, self.failure.clone());
        match self.failure.clone() {
            Some(failure) if before.as_ref() == Some(&failure) => {
                Some(HealthChange::StillFailing(failure))
            }
            Some(failure) => Some(HealthChange::Failing(failure)),
            None => before.map(|_| HealthChange::Recovered),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_reported_once_per_reason_and_its_end_once() {
        let mut health = ExportHealth::default();
        let mut after = |outcome: Result<(), &str>| {
            health.record(outcome.map_err(str::to_owned));
            health.report()
        };
        assert_eq!(after(Ok(())), None);
        assert_eq!(after(Err("HTTP 503")), Some(HealthChange::Failing("HTTP 503".into())));
        assert_eq!(after(Err("HTTP 503")), Some(HealthChange::StillFailing("HTTP 503".into())));
        assert_eq!(after(Err("timeout")), Some(HealthChange::Failing("timeout".into())));
        assert_eq!(after(Ok(())), Some(HealthChange::Recovered));
        assert_eq!(after(Ok(())), None);
    }
}
