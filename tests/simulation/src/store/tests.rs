//! The guarantees of the model of the store.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fastrand::Rng;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ErrorKind, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError,
    ServerErrorKind, Value, cmd,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::Store;
use super::database::Time;
use super::model::Model;
use super::resp::{Malformed, Reply, Requests, request};
use super::scripts::{Script, TEXTS, digest};
use crate::machine::network::SimNetwork;

/// The checks of the store.
pub const CHECKS: [(&str, fn()); 20] = [
    ("store_greets_in_resp3_alone", greets_in_resp3_alone),
    ("store_sets_texts_and_expires_them", sets_and_expires),
    ("store_locks_are_held_by_one", locks_are_held_by_one),
    ("store_has_databases", has_databases),
    ("store_refuses_what_it_does_not_know", refuses_the_unknown),
    ("store_is_taught_scripts", is_taught_scripts),
    ("store_takes_cells_and_buckets_fill", takes_cells),
    ("store_takes_from_all_buckets_or_none", takes_from_all_or_none),
    ("store_takes_after_a_clock_was_set_back", takes_after_clock_was_set_back),
    ("store_forgets_silent_replicas", forgets_silent_replicas),
    ("store_keeps_the_newest_terminated_sessions", keeps_newest_terminated),
    ("store_reads_a_stream_from_an_entry_on", reads_stream_from_entry_on),
    ("store_changes_a_login_under_its_lock", changes_login_under_lock),
    ("store_keeps_the_newest_state_of_a_rollout", keeps_newest_rollback),
    ("store_publishes_to_all_subscribers", publishes_to_subscribers),
    ("store_replies_as_bytes", replies_as_bytes),
    ("store_reads_split_requests", reads_split_requests),
    ("store_refuses_malformed_requests", refuses_malformed_requests),
    ("store_serves_the_client_of_the_gateway", serves_the_client),
    ("store_restarts_freezes_and_loads", restarts_freezes_and_loads),
];

/// A model, and the clients 1 and 2, which have greeted it.
struct Asked {
    model: Model,
    now: Time,
}

impl Asked {
    fn new() -> Self {
        let mut model = Model::default();
        let now = Duration::from_secs(1_780_000_000);
        for client in [1, 2] {
            model.connect(client);
            model.execute(now, client, &words(&["HELLO", "3"]));
        }
        Self { model, now }
    }

    fn pass(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
    }

    fn sent(&mut self, command: &[&str]) -> Vec<(u64, Reply)> {
        self.model.execute(self.now, 1, &words(command))
    }

    fn ask(&mut self, command: &[&str]) -> Reply {
        self.sent(command).pop().expect("a reply").1
    }

    /// Runs a script, which is taught before.
    fn run(&mut self, script: Script, keys: &[&str], arguments: &[&str]) -> Reply {
        let (_, text) = TEXTS.iter().find(|(known, _)| *known == script).expect("a script");
        self.ask(&["SCRIPT", "LOAD", text]);
        let (name, count) = (digest(text.as_bytes()), keys.len().to_string());
        self.ask(&[&["EVALSHA", &name, &count], keys, arguments].concat())
    }

    fn terminate(&mut self, most: &str, sessions: &[&str]) {
        let arguments = [&[most, "60000"], sessions].concat();
        assert_eq!(self.run(Script::Terminate, &["{p}terminated"], &arguments), Reply::Integer(1));
    }

    /// Returns the replicas (id, silence, what it told) and the terminated sessions (entry,
    /// session).
    fn beat(&mut self, id: &str, last: &str, count: &str) -> (Vec<Heard>, Vec<(String, String)>) {
        let keys = ["{p}replicas", "{p}terminated"];
        let told = format!("told by {id}");
        let answer = self.run(Script::Beat, &keys, &[id, &told, "5000", last, count]);
        let [replicas, news] = <[Reply; 2]>::try_from(items(answer)).expect("two lists");
        let heard = |reply| match &items(reply)[..] {
            [id, Reply::Integer(silent), told] => (text(id), *silent, text(told)),
            other => panic!("{other:?}"),
        };
        let entry = |reply| match &items(reply)[..] {
            [id, Reply::Array(fields)] if fields[0] == Reply::text("s") => {
                (text(id), text(&fields[1]))
            }
            other => panic!("{other:?}"),
        };
        (
            items(replicas).into_iter().map(heard).collect(),
            items(news).into_iter().map(entry).collect(),
        )
    }

    fn take(&mut self, keys: &[&str], arguments: &[&str]) -> Vec<i64> {
        integers(self.run(Script::Take, keys, arguments))
    }
}

type Heard = (String, i64, String);

fn words(words: &[&str]) -> Vec<Bytes> {
    words.iter().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect()
}

fn items(reply: Reply) -> Vec<Reply> {
    match reply {
        Reply::Array(items) => items,
        other => panic!("{other:?}"),
    }
}

fn integers(reply: Reply) -> Vec<i64> {
    let integer = |reply| match reply {
        Reply::Integer(number) => number,
        other => panic!("{other:?}"),
    };
    items(reply).into_iter().map(integer).collect()
}

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("{other:?}"),
    }
}

fn is_error(reply: &Reply, begin: &str) -> bool {
    matches!(reply, Reply::Error(error) if error.starts_with(begin))
}

fn greets_in_resp3_alone() {
    let mut asked = Asked::new();
    asked.model.connect(3);
    let mut ask = |command: &[&str]| {
        asked.model.execute(asked.now, 3, &words(command)).pop().expect("a reply").1
    };
    assert!(is_error(&ask(&["GET", "a"]), "ERR"));
    assert!(is_error(&ask(&["HELLO"]), "ERR"));
    assert!(is_error(&ask(&["HELLO", "2"]), "NOPROTO"));
    assert!(is_error(&ask(&["HELLO", "3", "AUTH", "other", "p"]), "WRONGPASS"));
    let Reply::Map(said) = ask(&["hello", "3", "auth", "default", "p"]) else { panic!("a map") };
    assert!(said.contains(&(Reply::text("role"), Reply::text("master"))));
    assert_eq!(ask(&["GET", "a"]), Reply::Null);
    assert!(asked.model.execute(asked.now, 4, &words(&["PING"])).is_empty());
}

fn sets_and_expires() {
    let mut asked = Asked::new();
    assert_eq!(asked.ask(&["SET", "a", "1", "PX", "10"]), Reply::ok());
    asked.pass(10);
    assert_eq!(asked.ask(&["GET", "a"]), Reply::text("1"));
    assert_eq!(asked.ask(&["PEXPIRE", "a", "20"]), Reply::Integer(1));
    asked.pass(20);
    assert_eq!(asked.ask(&["PTTL", "a"]), Reply::Integer(0));
    asked.pass(1);
    assert_eq!(asked.ask(&["GET", "a"]), Reply::Null);
    assert_eq!(asked.ask(&["PEXPIRE", "a", "20"]), Reply::Integer(0));
    asked.ask(&["SET", "b", "1", "PX", "10"]);
    asked.ask(&["SET", "b", "2"]);
    assert_eq!(asked.ask(&["PTTL", "b"]), Reply::Integer(-1));
    asked.pass(100);
    assert_eq!(asked.ask(&["GET", "b"]), Reply::text("2"));
    for lives in ["0", "-1", "x", "9223372036854775807"] {
        assert!(is_error(&asked.ask(&["SET", "b", "3", "PX", lives]), "ERR"), "{lives}");
    }
    assert_eq!(asked.ask(&["PEXPIRE", "b", "0"]), Reply::Integer(1));
    assert_eq!(asked.ask(&["DEL", "b", "c"]), Reply::Integer(0));
}

fn locks_are_held_by_one() {
    let mut asked = Asked::new();
    let lock = |token| ["SET", "{p}lock", token, "NX", "PX", "100"];
    assert_eq!(asked.ask(&lock("a")), Reply::ok());
    assert_eq!(asked.ask(&lock("b")), Reply::Null);
    asked.run(Script::ReleaseLogin, &["{p}lock"], &["b"]);
    assert_eq!(asked.ask(&lock("b")), Reply::Null);
    asked.run(Script::ReleaseLogin, &["{p}lock"], &["a"]);
    assert_eq!(asked.ask(&lock("b")), Reply::ok());
    asked.pass(101);
    assert_eq!(asked.ask(&lock("a")), Reply::ok());
    asked.run(Script::ReleaseLogin, &["{p}lock"], &["b"]);
    assert_eq!(asked.ask(&["GET", "{p}lock"]), Reply::text("a"));
}

fn has_databases() {
    let mut asked = Asked::new();
    asked.ask(&["SET", "a", "0"]);
    assert_eq!(asked.ask(&["SELECT", "15"]), Reply::ok());
    assert_eq!(asked.ask(&["GET", "a"]), Reply::Null);
    assert!(is_error(&asked.ask(&["SELECT", "16"]), "ERR DB index"));
    assert_eq!(asked.ask(&["SELECT", "0"]), Reply::ok());
    assert_eq!(asked.ask(&["GET", "a"]), Reply::text("0"));
}

fn refuses_the_unknown() {
    let mut asked = Asked::new();
    for command in
        [&["KEYS", "*"][..], &["EVAL", "return 1", "0"], &["FLUSHALL"], &["CLIENT", "ID"]]
    {
        assert!(is_error(&asked.ask(command), "ERR unknown command"), "{command:?}");
    }
    for command in
        [&["GET"][..], &["SET", "a"], &["HDEL", "a"], &["SUBSCRIBE"], &["SCRIPT", "KILL"]]
    {
        assert!(is_error(&asked.ask(command), "ERR wrong number"), "{command:?}");
    }
    asked.beat("a", "0-0", "1");
    assert!(is_error(&asked.ask(&["GET", "{p}replicas"]), "WRONGTYPE"));
    asked.ask(&["SET", "a", "1"]);
    assert!(is_error(&asked.ask(&["HDEL", "a", "b"]), "WRONGTYPE"));
    assert_eq!(asked.ask(&["HDEL", "{p}replicas", "a", "b"]), Reply::Integer(1));
    assert_eq!(asked.ask(&["DEL", "{p}replicas"]), Reply::Integer(0));
}

fn is_taught_scripts() {
    let mut asked = Asked::new();
    for (_, text) in TEXTS {
        let name = digest(text.as_bytes());
        assert!(is_error(&asked.ask(&["EVALSHA", &name, "0"]), "NOSCRIPT"));
        assert_eq!(asked.ask(&["SCRIPT", "LOAD", text]), Reply::text(&name));
        assert!(!is_error(&asked.ask(&["EVALSHA", &name.to_uppercase(), "0"]), "NOSCRIPT"));
        assert!(is_error(&asked.ask(&["EVALSHA", &name, "1"]), "ERR Number of keys"));
        assert!(is_error(&asked.ask(&["EVALSHA", &name, "-1"]), "ERR Number of keys"));
        assert!(is_error(&asked.ask(&["EVALSHA", &name, "x"]), "ERR value"));
    }
    assert!(is_error(&asked.ask(&["SCRIPT", "LOAD", "return 1"]), "ERR"));
    assert_eq!(digest(b"return 1"), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
}

/// Ticks of [`Script::Take`] in a second.
const SECOND: &str = "8000000";

fn takes_cells() {
    let mut asked = Asked::new();
    let take = |asked: &mut Asked, cells| asked.take(&["a"], &[SECOND, "3", cells]);
    assert_eq!(take(&mut asked, "2"), [2]);
    assert_eq!(take(&mut asked, "2"), [1]);
    assert_eq!(take(&mut asked, "1"), [-1, 8_000_000]);
    asked.pass(999);
    assert_eq!(take(&mut asked, "1"), [-1, 8_000]);
    asked.pass(1);
    assert_eq!(take(&mut asked, "3"), [1]);
    // A bucket that is full again has no key.
    asked.pass(3_002);
    assert_eq!(asked.ask(&["GET", "a"]), Reply::Null);
    assert_eq!(take(&mut asked, "9"), [3]);
}

fn takes_from_all_or_none() {
    let mut asked = Asked::new();
    assert_eq!(asked.take(&["a"], &[SECOND, "1", "1"]), [1]);
    let both = [SECOND, "2", "1", SECOND, "1", "1"];
    assert_eq!(asked.take(&["b", "a"], &both), [-2, 8_000_000]);
    assert_eq!(asked.ask(&["GET", "b"]), Reply::Null);
    asked.pass(1_000);
    assert_eq!(asked.take(&["b", "a"], &both), [1, 1]);
    // The one that fills last is named.
    let slow = [SECOND, "1", "1", "80000000", "1", "1"];
    assert_eq!(asked.take(&["c", "d"], &slow), [1, 1]);
    assert_eq!(asked.take(&["c", "d"], &slow), [-2, 80_000_000]);
    assert!(is_error(&asked.run(Script::Take, &[], &[]), "ERR"));
    assert!(is_error(&asked.run(Script::Take, &["e"], &["1", "x", "1"]), "ERR"));
}

fn takes_after_clock_was_set_back() {
    let mut asked = Asked::new();
    assert_eq!(asked.take(&["a"], &[SECOND, "2", "2"]), [2]);
    asked.now -= Duration::from_secs(3_600);
    assert_eq!(asked.take(&["a"], &[SECOND, "2", "1"]), [-1, 8_000_000]);
    // The bucket fills from then on, though nothing was taken.
    asked.pass(1_000);
    assert_eq!(asked.take(&["a"], &[SECOND, "2", "2"]), [1]);
    asked.ask(&["SET", "a", "no number"]);
    assert_eq!(asked.take(&["a"], &[SECOND, "2", "2"]), [2]);
}

fn forgets_silent_replicas() {
    let mut asked = Asked::new();
    let heard = |id: &str, silent| (id.to_owned(), silent, format!("told by {id}"));
    assert_eq!(asked.beat("b", "0-0", "1").0, [heard("b", 0)]);
    asked.pass(3_000);
    assert_eq!(asked.beat("a", "0-0", "1").0, [heard("a", 0), heard("b", 3_000)]);
    asked.pass(2_000);
    assert_eq!(asked.beat("a", "0-0", "1").0, [heard("a", 0), heard("b", 5_000)]);
    asked.pass(1);
    assert_eq!(asked.beat("a", "0-0", "1").0, [heard("a", 0)]);
    // A clock that is set back a little has no effect, and much of it forgets the others.
    asked.now -= Duration::from_secs(4);
    assert_eq!(asked.beat("b", "0-0", "1").0, [heard("a", 0), heard("b", 0)]);
    asked.now -= Duration::from_secs(6);
    assert_eq!(asked.beat("c", "0-0", "1").0, [heard("c", 0)]);
    // Without heartbeats nothing is left.
    asked.pass(5_001);
    assert_eq!(asked.ask(&["DEL", "{p}replicas"]), Reply::Integer(0));
}

fn keeps_newest_terminated() {
    let mut asked = Asked::new();
    let sessions: Vec<_> = (0..450).map(|number| format!("session {number}")).collect();
    for session in &sessions {
        asked.terminate("120", &[session]);
    }
    // Of nodes with 100 entries each, those that are not needed are gone.
    let (_, kept) = asked.beat("a", "0-0", "0");
    let kept: Vec<_> = kept.into_iter().map(|(_, session)| session).collect();
    assert_eq!(kept, sessions[300..]);
    // Of larger ones, fewer fit in a node.
    let long = "s".repeat(500);
    for _ in 0..50 {
        asked.terminate("20", &[&long]);
    }
    let left = asked.beat("a", "0-0", "0").1.len();
    assert!((20..=28).contains(&left), "{left}");
    asked.terminate("0", &["x"]);
    assert!(asked.beat("a", "0-0", "0").1.is_empty());
    for refused in ["-1", "x"] {
        let reply = asked.run(Script::Terminate, &["{p}terminated"], &[refused, "1", "x"]);
        assert!(is_error(&reply, "ERR"), "{refused}");
    }
    asked.pass(60_001);
    let none = asked.run(Script::Terminate, &["{p}terminated"], &["1", "1"]);
    assert_eq!(none, Reply::Integer(0));
}

fn reads_stream_from_entry_on() {
    let mut asked = Asked::new();
    asked.terminate("100", &["a", "b"]);
    asked.pass(5);
    asked.terminate("100", &["c"]);
    asked.now -= Duration::from_secs(60);
    asked.terminate("100", &["d"]);
    let (_, all) = asked.beat("r", "0-0", "250");
    let sessions: Vec<_> = all.iter().map(|(_, session)| &session[..]).collect();
    assert_eq!(sessions, ["a", "b", "c", "d"]);
    let ids: Vec<_> = all.iter().map(|(id, _)| &id[..]).collect();
    let base = 1_780_000_000_000_u64;
    let expected = [(0, 0), (0, 1), (5, 0), (5, 1)].map(|(ms, n)| format!("{}-{n}", base + ms));
    assert_eq!(ids, expected);
    assert_eq!(asked.beat("r", "0-0", "3").1, all[..3]);
    assert_eq!(asked.beat("r", ids[1], "250").1, all[2..]);
    assert_eq!(asked.beat("r", &base.to_string(), "1").1, all[1..2]);
    assert!(asked.beat("r", ids[3], "250").1.is_empty());
    let keys = ["{p}replicas", "{p}terminated"];
    let invalid = asked.run(Script::Beat, &keys, &["r", "", "5000", "x", "1"]);
    assert!(is_error(&invalid, "ERR Invalid stream ID"));
}

fn changes_login_under_lock() {
    let mut asked = Asked::new();
    asked.ask(&["SUBSCRIBE", "{p}0:logins"]);
    let keys = ["{p}lock", "{p}login"];
    let (write, remove) = (["a", "{p}0:logins", "u", "sealed", "50"], ["a", "{p}0:logins", "u"]);
    assert_eq!(asked.run(Script::ChangeLogin, &keys, &write), Reply::Integer(0));
    asked.ask(&["SET", "{p}lock", "b", "NX", "PX", "100"]);
    assert_eq!(asked.run(Script::ChangeLogin, &keys, &write), Reply::Integer(0));
    asked.ask(&["SET", "{p}lock", "a", "PX", "100"]);
    assert_eq!(asked.run(Script::ChangeLogin, &keys, &write), Reply::Integer(1));
    assert_eq!(asked.ask(&["GET", "{p}login"]), Reply::text("sealed"));
    asked.pass(51);
    assert_eq!(asked.ask(&["GET", "{p}login"]), Reply::Null);
    let name = digest(TEXTS[2].1.as_bytes());
    let sent = asked.sent(&[&["EVALSHA", &name, "2"][..], &keys, &write].concat());
    let message = ["message", "{p}0:logins", "u"].map(Reply::text).to_vec();
    assert_eq!(sent, [(1, Reply::Push(message)), (1, Reply::Integer(1))]);
    assert_eq!(asked.run(Script::ChangeLogin, &keys, &remove), Reply::Integer(1));
    assert_eq!(asked.ask(&["GET", "{p}login"]), Reply::Null);
    asked.pass(50);
    assert_eq!(asked.run(Script::ChangeLogin, &keys, &write), Reply::Integer(0));
}

fn keeps_newest_rollback() {
    let mut asked = Asked::new();
    let all = ["HGETALL", "{p}rollbacks"];
    assert_eq!(asked.ask(&all), Reply::Map(Vec::new()));
    let mut keep = |rollout, changed, state| {
        let arguments = [rollout, changed, state];
        asked.run(Script::KeepRollback, &["{p}rollbacks"], &arguments)
    };
    for (changed, state) in [("9", "a"), ("10", "b"), ("9", "late"), ("10", "c")] {
        assert_eq!(keep("slow", changed, state), Reply::Null);
    }
    assert!(is_error(&keep("slow", "x", "no time"), "ERR"));
    keep("quick", "3", "d");
    let kept = [("quick", "3 d"), ("slow", "10 c")];
    let kept = kept.map(|(rollout, state)| (Reply::text(rollout), Reply::text(state)));
    assert_eq!(asked.ask(&all), Reply::Map(kept.to_vec()));
}

fn publishes_to_subscribers() {
    let mut asked = Asked::new();
    assert_eq!(asked.ask(&["PUBLISH", "a", "none"]), Reply::Integer(0));
    let now = asked.now;
    asked.model.execute(now, 2, &words(&["SUBSCRIBE", "a"]));
    let confirmed = |kind, channel, count| {
        (1, Reply::Push(vec![Reply::text(kind), Reply::text(channel), Reply::Integer(count)]))
    };
    let expected = [confirmed("subscribe", "a", 1), confirmed("subscribe", "b", 2)];
    assert_eq!(asked.sent(&["SUBSCRIBE", "a", "b"]), expected);
    assert_eq!(asked.sent(&["SUBSCRIBE", "a"]), [confirmed("subscribe", "a", 2)]);
    let message = Reply::Push(["message", "a", "text"].map(Reply::text).to_vec());
    let sent = asked.sent(&["PUBLISH", "a", "text"]);
    assert_eq!(sent, [(1, message.clone()), (2, message.clone()), (1, Reply::Integer(2))]);
    assert_eq!(asked.sent(&["UNSUBSCRIBE", "a"]), [confirmed("unsubscribe", "a", 1)]);
    assert_eq!(asked.sent(&["PUBLISH", "a", "text"]), [(2, message), (1, Reply::Integer(1))]);
    asked.model.disconnect(2);
    assert_eq!(asked.ask(&["PUBLISH", "a", "text"]), Reply::Integer(0));
}

fn replies_as_bytes() {
    let encoded = |reply: Reply| String::from_utf8_lossy(&reply.encode()).into_owned();
    assert_eq!(encoded(Reply::ok()), "+OK\r\n");
    assert_eq!(encoded(Reply::Error("ERR a\r\nb".to_owned())), "-ERR a  b\r\n");
    assert_eq!(encoded(Reply::Integer(-7)), ":-7\r\n");
    assert_eq!(encoded(Reply::text("a\r\nb")), "$4\r\na\r\nb\r\n");
    assert_eq!(encoded(Reply::Array(vec![Reply::Null, Reply::text("")])), "*2\r\n_\r\n$0\r\n\r\n");
    assert_eq!(
        encoded(Reply::Map(vec![(Reply::text("a"), Reply::ok())])),
        "%1\r\n$1\r\na\r\n+OK\r\n"
    );
    assert_eq!(encoded(Reply::Push(vec![Reply::Integer(1)])), ">1\r\n:1\r\n");
}

fn reads_split_requests() {
    let commands = [words(&["PING"]), words(&["SET", "", "a\r\n$1\r\n"]), words(&["GET", "a"])];
    let mut bytes: Vec<u8> = commands.iter().flat_map(|command| request(command)).collect();
    bytes.extend_from_slice(b"*0\r\n*-1\r\n*1\r\n$4\r\nLAST\r\n");
    for size in 1..=bytes.len() {
        let mut requests = Requests::default();
        let mut read = Vec::new();
        for piece in bytes.chunks(size) {
            requests.push(piece);
            while let Some(command) = requests.take().expect("requests") {
                read.push(command);
            }
        }
        assert_eq!(read[..3], commands);
        assert_eq!(read[3..], [words(&["LAST"])]);
    }
}

fn refuses_malformed_requests() {
    let taken = |bytes: &[u8]| {
        let mut requests = Requests::default();
        requests.push(bytes);
        requests.take()
    };
    let malformed: [&[u8]; 13] = [
        b"PING\r\n",
        b"\r\n",
        b"*x\r\n",
        b"*+1\r\n",
        b"*01\r\n",
        b"*65537\r\n",
        b"*99999999999999999999\r\n",
        b"*1\r\n:1\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$9223372036854775807\r\n",
        b"*2\r\n$67108865\r\n",
        b"*1\r\n$1\r\nabc",
        b"*1                              ",
    ];
    for bytes in malformed {
        assert!(matches!(taken(bytes), Err(Malformed(_))), "{}", String::from_utf8_lossy(bytes));
    }
    for bytes in [&b""[..], b"*", b"*1\r", b"*1\r\n", b"*1\r\n$1\r\na\r", b"*1\r\n$67108864\r\n"] {
        assert_eq!(taken(bytes), Ok(None));
    }
    let mut rng = Rng::with_seed(1);
    let mut whole = request(&words(&["SET", "a", "b", "PX", "100"])).to_vec();
    whole.extend(whole.clone());
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.choice(*b"*$:\r\n0123456789-+\0a\xff").unwrap_or(b'*');
        }
        bytes.truncate(rng.usize(..=bytes.len()));
        let mut asked = Asked::new();
        let mut requests = Requests::default();
        requests.push(&bytes);
        while let Ok(Some(command)) = requests.take() {
            asked.model.execute(asked.now, 1, &command);
        }
    }
}

/// Where the store is, and its clients are.
const STORE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 4, 1)), 6379);
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 4, 2));

/// Runs a check with a store on a network, in virtual time.
fn with_store(check: impl AsyncFnOnce(Store, SimNetwork)) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let network = SimNetwork::new(Rng::with_seed(7));
        let began = Instant::now();
        let epoch = SystemTime::UNIX_EPOCH + Duration::from_secs(1_780_000_000);
        let store = Store::new(move || epoch + began.elapsed());
        store.start(&network, STORE).expect("the address is free");
        check(store.clone(), network.clone()).await;
        store.end().await;
        assert_eq!(store.connections(), 0);
        assert!(network.dial(CLIENT, STORE).await.is_err());
    });
}

/// The client that the gateway has, and the messages of its channels.
async fn client(
    network: &SimNetwork,
) -> Result<(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>), RedisError> {
    let info = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP3)
        .set_db(3)
        .set_skip_set_lib_name();
    let (sender, pushes) = mpsc::unbounded_channel();
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_push_sender(sender);
    let socket = network.dial(CLIENT, STORE).await?;
    let (connection, driver) =
        MultiplexedConnection::new_with_config(&info, socket, config).await?;
    tokio::spawn(driver);
    Ok((connection, pushes))
}

async fn get(connection: &mut MultiplexedConnection, key: &str) -> Result<Value, RedisError> {
    cmd("GET").arg(key).query_async(connection).await
}

fn serves_the_client() {
    with_store(async |store, network| {
        let (mut one, mut pushes) = client(&network).await.unwrap();
        let (mut other, _) = client(&network).await.unwrap();
        assert_eq!(store.connections(), 2);
        one.subscribe("a").await.unwrap();
        // Each is as large as several windows of the network.
        let large = "m".repeat(300_000);
        for _ in 0..3 {
            let published = cmd("PUBLISH").arg("a").arg(&large).query_async(&mut other).await;
            assert_eq!(published, Ok(1));
        }
        let mut messages = 0;
        while messages < 3 {
            let push = pushes.recv().await.unwrap();
            if push.kind == redis::PushKind::Message {
                assert_eq!(push.data[1], Value::BulkString(large.clone().into_bytes()));
                messages += 1;
            }
        }
        let take = redis::Script::new(TEXTS[0].1);
        let mut take = take.key("bucket");
        take.arg(SECOND).arg(1).arg(1);
        assert_eq!(take.invoke_async::<Vec<i64>>(&mut one).await.unwrap(), [1]);
        assert!(take.invoke_async::<Vec<i64>>(&mut other).await.unwrap()[0] < 0);
        let (mut same, mut again) = (one.clone(), one.clone());
        let (bucket, none) = tokio::join!(get(&mut same, "bucket"), get(&mut again, "none"));
        assert!(matches!((bucket, none), (Ok(Value::BulkString(_)), Ok(Value::Nil))));
        let unknown = cmd("KEYS").arg("*").query_async::<Value>(&mut one).await.unwrap_err();
        assert!(unknown.to_string().contains("unknown command"), "{unknown}");
    });
}

fn restarts_freezes_and_loads() {
    with_store(async |store, network| {
        let (mut one, mut pushes) = client(&network).await.unwrap();
        one.subscribe("a").await.unwrap();
        cmd("SET").arg("a").arg("1").query_async::<Value>(&mut one).await.unwrap();
        store.freeze(Duration::from_secs(5));
        let began = Instant::now();
        assert!(timeout(Duration::from_secs(1), get(&mut one, "a")).await.is_err());
        assert!(matches!(get(&mut one, "a").await, Ok(Value::BulkString(_))));
        assert!(began.elapsed() >= Duration::from_secs(5));

        store.loading(Duration::from_secs(5));
        let (mut other, _) = client(&network).await.unwrap();
        let refused = get(&mut other, "a").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Server(ServerErrorKind::BusyLoading));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(matches!(get(&mut other, "a").await, Ok(Value::BulkString(_))));

        store.restart();
        assert_eq!(store.connections(), 0);
        assert!(get(&mut one, "a").await.is_err());
        while let Some(push) = pushes.recv().await {
            assert_ne!(push.kind, redis::PushKind::Message);
        }
        let (mut next, _) = client(&network).await.unwrap();
        assert_eq!(get(&mut next, "a").await, Ok(Value::Nil));
        let published = cmd("PUBLISH").arg("a").arg("text").query_async(&mut next).await;
        assert_eq!(published, Ok(0));

        // A frozen store that crashes with its host comes back.
        store.freeze(Duration::from_secs(600));
        store.heal();
        network.crash(STORE.ip());
        assert!(get(&mut next, "a").await.is_err());
        network.restart(STORE.ip());
        store.restart();
        store.start(&network, STORE).unwrap();
        let (mut last, _) = client(&network).await.unwrap();
        assert_eq!(get(&mut last, "a").await, Ok(Value::Nil));
    });
}
