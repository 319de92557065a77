//! Prompt stores (MLflow, Phoenix, Langfuse), whose prompts are served like library prompts.
//!
//! Each store is a file of pure functions ([`api::StoreApi`]): request paths, and parsers of the
//! responses. This file sends the requests. One walk reads the list in pages, fetches each version
//! that may have changed, and makes a snapshot. A walk fails with its list, and then changes
//! nothing; a version that cannot be read leaves the last version of its prompt.

mod api;
mod kept;
mod langfuse;
mod mlflow;
mod phoenix;
mod template;
mod version;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::timeout;
use tokio::try_join;
use tracing::warn;

use super::transport::streamable_http::HttpEndpoint;
use api::{Found, ListPage, Listed, Row, StoreApi};
use base::platform::blocking;
use base::platform::heap::boxed;
use base::seal;
use config::{PromptStore, Settings, StoreKind};
use domain::fault::{UpstreamFaultKind as Kind, excerpt};
use domain::json::Json;
use domain::json::document::Document;
use kept::{KeptRow, KeptWalk};
use library::prompt_list::{EARLIER_SERVED, MalformedPrompt, PromptList};
use library::{LibrarySnapshot, StoredPrompt};
use version::StoreVersion;

/// Polls one prompt store.
pub(super) struct StoreReader {
    store: PromptStore,
    api: &'static dyn StoreApi,
    endpoint: Arc<HttpEndpoint>,
    settings: Settings,
    /// The last read version of each prompt, so that only changes are fetched.
    known: Mutex<BTreeMap<String, Known>>,
    /// How often a read version differed from the previous version.
    changes: AtomicU64,
    /// Digest of the settings that determine the served prompts.
    source: String,
    /// The walk that was kept before the start, with its age; `None` before the first use.
    kept: OnceLock<Option<(StoreWalk, Duration)>>,
    /// Whether the last walk could not be kept.
    is_unkept: AtomicBool,
}

/// The last read version of one prompt.
struct Known {
    stamp: Option<String>,
    /// The bytes of the response.
    size: usize,
    version: VersionFound,
    /// Why the store has refused the newest version, if it has.
    refusal: Option<Kind>,
    /// Why the newest version is not `version`, if it is not valid.
    mistake: Option<String>,
}

impl Known {
    fn has_version(&self) -> bool {
        matches!(self.version, VersionFound::Version(_))
    }

    /// Returns why the newest version is not `version`.
    fn problem(&self) -> Option<String> {
        self.refusal.as_ref().map(not_given).or_else(|| self.mistake.clone())
    }
}

/// Says that the store has not given the newest version.
fn not_given(refusal: &Kind) -> String {
    format!("its newest version could not be read: {refusal}")
}

#[derive(Clone, Eq, PartialEq)]
enum VersionFound {
    Version(Arc<StoreVersion>),
    /// The version is left out for this reason.
    LeftOut(String),
    /// No version has the label.
    Nothing,
}

fn api_of(kind: StoreKind) -> &'static dyn StoreApi {
    match kind {
        StoreKind::Mlflow => &mlflow::Mlflow,
        StoreKind::Phoenix => &phoenix::Phoenix,
        StoreKind::Langfuse => &langfuse::Langfuse,
    }
}

/// Returns the request paths that follow from a response, which is parsed as a page of the list and
/// as a version. For fuzzing.
pub fn paths_after(store: &PromptStore, answer: Json<'_>) -> Vec<String> {
    let api = api_of(store.kind);
    let as_prompt = |version: StoreVersion| version.prompt("p", None, store.has_system_as_user);
    let _ = api.version(answer).and_then(as_prompt);
    let Some(ListPage { rows, next }) = api.page(answer, store) else { return Vec::new() };
    let found = rows.into_iter().filter_map(|row| match row.ok()?.found {
        Found::Elsewhere { path, .. } => Some(path),
        Found::Here(version) => {
            let _ = version.and_then(as_prompt);
            None
        }
        Found::Nothing => None,
    });
    let next = next.map(|next| api.list_path(store, Some(&next)));
    found.chain(next).collect()
}

/// A completed walk: the prompts by name. Equal walks have found the same versions.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct StoreWalk {
    rows: BTreeMap<String, Listed>,
    malformed: Vec<MalformedPrompt>,
    pages: usize,
    /// The counter of changed versions at the end of the walk.
    changes: u64,
    /// The pause that the store has asked for.
    pause: Option<Duration>,
}

/// The list of a store.
struct Listing {
    rows: BTreeMap<String, Row>,
    malformed: Vec<MalformedPrompt>,
    pages: usize,
}

/// Counts the bytes of one walk against `max_walk`.
struct WalkBudget {
    used: AtomicUsize,
    most: usize,
    /// The refusal that means the whole store, after which no version is requested.
    pause: OnceLock<Kind>,
}

impl WalkBudget {
    fn take(&self, bytes: usize) -> Result<(), Kind> {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed);
        if used.saturating_add(bytes) > self.most {
            let limit = format!("more than max_walk = {} bytes", self.most);
            return Err(Kind::PaginationLimit(limit));
        }
        Ok(())
    }
}

impl StoreReader {
    pub(super) fn new(store: PromptStore, endpoint: Arc<HttpEndpoint>, settings: Settings) -> Self {
        let api = api_of(store.kind);
        let known = Mutex::default();
        let changes = AtomicU64::new(0);
        let PromptStore { kind, http, label, labels, filter, .. } = &store;
        let url = &http.url;
        let source = format!("{kind:?} {url} {label:?} {labels:?} {filter:?}");
        let source = seal::sha256_text(source.as_bytes());
        let kept = OnceLock::new();
        let is_unkept = AtomicBool::new(false);
        Self { store, api, endpoint, settings, known, changes, source, kept, is_unkept }
    }

    pub(super) fn endpoint(&self) -> &HttpEndpoint {
        &self.endpoint
    }

    /// Returns the walk that was kept before the start, with its age.
    pub(super) async fn kept(self: &Arc<Self>) -> Option<(StoreWalk, Duration)> {
        if let Some(kept) = self.kept.get() {
            return kept.clone();
        }
        let reader = self.clone();
        blocking(move || reader.kept.get_or_init(|| reader.restored()).clone()).await.ok().flatten()
    }

    /// Reads the kept walk, whose versions count as read from now on. Blocks.
    fn restored(&self) -> Option<(StoreWalk, Duration)> {
        let state = self.store.state.as_deref()?;
        let read = KeptWalk::read(state, &self.source, self.settings.max_walk);
        let (kept, age) = read.unwrap_or_else(|error| {
            warn!(state = %state.display(), %error, "the kept list of a prompt store is ignored");
            None
        })?;
        let mut known = self.known();
        let mut restore = |(name, row): (String, KeptRow)| {
            let KeptRow { listed, stamp, size, version } = row;
            let version = self.checked(Ok(version));
            let restored = Known { stamp, size, version, refusal: None, mistake: None };
            known.insert(name.clone(), restored);
            (name, listed)
        };
        let rows = kept.rows.into_iter().map(&mut restore).collect();
        // No other walk has this number of changes: the first good walk makes a new snapshot.
        let changes = u64::MAX;
        let walk = StoreWalk { rows, malformed: Vec::new(), pages: 1, changes, pause: None };
        Some((walk, age))
    }

    /// Keeps a walk for the next start. Blocks.
    pub(super) fn keep(&self, walk: &StoreWalk) {
        let Some(state) = self.store.state.as_deref() else { return };
        let known = self.known();
        let row = |(name, listed): (&String, &Listed)| {
            let Known { stamp, size, version, .. } = known.get(name)?;
            let VersionFound::Version(version) = version else { return None };
            let version = StoreVersion::clone(version);
            let row =
                KeptRow { listed: listed.clone(), stamp: stamp.clone(), size: *size, version };
            Some((name.clone(), row))
        };
        let rows = walk.rows.iter().filter_map(row).collect();
        drop(known);
        let kept = KeptWalk { source: self.source.clone(), rows };
        let written = kept.write(state, self.settings.max_walk);
        let was_unkept = self.is_unkept.swap(written.is_err(), Ordering::Relaxed);
        if let (Err(error), false) = (written, was_unkept) {
            warn!(state = %state.display(), %error, "the list of a prompt store cannot be kept");
        }
    }

    /// Reads the whole store. Cancel safe: versions that were read are not fetched again.
    pub(super) async fn walk(&self) -> Result<StoreWalk, Kind> {
        let most = self.settings.max_walk;
        let budget = WalkBudget { used: AtomicUsize::new(0), most, pause: OnceLock::new() };
        let mut listing = self.list(&budget).await?;
        if listing.pages > 1 && self.has_lost(&listing) {
            // Pages count from the start, so a prompt deleted during the walk hides another prompt.
            budget.used.store(0, Ordering::Relaxed);
            listing = self.list(&budget).await?;
        }
        self.known().retain(|name, _| listing.rows.contains_key(name));
        let mut rows = BTreeMap::new();
        let mut asked = Vec::new();
        for (name, row) in listing.rows {
            rows.insert(name.clone(), row.listed.clone());
            match row.found {
                Found::Here(version) => {
                    let version = self.checked(version);
                    budget.take(self.note(name, None, 0, version))?;
                }
                Found::Nothing => drop(self.note(name, None, 0, VersionFound::Nothing)),
                Found::Elsewhere { .. } => asked.push(row),
            }
        }
        self.ask_for(asked, &budget).await?;
        if let Some(refusal) = self.refusal_of_all() {
            return Err(refusal);
        }
        let changes = self.changes.load(Ordering::Relaxed);
        let pause = budget.pause.get().and_then(Kind::retry_after);
        Ok(StoreWalk { rows, malformed: listing.malformed, pages: listing.pages, changes, pause })
    }

    /// Makes the snapshot of a walk, after the snapshot `before`. Blocks.
    pub(super) fn snapshot(
        &self,
        walk: StoreWalk,
        before: Option<&LibrarySnapshot>,
    ) -> LibrarySnapshot {
        let StoreWalk { rows, mut malformed, pages, pause, .. } = walk;
        let mut prompts = Vec::new();
        let mut unlabelled = Vec::new();
        let found = |name: &String| {
            let known = self.known();
            let known = known.get(name)?;
            Some((known.version.clone(), known.problem()))
        };
        for (name, Listed { of, label, description }) in rows {
            let reason = match found(&name) {
                Some((VersionFound::Version(version), problem)) => {
                    let as_user = self.store.has_system_as_user;
                    let config = version.config.clone();
                    let config = if self.store.has_config { config } else { Ok(None) };
                    let prompt = version.prompt(&name, description, as_user);
                    match prompt.and_then(|prompt| Ok((prompt, config?))) {
                        Ok((prompt, config)) => {
                            let label = Some(label.unwrap_or_else(|| self.store.label.clone()));
                            prompts.push(StoredPrompt { of, label, config, ..prompt });
                            malformed.extend(problem.map(|problem| {
                                let reason = problem + EARLIER_SERVED;
                                MalformedPrompt { name, reason, is_served: true }
                            }));
                            continue;
                        }
                        Err(reason) => reason,
                    }
                }
                Some((VersionFound::LeftOut(reason), _)) => reason,
                Some((VersionFound::Nothing, _)) | None => {
                    unlabelled.extend(Some(of).filter(|_| label.is_none()));
                    continue;
                }
            };
            malformed.push(MalformedPrompt { name, reason, is_served: false });
        }
        let remarks = Vec::from_iter(self.remark(&unlabelled));
        let listed = PromptList { malformed, remarks, pages, pause, ..PromptList::default() };
        let transport = self.store.kind.name();
        let prompts = prompts.into_iter();
        LibrarySnapshot::of_store(transport, prompts, listed, &self.settings, before)
    }

    /// Returns a remark that names the prompts without a version with the label.
    fn remark(&self, unlabelled: &[String]) -> Option<String> {
        let first = unlabelled.first()?;
        let label = &self.store.label;
        let count = unlabelled.len();
        let first = excerpt(first);
        Some(format!("prompts without a version labelled {label:?}: {count}, such as {first:?}"))
    }

    /// Reads all pages of the list.
    async fn list(&self, budget: &WalkBudget) -> Result<Listing, Kind> {
        let Settings { max_pages, max_prompts, .. } = self.settings;
        let mut listing = Listing { rows: BTreeMap::new(), malformed: Vec::new(), pages: 0 };
        let mut next = None;
        loop {
            let answer = self.get(&self.api.list_path(&self.store, next.as_deref())).await?;
            budget.take(answer.size())?;
            let Some(ListPage { rows, next: following }) =
                self.api.page(answer.json(), &self.store)
            else {
                let store = self.store.kind.name();
                let what = format!("the answer is no list of prompts of {store}; check url");
                return Err(Kind::NotServed(what));
            };
            for row in rows {
                match row {
                    Ok(row) => drop(listing.rows.insert(row.name.clone(), row)),
                    Err(reason) => listing.malformed.push(reason.into()),
                }
            }
            listing.pages += 1;
            next = following;
            if listing.rows.len() + listing.malformed.len() > max_prompts {
                return Err(Kind::PaginationLimit(format!(
                    "more than max_prompts = {max_prompts}"
                )));
            } else if next.is_none() {
                return Ok(listing);
            } else if listing.pages >= max_pages {
                return Err(Kind::PaginationLimit(format!("more than max_pages = {max_pages}")));
            }
        }
    }

    fn has_lost(&self, listing: &Listing) -> bool {
        self.known().keys().any(|name| !listing.rows.contains_key(name))
    }

    /// Fetches the versions that may have changed, a few at a time.
    async fn ask_for(&self, rows: Vec<Row>, budget: &WalkBudget) -> Result<(), Kind> {
        let queue = Mutex::new(rows.into_iter());
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let most = self.settings.in_flight;
        let worker = |number: usize| {
            let next = &next;
            boxed(async move {
                while number < most
                    && let Some(row) = next()
                {
                    self.refresh(row, budget).await?;
                }
                Ok(())
            })
        };
        // Eight concurrent requests fetch 300 prompts within `walk_timeout` where each takes 0.4 s,
        // and strain no store.
        try_join!(
            worker(0),
            worker(1),
            worker(2),
            worker(3),
            worker(4),
            worker(5),
            worker(6),
            worker(7)
        )
        .map(drop)
    }

    /// Fetches the version of one prompt, unless it is known.
    async fn refresh(&self, row: Row, budget: &WalkBudget) -> Result<(), Kind> {
        let Found::Elsewhere { path, stamp } = row.found else { return Ok(()) };
        if let Some(size) = stamp.as_ref().and_then(|stamp| self.size_of_known(&row.name, stamp)) {
            return budget.take(size);
        }
        let answer = match budget.pause.get() {
            Some(pause) => Err(pause.clone()),
            None => self.get(&path).await,
        };
        let size = answer.as_ref().map_or(0, Document::size);
        budget.take(size)?;
        let (version, stamp) = match answer {
            Ok(answer) => {
                let version = self.api.version(answer.json());
                let is_composed = version.as_ref().is_ok_and(|version| version.is_composed);
                // Embedded prompts may change without a change of this version, and so may the
                // model configuration at MLflow.
                let has_loose_config =
                    self.store.has_config && self.store.kind == StoreKind::Mlflow;
                (self.checked(version), stamp.filter(|_| !is_composed && !has_loose_config))
            }
            Err(Kind::Status { status: 404 | 410, .. }) => (VersionFound::Nothing, None),
            Err(kind @ Kind::TooLarge { .. }) => (VersionFound::LeftOut(kind.to_string()), stamp),
            // The next walk requests the version again.
            Err(kind) => {
                if let Kind::RateLimited { .. } | Kind::Paused { .. } = kind {
                    let _ = budget.pause.set(kind.clone());
                }
                return budget.take(self.note_refusal(row.name, kind));
            }
        };
        budget.take(self.note(row.name, stamp, size, version))
    }

    async fn get(&self, path: &str) -> Result<Document, Kind> {
        let getting = self.endpoint.get(path);
        timeout(self.settings.page_timeout, getting).await.unwrap_or(Err(Kind::Timeout))
    }

    /// Reads a version as a prompt, so that one that cannot be served replaces no other.
    fn checked(&self, version: Result<StoreVersion, String>) -> VersionFound {
        let checked = version.and_then(|version| {
            version.prompt("", None, self.store.has_system_as_user)?;
            if self.store.has_config {
                version.config.as_ref().map_err(String::clone)?;
            }
            Ok(version)
        });
        checked.map_or_else(VersionFound::LeftOut, |found| VersionFound::Version(found.into()))
    }

    /// Keeps a version of a prompt. If it is left out, an earlier version stays; returns the bytes
    /// of that version, or zero.
    fn note(
        &self,
        name: String,
        stamp: Option<String>,
        size: usize,
        version: VersionFound,
    ) -> usize {
        let mut known = self.known();
        let before = known.remove(&name);
        let mut now = Known { stamp, size, version, refusal: None, mistake: None };
        let mut kept = 0;
        let earlier = |before: &&Known| before.has_version();
        if let VersionFound::LeftOut(reason) = &now.version
            && let Some(Known { stamp, size, version, .. }) = before.as_ref().filter(earlier)
        {
            kept = *size;
            let mistake = Some(reason.clone());
            let version = version.clone();
            now = Known { stamp: stamp.clone(), size: kept, version, refusal: None, mistake };
        }
        let is_same = |before: &Known| {
            before.version == now.version
                && before.refusal.is_none()
                && before.mistake == now.mistake
        };
        if !before.as_ref().is_some_and(is_same) {
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
        known.insert(name, now);
        kept
    }

    /// Keeps the last version of a prompt whose newest version the store refuses, and returns the
    /// bytes of that version. A prompt without a version is left out.
    fn note_refusal(&self, name: String, refusal: Kind) -> usize {
        let reason = not_given(&refusal);
        let mut known = self.known();
        let before = known.remove(&name);
        let earlier = before.as_ref().and_then(|before| before.refusal.as_ref());
        if earlier.map(not_given).as_ref() != Some(&reason) {
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
        let kept = before.filter(Known::has_version).unwrap_or_else(|| {
            let version = VersionFound::LeftOut(reason);
            Known { stamp: None, size: 0, version, refusal: None, mistake: None }
        });
        let size = kept.size;
        known.insert(name, Known { refusal: Some(refusal), mistake: None, ..kept });
        size
    }

    /// Returns the refusal of a store that refuses all prompts with the label, and of which no
    /// version is known.
    fn refusal_of_all(&self) -> Option<Kind> {
        let known = self.known();
        let labelled = known.values().filter(|known| known.version != VersionFound::Nothing);
        let mut refusals =
            labelled.map(|known| known.refusal.as_ref().filter(|_| !known.has_version()));
        let first = refusals.next()??;
        refusals.all(|refusal| refusal.is_some()).then(|| first.clone())
    }

    /// Returns the bytes of the known version of a prompt, if it has this stamp.
    fn size_of_known(&self, name: &str, stamp: &str) -> Option<usize> {
        let mut known = self.known();
        let known = known.get_mut(name).filter(|known| known.stamp.as_deref() == Some(stamp))?;
        // The label went back to that version.
        if known.refusal.take().is_some() | known.mistake.take().is_some() {
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
        Some(known.size)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use config::{Config, Transport};

    /// The configuration of a store with further keys.
    pub(super) fn store(kind: &str, more: &str) -> PromptStore {
        let toml =
            format!("[upstreams.s]\ntransport = \"{kind}\"\nurl = \"http://s.example\"\n{more}");
        let mut config = Config::parse("test", &toml, Path::new("."), &[]).unwrap();
        match config.upstreams.remove(0).transport {
            Transport::Store(store) => store,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_bytes_of_a_walk_are_bounded_even_where_they_overflow() {
        let pause = OnceLock::new();
        let budget = WalkBudget { used: AtomicUsize::new(0), most: 10, pause };
        assert_eq!(budget.take(10), Ok(()));
        assert!(matches!(budget.take(1), Err(Kind::PaginationLimit(_))));
        assert!(matches!(budget.take(usize::MAX), Err(Kind::PaginationLimit(_))));
    }
}
