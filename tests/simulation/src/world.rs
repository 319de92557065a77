//! The shared state of all actors of a run: the machine, the upstreams, the observations and the
//! violations.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Read as _;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use fastrand::Rng;
use flate2::read::MultiGzDecoder;
use front::downstream::StdioStreams;
use promptgate::App;
use serde_json::Value;
use tokio::io::{DuplexStream, duplex};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::machine::{Machine, trace};
use crate::plan::{Approved, CallerPlan, ClientPlan, Rules, SHARE, Scenario, audit_of};
use crate::upstream::versions::{VERSIONED, is_versioned};
use crate::upstream::{Arrival, Plan, Prompt, Transport, Upstream};
use crate::vault::{self, Vault};

pub struct World {
    pub machine: Machine,
    pub scenario: Scenario,
    upstreams: OnceLock<(Vec<Upstream>, Vault)>,
    state: Mutex<State>,
    failed: Notify,
}

#[derive(Default)]
struct State {
    violations: Vec<String>,
    rules: Vec<Period<Rules>>,
    replicas: Vec<Replica>,
    /// When the store was disturbed.
    store_faults: Vec<Instant>,
    /// When everything that was not on the disk was lost.
    crashes: Vec<Instant>,
    /// The nonces of gets whose results reached their clients, and when.
    acknowledged: Vec<(String, Instant)>,
    /// The texts of definitions, which never change: by revision, public name and description.
    definitions: BTreeMap<(String, String, String), String>,
    /// Requests that count against the limit of a caller, by the caller.
    calls: BTreeMap<usize, Vec<Instant>>,
    /// The gets that clients have sent first: by their nonce, the start of the gateway, and when.
    sent: BTreeMap<String, (usize, Instant)>,
    /// Calls in progress: their callers, and how many of the caller were in progress at most
    /// meanwhile.
    in_progress: BTreeMap<u64, (usize, usize)>,
    next_call: u64,
    /// Calls whose clients have left: the gateway may be at them until then.
    left: Vec<(usize, Instant)>,
    /// First arrivals of gets at upstreams, in the order of their arrival.
    admitted: Vec<Admitted>,
    /// When a replica has last served the plain name of a prompt with versions, by the upstream.
    served: BTreeMap<(usize, String), Instant>,
    /// The last links that clients got.
    links: VecDeque<GivenLink>,
    steps: u64,
}

/// One gateway, in all its runs.
#[derive(Default)]
struct Replica {
    runs: Vec<Period<()>>,
    /// Whether it has ended, or ends, as after SIGTERM: it answers what it has begun.
    drains: bool,
    /// The gateway while it runs, for clients over its standard streams.
    app: Weak<App>,
    /// The tasks that serve such clients.
    streams: Vec<AbortHandle>,
}

/// A get whose admission lies between its sending and its arrival at an upstream.
struct Admitted {
    nonce: String,
    caller: usize,
    /// The start of the gateway in which all of that was, if it was one.
    start: Option<usize>,
    sent: Instant,
}

/// A link to the note of a prompt, as a caller got it.
#[derive(Clone, Debug)]
pub struct GivenLink {
    pub uri: String,
    pub caller: String,
    pub upstream: String,
    /// The raw name of the prompt.
    pub name: String,
}

/// Most links that are remembered.
const MAX_LINKS: usize = 60;

/// Something that held from a time on, perhaps until another one.
struct Period<T> {
    value: T,
    from: Instant,
    until: Option<Instant>,
}

impl<T> Period<T> {
    fn touches(&self, from: Instant, until: Instant) -> bool {
        self.from <= until && self.until.is_none_or(|end| end >= from)
    }
}

/// A call in progress.
pub struct Call<'a> {
    world: &'a World,
    number: u64,
    is_answered: bool,
}

impl Call<'_> {
    /// It has ended, with an answer or without one.
    pub fn ends(&mut self, is_answered: bool) {
        self.is_answered = is_answered;
    }

    /// It was refused because too much is in progress: a caller within its share must not see that.
    /// Half of the share is left for the answers of its users.
    pub fn is_refused(&self) {
        let (caller, most) = self.world.lock().in_progress[&self.number];
        if most <= SHARE / 2 {
            let caller = &self.world.scenario.callers[caller].id;
            let why = format!("{caller} was told of an overload, with {most} calls in progress");
            self.world.violation(why);
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        const LONGEST: Duration = Duration::from_secs(11);
        let mut state = self.world.lock();
        let Some((caller, _)) = state.in_progress.remove(&self.number) else { return };
        if !self.is_answered {
            state.left.push((caller, Instant::now() + LONGEST));
        }
    }
}

/// The lists that one observer has seen: for each upstream the number of the newest one.
#[derive(Clone, Debug, Default)]
pub struct Observer {
    newest: BTreeMap<String, usize>,
    /// The gateway that has served them: another one knows nothing of before.
    start: usize,
    /// When it has received the last one.
    last: Option<Instant>,
}

/// A list as a client has received it, in one page or several.
pub struct SeenList {
    pub prompts: Vec<Value>,
    /// The upstreams that the gateway says are out of date or missing.
    pub incomplete: BTreeSet<String>,
    pub revision: String,
    pub pages: usize,
    pub sent: Instant,
    pub received: Instant,
}

impl Replica {
    /// The gateway no longer runs as it should.
    fn end(&mut self) {
        self.app = Weak::new();
        if let Some(period) = self.runs.last_mut() {
            period.until.get_or_insert(Instant::now());
        }
    }
}

impl World {
    pub fn new(machine: Machine, scenario: Scenario) -> Arc<Self> {
        let replicas = (0..scenario.replicas).map(|_| Replica::default()).collect();
        let state = Mutex::new(State { replicas, ..State::default() });
        let (upstreams, failed) = (OnceLock::new(), Notify::new());
        Arc::new(Self { machine, scenario, upstreams, state, failed })
    }

    pub fn set_upstreams(&self, upstreams: Vec<Upstream>, vault: Vault) {
        assert!(self.upstreams.set((upstreams, vault)).is_ok(), "they are set once");
    }

    pub fn upstreams(&self) -> &[Upstream] {
        self.upstreams.get().map_or(&[], |(upstreams, _)| upstreams)
    }

    pub fn vault(&self) -> &Vault {
        &self.upstreams.get().expect("they are set before the gateway starts").1
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that an invariant does not hold. The run ends.
    pub fn violation(&self, what: String) {
        trace::note("VIOLATION", &what);
        self.lock().violations.push(what);
        self.failed.notify_one();
    }

    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// Resolves when an invariant does not hold.
    pub async fn failed(&self) {
        self.failed.notified().await;
    }

    /// Counts one step: something that an actor has done.
    pub fn step(&self) {
        self.lock().steps += 1;
    }

    pub fn steps(&self) -> u64 {
        self.lock().steps
    }

    /// From now on a replica runs.
    pub fn is_up(&self, replica: usize, app: &Arc<App>) {
        let mut state = self.lock();
        let replica = &mut state.replicas[replica];
        replica.app = Arc::downgrade(app);
        replica.drains = false;
        replica.runs.push(Period { value: (), from: Instant::now(), until: None });
    }

    /// Opens standard streams of a replica; `None` while it does not run.
    pub fn serve_stdio(&self, replica: usize) -> Option<DuplexStream> {
        const PIPE: usize = 64 << 10;
        let mut state = self.lock();
        let replica = &mut state.replicas[replica];
        let app = replica.app.upgrade()?;
        let (own, other) = duplex(PIPE);
        let serving = tokio::spawn(async move {
            let (input, output) = tokio::io::split(other);
            app.serve(StdioStreams { input, output }).await;
        });
        replica.streams.push(serving.abort_handle());
        Some(own)
    }

    /// From now on no replica runs.
    pub fn crashes(&self) {
        let mut state = self.lock();
        state.crashes.push(Instant::now());
        for replica in &mut state.replicas {
            replica.end();
            replica.streams.drain(..).for_each(|stream| stream.abort());
        }
    }

    /// From now on a replica accepts nothing, and ends when it has answered.
    pub fn drains(&self, replica: usize) {
        let mut state = self.lock();
        state.replicas[replica].drains = true;
        state.replicas[replica].end();
    }

    /// Something happens to the store.
    pub fn disturbs_store(&self) {
        self.lock().store_faults.push(Instant::now());
    }

    /// How often the store was disturbed since a time, or so shortly before that it may still be
    /// felt.
    fn store_faults_since(state: &State, since: Instant) -> usize {
        const FELT: Duration = Duration::from_secs(20);
        state.store_faults.iter().filter(|at| **at + FELT >= since).count()
    }

    /// Whether a replica has run all the time since then.
    pub fn was_up_since(&self, replica: usize, since: Instant) -> bool {
        let state = self.lock();
        let last = state.replicas[replica].runs.last();
        last.is_some_and(|period| period.from <= since && period.until.is_none())
    }

    /// Whether a request of this time has to be answered: the replica runs, or it drains, and the
    /// request had arrived before.
    pub fn must_answer(&self, replica: usize, sent: Instant) -> bool {
        const UNDER_WAY: Duration = Duration::from_millis(500);
        let state = self.lock();
        let replica = &state.replicas[replica];
        let arrived_before = |end: Instant| replica.drains && sent + UNDER_WAY <= end;
        replica
            .runs
            .last()
            .is_some_and(|period| period.from <= sent && period.until.is_none_or(arrived_before))
    }

    /// How often the replicas have started.
    fn starts(state: &State) -> usize {
        state.replicas.iter().map(|replica| replica.runs.len()).sum()
    }

    /// The gateway begins to apply other rules.
    pub fn rules_begin(&self, rules: Rules) {
        self.lock().rules.push(Period { value: rules, from: Instant::now(), until: None });
    }

    /// The gateway has applied the newest rules: those before hold no longer.
    pub fn rules_hold(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        let before = state.rules.len().saturating_sub(1);
        for period in &mut state.rules[..before] {
            period.until.get_or_insert(now);
        }
    }

    /// The gateway has rejected the newest rules.
    pub fn rules_rejected(&self) {
        self.lock().rules.pop();
    }

    /// The rules of the newest configuration.
    pub fn newest_rules(&self) -> Rules {
        self.lock().rules.last().expect("the gateway has started").value.clone()
    }

    /// The rules that held at some time of a period.
    pub fn rules_at(&self, from: Instant, until: Instant) -> Vec<Rules> {
        let state = self.lock();
        let rules = state.rules.iter().filter(|period| period.touches(from, until));
        rules.map(|period| period.value.clone()).collect()
    }

    /// Whether a caller may use a prompt or a skill by any rules that held at the time.
    pub fn may_use(
        &self,
        caller: &CallerPlan,
        upstream: &str,
        name: &str,
        from: Instant,
        until: Instant,
    ) -> bool {
        let state = self.lock();
        let rules = state.rules.iter().filter(|period| period.touches(from, until));
        rules.into_iter().any(|period| period.value.allow(caller, upstream, name))
    }

    /// Whether a text of an approved prompt is of a version that was approved at the time.
    /// `is_plain`: it was asked for without arguments.
    pub fn may_serve(
        &self,
        plan: &Plan,
        prompt: &Prompt,
        is_plain: bool,
        (from, until): (Instant, Instant),
    ) -> bool {
        let is_same = |approved: &Approved| {
            let Approved { text, template, .. } = approved;
            let compared = match plan.transport {
                Transport::Library => template.as_ref(),
                _ if is_plain => text.as_ref(),
                _ => template.as_ref(),
            };
            // Where templates are approved, nothing else is served.
            let is_covered = compared.is_some() || template.is_none();
            is_covered && compared.is_none_or(|compared| *compared == prompt.description)
        };
        let state = self.lock();
        let mut rules = state.rules.iter().filter(|period| period.touches(from, until));
        rules.any(|period| period.value.approval(&plan.id, &prompt.name).is_some_and(is_same))
    }

    /// Whether a prompt with versions was approved at the time with this definition.
    pub fn may_list(&self, plan: &Plan, version: &Prompt, from: Instant, until: Instant) -> bool {
        let mut rules = self.rules_at(from, until).into_iter();
        rules.any(|rules| {
            let approved = rules.approval(&plan.id, &version.name);
            approved.is_some_and(|approved| approved.description == version.description)
        })
    }

    /// A replica has served the plain name of the prompt with versions in a call since `sent`.
    pub fn serves_version(&self, replica: usize, upstream: &str, sent: Instant) {
        self.lock().served.insert((replica, upstream.to_owned()), sent);
    }

    /// A replica has refused the plain name of the prompt with versions in a call since `sent`. If
    /// it has served it before, nothing but a withdrawal may take it from the caller.
    pub fn refuses_version(
        &self,
        replica: usize,
        upstream: &Upstream,
        caller: &CallerPlan,
        why: &str,
        sent: Instant,
    ) {
        let (id, now) = (&upstream.plan().id, Instant::now());
        let Some(last) = self.lock().served.get(&(replica, id.clone())).copied() else { return };
        // A gateway that starts, or has not used the library meanwhile, knows no texts of before.
        let is_known = self.was_up_since(replica, last) && !self.was_disabled(id, last, now);
        let may_get = self.rules_at(sent, now).iter().all(|own| own.allow(caller, id, VERSIONED));
        let rules = self.rules_at(last, now);
        let mut withdrawn = rules.iter().flat_map(|rules| &rules.approved.withdrawn);
        let is_withdrawn = withdrawn.any(|version| {
            // Since then, or of a version that the plain name may come back to.
            let is_new = !rules[0].approved.withdrawn.contains(version);
            version.0 == *id && (is_new || upstream.has_offered_version(&version.1))
        });
        if is_known && may_get && !is_withdrawn {
            self.violation(format!("{id}__{VERSIONED} was taken from {}: {why}", caller.id));
        }
    }

    /// A client has received a link.
    pub fn keep_link(&self, link: GivenLink) {
        let links = &mut self.lock().links;
        links.push_back(link);
        if links.len() > MAX_LINKS {
            links.pop_front();
        }
    }

    /// One of the links that clients got.
    pub fn any_link(&self, rng: &mut Rng) -> Option<GivenLink> {
        let links = &self.lock().links;
        (!links.is_empty()).then(|| links[rng.usize(..links.len())].clone())
    }

    /// A client has received the result of a get.
    pub fn acknowledge(&self, nonce: &str) {
        self.lock().acknowledged.push((nonce.to_owned(), Instant::now()));
    }

    /// The gets whose results reached their clients, and that must be on record: with
    /// `durability = "interval"`, not those shortly before a crash, and none if the disk has
    /// failed.
    pub fn acknowledged(&self) -> Vec<String> {
        const INTERVAL: Duration = Duration::from_millis(1500);
        let state = self.lock();
        let is_lost = |at: Instant| {
            let mut crashes = state.crashes.iter();
            self.scenario.faults.disk
                || crashes.any(|crash| at <= *crash && *crash <= at + INTERVAL)
        };
        let kept = state.acknowledged.iter();
        let kept = kept.filter(|(_, at)| self.scenario.is_strict || !is_lost(*at));
        kept.map(|(nonce, _)| nonce.clone()).collect()
    }

    /// A caller sends a request that its limit counts, perhaps a get with a nonce.
    pub fn counts(&self, caller: usize, nonce: Option<&str>) {
        let now = Instant::now();
        let mut state = self.lock();
        state.calls.entry(caller).or_default().push(now);
        let start = Self::starts(&state);
        if let Some(nonce) = nonce {
            state.sent.entry(nonce.to_owned()).or_insert((start, now));
        }
    }

    /// A call of a caller is in progress until what is returned is dropped.
    pub fn begin_call(&self, caller: usize) -> Call<'_> {
        let now = Instant::now();
        let mut state = self.lock();
        state.left.retain(|(_, until)| *until > now);
        let left = state.left.iter().filter(|(other, _)| *other == caller).count();
        state.next_call += 1;
        let number = state.next_call;
        state.in_progress.insert(number, (caller, 0));
        let own = state.in_progress.values_mut().filter(|(other, _)| *other == caller);
        let own: Vec<_> = own.collect();
        let count = own.len() + left;
        own.into_iter().for_each(|(_, most)| *most = count.max(*most));
        Call { world: self, number, is_answered: false }
    }

    /// A request of a caller was refused by its rate limit: it must have sent more than its burst
    /// within the time in which the bucket fills.
    pub fn refused_by_limit(&self, caller: usize) {
        let (rate, burst) = self.scenario.limit;
        let window = Duration::from_secs_f64(burst as f64 / rate) + Duration::from_secs(1);
        let since = Instant::now().checked_sub(window);
        let state = self.lock();
        let calls = state.calls.get(&caller).map(Vec::as_slice).unwrap_or_default();
        let recent = calls.iter().filter(|at| since.is_none_or(|since| **at >= since)).count();
        // Without the store each replica lets through its part of the limit.
        let is_exact = since.is_none_or(|since| Self::store_faults_since(&state, since) == 0);
        drop(state);
        if recent <= burst && is_exact {
            self.violation(format!(
                "caller {caller} was refused after {recent} calls in {window:?}; its burst is {burst}"
            ));
        }
    }

    /// A get arrives at an upstream: it must be on record, and within the limit of its caller.
    pub fn get_arrives(&self, upstream: &str, arrival: &Arrival) {
        self.step();
        if !self.is_on_record(&arrival.nonce) {
            self.violation(format!(
                "{upstream} received {} before its record was written",
                arrival.nonce
            ));
        }
        self.check_token(upstream, arrival);
        self.check_limit(arrival);
    }

    /// A get carries the secret of its caller, where the upstream asks for one, and else none.
    fn check_token(&self, upstream: &str, arrival: &Arrival) {
        let plans = &self.scenario.upstreams;
        let acts = plans.iter().any(|plan| plan.id == upstream && plan.acts_as_caller);
        let callers = &self.scenario.callers;
        let sender = match self.sender(&arrival.nonce) {
            Some(client) => callers.get(client.caller),
            None => callers.last().filter(|flood| arrival.nonce.starts_with(&flood.id)),
        };
        let expected =
            sender.filter(|_| acts).map(|caller| format!("{}-for-{upstream}", caller.id));
        let owner = arrival.token.as_deref().map(vault::owner);
        if owner != expected.as_deref() {
            let Arrival { nonce, token, .. } = arrival;
            self.violation(format!("{upstream} received {nonce} with the token {token:?}"));
        }
    }

    /// The client that has sent a call.
    fn sender(&self, nonce: &str) -> Option<&ClientPlan> {
        let is_own = |client: &&ClientPlan| {
            nonce.strip_prefix(&client.name).is_some_and(|rest| rest.starts_with('-'))
        };
        self.scenario.clients.iter().find(is_own)
    }

    /// Whether the audit log has a nonce, or a segment that has left had it; with `durability =
    /// "strict"`, on the disk.
    fn is_on_record(&self, nonce: &str) -> bool {
        let nonce = nonce.as_bytes();
        let mut segments = self.audit_segments(self.scenario.is_strict);
        segments.any(|lines| memchr::memmem::find(&lines, nonce).is_some())
            || self.machine.disk.has_removed(nonce)
    }

    /// Returns the lines of the segments of all audit logs, the newest of each first: as they would
    /// be after a crash, if `durable`.
    pub fn audit_segments(&self, durable: bool) -> impl Iterator<Item = Vec<u8>> + '_ {
        let disk = &self.machine.disk;
        let folders = (0..self.scenario.replicas).map(audit_of);
        let paths = folders.flat_map(|folder| {
            let names = disk.list(&folder).into_iter().rev();
            names.map(move |name| folder.join(name)).collect::<Vec<_>>()
        });
        paths.filter_map(move |path| {
            let content = if durable { disk.durable(&path) } else { disk.read(&path) }?;
            if path.extension().is_none_or(|extension| extension != "gz") {
                return Some(content);
            }
            // One that is not complete is not yet in place of its segment.
            let mut lines = Vec::new();
            let _ = MultiGzDecoder::new(&content[..]).read_to_end(&mut lines);
            Some(lines)
        })
    }

    /// A limit admits no more than its burst and its rate: in each period, of the gets that were
    /// sent and arrived in it.
    fn check_limit(&self, arrival: &Arrival) {
        // Buckets count in whole nanoseconds or microseconds.
        const ROUNDING: f64 = 0.01;
        let (rate, burst) = self.scenario.limit;
        let mut state = self.lock();
        let sender = self.sender(&arrival.nonce);
        let is_again = state.admitted.iter().any(|admitted| admitted.nonce == arrival.nonce);
        let Some(caller) = sender.filter(|_| !is_again).map(|client| client.caller) else { return };
        let Some(&(start, sent)) = state.sent.get(&arrival.nonce) else { return };
        let nonce = arrival.nonce.clone();
        let start = (start == Self::starts(&state)).then_some(start);
        state.admitted.push(Admitted { nonce, caller, start, sent });
        let own = state.admitted.iter().filter(|a| a.caller == caller && a.start == start);
        let mut own: Vec<Instant> = own.filter(|_| start.is_some()).map(|a| a.sent).collect();
        own.sort_unstable_by(|a, b| b.cmp(a));
        let excess = own.into_iter().zip(1..).find(|&(since, calls)| {
            let seconds = arrival.at.duration_since(since).as_secs_f64();
            // A store that has lost the buckets, and replicas that do without it, let through the
            // burst once more.
            let without_store = Self::store_faults_since(&state, since) * 2;
            let bursts = burst + without_store * (burst + self.scenario.replicas);
            f64::from(calls) > bursts as f64 + rate * seconds + ROUNDING
        });
        drop(state);
        if let Some((since, calls)) = excess {
            let time = arrival.at.duration_since(since);
            self.violation(format!(
                "{calls} calls of caller {caller} within {time:?}, at {rate}/s and {burst}"
            ));
        }
    }

    /// Checks the list that a caller has received: each upstream's part is what the caller may see
    /// of a list that the upstream has offered, and not of an older one than the observer has seen.
    pub fn check_list(&self, observer: &mut Observer, caller: &CallerPlan, list: &SeenList) {
        self.step();
        let start = Self::starts(&self.lock());
        if std::mem::replace(&mut observer.start, start) != start {
            observer.newest.clear();
        }
        // An upstream that comes back is walked anew.
        let since = observer.last.replace(list.received).unwrap_or(list.sent);
        observer.newest.retain(|id, _| !self.was_disabled(id, since, list.received));
        let Some(parts) = self.parts(list) else { return };
        let rules = self.rules_at(list.sent, list.received);
        let mut why = String::new();
        for rules in &rules {
            match self.match_parts(observer, caller, rules, &parts, list) {
                Ok(newest) => {
                    observer.newest = newest;
                    return;
                }
                Err(mismatch) => why = mismatch,
            }
        }
        // Each page is of the list of its time.
        let has_changed = rules.len() > 1 || self.has_changed(list.sent, list.received);
        if list.pages == 1 || !has_changed || !self.is_mixed(caller, &rules, &parts) {
            let why = format!(
                "{} has received a list that never existed: {why}; incomplete: {:?}",
                caller.id, list.incomplete
            );
            self.violation(why);
        }
    }

    /// Whether an upstream was not in use at some time.
    fn was_disabled(&self, upstream: &str, from: Instant, until: Instant) -> bool {
        let state = self.lock();
        let mut rules = state.rules.iter().filter(|period| period.touches(from, until));
        rules.any(|period| period.value.is_disabled(upstream))
    }

    /// Whether an upstream has offered another list since shortly before `from`: the gateway takes
    /// a moment to serve it.
    fn has_changed(&self, from: Instant, until: Instant) -> bool {
        const ADOPTION: Duration = Duration::from_secs(4);
        let from = from.checked_sub(ADOPTION).unwrap_or(from);
        let is_within = |at: Instant| from <= at && at <= until;
        self.upstreams().iter().any(|upstream| upstream.offered_at().into_iter().any(is_within))
    }

    /// Whether each prompt is of a list that an upstream has offered, and one that the caller may
    /// use.
    fn is_mixed(
        &self,
        caller: &CallerPlan,
        rules: &[Rules],
        parts: &BTreeMap<String, Vec<Prompt>>,
    ) -> bool {
        self.upstreams().iter().all(|upstream| {
            let id = &upstream.plan().id;
            let offered = upstream.offered(&caller.id);
            let existed = |prompt: &Prompt| {
                let is_kept =
                    |rules: &Rules| self.kept(rules, caller, upstream.plan()).contains(prompt);
                if rules.iter().any(is_kept) {
                    return true;
                }
                let mut served = offered.iter().flatten().filter(|other| other.name == prompt.name);
                served.any(|offered| {
                    let is_served = |rules: &Rules| {
                        rules.allow(caller, id, &prompt.name)
                            && rules.served(upstream.plan(), offered).as_ref() == Some(prompt)
                    };
                    rules.iter().any(is_served)
                })
            };
            parts.get(id).is_none_or(|part| part.iter().all(existed))
        })
    }

    /// The prompts of each upstream, by their raw names.
    fn parts(&self, list: &SeenList) -> Option<BTreeMap<String, Vec<Prompt>>> {
        let mut parts: BTreeMap<String, Vec<Prompt>> = BTreeMap::new();
        let mut last = String::new();
        for prompt in &list.prompts {
            let public = prompt["name"].as_str().unwrap_or_default().to_owned();
            let description = prompt["description"].as_str().unwrap_or_default().to_owned();
            if public <= last {
                self.violation(format!("a list has {public} behind {last}"));
                return None;
            }
            // An author gives a text to the definition of another.
            let described = format!("{description} {}", prompt["_meta"]["digest"]);
            let key = (list.revision.clone(), public.clone(), described);
            let text = prompt.to_string();
            let first = self.lock().definitions.entry(key).or_insert_with(|| text.clone()).clone();
            if first != text {
                self.violation(format!("one definition has two texts: {first} and {text}"));
                return None;
            }
            let Some((upstream, name)) = public.split_once("__") else {
                self.violation(format!("{public} is of no upstream"));
                return None;
            };
            let part = parts.entry(upstream.to_owned()).or_default();
            part.push(Prompt { name: name.to_owned(), description });
            last = public;
        }
        Some(parts)
    }

    /// The prompts of an upstream that has not been listed, by their approvals.
    fn kept(&self, rules: &Rules, caller: &CallerPlan, upstream: &Plan) -> Vec<Prompt> {
        if !self.scenario.has_snapshot {
            return Vec::new();
        }
        let of_upstream = |name: &(String, String)| name.0 == upstream.id && !is_versioned(&name.1);
        let approved = rules.approved.prompts.iter().filter(|(name, _)| of_upstream(name));
        let approved = approved.map(|((_, name), approved)| {
            let (name, description) = (name.clone(), approved.description.clone());
            Prompt { name, description }
        });
        rules.visible(caller, upstream, &approved.collect::<Vec<_>>())
    }

    fn match_parts(
        &self,
        observer: &Observer,
        caller: &CallerPlan,
        rules: &Rules,
        parts: &BTreeMap<String, Vec<Prompt>>,
        list: &SeenList,
    ) -> Result<BTreeMap<String, usize>, String> {
        let mut newest = observer.newest.clone();
        for upstream in self.upstreams() {
            let id = &upstream.plan().id;
            let nothing = Vec::new();
            let part = parts.get(id).unwrap_or(&nothing);
            // An upstream of which no list has arrived yet is not reported where rights differ: the
            // caller may not know of it. An empty part then says nothing about the list that the
            // gateway has.
            let is_unknown = list.incomplete.contains(id) || !newest.contains_key(id);
            if part.is_empty() && is_unknown {
                continue;
            }
            let offered = upstream.offered(&caller.id);
            let seen = newest.get(id).copied().unwrap_or_default();
            let visible = |offered: &Vec<Prompt>| rules.visible(caller, upstream.plan(), offered);
            let found = offered.iter().enumerate().skip(seen).find(|(_, o)| visible(o) == *part);
            match found {
                Some((number, _)) => newest.insert(id.clone(), number),
                // An upstream that was not listed since the start.
                None if !newest.contains_key(id)
                    && self.kept(rules, caller, upstream.plan()) == *part =>
                {
                    None
                }
                None => {
                    let part: Vec<_> = part.iter().map(|prompt| &prompt.description).collect();
                    let tried: Vec<_> = offered
                        .iter()
                        .skip(seen)
                        .map(|o| {
                            let names = visible(o);
                            names.into_iter().map(|prompt| prompt.description).collect::<Vec<_>>()
                        })
                        .collect();
                    return Err(format!(
                        "of {id} it has {part:?}; offered from {seen} on: {tried:?}"
                    ));
                }
            };
        }
        Ok(newest)
    }
}
