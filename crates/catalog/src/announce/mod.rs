//! Announcement of changes: to readers of the catalog, to open streams, and to the audit log.

pub mod announcement_debounce;
pub mod change_shares;
pub mod changes;
pub mod label_moves;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use crate::caller_lists::CallerLists;
use crate::snapshot::{Catalog, CatalogContent, SkillCatalog};
use crate::view_cache::ViewCache;
use announcement_debounce::Debounce;
use audit::Audit;
use audit::record::AuditEvent;
use base::seal;
use change_shares::ChangeShares;
use changes::Published;
use domain::approval::ApprovalState;
use domain::fault::excerpt;
use domain::prompts::overlay;
use domain::prompts::skill::SkillCount;
use label_moves::{CommandedMoves, SeenMove};
use telemetry::Telemetry;

/// Announces the changes that the refresh has found, debounced.
pub struct Announcer {
    /// Marked changed with every snapshot.
    pub published: watch::Sender<()>,
    /// The announced content; `None` until the first list is whole.
    pub changes: watch::Sender<Option<Published>>,
    /// The views of the newest configuration.
    pub views: Arc<ViewCache>,
    /// The private lists of the newest configuration.
    pub caller_lists: Option<Arc<CallerLists>>,
    pub debounce: Debounce,
    /// The endpoints whose prompts exceed `tools_max` and that were logged.
    pub beyond_tools_max: Vec<String>,
    /// The logged endpoints with more skills than hosts accept.
    pub beyond_hosts: Vec<String>,
    pub audit: Audit,
    pub shares: ChangeShares,
    /// The moves of labels that commands have recorded.
    pub commanded: Arc<CommandedMoves>,
    pub telemetry: Telemetry,
}

/// A prompt whose definition has changed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Redefined {
    pub upstream: String,
    pub raw_name: String,
    /// `sha256:…` of the definitions before and now.
    pub before: String,
    pub now: String,
    /// The overlays that made the definition, by their numbers in the file.
    pub overlays: Vec<usize>,
}

/// A prompt whose state has changed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct PromptTransition {
    pub upstream: String,
    pub raw_name: String,
    pub public_name: String,
    /// `None` if the prompt was not known.
    pub before: Option<ApprovalState>,
    pub now: ApprovalState,
    pub reason: &'static str,
    /// `sha256:…` of the definitions.
    pub offered: Option<String>,
    pub approved: Option<String>,
}

/// Most changed states that are logged after one merge.
const LOGGED: usize = 20;

impl Announcer {
    /// Notes the visible content of a snapshot: the first whole list is announced at once, later
    /// changes after the debounce. An incomplete first list is not announced.
    pub async fn observe(&mut self, snapshot: &Catalog, now: Instant) {
        let is_news = self.changes.borrow().as_ref().map(|told| {
            // Access rules can depend on the states of prompts, which the list's digest does not
            // cover.
            told.content.generation != snapshot.content.generation
                || !Arc::ptr_eq(&told.views, &self.views)
        });
        match is_news {
            _ if snapshot.pending => {}
            None => self.tell(&snapshot.content, &snapshot.skills).await,
            Some(true) => self.debounce.note(now),
            Some(false) => {}
        }
    }

    /// Resolves when a change is due to be announced. Cancel safe.
    pub async fn due(&self) {
        match self.debounce.due() {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    pub async fn tell(&mut self, content: &Arc<CatalogContent>, skills: &Arc<SkillCatalog>) {
        self.debounce.done();
        self.views.release_before(content).await;
        if let Some(lists) = &self.caller_lists {
            lists.release_before(content.generation);
        }
        self.warn_beyond_tools_max(content);
        self.warn_beyond_hosts(skills);
        let seen = Published {
            content: content.clone(),
            skills: skills.clone(),
            views: self.views.clone(),
            caller_lists: self.caller_lists.clone(),
        };
        let before = self.changes.send_replace(Some(seen));
        let digest = content.everyone.digest();
        if before.is_none_or(|before| before.content.everyone.digest() != digest) {
            let event = AuditEvent::new("list_changed").text("list", &seal::digest_text(digest));
            self.audit.note(event.number("prompts", content.everyone.len() as u64));
        }
    }

    /// Logs each endpoint that begins to exceed `tools_max`.
    fn warn_beyond_tools_max(&mut self, content: &CatalogContent) {
        let beyond = self.views.endpoints.beyond_tools_max(content);
        for endpoint in &beyond {
            if !self.beyond_tools_max.iter().any(|known| known == endpoint) {
                warn!(
                    endpoint,
                    "more prompts than tools_max: the endpoint offers find_prompt and use_prompt instead \
                     of one tool for each prompt; raise tools_max, or serve fewer prompts by a view"
                );
            }
        }
        self.beyond_tools_max = beyond.into_iter().map(str::to_owned).collect();
    }

    /// Logs each endpoint that begins to have more skills than hosts accept.
    fn warn_beyond_hosts(&mut self, skills: &SkillCatalog) {
        let beyond = self.views.endpoints.beyond_hosts(skills);
        for (endpoint, SkillCount { skills, bytes }) in &beyond {
            if !self.beyond_hosts.iter().any(|known| known == endpoint) {
                warn!(
                    endpoint,
                    skills,
                    bytes,
                    "more skills than hosts take from one server; serve fewer by a view"
                );
            }
        }
        self.beyond_hosts = beyond.into_iter().map(|(endpoint, _)| endpoint.to_owned()).collect();
    }

    /// Records and logs prompts whose definitions changed under the same names, within the shares
    /// of their upstreams.
    pub fn record(&mut self, redefined: &[Redefined]) {
        for Redefined { upstream, raw_name, before, now, overlays } in redefined {
            self.telemetry.metrics().definition_changed(upstream);
            if !self.shares.take(upstream, "definitions_changed", raw_name, [before, now]) {
                continue;
            }
            let keys: Vec<_> = overlays.iter().map(|number| overlay::key(*number)).collect();
            let keys = (!keys.is_empty()).then(|| keys.join(", "));
            warn!(upstream, name = excerpt(raw_name), overlays = keys, "prompt definition changed");
            let event = AuditEvent::new("definition_changed").text("upstream", upstream);
            let event = event.text("prompt", raw_name).text("before", before).text("now", now);
            self.audit.note(event.optional_text("overlays", keys.as_deref()));
        }
    }

    /// Records moves of labels that no command of this gateway made, within the shares of their
    /// upstreams: the others count as changed definitions, as they are.
    pub(crate) fn record_moves(&mut self, seen: &[SeenMove]) {
        for seen in seen {
            let [upstream, prompt, _, to] = &seen.names;
            let is_commanded = self.commanded.take(&seen.names, Instant::now());
            let versions = [&*seen.from, to];
            if !is_commanded && self.shares.take(upstream, "definitions_changed", prompt, versions)
            {
                self.audit.note(seen.event());
            }
        }
    }

    /// Records and logs prompts whose states changed, within the shares of their upstreams.
    pub(crate) fn record_transitions(&mut self, transitions: &[PromptTransition]) {
        let mut logged = 0;
        let mut new: BTreeMap<&str, Vec<&PromptTransition>> = BTreeMap::new();
        for transition in transitions {
            let PromptTransition {
                upstream, raw_name, before, now, reason, offered, approved, ..
            } = transition;
            let what = [now.as_str(), offered.as_deref().unwrap_or_default()];
            if !self.shares.take(upstream, "prompt_states", raw_name, what) {
                continue;
            }
            if before.is_none() && *now != ApprovalState::Approved {
                new.entry(upstream).or_default().push(transition);
            } else if logged < LOGGED {
                logged += 1;
                transition.log();
            }
            let event = AuditEvent::new("prompt_state").text("upstream", upstream);
            let event = event.text("prompt", raw_name).text("state", now.as_str());
            let event = event.optional_text("before", before.map(ApprovalState::as_str));
            let event = event.text("reason", reason).optional_text("offered", offered.as_deref());
            self.audit.note(event.optional_text("approved", approved.as_deref()));
        }
        for (upstream, new) in new {
            match new.as_slice() {
                [one] => one.log(),
                _ => warn!(
                    upstream,
                    prompts = new.len(),
                    "prompts are not approved; see promptgate approvals review"
                ),
            }
        }
    }

    /// Resolves when counts of changes are due to be recorded. Cancel safe.
    pub(crate) async fn counts_due(&self) {
        match self.shares.due() {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Records and logs the counts of changes that are due.
    pub(crate) fn record_counts(&mut self) {
        for event in self.shares.take_due() {
            warn!(
                "an upstream changes its prompts so often that the changes are only counted; see the audit log"
            );
            self.audit.note(event);
        }
    }

    /// Records all counts at shutdown.
    pub(crate) fn record_rest(&mut self) {
        self.shares.rest().into_iter().for_each(|event| self.audit.note(event));
    }
}

impl PromptTransition {
    fn log(&self) {
        // The public name, as in `promptgate approvals`.
        let Self { upstream, reason, .. } = self;
        let name = excerpt(&self.public_name);
        match self.now {
            ApprovalState::Approved => info!(upstream, name, reason, "prompt approved"),
            state => warn!(
                upstream,
                name,
                state = state.as_str(),
                reason,
                "prompt is not approved; see promptgate approvals diff"
            ),
        }
    }
}
