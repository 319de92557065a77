//! The router: answers lists from the catalog, and forwards gets and completions to the upstream of
//! the prompt.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

mod admitted;
mod verified_texts;
mod arguments;
mod build;
mod bridge;
mod bridged_request;
pub mod passthrough;
pub mod call_channel;
mod guards;
pub mod links;
pub mod labels;
mod suspended_calls;
mod url_elicitation;
mod completion;
mod unapproved_texts;
mod resolution;
mod routed_prompt;
pub mod probe;
pub mod rollouts;
pub mod skills;
mod withheld_text;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use admitted::{Admitted, CallContext};
use arguments::{effective_arguments, renamed_arguments, without_presets};
use base::platform::heap::boxed;
use base::seal::Sealer;
use bridge::Bridge;
use bridged_request::BridgedRequest;
use call_channel::CallChannel;
use catalog::announce::changes::{Changes, Published};
use catalog::announce::label_moves::CommandedMoves;
use catalog::approval::{Availability, approval_arguments};
use catalog::effective::TextReport;
use catalog::listed_item::ListedItem;
use catalog::lists::item;
use catalog::refresh::Renewal;
use catalog::reply::{ListReply, Reply};
use catalog::search::search;
use catalog::snapshot::{Catalog, Incomplete};
use catalog::status::statuses;
use catalog::view_cache::{ListKind, ListKinds};
use cluster::SharedLogins;
use completion::{Completing, complete_guarded};
use config::{ApprovalRules, Exposure, Limits, ToolForm};
use domain::approval::ApprovalKind;
use domain::calls::call::{Call, InputRetry, NameKind, Request, SkillPart};
use domain::calls::caller::Caller;
use domain::fault::{Fault, RequestFault, UpstreamFaultKind as Kind};
use domain::json::document::Document;
use domain::name::UpstreamId;
use domain::prompts::overlay::{self, Overlay};
use domain::protocol::via::Via;
use domain::time::unix_time::UnixSeconds;
use domain::tool::name::is_derived;
use guards::{Guards, Passing};
use labels::LabelledPrompts;
use logins::caller::{CallerName, upstream_of};
use passthrough::PassthroughUpstream;
use policy::{CallRecord, CallTarget, Gate, Resolution};
use resolution::{Unlisted, held, invalid};
use rollouts::{ChosenVersion, RolloutStates, Rollouts};
use routed_prompt::RoutedPrompt;
use skills::AskedSkill;
use suspended_calls::SuspendedCalls;
use telemetry::Telemetry;
use unapproved_texts::UnapprovedTexts;
use upstream::Upstream;
use upstream::auth::caller_token_provider::{CallerTokenProvider, KeptCallerLogin};
use upstream::auth::sign_in::CallerSignIns;
use upstream::call::correlator::UrlElicitationComplete;
use upstream::driver::DriverReport;
use upstream::guard::concurrency::ConcurrencyLimit;
use url_elicitation::{shown_before_get, shown_in_error};
use verified_texts::VerifiedTexts;
use withheld_text::{count_tolerated, snapshot_alone, snapshot_or};

pub use build::{RefreshEnded, RouterDeps};
pub use catalog::lists::Lists;
pub use catalog::status::{PER_CALLER, UpstreamStatus};
pub use unapproved_texts::{LastText, ReceivedText};
pub use upstream::UpstreamDeps;
use upstream::accounts::{AccountStatus, Accounts, RevokedAccount};

/// Answers calls under one configuration.
pub struct Router {
    gate: Arc<Gate>,
    lists: Lists,
    /// Keyed by id.
    upstreams: BTreeMap<UpstreamId, Arc<Upstream>>,
    sealer: Arc<Sealer>,
    limits: Limits,
    approval_rules: ApprovalRules,
    overlays: Vec<Overlay>,
    rollouts: Rollouts,
    guards: Guards,
    shared: Arc<RouterSharedState>,
}

/// State that the routers of all editions share.
struct RouterSharedState {
    /// Marked changed whenever a snapshot is published.
    published: watch::Receiver<()>,
    changes: watch::Receiver<Option<Published>>,
    /// URL elicitations that users completed, from all upstreams.
    url_completions: broadcast::Sender<UrlElicitationComplete>,
    suspended: SuspendedCalls,
    /// Permits to search a large view (`find_prompt`).
    searches: Arc<ConcurrencyLimit>,
    telemetry: Telemetry,
    reports: mpsc::Sender<DriverReport>,
    unapproved_texts: UnapprovedTexts,
    verified: VerifiedTexts,
    rollouts: RolloutStates,
    /// The moves of labels by commands that are not yet seen.
    commanded: Arc<CommandedMoves>,
    /// Takes the texts that probes have found.
    texts: mpsc::Sender<Vec<TextReport>>,
    renewals: mpsc::Sender<Renewal>,
    upstream_deps: UpstreamDeps,
}

/// The prompt that a get asks for, and the earlier answers of its client.
struct AskedPrompt<'a> {
    name: &'a str,
    name_kind: NameKind,
    retry: Option<&'a InputRetry>,
}

impl Router {
    /// Answers a call before `deadline`, which is extended while a user answers a server request;
    /// messages before the response go to `channel`. `now` is the wall-clock time, for cursors and
    /// states.
    ///
    /// # Errors
    /// The refusals of [`Gate::authorize`], and the faults of the upstream.
    pub async fn route(
        &self,
        call: &Call,
        record: &CallRecord,
        channel: &CallChannel,
        deadline: Instant,
        now: UnixSeconds,
    ) -> Result<Reply, Fault> {
        let began = Instant::now();
        let context = CallContext { call, record, channel, began, deadline, now };
        match &call.request {
            Request::List { cursor } => {
                self.gate.admit_list(call, record).await?;
                let listing =
                    self.lists.list(call, ListKind::Prompts, cursor.as_deref(), deadline, now);
                listing.await.map(Reply::List)
            }
            Request::ListTools { cursor } => {
                self.gate.admit_list(call, record).await?;
                self.list_tools(call, cursor.as_deref(), deadline, now).await.map(Reply::List)
            }
            Request::Passthrough(request) => {
                let passthrough =
                    self.passthrough_at(&call.endpoint).ok_or(RequestFault::MethodNotFound)?;
                Box::pin(passthrough.route(request, context)).await
            }
            Request::Find { sought, query, cursor } => {
                self.gate.admit_list(call, record).await?;
                search(&self.lists, call, (*sought, query), cursor.as_deref(), deadline, now).await
            }
            Request::Get { name, name_kind, arguments, retry } => {
                let asked = AskedPrompt { name, name_kind: *name_kind, retry: retry.as_ref() };
                self.answer_get(asked, arguments.as_ref(), context).await
            }
            Request::Complete { name, argument, value, context: completed } => {
                let catalog =
                    self.lists.catalog_for(call, record, name, NameKind::Public, deadline).await;
                let routed = self.authorize(&catalog, context, name, NameKind::Public).await;
                let routed = routed.map_err(|fault| shown_in_error(call.client, fault))?;
                let completion = Completing { argument, value, context: completed.as_ref() };
                let reply = complete_guarded(&self.guards, &routed, completion, context).await;
                let reply = reply.map_err(|fault| without_presets(routed.item, fault));
                let reply = reply.map_err(|fault| shown_in_error(call.client, fault))?;
                self.count_use(call, routed.item, began);
                Ok(reply)
            }
            Request::ListSkills { cursor } => {
                self.gate.admit_list(call, record).await?;
                self.lists
                    .list(call, ListKind::Skills, cursor.as_deref(), deadline, now)
                    .await
                    .map(Reply::List)
            }
            Request::Skill { uri, part } => {
                let asked = AskedSkill { uri, part: *part };
                boxed(skills::answer(self, asked, context)).await
            }
            Request::ReadLink { uri, link } => {
                boxed(links::read(self, uri, link.as_deref(), context)).await
            }
        }
    }

    /// Lists the tools that are derived from prompts.
    async fn list_tools(
        &self,
        call: &Call,
        cursor: Option<&str>,
        deadline: Instant,
        now: UnixSeconds,
    ) -> Result<ListReply, Fault> {
        if self.lists.views.endpoints.exposure(&call.endpoint).form == ToolForm::Pair {
            // The answer must not depend on the caller's prompts or on upstreams being reachable.
            let has_skills = self.has_skills(&call.endpoint);
            return self.lists.pair(cursor, self.lists.listing.ttl_max, has_skills);
        }
        self.lists.list(call, ListKind::Tools, cursor, deadline, now).await
    }

    /// Returns the upstream of `[passthrough]`, if the endpoint serves it.
    pub fn passthrough_at(&self, endpoint: &str) -> Option<PassthroughUpstream<'_>> {
        let upstream = self.upstreams.get(self.lists.views.endpoints.passthrough_at(endpoint)?)?;
        Some(PassthroughUpstream { router: self, upstream })
    }

    /// Takes a get through the gate, and notes its outcome.
    async fn answer_get(
        &self,
        asked: AskedPrompt<'_>,
        arguments: Option<&Document>,
        context: CallContext<'_>,
    ) -> Result<Reply, Fault> {
        let CallContext { call, record, began, deadline, now, .. } = context;
        let AskedPrompt { name, name_kind, retry } = asked;
        let catalog = self.lists.catalog_for(call, record, name, name_kind, deadline).await;
        let routed = match self.authorize(&catalog, context, name, name_kind).await {
            Ok(routed) => routed,
            Err(fault) => return shown_before_get(call.client, fault),
        };
        let renamed = match arguments.filter(|_| name_kind == NameKind::Tool) {
            Some(arguments) => renamed_arguments(routed.listed(), arguments)?,
            None => None,
        };
        let arguments = renamed.as_ref().or(arguments);
        let mut sent = arguments.cloned();
        if let Some(sent) = &mut sent {
            let passing = Passing::arguments(routed.listed());
            *sent = self.guards.pass(passing, context, sent.clone()).await?;
        }
        let arguments = sent.as_ref();
        let reply = self.get(&routed, arguments, retry, context).await;
        if let Some(version) = routed.version {
            self.rollouts.note(version, &call.caller, &reply, now);
        }
        let mut reply = reply.map_err(|fault| without_presets(routed.item, fault))?;
        if let Reply::Prompt(prompt) = &mut reply
            && !prompt.is_proved
        {
            let received = Passing::result(routed.listed());
            prompt.result = self.guards.pass(received, context, prompt.result.clone()).await?;
        }
        self.count_use(call, routed.item, began);
        count_tolerated(&self.shared, routed.item);
        links::seal(self, &catalog, &routed, &mut reply, now);
        Ok(reply)
    }

    /// Gets a prompt from its upstream, or its approved snapshot.
    async fn get(
        &self,
        routed: &RoutedPrompt<'_>,
        arguments: Option<&Document>,
        retry: Option<&InputRetry>,
        context: CallContext<'_>,
    ) -> Result<Reply, Fault> {
        let CallContext { channel, deadline, now, .. } = context;
        let item = routed.item;
        if let Some(skill) = item.skill() {
            let getting = skills::get_prompt::get(self, routed, skill, arguments, context);
            return Box::pin(getting).await;
        }
        let approved = item.approval.approved.as_deref().map(|approved| {
            let given = arguments.map(Document::json);
            (approved, approval_arguments(&item.arguments, item.overlay.as_deref(), given))
        });
        let effective = effective_arguments(routed, arguments)?;
        let expected = match &approved {
            None => None,
            Some((approved, key)) => match approved.expected(key).await {
                Ok(expected) => expected,
                Err(error) => {
                    let name = &item.public_name;
                    tracing::error!(%error, %name, "approved text cannot be read");
                    if approved.is_enforced {
                        return Err(Fault::Internal);
                    }
                    None
                }
            },
        };
        if item.approval.availability == Availability::SnapshotOnly {
            return Box::pin(snapshot_alone(routed, expected.as_ref())).await;
        }
        let arguments = effective.as_ref().or(arguments);
        let bridge = Bridge {
            router: self,
            admitted: &routed.admitted,
            channel,
            request: BridgedRequest::Get { prompt: routed, arguments, expected: expected.as_ref() },
            deadline,
            now,
            rounds: 0,
        };
        match bridge.run(retry).await {
            Err(fault) => boxed(snapshot_or(&self.shared, routed, expected.as_ref(), fault)).await,
            reply => reply,
        }
    }

    /// Takes a call through the gate, to the upstream of its prompt.
    async fn authorize<'a>(
        &'a self,
        catalog: &'a Catalog,
        context: CallContext<'a>,
        name: &'a str,
        name_kind: NameKind,
    ) -> Result<RoutedPrompt<'a>, Fault> {
        let CallContext { call, record, now, .. } = context;
        let Some((listed, upstream)) = self.find(catalog, name, name_kind) else {
            let unlisted = self.unlisted(catalog, call, name);
            let resolution = match &unlisted {
                None => {
                    let held_back = catalog.held(ApprovalKind::Prompt, name);
                    held_back.map_or(Resolution::Unknown, held)
                }
                // The upstream of a derived name is not known before it is listed.
                Some(_) if name_kind == NameKind::Tool && is_derived(name) => Resolution::Unknown,
                Some(unlisted) => unlisted.resolution(),
            };
            let refused = self.gate.authorize(call, record, resolution).await.err();
            let refused = refused.unwrap_or_else(|| RequestFault::UnknownPrompt.into());
            return Err(refused);
        };
        if listed.skill().is_some() {
            record.stands_for(listed.counted_name());
        }
        let version = self.rollouts.choose(&call.caller, listed, catalog, now);
        let resolution = self.listed(call, listed, version.as_ref());
        let authorized = self.gate.authorize(call, record, resolution).await?;
        let item = version.map_or(listed, |version| version.item);
        let admitted = Admitted { call, authorized, upstream };
        Ok(RoutedPrompt { admitted, item, version })
    }

    /// Counts one use of a prompt or skill that began at `began`.
    fn count_use(&self, call: &Call, item: &ListedItem, began: Instant) {
        let method = call.request.method();
        let upstream = item.upstream.as_str();
        let metrics = self.shared.telemetry.metrics();
        metrics.used(method, upstream, item.known_name(), began.elapsed());
    }

    /// A subscription to changes of the lists that the caller sees at the endpoint, debounced.
    pub fn changes(&self, caller: &Caller, endpoint: &str, kinds: ListKinds) -> Changes {
        Changes::new(self.shared.changes.clone(), caller.clone(), endpoint.to_owned(), kinds)
    }

    /// Completed URL elicitations, as their upstreams report them.
    pub fn url_completions(&self) -> broadcast::Receiver<UrlElicitationComplete> {
        self.shared.url_completions.subscribe()
    }

    /// The sign-ins of callers at an upstream, if callers sign in to it.
    pub fn sign_ins(&self, upstream: &str) -> Option<&CallerSignIns> {
        Some(self.upstreams.get(&UpstreamId::parse(upstream)?)?.caller_credential()?.sign_ins()?)
    }

    /// Tells the client that was sent to the page of a URL elicitation that it can go on.
    pub fn complete_elicitation(&self, upstream: &str, id: String) {
        let completion = UrlElicitationComplete { upstream: upstream.into(), id };
        // Without a client that waits, no stream receives it.
        let _ = self.shared.url_completions.send(completion);
    }

    /// Takes up the login of a caller that is kept under a name now: it was changed here, or at
    /// another replica. Requests to sign in are completed, and the streams of the caller announce
    /// its list.
    pub async fn take_up_login(&self, name: &str) {
        let id = upstream_of(name).and_then(UpstreamId::parse);
        let Some((id, upstream)) = id.and_then(|id| self.upstreams.get_key_value(&id)) else {
            return;
        };
        let Some(change) = upstream.take_up_login(name).await else { return };
        for asked in &change.asked {
            self.complete_elicitation(id.as_str(), asked.to_string());
        }
        if let Some((lists, own)) =
            self.lists.caller_lists.as_ref().zip(upstream.caller_credential())
        {
            let is_its = |caller: &Caller| own.login_name(&CallerName::of(caller)) == name;
            lists.take_up_login(id, is_its, &change);
        }
    }

    /// Takes up the sign-ins that replicas change, until `stop`.
    pub async fn follow_sign_ins(
        self: Arc<Self>,
        logins: Arc<SharedLogins>,
        stop: CancellationToken,
    ) {
        let mut changes = logins.changes();
        let following = async {
            loop {
                let changed = match changes.recv().await {
                    Ok(Some(name)) => HashSet::from([name]),
                    Ok(None) | Err(RecvError::Lagged(_)) => self.accounts().login_names(),
                    Err(RecvError::Closed) => return,
                };
                for name in changed {
                    self.take_up_login(&name).await;
                }
            }
        };
        stop.run_until_cancelled(following).await;
    }

    /// Returns the accounts of callers at upstreams.
    pub fn accounts(&self) -> &Arc<Accounts> {
        &self.shared.upstream_deps.accounts
    }

    /// Returns the accounts of callers at an upstream (by id; `None`: all), the most recently used
    /// first, then the logins that are kept without an account here, and sign-ins that have ended.
    pub async fn list_accounts(&self, upstream: Option<&str>) -> Vec<AccountStatus> {
        let mut all = self.accounts().list();
        all.retain(|own| upstream.is_none_or(|id| &*own.upstream == id));
        for (_, kept) in self.kept_logins(upstream, |_| true).await {
            match all.iter_mut().find(|own| own.is_of(&kept)) {
                Some(own) if kept.ended.is_none() => own.signed_in_at = kept.signed_in_at,
                _ => all.push(kept),
            }
        }
        all
    }

    /// Revokes accounts, as [`Accounts::revoke`], with the logins that are kept, and drops the
    /// lists that were fetched with them.
    pub async fn revoke_accounts(
        &self,
        caller: Option<&str>,
        upstream: Option<&str>,
    ) -> Vec<RevokedAccount> {
        let mut logged_out = Vec::new();
        // First, so that no call takes up a login again.
        let is_meant = |own: &KeptCallerLogin| {
            own.ended.is_none() && caller.is_none_or(|id| own.caller.id == id)
        };
        for (own, account) in self.kept_logins(upstream, is_meant).await {
            let revoked_at_provider = own.end_login(&account.caller).await;
            logged_out.push(RevokedAccount { account, revoked_at_provider });
        }
        let revocation = self.accounts().revoke(caller, upstream);
        if let Some(lists) = &self.lists.caller_lists {
            lists.forget(caller, upstream, &Kind::AccessEnded);
        }
        let mut revoked = revocation.wait_for_providers().await;
        revoked.retain(|one| !logged_out.iter().any(|own| own.account.is_of(&one.account)));
        revoked.extend(logged_out);
        revoked
    }

    /// Returns the sign-ins of a person, whom the issuer and the subject of its tokens name.
    pub async fn sign_ins_of(&self, issuer: &str, subject: &str) -> Vec<AccountStatus> {
        let kept = self.kept_logins(None, |own| own.is_sign_in_of(issuer, subject)).await;
        kept.into_iter().map(|(_, account)| account).collect()
    }

    /// Ends the sign-ins of a person at one upstream.
    pub async fn end_sign_ins_of(&self, issuer: &str, subject: &str, upstream: &str) {
        let is_meant = |own: &KeptCallerLogin| own.is_sign_in_of(issuer, subject);
        for (own, account) in self.kept_logins(Some(upstream), is_meant).await {
            own.end_login(&account.caller).await;
            self.take_up_login(&own.login_name(&account.caller)).await;
        }
    }

    /// Returns the logins of callers that are kept for an upstream (by id; `None`: all).
    async fn kept_logins(
        &self,
        upstream: Option<&str>,
        is_meant: impl Fn(&KeptCallerLogin) -> bool,
    ) -> Vec<(&CallerTokenProvider, AccountStatus)> {
        let mut all = Vec::new();
        for (id, own) in &self.upstreams {
            let is_its = upstream.is_none_or(|upstream| id.as_str() == upstream);
            if let Some(credential) = own.caller_credential().filter(|_| is_its) {
                let kept = credential.logins().await.into_iter().filter(&is_meant);
                let status = |own| AccountStatus::of_kept(id.as_str(), own);
                all.extend(kept.map(|own| (&**credential, status(own))));
            }
        }
        all
    }

    /// The public name behind a derived tool name; `None` for other names, and where the public
    /// name itself looks like a derived one.
    pub fn public_name_of_tool(&self, tool: &str, caller: &Caller) -> Option<String> {
        if !is_derived(tool) {
            return None;
        }
        let catalog = self.catalog();
        let shared = catalog.content.item_of_tool(tool).map(|item| item.public_name.clone());
        let public_name = shared.or_else(|| {
            let lists = self.lists.caller_lists.as_ref()?;
            lists.find(caller, tool, NameKind::Tool, |item| item.public_name.clone())
        })?;
        (!is_derived(&public_name)).then(|| public_name.to_string())
    }

    /// The lists, as callers see them.
    pub fn lists(&self) -> &Lists {
        &self.lists
    }

    /// The rollouts of this configuration.
    pub fn rollouts(&self) -> &Rollouts {
        &self.rollouts
    }

    /// The texts that callers got and that are not approved.
    pub fn unapproved_texts(&self) -> &UnapprovedTexts {
        &self.shared.unapproved_texts
    }

    /// Marked changed whenever a snapshot is published.
    pub fn published(&self) -> watch::Receiver<()> {
        self.shared.published.clone()
    }

    /// Reports texts that probes have found, which the catalog compares with the approved texts.
    pub async fn report_texts(&self, texts: Vec<TextReport>) {
        // Fails only at shutdown.
        let _ = self.shared.texts.send(texts).await;
    }

    /// The upstream with this id.
    pub fn upstream(&self, id: &UpstreamId) -> Option<&Arc<Upstream>> {
        self.upstreams.get(id)
    }

    /// The ids of all upstreams.
    pub fn upstream_ids(&self) -> impl Iterator<Item = &UpstreamId> {
        self.upstreams.keys()
    }

    /// The labels of library prompts.
    pub fn labels(&self) -> LabelledPrompts<'_> {
        LabelledPrompts { router: self }
    }

    /// The newest snapshot.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.lists.catalog()
    }

    /// The status of each upstream.
    pub fn status(&self) -> Vec<UpstreamStatus> {
        self.status_in(&self.catalog())
    }

    /// The status of each upstream, with the lists of one snapshot.
    pub fn status_in(&self, catalog: &Catalog) -> Vec<UpstreamStatus> {
        statuses(&self.upstreams, catalog)
    }

    /// The number of suspended calls.
    pub fn suspended(&self) -> usize {
        self.shared.suspended.count()
    }

    /// Schedules a new read of an upstream whose webhook reports a change, or whose removal that
    /// leaves `accepted` prompts a person has accepted.
    pub fn hint(&self, upstream: &str, accepted: Option<usize>) {
        let id = UpstreamId::parse(upstream);
        match (id.and_then(|id| self.upstreams.get(&id)), accepted) {
            (Some(upstream), None) => upstream.take_hint(),
            (Some(upstream), Some(listed)) => upstream.accept_removal(listed),
            (None, _) => {}
        }
    }

    /// Whether an endpoint serves a prompt, regardless of the caller.
    pub fn serves(&self, endpoint: &str, item: &ListedItem) -> bool {
        self.lists.views.endpoints.serves(endpoint, item)
    }

    /// Whether an endpoint serves any known skill, for any caller.
    pub fn has_skills(&self, endpoint: &str) -> bool {
        self.lists.has_skills(endpoint)
    }

    /// Like [`Self::has_skills`], or the endpoint serves private lists that are not yet known.
    pub fn may_have_skills(&self, endpoint: &str) -> bool {
        self.lists.may_have_skills(endpoint)
    }

    /// Whether an endpoint serves an upstream whose links are sealed.
    pub fn seals_links(&self, endpoint: &str) -> bool {
        let is_served = |id: &UpstreamId| self.lists.views.endpoints.serves_upstream(endpoint, id);
        self.upstreams.iter().any(|(id, upstream)| upstream.config().seals_links() && is_served(id))
    }

    /// Whether a URI names a file of a skill of an endpoint, regardless of view and caller.
    pub fn is_of_skill(&self, endpoint: &str, uri: &str) -> bool {
        let catalog = self.lists.catalog.load();
        let skills = self.lists.views.endpoints.skills_at(&catalog.skills, endpoint);
        let private = self.lists.caller_lists.as_ref();
        skills.find(uri, SkillPart::File, |_| true).is_some()
            || private.is_some_and(|lists| lists.may_have_skill(uri))
    }

    /// Returns the pseudonym of this gateway with the gateways behind its upstreams.
    pub fn via(&self, own: &str) -> Via {
        Via::of_gateway(own, self.upstreams.values().filter_map(|upstream| upstream.behind()))
    }

    /// The exposure of an endpoint.
    pub fn exposure(&self, endpoint: &str) -> &Exposure {
        self.lists.views.endpoints.exposure(endpoint)
    }

    fn find<'a>(
        &'a self,
        catalog: &'a Catalog,
        name: &str,
        name_kind: NameKind,
    ) -> Option<(&'a ListedItem, &'a Arc<Upstream>)> {
        let item = item(catalog, name, name_kind)?;
        Some((item, self.upstreams.get(&item.upstream)?))
    }

    fn listed<'a>(
        &self,
        call: &Call,
        item: &'a ListedItem,
        version: Option<&ChosenVersion<'a>>,
    ) -> Resolution<'a> {
        let number = item.version.as_ref().map(|version| &*version.version);
        let target = CallTarget {
            upstream: item.upstream.as_str(),
            raw_name: &item.raw_name,
            definition: &item.digest,
            state: item.approval.state,
            // The number of a skill's prompt is none of the skill.
            number: number.filter(|_| item.skill().is_none()),
            version: version.map(ChosenVersion::served),
        };
        if self.lists.views.endpoints.serves(&call.endpoint, item) {
            Resolution::Listed(target)
        } else if item.is_version() {
            Resolution::NotServed { target, rule: "versions".to_owned() }
        } else {
            let view = call.endpoint.rsplit('/').next().unwrap_or_default();
            Resolution::NotServed { target, rule: format!("views.{view}") }
        }
    }

    /// Finds the upstream that may own a name that no list contains. Until that upstream's list is
    /// received, the name is not answered as unknown: clients would forget it. The name of an
    /// invalid prompt is answered with the reason.
    fn unlisted<'a>(&'a self, catalog: &Catalog, call: &Call, name: &str) -> Option<Unlisted<'a>> {
        let claimed = self.lists.naming.claimed(name);
        self.upstreams.values().find_map(|upstream| {
            let config = upstream.config();
            let id = &config.id;
            let own = &config.prefix;
            let claimed = claimed.filter(|(prefix, _)| !own.is_bare() && own.as_str() == *prefix);
            let listed_name = claimed.map_or(name, |(_, listed_name)| listed_name);
            if claimed.is_none() && !own.is_bare() {
                return None;
            }
            let raw_name = overlay::raw_name(&self.overlays, id, listed_name);
            let is_missing = |part: &&Incomplete| {
                part.walked_at.is_none() && !part.has_prompts && part.upstream == *id
            };
            let missing = catalog.incomplete.iter().find(|part| !own.is_bare() && is_missing(part));
            let kind = match missing {
                Some(missing) => missing.kind.clone(),
                None => invalid(catalog, config, &raw_name)?,
            };
            self.lists.views.endpoints.serves_unlisted(&call.endpoint, id, name).then(|| {
                let state = self.approval_rules.known_state(ApprovalKind::Prompt, id, &raw_name);
                Unlisted { upstream: id, raw_name, state, kind }
            })
        })
    }
}
