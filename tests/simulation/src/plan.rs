//! The scenario of a run: everything that the seed decides before it begins.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::seal::digest_text;
use fastrand::Rng;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::collector;
use crate::skills::name_of;
use crate::upstream::{CANDIDATE, MODERN, Plan, Prompt, ROLLED_OUT, SERVICE, Transport};
use crate::vault;

/// The host of the gateway.
pub const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));

/// Where the first replica serves its clients; the others at the ports after it.
const PORT: u16 = 8080;

/// Where the first replica serves its operators.
const ADMIN_PORT: u16 = 9877;

/// Where the replicas have their store.
pub const STORE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 6, 0)), 6379);

/// The address at which a replica serves its clients.
pub fn address_of(replica: usize) -> SocketAddr {
    SocketAddr::new(GATEWAY, PORT + replica as u16)
}

/// The address at which a replica serves its operators.
pub fn admin_of(replica: usize) -> SocketAddr {
    SocketAddr::new(GATEWAY, ADMIN_PORT + replica as u16)
}

/// The view that has the versions of prompts, too.
pub const VERSIONS_VIEW: &str = "versions";

/// The folder of all that the replicas write.
pub const HOME: &str = "/gateway";

/// The lock file of all replicas. What was approved is in the folder beside it.
pub const LOCK: &str = "/gateway/promptgate.lock";

/// The token of the operators.
pub const ADMIN_TOKEN: &str = "the-token-of-the-operators";

/// The folder of a replica.
pub fn home_of(replica: usize) -> PathBuf {
    Path::new(HOME).join(replica.to_string())
}

/// The folder of a replica's audit log.
pub fn audit_of(replica: usize) -> PathBuf {
    home_of(replica).join("audit")
}

/// A whole scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The latencies of the hosts, at least and at most, by their place among upstreams and
    /// clients.
    pub latencies: Vec<(Duration, Duration)>,
    pub upstreams: Vec<Plan>,
    /// The last one floods the gateway at times.
    pub callers: Vec<CallerPlan>,
    pub clients: Vec<ClientPlan>,
    /// The gateways that serve the same configuration. Several have a store.
    pub replicas: usize,
    /// How long faults happen.
    pub chaos: Duration,
    pub is_strict: bool,
    /// The rate limit of each caller: calls a second, and the burst.
    pub limit: (f64, usize),
    /// Whether what was approved is served while an upstream offers others or is gone.
    pub has_snapshot: bool,
    /// When rollouts are rolled back: more than this share of so many last gets has failed.
    pub rollback: (f64, usize),
    /// The export of the audit log; `None` without a collector.
    pub export: Option<Export>,
    pub faults: Faults,
}

/// The export of a small audit log, whose segments leave all the time.
#[derive(Clone, Copy, Debug)]
pub struct Export {
    /// `audit.export.batch`.
    pub batch: usize,
    /// `audit.export.reserve`, in KiB: from no room to more than the log gets.
    pub reserve: u64,
}

/// The caller that sends more than its share, and the first part of the names of its clients.
pub const FLOOD: &str = "flood";

/// The first part of the names of clients whose gets make an upstream fail.
pub const PROVOKER: &str = "provoker";

/// `server.limits.in_flight`, and the calls of it that one caller may always have in progress. Half
/// of all remains when others borrow, and is enough for the shares of all callers that have
/// clients.
pub const IN_FLIGHT: usize = 24;
pub const SHARE: usize = 4;

/// The kinds of faults that happen. Each can be left out, to find what a failure needs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Faults {
    pub network: bool,
    pub moods: bool,
    pub disk: bool,
    pub crashes: bool,
    pub restarts: bool,
    pub reloads: bool,
    pub changes: bool,
    pub clock: bool,
    pub intruders: bool,
    pub floods: bool,
    pub store: bool,
    pub approvals: bool,
    /// Tasks of the gateway panic.
    pub panics: bool,
    /// The authors of libraries write anything.
    pub authors: bool,
    /// The collector of audit records fails.
    pub collector: bool,
}

/// The names of the faults, as the command line has them.
pub const FAULTS: [&str; 20] = [
    "network",
    "moods",
    "disk",
    "crashes",
    "restarts",
    "reloads",
    "changes",
    "clock",
    "intruders",
    "floods",
    "store",
    "approvals",
    "panics",
    "authors",
    "collector",
    "skills",
    "links",
    "rollouts",
    "versions",
    "sign_ins",
];

#[derive(Clone, Debug)]
pub struct CallerPlan {
    pub number: usize,
    pub id: String,
    pub key: String,
    pub group: &'static str,
}

#[derive(Clone, Debug)]
pub struct ClientPlan {
    pub name: String,
    pub caller: usize,
    pub host: IpAddr,
    pub transport: ClientTransport,
    pub revision: &'static str,
    /// Whether its user can be asked.
    pub answers: bool,
}

/// How a client reaches the gateway.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ClientTransport {
    Http,
    /// HTTP+SSE, of revision 2024-11-05.
    Sse,
    /// The standard streams of the gateway.
    Stdio,
}

/// The differences between configurations.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rules {
    /// The upstreams of whose prompts the group `some` may use those that are open.
    pub open: Vec<String>,
    /// Whether the group `some` may use the secret ones of the first upstream.
    pub trusts: bool,
    /// The upstreams that are not in use.
    pub disabled: Vec<String>,
    pub page_size: usize,
    pub approved: Approvals,
}

/// The approvals, by upstream and raw name.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Approvals {
    pub prompts: BTreeMap<(String, String), Approved>,
    /// The entries of skills, with the URIs of their upstreams.
    pub skills: BTreeMap<(String, String), Value>,
    /// The prompts whose approval was taken back.
    pub withdrawn: BTreeSet<(String, String)>,
}

/// The approved version of a prompt.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Approved {
    pub description: String,
    /// Its text without arguments, if that is approved, too. That of a library is its source.
    pub text: Option<String>,
    /// Its text for any nonce.
    pub template: Option<String>,
}

impl Rules {
    /// Whether a caller may list and get a prompt.
    pub fn allow(&self, caller: &CallerPlan, upstream: &str, name: &str) -> bool {
        match caller.group {
            _ if self.is_disabled(upstream) => false,
            "all" => true,
            _ if name.starts_with("open-") => self.open.iter().any(|id| id == upstream),
            _ => self.trusts && upstream == "u0",
        }
    }

    /// The prompts of an upstream's list that a caller sees.
    pub fn visible(&self, caller: &CallerPlan, upstream: &Plan, list: &[Prompt]) -> Vec<Prompt> {
        let may = list.iter().filter(|prompt| self.allow(caller, &upstream.id, &prompt.name));
        may.filter_map(|prompt| self.served(upstream, prompt)).collect()
    }

    /// The form in which a prompt is listed: the approved one, where approvals are enforced.
    pub fn served(&self, upstream: &Plan, prompt: &Prompt) -> Option<Prompt> {
        if !upstream.needs_approval {
            return Some(prompt.clone());
        }
        let approved = self.approval(&upstream.id, &prompt.name)?;
        let description = approved.description.clone();
        Some(Prompt { name: prompt.name.clone(), description })
    }

    pub fn approval(&self, upstream: &str, name: &str) -> Option<&Approved> {
        self.approved.prompts.get(&(upstream.to_owned(), name.to_owned()))
    }

    /// The approved entry of a skill.
    pub fn approved_skill(&self, upstream: &str, name: &str) -> Option<&Value> {
        self.approved.skills.get(&(upstream.to_owned(), name.to_owned()))
    }

    /// The entries that a caller sees of those that an upstream offers.
    pub fn visible_skills(
        &self,
        caller: &CallerPlan,
        upstream: &Plan,
        offered: Vec<Value>,
        has_snapshot: bool,
    ) -> Vec<Value> {
        let name = |entry: &Value| name_of(entry["uri"].as_str().unwrap_or_default()).to_owned();
        let may = offered.into_iter().filter(|own| self.allow(caller, &upstream.id, &name(own)));
        let served = may.filter_map(|offered| {
            if !upstream.needs_approval {
                return Some(offered);
            }
            let approved = self.approved_skill(&upstream.id, &name(&offered))?;
            (has_snapshot || *approved == offered).then(|| approved.clone())
        });
        served.collect()
    }

    pub fn draw(rng: &mut Rng, upstreams: &[Plan], approved: Approvals) -> Self {
        let mut some = |chance: u8| -> Vec<String> {
            let some = upstreams.iter().skip(1).filter(|_| rng.u8(..) < chance);
            some.map(|plan| plan.id.clone()).collect()
        };
        let disabled = some(50);
        let mut open = some(180);
        // Rules may name only upstreams that are in use.
        open.retain(|id| !disabled.contains(id));
        if open.is_empty() || rng.bool() {
            open.push("u0".to_owned());
        }
        Self { open, trusts: rng.bool(), disabled, page_size: rng.usize(4..40), approved }
    }

    pub fn is_disabled(&self, upstream: &str) -> bool {
        self.disabled.iter().any(|id| id == upstream)
    }
}

impl Export {
    fn keys(self) -> String {
        let Self { batch, reserve } = self;
        format!(
            "[audit.export]\nendpoint = \"http://{}\"\nbatch = {batch}\n\
             interval = \"100ms\"\ntimeout = \"2s\"\nreserve = \"{reserve}KiB\"\n",
            collector::ADDRESS
        )
    }
}

/// Most hosts are near, some are not.
fn draw_latency(rng: &mut Rng) -> (Duration, Duration) {
    let most = if rng.u8(..) < 200 { 2_000 } else { 80_000 };
    (Duration::from_micros(50), Duration::from_micros(rng.u64(100..most)))
}

const LEGACY: [&str; 3] = ["2025-03-26", "2025-06-18", "2025-11-25"];

impl Scenario {
    pub fn draw(rng: &mut Rng) -> Self {
        let revision = |rng: &mut Rng| match rng.bool() {
            true => MODERN,
            false => rng.choice(LEGACY).expect("one of them"),
        };
        let upstreams = (0..rng.u8(1..4)).map(|number| {
            let transport = match rng.u8(..) {
                0..32 => Transport::Sse { is_named: rng.bool() },
                32..170 => Transport::Http,
                170..220 => Transport::Stdio,
                _ => Transport::Library,
            };
            // Upstreams over standard streams may send no server requests by default.
            let asks = transport == Transport::Http && rng.bool();
            let (acts_as_caller, lists_per_caller) = match transport {
                Transport::Http => {
                    let drawn = rng.u8(..);
                    (drawn < 100, drawn < 50)
                }
                _ => (false, false),
            };
            Plan {
                id: format!("u{number}"),
                host: IpAddr::V4(Ipv4Addr::new(127, 0, 1, number)),
                transport,
                revision: match transport {
                    Transport::Sse { .. } => "2024-11-05",
                    _ => revision(rng),
                },
                page_size: rng.usize(1..8),
                asks,
                acts_as_caller,
                lists_per_caller,
                signs_in: false,
                // The text of one that asks, or that knows callers, cannot be asked for.
                needs_approval: !asks && !acts_as_caller && rng.bool(),
                announces: rng.u8(..) < 200,
                has_skills: false,
                has_links: false,
                has_rollout: false,
                has_versions: false,
            }
        });
        let mut upstreams: Vec<_> = upstreams.collect();
        let caller = |number: usize, id: String| CallerPlan {
            number,
            key: format!("key-of-{id}-0123456789abcdef"),
            id,
            group: if number == 0 { "all" } else { "some" },
        };
        let callers = (0..rng.usize(1..4)).map(|number| caller(number, format!("caller-{number}")));
        let mut callers: Vec<_> = callers.collect();
        let clients = (0..rng.u8(1..7)).map(|number| {
            let (transport, revision) = match rng.u8(..) {
                0..160 => (ClientTransport::Http, revision(rng)),
                160..210 => (ClientTransport::Sse, "2024-11-05"),
                _ => (ClientTransport::Stdio, revision(rng)),
            };
            ClientPlan {
                name: format!("client-{number}"),
                // The standard streams have one caller.
                caller: match transport {
                    ClientTransport::Stdio => 0,
                    _ => rng.usize(..callers.len()),
                },
                host: IpAddr::V4(Ipv4Addr::new(127, 0, 2, number)),
                transport,
                revision,
                answers: rng.bool(),
            }
        });
        let clients: Vec<_> = clients.collect();
        callers.push(caller(callers.len(), FLOOD.to_owned()));
        let happens = |rng: &mut Rng| rng.u8(..) < 128;
        // From a generator of its own: the scenarios of earlier seeds stay, but for this.
        let mut own = Rng::with_seed(!rng.clone().u64(..));
        for plan in &mut upstreams {
            plan.has_skills = plan.can_have_skills() && own.bool();
        }
        let has_snapshot = own.bool();
        for plan in &mut upstreams {
            plan.has_links = plan.can_have_links() && own.bool();
        }
        for plan in &mut upstreams {
            plan.has_rollout = plan.can_have_rollout() && own.u8(..) < 200;
        }
        // From where any failure of two callers is enough, to several of each.
        let rollback = own.choice([(0.0, 10), (0.1, 20), (0.2, 20)]).expect("one of them");
        let authors = own.u8(..) < 200;
        for plan in &mut upstreams {
            plan.has_versions = plan.can_have_versions() && own.u8(..) < 230;
        }
        let reserve = own.choice([0, 64, 1 << 20]).expect("one of them");
        let export = own.bool().then(|| Export { batch: own.usize(1..100), reserve });
        let collector = own.u8(..) < 200;
        for plan in &mut upstreams {
            plan.signs_in = plan.acts_as_caller && own.bool();
        }
        Self {
            latencies: (0..8).map(|_| draw_latency(rng)).collect(),
            upstreams,
            callers,
            clients,
            chaos: Duration::from_secs(rng.u64(5..25)),
            replicas: if rng.u8(..) < 64 { 2 } else { 1 },
            is_strict: rng.bool(),
            // Enough for all pages of a list.
            limit: (rng.u64(2..40) as f64, rng.usize(12..60)),
            has_snapshot,
            rollback,
            export,
            faults: Faults {
                network: happens(rng),
                moods: happens(rng),
                disk: happens(rng),
                crashes: happens(rng),
                restarts: happens(rng),
                reloads: happens(rng),
                changes: rng.u8(..) < 200,
                clock: happens(rng),
                intruders: happens(rng),
                floods: happens(rng),
                store: happens(rng),
                approvals: rng.u8(..) < 200,
                panics: rng.u8(..) < 64,
                authors,
                collector,
            },
        }
    }

    pub fn has_skills(&self) -> bool {
        self.upstreams.iter().any(|plan| plan.has_skills)
    }

    pub fn has_links(&self) -> bool {
        self.upstreams.iter().any(|plan| plan.has_links)
    }

    pub fn has_versions(&self) -> bool {
        self.upstreams.iter().any(|plan| plan.has_versions)
    }

    /// Whether an upstream lists for each caller.
    pub fn has_private_lists(&self) -> bool {
        self.upstreams.iter().any(|plan| plan.lists_per_caller)
    }

    /// Leaves out what is named: a kind of fault, or `client` or `upstream`, the last one of them.
    ///
    /// # Errors
    /// When nothing has this name.
    pub fn without(&mut self, name: &str) -> Result<(), String> {
        let faults = &mut self.faults;
        match name {
            "network" => faults.network = false,
            "moods" => faults.moods = false,
            "disk" => faults.disk = false,
            "crashes" => faults.crashes = false,
            "restarts" => faults.restarts = false,
            "reloads" => faults.reloads = false,
            "changes" => faults.changes = false,
            "clock" => faults.clock = false,
            "intruders" => faults.intruders = false,
            "floods" => faults.floods = false,
            "store" => faults.store = false,
            "approvals" => faults.approvals = false,
            "panics" => faults.panics = false,
            "authors" => faults.authors = false,
            "collector" => faults.collector = false,
            "skills" => self.upstreams.iter_mut().for_each(|plan| plan.has_skills = false),
            "links" => self.upstreams.iter_mut().for_each(|plan| plan.has_links = false),
            "rollouts" => self.upstreams.iter_mut().for_each(|plan| plan.has_rollout = false),
            "versions" => self.upstreams.iter_mut().for_each(|plan| plan.has_versions = false),
            "sign_ins" => self.upstreams.iter_mut().for_each(|plan| plan.signs_in = false),
            "client" => drop(self.clients.pop()),
            "upstream" => drop(self.upstreams.pop()),
            "half" => self.chaos /= 2,
            other => return Err(format!("nothing is called {other}")),
        }
        Ok(())
    }

    /// The configuration file of a replica with these rules.
    pub fn configuration(&self, replica: usize, rules: &Rules) -> String {
        let (rate, burst) = self.limit;
        let durability = if self.is_strict { "strict" } else { "interval" };
        let open: Vec<_> = rules.open.iter().map(|id| format!("{id:?}")).collect();
        let mut toml = format!(
            "[server]\nlisten = \"{listen}\"\nexpose = [\"prompts\"{tools}]\nseal_key = {{ env = \"SEAL\" }}\n{public_url}\
             [server.limits]\nrequest = \"5s\"\nserver_request_timeout = \"4s\"\ngrace = \"6s\"\npre_drain = \"0s\"\n\
             in_flight = {IN_FLIGHT}\nshare = {share}\n\
             [admin]\nlisten = \"{admin}\"\ntoken = {{ env = \"ADMIN\" }}\nwrite = true\n[admin.usage]\npath = \"\"\n\
             [listing]\npage_size = {page_size}\ndeadline = \"2s\"\n\
             [defaults]\nconnect = \"1s\"\nstartup = \"3s\"\nprobe = \"1s\"\ntimeout = \"4s\"\npage_timeout = \"1s\"\n\
             walk_timeout = \"3s\"\npoll = \"3s\"\nmax_age = \"2m\"\n\
             breaker = {{ failures = 5, open_min = \"1s\", open_max = \"3s\" }}\n\
             [audit]\npath = \"audit\"\nkey = {{ env = \"AUDIT\" }}\ndurability = \"{durability}\"\n\
             sync = \"200ms\"\nraw_arguments = [\"*\"]\nsegment_size = \"1MiB\"\n\
             checkpoint = {{ records = 20, every = \"5s\" }}\nverify_every = \"9s\"\n{export}\
             [auth.stdio]\nid = \"caller-0\"\ngroups = [\"all\"]\n\
             [[limits]]\nname = \"per caller\"\nper = [\"caller\"]\ncallers = [\"caller-*\"]\nmethods = [\"prompts/list\", \"prompts/get\", \"completion/complete\"]\n\
             rate = \"{rate}/s\"\nburst = {burst}\n\
             [approvals]\nlock = \"{LOCK}\"\nsnapshot = {snapshot}\n\
             [[access.rules]]\nallow = [\"get\"]\ncallers = [\"promptgate\"]\n\
             [[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\ngroups = [\"all\"]\n\
             [[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\ngroups = [\"some\"]\nprompts = [\"open-*\"]\n\
             upstreams = [{open}]\n",
            listen = address_of(replica),
            admin = admin_of(replica),
            page_size = rules.page_size,
            export = self.export.map(Export::keys).unwrap_or_default(),
            public_url = if self.upstreams.iter().any(|plan| plan.signs_in) {
                format!("public_url = \"http://{}/mcp\"\n", address_of(0))
            } else {
                String::new()
            },
            tools = if self.has_skills() { ", \"tools\"" } else { "" },
            snapshot = self.has_snapshot,
            share = (SHARE as f64 + 0.1) / IN_FLIGHT as f64,
            open = open.join(", "),
        );
        if rules.trusts {
            toml.push_str(
                "[[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\ngroups = [\"some\"]\n\
                 prompts = [\"secret-*\"]\nupstreams = [\"u0\"]\n",
            );
        }
        if self.replicas > 1 {
            let _ = writeln!(
                toml,
                "[cluster]\nstore = \"redis://{STORE}\"\nreplica = \"replica-{replica}\""
            );
        }
        for caller in &self.callers {
            let hash = digest_text(&Sha256::digest(caller.key.as_bytes()).into());
            let CallerPlan { id, group, .. } = caller;
            let _ = write!(
                toml,
                "[[auth.api_keys]]\nid = \"{id}\"\nhash = \"{hash}\"\ngroups = [\"{group}\"]\n"
            );
        }
        for plan in &self.upstreams {
            let Plan { id, host, transport, .. } = plan;
            let _ = match transport {
                Transport::Http => writeln!(
                    toml,
                    "[upstreams.{id}]\ntransport = \"http\"\nurl = \"http://{host}/mcp\""
                )
                .and_then(|()| {
                    let own = match plan.signs_in {
                        true => "sign_in = {}".to_owned(),
                        false => format!(
                            "vault = {{ url = \"http://{}/v1/{id}/{{caller}}\" }}",
                            vault::ADDRESS
                        ),
                    };
                    match (plan.acts_as_caller, plan.lists_per_caller) {
                        (true, false) => writeln!(
                            toml,
                            "act_as = \"caller\"\n\
                                 credential = {{ bearer = {{ value = \"{SERVICE}\" }}, {own} }}"
                        ),
                        (true, true) => writeln!(
                            toml,
                            "act_as = \"caller\"\nlist_as = \"caller\"\ncredential = {{ {own} }}"
                        ),
                        (false, _) => Ok(()),
                    }
                }),
                Transport::Sse { is_named } => {
                    let transport = if *is_named { "sse" } else { "http" };
                    writeln!(
                        toml,
                        "[upstreams.{id}]\ntransport = \"{transport}\"\nurl = \"http://{host}/events\""
                    )
                }
                Transport::Stdio => {
                    writeln!(
                        toml,
                        "[upstreams.{id}]\ntransport = \"stdio\"\ncommand = [\"{id}\"]\ncwd = \"/\""
                    )
                }
                Transport::Library => writeln!(
                    toml,
                    "[upstreams.{id}]\ntransport = \"library\"\npath = {:?}",
                    plan.folder()
                ),
            };
            let approval = if plan.needs_approval { "enforce" } else { "off" };
            let enabled = !rules.is_disabled(id);
            let _ = writeln!(toml, "enabled = {enabled}\napproval = \"{approval}\"");
            if plan.has_skills {
                toml.push_str("expose_skills = [\"prompts\"]\n");
            }
            if plan.has_links {
                toml.push_str("links = \"sealed\"\n");
            }
        }
        let (share, over) = self.rollback;
        for Plan { id, .. } in self.upstreams.iter().filter(|plan| plan.has_rollout) {
            let _ = write!(
                toml,
                "[[rollouts]]\nprompt = \"{id}__{ROLLED_OUT}\"\nto = \"{CANDIDATE}\"\nshare = 1\n\
                 rollback = {{ share = {share:.1}, over = {over} }}\n"
            );
        }
        if self.has_versions() {
            let _ = write!(toml, "[views.{VERSIONS_VIEW}]\nversions = true\n");
        }
        toml + "[end]\n"
    }

    /// A configuration file that must be rejected.
    pub fn broken_configuration(&self, rng: &mut Rng, rules: &Rules) -> String {
        let toml = self.configuration(0, rules);
        match rng.u8(..5) {
            0 => toml.replace("[listing]\n", "[server]\n"),
            1 => toml.replace("[listing]\n", "[listing]\nunknown_key = 1\n"),
            2 => toml.replace("transport = \"", "transport = \"no-"),
            // The file has lost its end.
            3 => toml[..rng.usize(..toml.len() - "[end]\n".len())].to_owned(),
            // All access rules are gone, and the file does not say so.
            _ => {
                let (before, rest) = toml.split_once("[[access.rules]]").expect("there are rules");
                let after = rest.find("[[auth.").map_or("", |at| &rest[at..]);
                format!("{before}{after}")
            }
        }
    }

    /// The environment of the gateway: its keys.
    pub fn environment() -> Vec<(String, String)> {
        let key = "c2ltdWxhdGVkLWtleS1zaW11bGF0ZWQta2V5LTEyMzQ=";
        [("SEAL", key), ("AUDIT", key), ("ADMIN", ADMIN_TOKEN)]
            .map(|(name, key)| (name.to_owned(), key.to_owned()))
            .to_vec()
    }
}
