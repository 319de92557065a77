//! One run: faults happen while clients work; then all is well, and everything must be right; then
//! all leave, and nothing may be left.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use audit::keys::Keys;
use audit::verify::{TrustAnchors, verify};
use base::seal::AuditKey;
use config::Config;
use fastrand::Rng;
use promptgate::App;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::admin;
use crate::client::skills::{DOORS, Door, Visitor};
use crate::client::{Client, Listener, Outcome};
use crate::collector::{self, Collector};
use crate::disk::Faults as DiskFaults;
use crate::machine::{Machine, trace};
use crate::plan::{Approvals, GATEWAY, HOME, IN_FLIGHT, Rules, STORE, Scenario, audit_of, home_of};
use crate::rollouts;
use crate::skills::{FILES, NAMES, SKILL_FILE, public};
use crate::store::Store;
use crate::upstream::{Mood, Plan, Prompt, Transport, Upstream};
use crate::vault::Vault;
use crate::versions::Reader;
use crate::world::World;

/// The gateway, as one process or as replicas, which can crash and start again.
struct Gateway {
    world: Arc<World>,
    /// The replicas that run.
    apps: Mutex<Vec<Option<Arc<App>>>>,
    rules: std::sync::Mutex<Rules>,
    store: Store,
    collector: Collector,
}

/// `audit.keep_size` of a log that is exported, in bytes.
const EXPORTED_LOG: u64 = 32 << 10;

/// How long a crashed gateway is away: longer than anything that it had under way.
const DOWN: Duration = Duration::from_secs(20);

/// How long it takes until all faults are forgotten: breakers close, and lists that failed often
/// are walked again.
const RECOVERY: Duration = Duration::from_secs(90);

/// Runs a scenario; the violations are in the world.
pub async fn run(mut rng: Rng, scenario: Scenario, machine: Machine) -> Arc<World> {
    let world = World::new(machine, scenario);
    start_upstreams(&world, &mut rng);
    let rules = Rules::draw(&mut rng, &world.scenario.upstreams, Approvals::default());
    let gateway = Arc::new(Gateway {
        world: world.clone(),
        apps: Mutex::new(vec![None; world.scenario.replicas]),
        rules: std::sync::Mutex::new(rules),
        store: start_store(&world.machine),
        // With numbers of its own: all else happens as without it.
        collector: Collector::start(Rng::with_seed(!rng.clone().u64(..)), &world.machine.network),
    });
    let playing = play(&gateway, &mut rng);
    tokio::select! {
        biased;
        () = world.failed() => {}
        () = playing => {}
    }
    world
}

fn start_store(machine: &Machine) -> Store {
    let clock = machine.clock.clone();
    let store = Store::new(move || clock.time());
    store.start(&machine.network, STORE).expect("its address is free");
    store
}

fn start_upstreams(world: &Arc<World>, rng: &mut Rng) {
    let hosts = world.scenario.upstreams.iter().map(|plan| plan.host);
    let hosts = hosts.chain(world.scenario.clients.iter().map(|plan| plan.host));
    for (host, latency) in hosts.zip(&world.scenario.latencies) {
        world.machine.network.set_latency(host, *latency);
    }
    let vault = Vault::start(rng.fork(), &world.machine.network);
    let plans = &world.scenario.upstreams;
    let upstreams = plans.iter().map(|plan| {
        let (on_get, on_violation) = (world.clone(), world.clone());
        let id = plan.id.clone();
        let upstream = Upstream::new(
            plan.clone(),
            rng.fork(),
            move |arrival| on_get.get_arrives(&id, arrival),
            move |why| on_violation.violation(why),
        );
        upstream.start(&world.machine, &vault);
        upstream
    });
    let upstreams = upstreams.collect();
    world.set_upstreams(upstreams, vault);
}

async fn play(gateway: &Arc<Gateway>, rng: &mut Rng) {
    let world = &gateway.world;
    let idle_tasks = alive_tasks();
    gateway.start_all().await;
    let mut clients = Vec::new();
    for plan in &world.scenario.clients {
        let client = Arc::new(Mutex::new(Client::new(plan.clone(), world.clone(), rng.fork())));
        let acting = client.clone();
        let task = tokio::spawn(async move { acting.lock().await.act().await });
        clients.push((client, task));
    }
    chaos(gateway, rng).await;
    for (_, task) in &clients {
        task.abort();
    }
    heal(gateway).await;
    let clients: Vec<_> = clients.into_iter().map(|(client, _)| client).collect();
    check_calm(gateway, &clients, rng).await;
    drop(clients);
    check_rest(gateway).await;
    gateway.end_all().await;
    gateway.store.end().await;
    check_end(gateway, idle_tasks).await;
}

/// The time of faults.
async fn chaos(gateway: &Arc<Gateway>, rng: &mut Rng) {
    let world = &gateway.world;
    let until = Instant::now() + world.scenario.chaos;
    let faults = world.scenario.faults;
    let mut tasks: Vec<JoinHandle<()>> = Vec::new();
    if faults.moods {
        for upstream in world.upstreams() {
            upstream.set_mood(draw_mood(rng));
        }
        world.vault().set_mood(rng.f64() * 0.3);
    }
    if faults.collector {
        let mut own = Rng::with_seed(!rng.clone().u64(..));
        // A bad one, or one that is down for the whole time.
        gateway.collector.set_mood(if own.bool() { 1.0 } else { own.f64() });
    }
    if faults.disk {
        let chance = |rng: &mut Rng| if rng.bool() { rng.f64() * 0.2 } else { 0.0 };
        let drawn = DiskFaults {
            write: chance(rng),
            sync: chance(rng),
            short_write: chance(rng),
            fail_next_sync_loses: rng.bool(),
            ..DiskFaults::default()
        };
        trace::note("disk", &format!("{drawn:?}"));
        set_disk_faults(world, &drawn);
    }
    if faults.approvals {
        sleep(Duration::from_millis(rng.u64(..1000))).await;
        gateway.approve(0, rng).await;
    }
    if faults.authors && world.upstreams().iter().any(is_library) {
        // With numbers of their own: all else happens as without them.
        let own = Rng::with_seed(!rng.clone().u64(..));
        tasks.push(tokio::spawn(write_anything(world.clone(), own, until)));
    }
    while Instant::now() < until {
        let pause = Duration::from_millis(rng.u64(50..1500));
        sleep(pause.min(until.saturating_duration_since(Instant::now()))).await;
        world.step();
        disturb(gateway, rng, &mut tasks).await;
        gateway.replace_failed().await;
        gateway.check_bounds().await;
    }
    for task in tasks {
        let _ = task.await;
    }
}

/// The authors of all libraries write anything, and valid files at times.
async fn write_anything(world: Arc<World>, mut rng: Rng, until: Instant) {
    while Instant::now() < until {
        for upstream in world.upstreams() {
            match rng.u8(..8) {
                0 => upstream.restore(),
                1..5 if upstream.plan().has_versions => upstream.change_versions(&mut rng),
                _ => upstream.write_anything(&mut rng),
            }
        }
        sleep(Duration::from_millis(rng.u64(20..2_000))).await;
    }
}

fn is_library(upstream: &Upstream) -> bool {
    upstream.plan().transport == Transport::Library
}

/// Sets the faults of the disk for the audit logs.
fn set_disk_faults(world: &World, faults: &DiskFaults) {
    for replica in 0..world.scenario.replicas {
        world.machine.disk.set_faults(&audit_of(replica), faults.clone());
    }
}

/// One fault of the store.
fn disturb_store(gateway: &Gateway, rng: &mut Rng) {
    let Gateway { world, store, .. } = gateway;
    let time = Duration::from_millis(rng.u64(10..4000));
    world.disturbs_store();
    match rng.u8(..5) {
        0 => store.restart(),
        1 => store.freeze(time),
        2 => store.loading(time),
        3 => world.machine.network.stall(STORE.ip(), time),
        _ => {
            store.restart();
            world.machine.network.refuse(STORE.ip(), time);
        }
    }
}

/// One fault, or one change.
async fn disturb(gateway: &Arc<Gateway>, rng: &mut Rng, tasks: &mut Vec<JoinHandle<()>>) {
    let world = &gateway.world;
    let faults = world.scenario.faults;
    let host = draw_host(world, rng);
    match rng.u8(..100) {
        0..28 if faults.changes => {
            let chosen = rng.usize(..world.upstreams().len());
            world.upstreams()[chosen].change();
            world.upstreams()[chosen].change_skill();
        }
        28..30 if faults.disk => {
            // Also for longer than `audit.timeout`.
            world.machine.freeze_disk(Duration::from_millis(rng.u64(10..9_000)));
        }
        30..45 if faults.network => world.machine.network.reset_one(host),
        45..52 if faults.network => {
            world.machine.network.stall(host, Duration::from_millis(rng.u64(10..4000)));
        }
        52..58 if faults.network => {
            world.machine.network.refuse(host, Duration::from_millis(rng.u64(10..3000)));
        }
        58..65 if faults.reloads => gateway.reload(rng).await,
        65..68 if faults.reloads => gateway.reload_broken(rng).await,
        68..71 if faults.crashes => gateway.crash_and_start().await,
        71..73 if faults.restarts => {
            gateway.end_and_start(rng.usize(..world.scenario.replicas)).await;
        }
        73..76 if faults.moods => world.vault().rotate(),
        76..79 if faults.clock => {
            let by = rng.i64(-100_000..100_000);
            world.machine.clock.step(by);
            // Its buckets go by this clock.
            world.disturbs_store();
        }
        79..84 if faults.floods => {
            tasks.push(tokio::spawn(Client::flood(world.clone(), rng.fork())));
        }
        84..88 if faults.store && world.scenario.replicas > 1 => disturb_store(gateway, rng),
        88..94 if faults.approvals => {
            gateway.approve(rng.usize(..world.scenario.replicas), rng).await;
        }
        94..95 if faults.panics => {
            let task = if rng.bool() { "driver" } else { "merge" };
            trace::note("scenario", &format!("a panic in {task}"));
            world.upstreams()[rng.usize(..world.upstreams().len())].panic_in(task);
        }
        95..100 if faults.intruders => {
            let (world, mut rng) = (world.clone(), rng.fork());
            let host = IpAddr::V4(Ipv4Addr::new(127, 0, 3, rng.u8(..)));
            tasks.push(tokio::spawn(async move { Client::intrude(&world, &mut rng, host).await }));
        }
        _ => {}
    }
}

fn draw_mood(rng: &mut Rng) -> Mood {
    let mut chance = || if rng.bool() { rng.f64() * 0.3 } else { 0.0 };
    Mood {
        slow: chance(),
        fails: chance(),
        garbage: chance(),
        cuts: chance(),
        hangs: chance() * 0.3,
        forgets: chance() * 0.2,
        flips: chance() * 0.5,
    }
}

/// The host of an upstream or of a client.
fn draw_host(world: &World, rng: &mut Rng) -> IpAddr {
    let upstreams = world.scenario.upstreams.iter().map(|plan| plan.host);
    let hosts: Vec<_> = upstreams.chain(world.scenario.clients.iter().map(|c| c.host)).collect();
    rng.choice(hosts).unwrap_or(GATEWAY)
}

async fn heal(gateway: &Gateway) {
    let world = &gateway.world;
    trace::note("scenario", "all is well");
    world.machine.network.heal();
    world.machine.freeze_disk(Duration::ZERO);
    set_disk_faults(world, &DiskFaults::default());
    gateway.store.heal();
    gateway.collector.set_mood(0.0);
    for upstream in world.upstreams() {
        upstream.set_mood(Mood::default());
        upstream.stop_lying();
        upstream.restore();
    }
    world.vault().heal();
    sleep(RECOVERY / 2).await;
    // A walk may have been late to find the prompt at which a task panics.
    gateway.replace_failed().await;
    sleep(RECOVERY).await;
}

/// Without faults every list is that of now, every allowed prompt can be got, and changes are
/// announced.
async fn check_calm(gateway: &Gateway, clients: &[Arc<Mutex<Client>>], rng: &mut Rng) {
    let world = &gateway.world;
    for client in clients {
        let mut client = client.lock().await;
        client.restart();
        check_client(world, &mut client).await;
        check_skills(world, &mut client).await;
    }
    check_versions(gateway, rng).await;
    check_authors(world, clients, rng).await;
    check_rollouts(gateway, rng).await;
    check_provoked(world, clients, rng).await;
    let listeners = listen(world, clients).await;
    sleep(Duration::from_secs(10)).await;
    let before: Vec<_> = listeners.iter().map(Listener::told).collect();
    sleep(Duration::from_secs(15)).await;
    for (listener, before) in listeners.iter().zip(&before) {
        if listener.told() != *before {
            world.violation(format!("{} was told of a change, and there was none", listener.name));
        }
    }
    let changed = rng.usize(..world.upstreams().len());
    let upstream = &world.upstreams()[changed];
    let seen = visible_to(gateway, &listeners);
    upstream.change();
    sleep(Duration::from_secs(15)).await;
    let sees = visible_to(gateway, &listeners);
    for (at, listener) in listeners.iter().enumerate() {
        let expected = before[at].map(|before| before + u64::from(seen[at] != sees[at]));
        if listener.told() != expected {
            world.violation(format!(
                "{} was told {:?} times of its changed list, not {expected:?} times",
                listener.name,
                listener.told()
            ));
        }
    }
    world.upstreams().iter().for_each(Upstream::change_while_walked);
    sleep(Duration::from_secs(15)).await;
    for client in clients {
        check_client(world, &mut *client.lock().await).await;
    }
    get_changed_prompts(world, clients).await;
}

/// Gets prompts whose texts have changed since they were approved: what is served must not be
/// these.
async fn get_changed_prompts(world: &World, clients: &[Arc<Mutex<Client>>]) {
    let Some(client) = clients.first() else { return };
    let mut client = client.lock().await;
    let rules = world.newest_rules();
    for upstream in world.upstreams().iter().filter(|upstream| upstream.plan().needs_approval) {
        let visible = rules.visible(client.caller(), upstream.plan(), &upstream.prompts());
        for Prompt { name, .. } in visible.into_iter().take(3) {
            upstream.change_prompt(&name);
            client.get(&format!("{}__{name}", upstream.plan().id)).await;
        }
    }
}

/// What an author writes takes no other prompt from the lists, and goes when it is restored.
async fn check_authors(world: &World, clients: &[Arc<Mutex<Client>>], rng: &mut Rng) {
    const ADOPTION: Duration = Duration::from_secs(15);
    let libraries: Vec<_> = world.upstreams().iter().filter(|own| is_library(own)).collect();
    if libraries.is_empty() || !world.scenario.faults.authors {
        return;
    }
    for _ in 0..rng.usize(1..6) {
        libraries.iter().for_each(|library| library.write_anything(rng));
    }
    sleep(ADOPTION).await;
    for client in clients {
        let mut client = client.lock().await;
        check_client(world, &mut client).await;
        for library in &libraries {
            // A text that comes is checked.
            let listed = library.prompts().into_iter();
            for Prompt { name, .. } in listed.filter(|prompt| library.has_other_text(&prompt.name))
            {
                client.get(&format!("{}__{name}", library.plan().id)).await;
            }
        }
    }
    libraries.iter().for_each(|library| library.restore());
    sleep(ADOPTION).await;
    for client in clients {
        check_client(world, &mut *client.lock().await).await;
    }
}

/// Whatever author and approver do with the versions of a prompt, it stays served, with approved
/// texts.
async fn check_versions(gateway: &Gateway, rng: &mut Rng) {
    // A list that changes again and again is walked every 30 seconds only.
    const ADOPTION: Duration = Duration::from_secs(40);
    let world = &gateway.world;
    let upstreams = world.upstreams().iter().filter(|upstream| {
        upstream.plan().has_versions && !world.newest_rules().is_disabled(&upstream.plan().id)
    });
    for upstream in upstreams {
        let mut reader = Reader::new(world, upstream, rng.fork());
        for _ in 0..rng.usize(3..12) {
            let replica = rng.usize(..world.scenario.replicas);
            for _ in 0..rng.usize(..5) {
                upstream.change_versions(rng);
                sleep(Duration::from_millis(rng.u64(..2_000))).await;
            }
            sleep(ADOPTION).await;
            reader.read().await;
            if rng.u8(..) < 180 {
                gateway.decide_on_versions(replica, rng).await;
            }
            if rng.u8(..) < 20 {
                gateway.end_and_start(replica).await;
            }
        }
        upstream.restore_versions();
        // Until it is walked at once again.
        sleep(RECOVERY * 2).await;
    }
}

/// Checks the rollouts, with callers that may get their prompts.
async fn check_rollouts(gateway: &Gateway, rng: &mut Rng) {
    let world = &gateway.world;
    let plans = world.scenario.upstreams.iter();
    let rolled_out = plans.filter(|plan| plan.has_rollout).map(|plan| plan.id.clone());
    let mut rules = gateway.rules().clone();
    let closed = rolled_out.filter(|id| !rules.is_disabled(id) && !rules.open.contains(id));
    let closed: Vec<_> = closed.collect();
    if !closed.is_empty() {
        rules.open.extend(closed);
        gateway.apply(rules).await;
    }
    rollouts::check(world, rng).await;
}

async fn listen(world: &World, clients: &[Arc<Mutex<Client>>]) -> Vec<Listener> {
    let mut listeners = Vec::new();
    for client in clients {
        let mut client = client.lock().await;
        if world.scenario.has_private_lists() {
            within_limit(&mut client, async |client: &mut Client| client.list().await).await;
        }
        match client.listen().await {
            Some(listener) => listeners.push(listener),
            None => world.violation("a stream was refused, and all is well".to_owned()),
        }
    }
    listeners
}

/// The prompts that each listener's caller may see at present.
fn visible_to(gateway: &Gateway, listeners: &[Listener]) -> Vec<Vec<String>> {
    let rules = gateway.rules().clone();
    let visible = |listener: &Listener| {
        let upstreams = gateway.world.upstreams().iter();
        let visible = upstreams.flat_map(|upstream| {
            rules.visible(&listener.caller, upstream.plan(), &upstream.prompts())
        });
        visible.map(|prompt| prompt.description).collect()
    };
    listeners.iter().map(visible).collect()
}

/// One client lists, and gets each prompt that it sees.
async fn check_client(world: &World, client: &mut Client) {
    let Some(names) = within_limit(client, async |client: &mut Client| client.list().await).await
    else {
        return world.violation("a list failed, and all is well".to_owned());
    };
    let expected: Vec<String> = {
        let (rules, caller) = (world.newest_rules(), client.caller().clone());
        let visible = world.upstreams().iter().flat_map(|upstream| {
            let plan = upstream.plan();
            let visible = rules.visible(&caller, plan, &upstream.prompts());
            visible.into_iter().map(|prompt| format!("{}__{}", plan.id, prompt.name))
        });
        let mut expected: Vec<_> = visible.collect();
        expected.sort();
        expected
    };
    if names != expected {
        let why = format!("all is well, and a list has {names:?} instead of {expected:?}");
        world.violation(why);
    }
    let servable = names.iter().filter(|name| is_servable(world, name));
    for name in servable.take(5) {
        let got = within_limit(client, async |client: &mut Client| match client.get(name).await {
            Outcome::Result(_) => Some(()),
            _ => None,
        });
        if got.await.is_none() {
            world.violation(format!("all is well, and {name} cannot be got"));
        }
    }
}

/// One client lists its skills, and tries each door to all skills that there may be.
async fn check_skills(world: &World, client: &mut Client) {
    let (rules, has_snapshot) = (world.newest_rules(), world.scenario.has_snapshot);
    let mut expected = Vec::new();
    for upstream in world.upstreams() {
        let Some(offered) = upstream.with_skills(|skills| skills.entries()) else { continue };
        let plan = upstream.plan();
        let visible = rules.visible_skills(client.caller(), plan, offered, has_snapshot);
        let uri = |entry: &Value| public(&plan.id, entry["uri"].as_str().unwrap_or_default());
        expected.extend(visible.iter().map(uri));
    }
    expected.sort();
    let listing = async |client: &mut Client| Visitor(client).list().await;
    if client.knows_skills() && !expected.is_empty() {
        let listed = within_limit(client, listing).await;
        if listed.as_ref() != Some(&expected) {
            let why = format!("all is well, and the skills are {listed:?} instead of {expected:?}");
            world.violation(why);
        }
    }
    for plan in world.scenario.upstreams.iter().filter(|plan| plan.has_skills) {
        let all = NAMES.into_iter().flat_map(|name| DOORS.map(|door| (name, door)));
        for (name, door) in all {
            let file = if door == Door::ReadTool { SKILL_FILE } else { FILES[1] };
            let mut visitor = Visitor(client);
            let is_given = visitor.enter(door, &plan.id, name, file).await;
            let uri = public(&plan.id, &format!("skill://{name}/{SKILL_FILE}"));
            let is_due = door == Door::File && expected.contains(&uri);
            if is_due && client.knows_skills() && !is_given {
                let again = async |client: &mut Client| {
                    Visitor(client).enter(door, &plan.id, name, file).await.then_some(())
                };
                if within_limit(client, again).await.is_none() {
                    world.violation(format!("all is well, and {uri} has no file {file}"));
                }
            }
        }
    }
}

/// Whether gets of a prompt with arguments are answered: its text may be one that was not approved.
fn is_servable(world: &World, public: &str) -> bool {
    let (id, name) = public.split_once("__").unwrap_or_default();
    let mut upstreams = world.upstreams().iter();
    let Some(upstream) = upstreams.find(|upstream| upstream.plan().id == id) else { return true };
    let Plan { needs_approval, .. } = upstream.plan();
    let offered = upstream.prompts().into_iter().find(|prompt| prompt.name == name);
    let rules = world.newest_rules();
    let approved = rules.approval(id, name);
    let compared = approved.and_then(|approved| approved.template.as_ref());
    let offered = offered.map(|prompt| prompt.description);
    if upstream.has_other_text(name) {
        return false;
    }
    !needs_approval || compared.is_none_or(|compared| offered.as_ref() == Some(compared))
}

/// A caller whose gets make an upstream fail closes it for no other.
async fn check_provoked(world: &Arc<World>, clients: &[Arc<Mutex<Client>>], rng: &mut Rng) {
    let Some(client) = clients.first() else { return };
    let mut client = client.lock().await;
    let rules = world.newest_rules();
    let provoker = world.scenario.callers.last().expect("the one that floods");
    for upstream in world.upstreams() {
        let plan = upstream.plan();
        if plan.transport != Transport::Http || plan.acts_as_caller {
            continue;
        }
        let seen_by = |caller| rules.visible(caller, plan, &upstream.prompts());
        let public = |prompt: &Prompt| format!("{}__{}", plan.id, prompt.name);
        let (theirs, own) = (seen_by(provoker), seen_by(client.caller()));
        let Some((provoked, healthy)) = theirs.first().zip(own.first()) else { continue };
        // A success ends the row of failures that the faults of the run have left.
        if !matches!(client.get(&public(healthy)).await, Outcome::Result(_)) {
            continue;
        }
        Client::provoke(world.clone(), rng.fork(), &public(provoked)).await;
        // The same prompt, and another one.
        let same = own.iter().find(|prompt| prompt.name == provoked.name);
        for name in same.into_iter().chain(own.last()).map(public) {
            if let Outcome::Error(_, reason) = client.get(&name).await
                && reason == "upstream_unavailable"
            {
                world.violation(format!("another caller closes {} for {name}", plan.id));
            }
        }
    }
}

/// Tries once more after the buckets of the caller have filled.
async fn within_limit<T>(
    client: &mut Client,
    mut attempt: impl AsyncFnMut(&mut Client) -> Option<T>,
) -> Option<T> {
    if let Some(value) = attempt(client).await {
        return Some(value);
    }
    sleep(Duration::from_secs(31)).await;
    attempt(client).await
}

/// After all have left, the gateway has nothing in progress.
async fn check_rest(gateway: &Gateway) {
    sleep(Duration::from_secs(15)).await;
    for replica in 0..gateway.world.scenario.replicas {
        let metrics = admin::metrics(&gateway.world, replica).await;
        check_gauges(&gateway.world, &metrics);
    }
}

/// The gauges of what is in progress, each with the most that it may have: the limits of the
/// configuration, and twice the size of the messages that are in progress at once.
const BOUNDS: [(&str, f64); 6] = [
    ("promptgate_in_flight", IN_FLIGHT as f64),
    ("promptgate_in_flight_size_bytes", (IN_FLIGHT * 2 * LARGEST_MESSAGE) as f64),
    ("promptgate_upstream_in_flight", IN_FLIGHT as f64),
    ("promptgate_upstream_queued", IN_FLIGHT as f64),
    ("promptgate_calls_awaiting_input", IN_FLIGHT as f64),
    ("promptgate_calls_suspended", SUSPENDED as f64),
];

/// The bytes of the largest message that clients send.
const LARGEST_MESSAGE: usize = 4 << 10;

/// Suspended calls at an upstream: a quarter of its `in_flight` (64).
const SUSPENDED: usize = 16 * 3;

/// The gauges of what is in progress are zero.
fn check_gauges(world: &World, metrics: &str) {
    const MUST_BE_ZERO: [&str; 7] = [
        "promptgate_in_flight",
        "promptgate_in_flight_size_bytes",
        "promptgate_upstream_in_flight",
        "promptgate_upstream_queued",
        "promptgate_streams",
        "promptgate_calls_suspended",
        "promptgate_audit_waiting_bytes",
    ];
    let mut found = 0;
    for (name, value) in gauges(metrics).filter(|(name, _)| MUST_BE_ZERO.contains(name)) {
        found += 1;
        if value != 0.0 {
            world.violation(format!("all have left, and {name} is {value}"));
        }
    }
    if found == 0 {
        world.violation("the metrics have no gauges".to_owned());
    }
}

/// After the end no task is left, and the audit log has every call that was acknowledged.
async fn check_end(gateway: &Gateway, idle_tasks: usize) {
    let world = &gateway.world;
    sleep(DOWN).await;
    world.upstreams().iter().for_each(Upstream::end);
    sleep(Duration::from_secs(1)).await;
    let alive = alive_tasks();
    if alive > idle_tasks {
        world.violation(format!("{} tasks are left after the end", alive - idle_tasks));
    }
    let children = world.machine.processes.running();
    let connections = world.machine.network.open(GATEWAY);
    if children + connections > 0 {
        world.violation(format!("{children} children, {connections} connections after the end"));
    }
    let handles = world.machine.disk.open_handles(Path::new(HOME));
    if handles > 0 {
        world.violation(format!("{handles} files are open after the end"));
    }
    let key = Scenario::environment()[1].1.clone();
    let Some(key) = AuditKey::parse(&key) else {
        return world.violation("the audit key cannot be read".to_owned());
    };
    let anchors = TrustAnchors { keys: Some(Keys::new(&key).into()), ..TrustAnchors::default() };
    for replica in 0..world.scenario.replicas {
        check_log(world, &audit_of(replica), anchors.clone());
    }
    // Records that have left unexported, as the log says, are nowhere.
    if collector::check(world, &gateway.collector, &anchors) {
        check_acknowledged(world, &gateway.collector);
    }
}

fn check_log(world: &World, folder: &Path, anchors: TrustAnchors) {
    match verify(folder, anchors) {
        Ok(report) if report.mistakes.is_empty() => {}
        Ok(report) => world.violation(format!("the audit log is not intact: {report:?}")),
        Err(error) => world.violation(format!("the audit log cannot be verified: {error}")),
    }
}

/// Checks that each acknowledged call is in the log of a replica, or at the collector.
fn check_acknowledged(world: &World, collector: &Collector) {
    let mut content: Vec<u8> = world.audit_segments(false).flatten().collect();
    content.extend(collector.kept());
    for nonce in world.acknowledged() {
        if memchr::memmem::find(&content, nonce.as_bytes()).is_none() {
            world.violation(format!("{nonce} was acknowledged, and is not on record"));
        }
    }
}

fn alive_tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// Reads the configuration file of a replica.
fn read(replica: usize, toml: &str) -> Result<Config, impl std::fmt::Display> {
    Config::parse("gateway.toml", toml, &home_of(replica), &Scenario::environment())
}

/// The gauges of a text of metrics.
fn gauges(metrics: &str) -> impl Iterator<Item = (&str, f64)> {
    let lines = metrics.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.split('{').next()?, value.parse().ok()?))
    })
}

impl Gateway {
    /// Checks that work in progress is within its bounds.
    async fn check_bounds(&self) {
        for app in self.apps.lock().await.iter().flatten() {
            let metrics = app.metrics();
            for (name, value) in gauges(&metrics) {
                let bound = BOUNDS.iter().find(|(gauge, _)| *gauge == name);
                if let Some((_, most)) = bound.filter(|(_, most)| value > *most) {
                    self.world.violation(format!("{name} is {value}, and may be {most} at most"));
                }
            }
        }
    }

    fn rules(&self) -> std::sync::MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn configuration(&self, replica: usize, rules: &Rules) -> Config {
        let toml = self.world.scenario.configuration(replica, rules);
        let mut config = read(replica, &toml).unwrap_or_else(|error| panic!("{error}\n{toml}"));
        if let Some(audit) = config.audit.as_mut().filter(|audit| audit.export.is_some()) {
            // Less than a file may say, so that segments leave within the minutes of a run.
            audit.keep_size = EXPORTED_LOG;
        }
        config
    }

    async fn start_all(&self) {
        for replica in 0..self.world.scenario.replicas {
            self.start(replica).await;
        }
    }

    async fn start(&self, replica: usize) {
        let approved = admin::approvals(&self.world.machine.disk);
        self.rules().approved = approved;
        let rules = self.rules().clone();
        match App::start(self.configuration(replica, &rules)).await {
            Ok(app) => {
                let app = Arc::new(app);
                self.world.rules_begin(rules);
                self.world.rules_hold();
                self.world.is_up(replica, &app);
                self.apps.lock().await[replica] = Some(app);
            }
            Err(error) => self.world.violation(format!("the gateway does not start: {error}")),
        }
    }

    /// Tries to reload a configuration that must be rejected, and changes nothing.
    async fn reload_broken(&self, rng: &mut Rng) {
        let apps = self.apps.lock().await;
        let Some(app) = &apps[0] else { return };
        let rules = self.draw_rules(rng);
        let toml = self.world.scenario.broken_configuration(rng, &rules);
        trace::note("scenario", "reloads a broken configuration");
        if let Ok(config) = read(0, &toml)
            && app.reload(config).await.is_ok()
        {
            self.world.violation(format!("a broken configuration was applied:\n{toml}"));
        }
    }

    /// Reloads other rules, one replica after another.
    async fn reload(&self, rng: &mut Rng) {
        let rules = self.draw_rules(rng);
        self.apply(rules).await;
    }

    fn draw_rules(&self, rng: &mut Rng) -> Rules {
        let approved = self.rules().approved.clone();
        Rules::draw(rng, &self.world.scenario.upstreams, approved)
    }

    /// Approves what one of the replicas offers, and lets all of them know.
    async fn approve(&self, replica: usize, rng: &mut Rng) {
        // A decision on a lock file that is not yet in use is refused: one at a time.
        if self.world.scenario.has_versions() && rng.bool() {
            return self.decide_on_versions(replica, rng).await;
        }
        if self.world.scenario.has_skills() && rng.u8(..4) == 0 {
            admin::withdraw_a_skill(&self.world, replica, rng).await;
        } else if rng.bool() {
            admin::approve_all(&self.world, replica, rng).await;
        } else {
            admin::approve_what_is_shown(&self.world, replica, rng).await;
        }
        self.apply_approvals(false).await;
    }

    /// Decides on versions that one of the replicas offers, and lets all of them know.
    async fn decide_on_versions(&self, replica: usize, rng: &mut Rng) {
        let plans = self.world.scenario.upstreams.iter().filter(|plan| plan.has_versions);
        let Some(plan) = rng.choice(plans.collect::<Vec<_>>()) else { return };
        let has_decided = admin::decide_on_versions(&self.world, replica, &plan.id, rng).await;
        self.apply_approvals(has_decided).await;
    }

    /// Lets all replicas know the lock file, if its approvals differ, or another decision is in it.
    async fn apply_approvals(&self, has_decided: bool) {
        let approved = admin::approvals(&self.world.machine.disk);
        let rules = self.rules().clone();
        if has_decided || approved != rules.approved {
            self.apply(Rules { approved, ..rules }).await;
        }
    }

    async fn apply(&self, rules: Rules) {
        let apps = self.apps.lock().await;
        trace::note("scenario", &format!("reloads {rules:?}"));
        self.world.rules_begin(rules.clone());
        for (replica, app) in apps.iter().enumerate() {
            let Some(app) = app else { continue };
            if let Err(why) = app.reload(self.configuration(replica, &rules)).await {
                self.world.rules_rejected();
                return self.world.violation(format!("a configuration was rejected: {why}"));
            }
        }
        *self.rules() = rules;
        self.world.rules_hold();
    }

    /// Loses everything that is not on the disk, and starts again.
    async fn crash_and_start(&self) {
        let world = &self.world;
        let apps: Vec<_> = self.apps.lock().await.iter_mut().filter_map(Option::take).collect();
        trace::note("scenario", "the gateway crashes");
        world.crashes();
        world.machine.disk.crash(Path::new(HOME));
        world.machine.network.crash(GATEWAY);
        // From here on it can reach nothing: nobody can tell it from one that is gone.
        for app in apps {
            app.abort().await;
        }
        sleep(DOWN).await;
        world.machine.disk.power_on(Path::new(HOME));
        world.machine.network.restart(GATEWAY);
        // A machine that was off starts with a disk that works.
        set_disk_faults(world, &DiskFaults::default());
        trace::note("scenario", "the gateway starts again");
        self.start_all().await;
    }

    /// Ends a replica at any moment, and starts it again, as an update does.
    async fn end_and_start(&self, replica: usize) {
        trace::note("scenario", &format!("replica {replica} ends"));
        self.end(replica).await;
        sleep(Duration::from_secs(1)).await;
        // With a disk that fails it would not start.
        set_disk_faults(&self.world, &DiskFaults::default());
        trace::note("scenario", &format!("replica {replica} starts again"));
        self.start(replica).await;
    }

    /// Starts the replicas again of which a task has failed, as whatever runs them does.
    async fn replace_failed(&self) {
        for replica in 0..self.world.scenario.replicas {
            let app = self.apps.lock().await[replica].clone();
            if app.is_some_and(|app| app.failure().is_some()) {
                self.end_and_start(replica).await;
            }
        }
    }

    async fn end_all(&self) {
        for replica in 0..self.world.scenario.replicas {
            self.end(replica).await;
        }
    }

    /// Ends a replica, as SIGTERM does.
    async fn end(&self, replica: usize) {
        let Some(app) = self.apps.lock().await[replica].take() else { return };
        self.world.drains(replica);
        if timeout(Duration::from_secs(60), app.drain()).await.is_err() {
            self.world.violation("the gateway does not end".to_owned());
        }
    }
}
