//! The accounts of callers at upstreams that are called as the caller. Each caller has a separate
//! access token, and separate connections and sessions that serve no other caller.

pub mod account;

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use lru::LruCache;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::account::Account;
use super::auth::REVOCATION;
use super::auth::caller_token_provider::{CallerTokenProvider, KeptCallerLogin};
use super::auth::caller_tokens::CallerTokens;
use super::connection::connect::Connector;
use super::connection::dedicated::DedicatedPool;
use super::connection::examiner::Examiner;
use super::driver::DriverId;
use super::guard::concurrency::{ConcurrencyLimit, Permit};
use super::upstream_secrets::UpstreamSecrets;
use audit::Audit;
use base::platform::Locked;
use cluster::SharedLogins;
use config::AccountLimits;
use domain::calls::caller::{Caller, Principal};
use domain::calls::fair_share::{Holder, Share};
use domain::fault::UpstreamFaultKind as Kind;
use domain::time::unix_time::UnixSeconds;
use logins::caller::CallerName;

/// The accounts of all callers at all upstreams, bounded by caller and in total. Beyond a bound,
/// the least recently used account ends once its calls have ended.
#[derive(Default)]
pub struct Accounts(Mutex<AccountState>);

struct AccountState {
    limits: AccountLimits,
    open: LruCache<AccountKey, Arc<Account>>,
    by_caller: HashMap<Caller, Vec<AccountKey>>,
    /// Accounts that were removed to make room while calls used them.
    evicted: Vec<Weak<Account>>,
}

impl Default for AccountState {
    fn default() -> Self {
        let limits = AccountLimits::default();
        Self { limits, open: LruCache::unbounded(), by_caller: HashMap::new(), evicted: Vec::new() }
    }
}

/// One caller at one upstream, as it is configured now.
#[derive(Clone, Eq, Hash, PartialEq)]
struct AccountKey {
    upstream: DriverId,
    principal: Principal,
}

/// The status of an account for the admin API.
#[derive(Clone, Debug)]
pub struct AccountStatus {
    pub upstream: Arc<str>,
    pub caller: CallerName,
    /// How the caller gets access: the key of the credential, or `process`.
    pub way: &'static str,
    /// When the caller signed in; `None` for other ways.
    pub signed_in_at: Option<UnixSeconds>,
    /// Why the sign-in has ended, if it has.
    pub ended: Option<String>,
    /// Time until the access token expires; `None` without a token.
    pub expires_in: Option<Duration>,
    /// Time since the last call; `None` without a call through this replica.
    pub idle: Option<Duration>,
}

/// A revoked account.
#[derive(Clone, Debug)]
pub struct RevokedAccount {
    pub account: AccountStatus,
    /// Whether the authorization server has revoked the access token.
    pub revoked_at_provider: bool,
}

/// The effect of a changed login on the accounts and lists of its caller here.
pub struct LoginChange {
    /// The requests to sign in that the caller got here.
    pub asked: Vec<Arc<str>>,
    pub is_signed_in: bool,
    /// Whether accounts or lists here may be of another login.
    pub is_new: bool,
}

/// Ended accounts whose tokens are being revoked at their authorization servers.
pub struct Revocation(Vec<(AccountStatus, Option<JoinHandle<bool>>)>);

impl Revocation {
    /// Waits for the authorization servers, for a bounded time.
    pub async fn wait_for_providers(self) -> Vec<RevokedAccount> {
        let deadline = Instant::now() + REVOCATION;
        let mut revoked = Vec::with_capacity(self.0.len());
        for (account, revoking) in self.0 {
            let revoked_at_provider = match revoking {
                Some(revoking) => {
                    timeout_at(deadline, revoking).await.is_ok_and(Result::unwrap_or_default)
                }
                None => false,
            };
            revoked.push(RevokedAccount { account, revoked_at_provider });
        }
        revoked
    }
}

impl Accounts {
    pub fn set_limits(&self, limits: AccountLimits) {
        let surplus = {
            let mut state = self.0.locked();
            state.limits = limits;
            let surplus = state.take_surplus(limits.max);
            state.debug_assert_invariants();
            surplus
        };
        drop(surplus);
    }

    fn find(&self, key: &AccountKey) -> Option<Arc<Account>> {
        let mut state = self.0.locked();
        let account = state.open.get(key).cloned()?;
        // Touched under the lock, so that the account cannot end as idle meanwhile.
        account.touch();
        Some(account)
    }

    /// Adds an account, unless another call has added one meanwhile.
    fn add(&self, key: &AccountKey, account: Arc<Account>) -> Arc<Account> {
        let mut state = self.0.locked();
        if let Some(account) = state.open.get(key) {
            return account.clone();
        }
        let ended = state.make_room(key.principal.caller());
        state.by_caller.entry(key.principal.caller().clone()).or_default().push(key.clone());
        state.open.put(key.clone(), account.clone());
        state.debug_assert_invariants();
        state.debug_assert_room(key.principal.caller());
        drop(state);
        drop(ended);
        account
    }

    /// Removes the least recently used idle account of an upstream; with `of`, an account of this
    /// caller.
    fn remove_idle_of(&self, upstream: DriverId, of: Option<&Caller>) -> Option<Arc<Account>> {
        let mut state = self.0.locked();
        let idle = state.open.iter().rev().find(|(key, account)| {
            key.upstream == upstream
                && of.is_none_or(|caller| key.principal.caller() == caller)
                && Arc::strong_count(account) == 1
        });
        let key = idle.map(|(key, _)| key.clone())?;
        state.remove(&key)
    }

    /// Removes an account that has been unused for `idle`. Returns when to check again; `None` once
    /// the account is removed.
    fn remove_if_idle(
        &self,
        key: &AccountKey,
        account: &Weak<Account>,
        idle: Duration,
    ) -> Option<Instant> {
        let removed = {
            let mut state = self.0.locked();
            let known = state
                .open
                .peek(key)
                .filter(|known| Weak::ptr_eq(&Arc::downgrade(known), account))?;
            let now = Instant::now();
            let due = known.last_use() + idle;
            if Arc::strong_count(known) > 1 {
                return Some(now + idle.min(MAX_LOOK));
            }
            if now < due {
                return Some(due);
            }
            state.remove(key)
        };
        drop(removed);
        None
    }

    /// Ends the accounts of a caller (by id; `None`: all) at an upstream (by id; `None`: all) at
    /// once, including the calls on these accounts.
    pub fn revoke(&self, caller: Option<&str>, upstream: Option<&str>) -> Revocation {
        let is_meant = |account: &Account| {
            caller.is_none_or(|id| account.caller.id() == id)
                && upstream.is_none_or(|id| &*account.upstream == id)
        };
        let end = |account: Arc<Account>| {
            let revoking = account
                .tokens
                .clone()
                .map(|tokens| account.tasks.spawn(async move { tokens.revoke().await }));
            (status(&account), revoking)
        };
        Revocation(self.end(is_meant).into_iter().map(end).collect())
    }

    /// Removes accounts, and cancels the calls on them.
    fn end(&self, is_meant: impl Fn(&Account) -> bool) -> Vec<Arc<Account>> {
        // Declared before the lock, so that the accounts are dropped after its release.
        let left: Vec<_>;
        let mut state = self.0.locked();
        let keys: Vec<_> = state
            .open
            .iter()
            .filter(|(_, account)| is_meant(account))
            .map(|(key, _)| key.clone())
            .collect();
        let evicted = std::mem::take(&mut state.evicted);
        let ended: Vec<_>;
        (ended, left) =
            evicted.iter().filter_map(Weak::upgrade).partition(|account| is_meant(account));
        state.evicted = left.iter().map(Arc::downgrade).collect();
        let open = keys.iter().filter_map(|key| state.remove(key));
        let all: Vec<_> = open.collect::<Vec<_>>().into_iter().chain(ended).collect();
        drop(state);
        for account in &all {
            account.revoked.cancel();
            account.ended.cancel();
        }
        all
    }

    /// Returns the names of the logins of all accounts.
    pub fn login_names(&self) -> HashSet<String> {
        let state = self.0.locked();
        let tokens = state.open.iter().filter_map(|(_, account)| account.tokens.as_deref());
        tokens.filter_map(|tokens| tokens.login_name().map(str::to_owned)).collect()
    }

    /// Returns the tokens of the accounts whose login has this name.
    fn with_login(&self, name: &str) -> Vec<Arc<CallerTokens>> {
        let state = self.0.locked();
        let own = state.open.iter().filter_map(|(_, account)| account.with_login(name));
        own.cloned().collect()
    }

    /// Returns all accounts, the most recently used first.
    pub fn list(&self) -> Vec<AccountStatus> {
        self.0.locked().open.iter().map(|(_, account)| status(account)).collect()
    }
}

impl AccountStatus {
    /// The status of a login that is kept without an account.
    pub fn of_kept(upstream: &str, kept: KeptCallerLogin) -> Self {
        let KeptCallerLogin { caller, way, signed_in_at, ended, .. } = kept;
        let upstream = upstream.into();
        Self { upstream, caller, way, signed_in_at, ended, expires_in: None, idle: None }
    }

    /// Whether both are of one caller at one upstream.
    pub fn is_of(&self, other: &Self) -> bool {
        self.upstream == other.upstream && self.caller == other.caller
    }
}

fn status(account: &Account) -> AccountStatus {
    AccountStatus {
        upstream: account.upstream.clone(),
        caller: CallerName::of(&account.caller),
        way: account.tokens.as_ref().map_or("process", |tokens| tokens.way()),
        signed_in_at: None,
        ended: None,
        expires_in: account.tokens.as_ref().and_then(|tokens| tokens.left()),
        idle: Some(account.last_use().elapsed()),
    }
}

/// The place of a caller among the child processes.
enum ChildPlace {
    /// The existing account of the caller.
    Own(Arc<Account>),
    New(Permit),
}

/// Poll interval of a call that waits for an idle child process.
const LOOK_FOR_IDLE: Duration = Duration::from_millis(100);

/// Most accounts for which debug builds check all accounts after each change.
const MAX_CHECKED: usize = 256;

/// Longest interval between checks whether a used account is idle.
const MAX_LOOK: Duration = Duration::from_secs(60);

impl AccountState {
    /// Makes room for another account of a caller. Returns the accounts that end.
    fn make_room(&mut self, caller: &Caller) -> Vec<Arc<Account>> {
        let mut ended = self.take_surplus(self.limits.max.saturating_sub(1));
        while let Some(own) =
            self.by_caller.get(caller).filter(|own| own.len() >= self.limits.per_caller)
        {
            let used = |key: &&AccountKey| self.open.peek(*key).map(|account| account.last_use());
            let Some(oldest) = own.iter().min_by_key(used).cloned() else { break };
            ended.extend(self.evict(&oldest));
        }
        ended
    }

    /// Removes the least recently used accounts beyond `most`.
    fn take_surplus(&mut self, most: usize) -> Vec<Arc<Account>> {
        let mut ended = Vec::new();
        while self.open.len() > most
            && let Some(key) = self.open.peek_lru().map(|(key, _)| key.clone())
        {
            ended.extend(self.evict(&key));
        }
        ended
    }

    /// Removes an account to make room for another account. Calls on the removed account continue,
    /// so the account can still be revoked.
    fn evict(&mut self, key: &AccountKey) -> Option<Arc<Account>> {
        let account = self.remove(key)?;
        self.evicted.retain(|evicted| evicted.strong_count() > 0);
        if Arc::strong_count(&account) > 1 {
            self.evicted.push(Arc::downgrade(&account));
        }
        Some(account)
    }

    fn remove(&mut self, key: &AccountKey) -> Option<Arc<Account>> {
        let caller = key.principal.caller();
        if let Some(own) = self.by_caller.get_mut(caller) {
            own.retain(|other| other != key);
            if own.is_empty() {
                self.by_caller.remove(caller);
            }
        }
        let account = self.open.pop(key);
        self.debug_assert_invariants();
        account
    }

    /// Panics in debug builds if the accounts by caller differ from the open accounts. The scan is
    /// linear in the accounts, so it is skipped beyond [`MAX_CHECKED`].
    fn debug_assert_invariants(&self) {
        // An account that is dropped while a test fails must not end the process.
        let is_checked = cfg!(debug_assertions) && !std::thread::panicking();
        if !is_checked || self.open.len() > MAX_CHECKED {
            return;
        }
        let mut keys = HashSet::new();
        for (caller, own) in &self.by_caller {
            assert!(!own.is_empty(), "a caller without an account has no entry");
            for key in own {
                assert!(key.principal.caller() == caller, "an account is of its caller");
                assert!(self.open.contains(key), "an account that has ended is left");
                assert!(keys.insert(key), "an account is counted once");
            }
        }
        assert_eq!(keys.len(), self.open.len(), "each open account is of a caller");
        // No reference is upgraded: the last reference must not be dropped under the lock.
        let open: HashSet<_> = self.open.iter().map(|(_, account)| Arc::as_ptr(account)).collect();
        let is_open = |evicted: &Weak<Account>| open.contains(&evicted.as_ptr());
        assert!(!self.evicted.iter().any(is_open), "an account that made room is open");
    }

    /// Panics in debug builds if a caller, or all callers, exceed the limits for open accounts. A
    /// lowered limit ends no account until the caller opens another account.
    fn debug_assert_room(&self, caller: &Caller) {
        let own = self.by_caller.get(caller).map_or(0, Vec::len);
        let open = self.open.len();
        debug_assert!(open <= self.limits.max.max(1), "{open} of all callers");
        debug_assert!(own <= self.limits.per_caller.max(1), "{own} of one caller");
    }
}

/// The accounts of callers at one upstream.
pub(crate) struct UpstreamAccounts {
    accounts: Arc<Accounts>,
    driver: DriverId,
    upstream: Arc<config::UpstreamSettings>,
    /// The gateway's connector, from which the connectors of callers are derived.
    connector: Arc<Connector>,
    /// The source of tokens; `None` if each caller has a child process.
    credential: Option<Arc<CallerTokenProvider>>,
    /// Places for child processes; `None` over HTTP.
    places: Option<Arc<ConcurrencyLimit>>,
    /// The time of the last scan for an idle child process that found none.
    looked_at: Mutex<Option<Instant>>,
    /// Time without a call until an account ends.
    idle: Duration,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

/// Idle time until the connections of a caller over HTTP are closed, and the caller's token is
/// forgotten: callers return within minutes, or not soon.
pub(super) const IDLE: Duration = Duration::from_secs(600);

impl UpstreamAccounts {
    /// Returns `None` if the upstream is not called as the caller.
    pub(crate) fn new(
        accounts: Arc<Accounts>,
        driver: DriverId,
        connector: &Arc<Connector>,
        audit: Audit,
        shared: Option<Arc<SharedLogins>>,
        tasks: TaskTracker,
        shutdown: CancellationToken,
    ) -> Result<Option<Self>, String> {
        let upstream = connector.upstream().clone();
        if !upstream.acts_as_caller() {
            return Ok(None);
        }
        let credential = upstream.http().and_then(|http| {
            let caller = http.credentials.caller.as_ref()?;
            let id = upstream.id.as_str();
            Some(
                CallerTokenProvider::new(id, caller, http, audit, tasks.clone(), shared)
                    .map(Arc::new),
            )
        });
        let children = upstream.child_per_caller();
        Ok(Some(Self {
            accounts,
            driver,
            credential: credential.transpose()?,
            places: children.map(|children| ConcurrencyLimit::new(children.max, 0, Duration::ZERO)),
            looked_at: Mutex::default(),
            idle: children.map_or(IDLE, |children| children.idle),
            connector: connector.clone(),
            upstream,
            tasks,
            shutdown,
        }))
    }

    /// Returns the account of a caller; opens it if it is missing, and waits for a place among the
    /// child processes.
    pub(crate) async fn of(&self, caller: &Caller) -> Result<Arc<Account>, Kind> {
        let key = AccountKey { upstream: self.driver, principal: Principal::new(caller) };
        if let Some(account) = self.accounts.find(&key) {
            return Ok(account);
        }
        let place = match &self.places {
            None => None,
            Some(places) => match self.place(places, &key).await? {
                ChildPlace::Own(account) => return Ok(account),
                ChildPlace::New(permit) => Some(permit),
            },
        };
        let opened = Arc::new(self.open(caller, place)?);
        let account = self.accounts.add(&key, opened.clone());
        if !Arc::ptr_eq(&account, &opened) {
            return Ok(account);
        }
        self.tasks.spawn(end_when_idle(
            self.accounts.clone(),
            key,
            Arc::downgrade(&account),
            self.idle,
            account.ended.clone(),
        ));
        Ok(account)
    }

    /// The source of the callers' tokens; `None` for child processes.
    pub(crate) fn credential(&self) -> Option<&Arc<CallerTokenProvider>> {
        self.credential.as_ref()
    }

    /// Takes up the login that is kept under a name now: ends accounts with another login. `None`
    /// if nothing is known of it.
    pub(crate) async fn take_up_login(&self, name: &str) -> Option<LoginChange> {
        let kept = self.credential()?.find_login(name).await?;
        let is_signed_in = kept.as_ref().is_some_and(|kept| kept.ended.is_none());
        let id = kept.map(|kept| kept.id);
        let mut asked = Vec::new();
        let open = self.accounts.with_login(name);
        // A renewal concerns no replica without an account, an end may.
        let mut is_new = open.is_empty() && !is_signed_in;
        for tokens in open.iter().filter(|tokens| tokens.used_login() != id) {
            asked.extend(tokens.asked().await);
            is_new = true;
        }
        if is_new {
            // An account that has had no login has no session of one.
            let is_other = |tokens: &Arc<CallerTokens>| {
                tokens.used_login().is_some_and(|used| Some(used) != id)
            };
            self.accounts.end(|account| account.with_login(name).is_some_and(is_other));
        }
        Some(LoginChange { asked, is_signed_in, is_new })
    }

    /// Sets the part of the child processes that one caller may hold while others need some.
    pub(crate) fn set_share(&self, share: Share) {
        if let Some(places) = &self.places {
            places.set_share(share);
        }
    }

    /// Returns the account of a caller, if it has one.
    pub(crate) fn existing(&self, caller: &Caller) -> Option<Arc<Account>> {
        let key = AccountKey { upstream: self.driver, principal: Principal::new(caller) };
        self.accounts.0.locked().open.peek(&key).cloned()
    }

    /// Whether callers have child processes, whose number is small.
    pub(crate) fn are_children(&self) -> bool {
        self.places.is_some()
    }

    /// Waits for a place among the child processes: the place of an idle child, or a free place.
    async fn place(
        &self,
        places: &Arc<ConcurrencyLimit>,
        key: &AccountKey,
    ) -> Result<ChildPlace, Kind> {
        // The share counts callers, not tokens: a caller may have several tokens.
        let holder = Holder::Caller(key.principal.caller().clone());
        if let Some(permit) = places.try_acquire(&holder) {
            return Ok(ChildPlace::New(permit));
        }
        let deadline = Instant::now() + self.upstream.settings.queue_wait;
        let mut acquiring = pin!(places.turn(&holder));
        loop {
            // Another call of this caller may have opened the account meanwhile.
            if let Some(account) = self.accounts.find(key) {
                return Ok(ChildPlace::Own(account));
            }
            // A caller beyond its share may replace only its own idle children.
            let of = places.has_share(&holder).then(|| key.principal.caller());
            if self.may_look_for_idle() && self.accounts.remove_idle_of(self.driver, of).is_some() {
                // More idle children may exist for other waiting calls.
                *self.looked_at() = None;
            }
            // There is no notification when a child becomes idle, so this polls.
            let until = deadline.min(Instant::now() + LOOK_FOR_IDLE);
            match timeout_at(until, acquiring.as_mut()).await {
                Ok(permit) => return permit.map(ChildPlace::New).ok_or(Kind::Busy),
                Err(_) if Instant::now() >= deadline => return Err(Kind::Busy),
                Err(_) => {}
            }
        }
    }

    /// Whether a scan for an idle child is due. A scan is linear in the accounts, so waiting calls
    /// share one per [`LOOK_FOR_IDLE`].
    fn may_look_for_idle(&self) -> bool {
        let mut looked_at = self.looked_at();
        let is_due = looked_at.is_none_or(|at| at.elapsed() >= LOOK_FOR_IDLE);
        if is_due {
            *looked_at = Some(Instant::now());
        }
        is_due
    }

    fn looked_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.looked_at.locked()
    }

    fn open(&self, caller: &Caller, place: Option<Permit>) -> Result<Account, Kind> {
        let tokens = self
            .credential
            .as_ref()
            .map(|credential| Arc::new(CallerTokens::new(credential.clone(), caller.clone())));
        let list_changed: Arc<Notify> = Arc::default();
        let announced = self.upstream.lists_per_caller().then(|| list_changed.clone());
        let connector = self.connector.of_caller(caller, tokens.clone(), announced);
        let connector = Arc::new(connector.map_err(Kind::Unavailable)?);
        let tasks = self.tasks.clone();
        let ended = self.shutdown.child_token();
        let dedicated = DedicatedPool::new(
            connector.clone(),
            self.upstream.clone(),
            tasks.clone(),
            ended.clone(),
        );
        Ok(Account {
            upstream: self.upstream.id.as_str().into(),
            caller: caller.clone(),
            secrets: UpstreamSecrets::new(&self.upstream, Some(connector.clone())),
            connector,
            tokens,
            dedicated,
            list_changed,
            listening: Arc::default(),
            ended,
            revoked: CancellationToken::new(),
            tasks,
            connection: Arc::default(),
            examiner: Examiner::default(),
            used: Mutex::new(Instant::now()),
            _place: place,
        })
    }
}

impl Drop for UpstreamAccounts {
    /// Ends the accounts of callers at an upstream that was removed or has changed.
    fn drop(&mut self) {
        let ended: Vec<_> = {
            let mut state = self.accounts.0.locked();
            let keys: Vec<_> = state
                .open
                .iter()
                .filter(|(key, _)| key.upstream == self.driver)
                .map(|(key, _)| key.clone())
                .collect();
            keys.iter().filter_map(|key| state.remove(key)).collect()
        };
        drop(ended);
    }
}

/// Ends an account once no call has used it for `idle`.
async fn end_when_idle(
    accounts: Arc<Accounts>,
    key: AccountKey,
    account: Weak<Account>,
    idle: Duration,
    ended: CancellationToken,
) {
    let mut next = Some(Instant::now() + idle);
    while let Some(at) = next {
        tokio::select! {
            () = sleep_until(at) => next = accounts.remove_if_idle(&key, &account, idle),
            () = ended.cancelled() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::call::correlator::NotificationSinks;
    use config::Config;

    /// The accounts at one upstream of which each caller has a child process. None is started.
    fn upstream(accounts: &Arc<Accounts>, id: &str) -> UpstreamAccounts {
        let toml = format!(
            "[upstreams.{id}]\ntransport = \"stdio\"\ncommand = [\"true\"]\nper_caller = true\n\
             max_children = 4\nqueue_wait = \"10ms\"\nchild_idle = \"1m\"\n"
        );
        let config = Config::parse("g", &toml, Path::new("."), &[]);
        let config = config.unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let tasks = TaskTracker::new();
        let sinks = NotificationSinks::new(id);
        let starting = Arc::new(tokio::sync::Semaphore::new(1));
        let upstream = Arc::new(config.upstreams[0].clone());
        let connector = Connector::new(upstream, sinks, tasks.clone(), starting, None).unwrap();
        let own = UpstreamAccounts::new(
            accounts.clone(),
            DriverId::fresh(),
            &Arc::new(connector),
            Audit::default(),
            None,
            tasks,
            CancellationToken::new(),
        );
        own.unwrap().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_with_many_tokens_leaves_a_child_process_for_others() {
        let accounts = Arc::new(Accounts::default());
        let upstream = upstream(&accounts, "a");
        upstream.set_share(Share::QUARTER);
        let mut of_ada = Vec::new();
        for scope in 0..8 {
            let ada = Caller::new("ada").with_scopes(vec![scope.to_string()]);
            of_ada.extend(upstream.of(&ada).await.ok());
        }
        assert_eq!(of_ada.len(), 3);
        assert!(upstream.of(&Caller::new("bob")).await.is_ok());
        // Of what is idle, it may take its own only.
        let other = Caller::new("ada").with_scopes(vec!["other".to_owned()]);
        assert_eq!(upstream.of(&other).await.err(), Some(Kind::Busy));
        assert!(accounts.list().iter().any(|open| open.caller.id == "bob"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// The accounts themselves check after each step that those by caller are the open ones.
        #[test]
        fn whatever_opens_and_ends_accounts_they_stay_within_their_bounds(
            steps in prop::collection::vec((0..8_u8, 0..2_usize, 0..4_u8, 1..4_usize), 1..60),
        ) {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let accounts = Arc::new(Accounts::default());
                let mut upstreams = ["a", "b"].map(|id| upstream(&accounts, id));
                let mut used = Vec::new();
                for (step, at, caller, count) in steps {
                    let id = caller.to_string();
                    match step {
                        0..=2 => used.extend(upstreams[at].of(&Caller::new(&id)).await.ok()),
                        3 => drop(upstreams[at].of(&Caller::in_groups(&id, &["g".into()])).await),
                        4 => used.truncate(count),
                        5 => {
                            let per_caller = count;
                            let max = count + usize::from(caller);
                            accounts.set_limits(AccountLimits { per_caller, max });
                            prop_assert!(accounts.list().len() <= max);
                        }
                        6 => {
                            accounts.revoke(Some(&id), None);
                            prop_assert!(accounts.list().iter().all(|open| open.caller.id != id));
                        }
                        _ if caller == 0 => {
                            // The upstream has changed.
                            upstreams[at] = upstream(&accounts, ["a", "b"][at]);
                        }
                        _ => tokio::time::advance(Duration::from_secs(50)).await,
                    }
                }
                drop(upstreams);
                prop_assert!(accounts.list().is_empty());
                prop_assert!(accounts.0.locked().by_caller.is_empty());
                Ok(())
            })?;
        }
    }
}
