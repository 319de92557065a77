//! Probes: gets by which the gateway learns the texts of prompts. They pass the same door as every
//! call, as the caller `promptgate`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::policy::{CallTarget, RecordOutcome, Resolution, ResultDigest};
use crate::router::approval::{
    ApprovalRow, DEPTH, OfferedPrompt, PromptApproval, approval_arguments,
};
use crate::router::bridge::Bridge;
use crate::router::call_channel::CallChannel;
use crate::router::effective::{TextReport, TextsOf};
use crate::router::owner::Owner;
use crate::router::reply::Reply;
use crate::router::{RoutedCall, Router, effective_arguments, without_presets};
use base::platform::wall_clock;
use base::seal;
use config::ApprovalRules;
use domain::approval::{DigestText, Mode, NO_ARGUMENTS, OfferedText, canonical_text};
use domain::call::{Call, ClientMessages, ForwardedMeta, NameKind, Request};
use domain::caller::{Caller, PROBER};
use domain::chunks::Chunks;
use domain::document::Document;
use domain::fault::{Fault, TransportFault};
use domain::json::Json;
use domain::name::UpstreamId;
use domain::unix_time::UnixSeconds;

/// The endpoint that records of probes name.
const ENDPOINT: &str = "approvals";

/// Why the approval does not cover a text that an upstream has made with a secret.
const HOLDS_SECRET: &str = "it holds the value of a preset argument, a secret that must not be written to promptgate.lock.d";

/// The text that two gets with the same arguments returned.
#[derive(Clone, Debug)]
pub enum ProbedText {
    Stable {
        digest: DigestText,
        /// The canonical text.
        text: String,
    },
    /// Two different texts.
    Unstable,
    Failed(String),
}

/// How long a probe waits for a rate limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Patience {
    /// As long as a call may take: a person waits for the outcome.
    Short,
    Unbounded,
}

/// The texts of a prompt by their arguments, in canonical form.
pub(crate) type ProbedTexts = BTreeMap<Arc<str>, ProbedText>;

/// Returns the state of texts after they were probed.
pub(super) fn offered_texts(texts: &ProbedTexts) -> BTreeMap<Arc<str>, OfferedText> {
    let known = texts.iter().filter_map(|(arguments, text)| match text {
        ProbedText::Stable { digest, .. } => {
            Some((arguments.clone(), OfferedText::Known(digest.clone())))
        }
        ProbedText::Unstable => Some((arguments.clone(), OfferedText::Unstable)),
        ProbedText::Failed(_) => None,
    });
    known.collect()
}

/// The time between two reports of probes: after each, all prompts of the upstream are decided on
/// again.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// When a prompt was probed last, and which version of it.
struct Done {
    definition: DigestText,
    source: Option<DigestText>,
    /// `None` if a get has given another text since.
    at: Option<Instant>,
}

impl Router {
    /// Fetches the texts of a prompt: without arguments if it needs none, and with those of
    /// configured probes. Each is fetched twice, to find unstable texts.
    pub(crate) async fn probe(&self, row: &ApprovalRow, patience: Patience) -> ProbedTexts {
        let mut texts = ProbedTexts::new();
        let Some(offered) = &row.offered else {
            return texts;
        };
        for arguments in probed_arguments(row, &self.approvals) {
            let probed = self.probe_twice(row, offered, &arguments, patience).await;
            let text = probed.unwrap_or_else(|fault| ProbedText::Failed(fault.to_string()));
            texts.insert(arguments, text);
        }
        texts
    }

    /// # Errors
    /// As for a get.
    async fn probe_twice(
        &self,
        row: &ApprovalRow,
        offered: &OfferedPrompt,
        arguments: &str,
        patience: Patience,
    ) -> Result<ProbedText, Fault> {
        let text = self.probe_once(row, offered, arguments, patience).await?;
        let again = self.probe_once(row, offered, arguments, patience).await?;
        let holds_secret =
            || offered.prompt.overlay.as_ref().is_some_and(|overlay| overlay.holds_secret(&text));
        Ok(if again != text {
            ProbedText::Unstable
        } else if holds_secret() {
            ProbedText::Failed(HOLDS_SECRET.to_owned())
        } else {
            ProbedText::Stable { digest: seal::sha256_text(text.as_bytes()).into(), text }
        })
    }

    /// Probes the prompts of an upstream with approvals: when they change, after a get gave another
    /// text than the approved one, and every `probe_every`; until `stop`.
    pub async fn keep_probing(self: Arc<Self>, upstream: UpstreamId, stop: CancellationToken) {
        let mut done: HashMap<Arc<str>, Done> = HashMap::new();
        let mut published = self.shared.published.clone();
        let mut mismatched = self.shared.mismatches.added();
        loop {
            published.mark_unchanged();
            let probing = self.probe_due(&upstream, &mut done);
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
            for raw_name in self.shared.mismatches.take(&upstream) {
                done.entry(raw_name).and_modify(|done| done.at = None);
            }
        }
    }

    /// The upstreams whose prompts are probed without being asked for.
    pub fn probed_upstreams(&self) -> impl Iterator<Item = &UpstreamId> {
        let is_compared = |id: &&UpstreamId| self.approvals.mode_of(id) != Mode::Off;
        self.upstreams.keys().filter(|_| self.approvals.is_probing).filter(is_compared)
    }

    /// Runs the probes that are due, and returns the time of the next one.
    async fn probe_due(
        &self,
        upstream: &UpstreamId,
        done: &mut HashMap<Arc<str>, Done>,
    ) -> Instant {
        let every = self.approvals.probe_every;
        let catalog = self.catalog();
        let rows = || catalog.approvals.iter().flat_map(|rows| rows.iter());
        let rows = || rows().filter(|row| row.upstream == *upstream);
        let offered = rows().filter_map(|row| Some((row, row.offered.as_ref()?)));
        let mut next = Instant::now() + every;
        let (mut reports, mut reported) = (Vec::new(), Instant::now());
        for (row, offered) in offered {
            let key = row.raw_name.clone();
            let OfferedPrompt { version, .. } = offered;
            let (definition, source) = (version.definition.clone(), version.source.clone());
            let known = done.get(&key);
            let known = known.filter(|done| done.definition == definition && done.source == source);
            let at = match known {
                Some(done) => done.at,
                // Under an earlier configuration.
                None if self.is_probed(row, offered) => Some(Instant::now()),
                None => None,
            };
            if let Some(at) = at.filter(|at| at.elapsed() < every) {
                done.insert(key, Done { definition, source, at: Some(at) });
                next = next.min(at + every);
                continue;
            }
            let probed = self.probe(row, Patience::Unbounded).await;
            let texts = offered_texts(&probed);
            let failed = probed.into_keys().filter(|arguments| !texts.contains_key(arguments));
            reports.push(TextReport {
                upstream: upstream.clone(),
                raw_name: key.clone(),
                failed: failed.collect(),
                texts: TextsOf { definition: definition.clone(), texts, since: wall_clock() },
            });
            if reported.elapsed() >= REPORT_INTERVAL {
                self.report(&mut reports).await;
                reported = Instant::now();
            }
            let at = Instant::now();
            done.insert(key, Done { definition, source, at: Some(at) });
            next = next.min(at + every);
        }
        self.report(&mut reports).await;
        if done.len() > rows().count() {
            let keys: HashSet<_> = rows().map(|row| row.raw_name.clone()).collect();
            done.retain(|key, _| keys.contains(key));
        }
        next
    }

    async fn report(&self, reports: &mut Vec<TextReport>) {
        if !reports.is_empty() {
            // Fails only at shutdown.
            let _ = self.shared.texts.send(std::mem::take(reports)).await;
        }
    }

    /// Whether all texts of the offered version are known that can be.
    fn is_probed(&self, row: &ApprovalRow, offered: &OfferedPrompt) -> bool {
        let texts = &offered.version.texts;
        probed_arguments(row, &self.approvals).all(|arguments| texts.contains_key(&arguments))
    }

    /// One get, recorded and limited like any other. Waits where a limit refuses it, if there is
    /// time.
    ///
    /// # Errors
    /// As for a get.
    async fn probe_once(
        &self,
        row: &ApprovalRow,
        offered: &OfferedPrompt,
        arguments: &str,
        patience: Patience,
    ) -> Result<String, Fault> {
        let deadline = Instant::now() + self.limits.request;
        loop {
            let outcome = self.probe_now(row, offered, arguments).await;
            let Err(Fault::Transport(TransportFault::RateLimited { retry_after, .. })) = &outcome
            else {
                return outcome;
            };
            if patience == Patience::Short && Instant::now() + *retry_after > deadline {
                return outcome;
            }
            sleep(*retry_after).await;
        }
    }

    async fn probe_now(
        &self,
        row: &ApprovalRow,
        offered: &OfferedPrompt,
        arguments: &str,
    ) -> Result<String, Fault> {
        // As clients do that have none to give.
        let given = (arguments != NO_ARGUMENTS).then_some(arguments);
        let arguments =
            given.and_then(|given| Document::parse(given.as_bytes().to_vec(), DEPTH).ok());
        let call = Call {
            caller: Caller::new(PROBER),
            subject_token: None,
            endpoint: ENDPOINT.into(),
            address: None,
            tried_by: None,
            client: ClientMessages::default(),
            forwarded: ForwardedMeta::default(),
            request: Request::Get {
                name: row.public_name.clone(),
                name_kind: NameKind::Public,
                arguments: arguments.clone(),
                retry: None,
            },
        };
        let record = self.gate.record(&call);
        let owner = Owner {
            public_name: row.public_name.as_str().into(),
            upstream: row.upstream.clone(),
            raw_name: row.raw_name.clone(),
            arguments: offered.prompt.arguments.as_slice().into(),
            digest: offered.version.definition.clone(),
            overlay: offered.prompt.overlay.clone(),
            approval: PromptApproval { state: row.decision.state, ..PromptApproval::default() },
        };
        let got = async {
            let target = CallTarget {
                upstream: owner.upstream.as_str(),
                raw_name: &owner.raw_name,
                definition: &owner.digest,
                state: owner.approval.state,
            };
            let resolution = Resolution::Listed(target);
            let authorized = self.gate.authorize(&call, &record, resolution).await?;
            let upstream = self.upstreams.get(&owner.upstream).ok_or(Fault::Internal)?;
            let routed = RoutedCall { call: &call, authorized, owner: &owner, upstream };
            let got = self.get_text(&routed, arguments.as_ref()).await;
            got.map_err(|fault| without_presets(&owner, fault))
        };
        let got = got.await;
        let result = got.as_ref().map(|text| Chunks::from(text.clone()));
        let outcome = match &result {
            Ok(result) => RecordOutcome::Result { result, digest: &ResultDigest::Text },
            Err(fault) => RecordOutcome::Fault(fault),
        };
        self.gate.complete(&record, &call.caller, outcome).await?;
        got
    }

    async fn get_text(
        &self,
        routed: &RoutedCall<'_>,
        arguments: Option<&Document>,
    ) -> Result<String, Fault> {
        let effective = effective_arguments(routed, arguments)?;
        // A server request has no answer: the client of a probe has no capabilities, so no state is
        // sealed either.
        let channel = CallChannel::silent();
        let bridge = Bridge {
            router: self,
            routed,
            channel: &channel,
            arguments: effective.as_ref().or(arguments),
            approved_text: None,
            deadline: Instant::now() + self.limits.request,
            now: UnixSeconds::default(),
            rounds: 0,
        };
        match bridge.run(None).await? {
            Reply::Prompt(prompt) => Ok(canonical_text(prompt.result.json())),
            _ => Err(Fault::Internal),
        }
    }
}

/// Returns the arguments of a get without any, in canonical form, and those of the configured
/// probes of a prompt.
fn probed_arguments<'a>(
    row: &'a ApprovalRow,
    approvals: &'a ApprovalRules,
) -> impl Iterator<Item = Arc<str>> + 'a {
    let needs_none = row
        .offered
        .as_ref()
        .is_some_and(|offered| !offered.prompt.arguments.iter().any(|argument| argument.required));
    let without = needs_none.then(|| Arc::from(NO_ARGUMENTS));
    let configured = approvals.probes.iter().filter(|probe| probe.prompt == row.public_name);
    let configured = configured.filter_map(|probe| {
        let prompt = &row.offered.as_ref()?.prompt;
        let given = Json::accepted(&probe.arguments);
        let overlay = prompt.overlay.as_deref();
        Some(Arc::from(approval_arguments(&prompt.arguments, overlay, Some(given))))
    });
    without.into_iter().chain(configured)
}
