//! The share of each upstream in the records of changes. An upstream that keeps changing its list
//! must not fill the audit log, because then no call is served. Changes beyond the share are
//! counted, and recorded as one.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

use audit::record::AuditEvent;
use base::seal;
use policy::gcra::Quota;
use policy::limiter::Limiter;

/// The shares of all upstreams.
pub struct ChangeShares {
    records: Limiter<ShareKey>,
    /// The changes since the last count that were counted instead of recorded.
    counted: HashMap<ShareKey, ChangeCount>,
}

/// An upstream, and the event that counts its changes.
type ShareKey = (String, &'static str);

/// Changes that are recorded as one.
#[derive(Debug)]
struct ChangeCount {
    since: Instant,
    first: String,
    last: String,
    count: u64,
    /// `sha256:…` of the changes' digests, chained.
    digest: String,
}

/// Quota of records for each upstream and event. The burst covers the prompts of an upstream that
/// is replaced as a whole.
const RECORDS: Quota =
    Quota { interval: Duration::from_secs(20), burst: NonZeroU32::new(1_000).expect("not zero") };

/// Most shares that are kept: there are fewer upstreams.
const SHARES: usize = 4_096;

/// Time between two counts.
const WINDOW: Duration = Duration::from_secs(60);

impl Default for ChangeShares {
    fn default() -> Self {
        Self { records: Limiter::new(RECORDS, SHARES), counted: HashMap::new() }
    }
}

impl ChangeShares {
    /// Whether a change of a prompt is recorded; otherwise the change is counted. `event` names the
    /// record of the count, and `digests` identify the change.
    pub fn take(
        &mut self,
        upstream: &str,
        event: &'static str,
        prompt: &str,
        digests: [&str; 2],
    ) -> bool {
        let key = (upstream.to_owned(), event);
        let has_record = self.records.take(key.clone()).is_ok();
        if !has_record {
            let counted = self.counted.entry(key).or_insert_with(|| ChangeCount::new(prompt));
            counted.add(prompt, digests);
        }
        has_record
    }

    /// Returns when counts are due to be recorded.
    pub fn due(&self) -> Option<Instant> {
        self.counted.values().map(|counted| counted.since + WINDOW).min()
    }

    /// Takes the counts that are due.
    pub(crate) fn take_due(&mut self) -> Vec<AuditEvent> {
        let now = Instant::now();
        self.take_counts(|counted| counted.since + WINDOW <= now)
    }

    /// Takes all counts.
    pub fn rest(&mut self) -> Vec<AuditEvent> {
        self.take_counts(|_| true)
    }

    fn take_counts(&mut self, is_due: impl Fn(&ChangeCount) -> bool) -> Vec<AuditEvent> {
        let due = self.counted.extract_if(|_, counted| is_due(counted));
        due.map(|((upstream, event), counted)| counted.event(&upstream, event)).collect()
    }
}

impl ChangeCount {
    fn new(first: &str) -> Self {
        let since = Instant::now();
        let last = String::new();
        let digest = String::new();
        Self { since, first: first.to_owned(), last, count: 0, digest }
    }

    fn add(&mut self, prompt: &str, [before, now]: [&str; 2]) {
        self.count += 1;
        prompt.clone_into(&mut self.last);
        let change = [&self.digest, prompt, before, now].join("\n");
        self.digest = seal::sha256_text(change.as_bytes());
    }

    fn event(&self, upstream: &str, event: &'static str) -> AuditEvent {
        let event = AuditEvent::new(event).text("upstream", upstream);
        let event = event.text("first", &self.first).text("last", &self.last);
        event.text("digest", &self.digest).number("count", self.count)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn change(shares: &mut ChangeShares, upstream: &str, prompt: usize) -> bool {
        let digests = ["sha256:1", "sha256:2"];
        shares.take(upstream, "definitions_changed", &prompt.to_string(), digests)
    }

    #[tokio::test(start_paused = true)]
    async fn changes_without_an_end_are_a_few_records_in_a_minute() {
        let mut shares = ChangeShares::default();
        let mut own = 0;
        let mut counts = 0;
        for _ in 0..600 {
            own += (0..100).filter(|prompt| change(&mut shares, "up", *prompt)).count();
            if shares.due().is_some_and(|due| due <= Instant::now()) {
                counts += shares.take_due().len();
            }
            advance(Duration::from_secs(1)).await;
        }
        assert!((1_029..=1_030).contains(&own) && counts == 9, "{own}, {counts}");
        assert!(change(&mut shares, "other", 0), "the share of another is its own");
    }

    #[tokio::test(start_paused = true)]
    async fn a_count_names_the_first_and_the_last_and_loses_none() {
        let mut shares = ChangeShares::default();
        for prompt in 0..1_500 {
            assert_eq!(change(&mut shares, "up", prompt), prompt < 1_000);
        }
        assert_eq!(shares.due(), Some(Instant::now() + WINDOW));
        assert_eq!(shares.take_due(), []);
        advance(WINDOW).await;
        let events = shares.take_due();
        let text = format!("{events:?}").replace('\\', "");
        for part in [r#""first":"1000""#, r#""last":"1499""#, r#""count":500"#, "sha256:"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!((shares.rest(), shares.due()), (vec![], None));
    }
}
