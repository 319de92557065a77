//! Probes without a request: probes the prompts of one upstream on changes and from time to time.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Approvals;
use super::pace::Purpose;
use super::probe::{PromptProbe, offered_texts};
use base::platform::wall_clock;
use calls::Router;
use catalog::approval::OfferedPrompt;
use catalog::effective::{TextReport, TextsOf};
use domain::approval::{ApprovalKind, DigestText};
use domain::name::UpstreamId;
use policy::gcra::Quota;
use policy::limiter::Limiter;

/// The interval between reports of probes: each report causes a new decision on all prompts of the
/// upstream.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// Quota of probes for new versions of one upstream: an upstream that keeps changing prompts must
/// not fill the audit log with gets.
const NEW_VERSIONS: Quota =
    Quota { interval: Duration::from_secs(30), burst: NonZeroU32::new(10_000).expect("not zero") };

/// Skills have no texts apart from their files, whose digests are known.
const KIND: ApprovalKind = ApprovalKind::Prompt;

/// The time and the version of a prompt's last probe.
struct Done {
    definition: DigestText,
    source: Option<DigestText>,
    /// `None` if a get has returned another text since.
    at: Option<Instant>,
}

/// Probes the prompts of one upstream.
pub struct Prober {
    approvals: Arc<Approvals>,
    upstream: UpstreamId,
    /// The last probes by the raw names of the prompts.
    done: HashMap<Arc<str>, Done>,
    new_versions: Limiter<()>,
}

impl Prober {
    pub fn new(approvals: Arc<Approvals>, upstream: UpstreamId) -> Self {
        let new_versions = Limiter::new(NEW_VERSIONS, 1);
        Self { approvals, upstream, done: HashMap::new(), new_versions }
    }

    /// Probes prompts on changes, after a get returned a text other than the approved text, and
    /// every `probe_every`; until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut published = self.approvals.router.published();
        let mut mismatched = self.approvals.router.unapproved_texts().added();
        loop {
            published.mark_unchanged();
            let probing = self.probe_due();
            let next = tokio::select! {
                () = stop.cancelled() => return,
                next = probing => next,
            };
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = published.changed() => {}
                Ok(()) = mismatched.changed() => {}
                () = sleep_until(next) => {}
            }
            for raw_name in self.approvals.router.unapproved_texts().take(&self.upstream) {
                self.done.entry(raw_name).and_modify(|done| done.at = None);
            }
        }
    }

    /// Runs the due probes, and returns the time of the next probe.
    async fn probe_due(&mut self) -> Instant {
        let Self { approvals, upstream, done, new_versions } = self;
        let every = approvals.rules.probe_every;
        let catalog = approvals.router.catalog();
        let rows = || catalog.approvals.iter().flat_map(|rows| rows.iter());
        let rows = || rows().filter(|row| row.upstream == *upstream && row.kind == KIND);
        let offered = rows().filter_map(|row| Some((row, row.offered.as_ref()?)));
        let mut next = Instant::now() + every;
        let mut reports = Vec::new();
        let mut reported = Instant::now();
        for (row, offered) in offered {
            let probe = PromptProbe { approvals, row, offered, purpose: Purpose::Probe };
            let key = row.raw_name.clone();
            let OfferedPrompt { version, .. } = offered;
            let definition = version.definition.clone();
            let source = version.source.clone();
            let known = done.get(&key);
            let known = known.filter(|done| done.definition == definition && done.source == source);
            let is_new = known.is_none();
            let at = match known {
                Some(done) => done.at,
                // The version was probed under an earlier configuration.
                None if probe.is_done() => Some(Instant::now()),
                None => None,
            };
            if let Some(at) = at.filter(|at| at.elapsed() < every) {
                done.insert(key, Done { definition, source, at: Some(at) });
                next = next.min(at + every);
                continue;
            }
            if is_new && let Err(wait) = new_versions.take(()) {
                next = next.min(Instant::now() + wait);
                continue;
            }
            let probed = probe.texts().await;
            let texts = offered_texts(&probed);
            let failed = probed.into_keys().filter(|arguments| !texts.contains_key(arguments));
            reports.push(TextReport {
                upstream: upstream.clone(),
                raw_name: key.clone(),
                failed: failed.collect(),
                texts: TextsOf { definition: definition.clone(), texts, since: wall_clock() },
            });
            if reported.elapsed() >= REPORT_INTERVAL {
                report(&approvals.router, &mut reports).await;
                reported = Instant::now();
            }
            let at = Instant::now();
            done.insert(key, Done { definition, source, at: Some(at) });
            next = next.min(at + every);
        }
        report(&approvals.router, &mut reports).await;
        if done.len() > rows().count() {
            let keys: HashSet<_> = rows().map(|row| row.raw_name.clone()).collect();
            done.retain(|key, _| keys.contains(key));
        }
        next
    }
}

async fn report(router: &Router, reports: &mut Vec<TextReport>) {
    if !reports.is_empty() {
        router.report_texts(std::mem::take(reports)).await;
    }
}
