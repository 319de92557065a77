//! The store as a state: what each command answers and changes. It supports what the gateway sends,
//! and little more (`PING`, `PTTL` and `UNSUBSCRIBE`), so that another command is noticed.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::database::{Database, Error, NO_INTEGER, Time, expiry};
use super::resp::{Reply, integer};
use super::scripts::{Run, Script, digest};

/// A server without replicas and credentials.
#[derive(Debug, Default)]
pub struct Model {
    databases: BTreeMap<i64, Database>,
    /// The scripts that it was taught, by their names.
    scripts: BTreeMap<String, Script>,
    clients: BTreeMap<u64, Client>,
}

/// A connection, as long as it is open.
#[derive(Debug, Default)]
struct Client {
    /// Whether it has asked for RESP3.
    has_greeted: bool,
    database: i64,
    channels: BTreeSet<Bytes>,
}

/// Replies, with the clients that they are sent to.
pub type Sent = Vec<(u64, Reply)>;

/// The databases are numbered from 0.
const DATABASES: i64 = 16;

/// The length of the name of a script.
const DIGEST: usize = 40;

impl Model {
    /// Takes a client, whose number nobody has had before.
    pub fn connect(&mut self, client: u64) {
        self.clients.insert(client, Client::default());
    }

    /// Forgets a client and its subscriptions.
    pub fn disconnect(&mut self, client: u64) {
        self.clients.remove(&client);
    }

    /// Does what a client asks for. Returns what is sent, in this order: messages, then the replies
    /// to the client; nothing if there is no such client.
    pub fn execute(&mut self, now: Time, client: u64, command: &[Bytes]) -> Sent {
        let (Some(asking), [name, arguments @ ..]) = (self.clients.get(&client), command) else {
            return Vec::new();
        };
        self.databases.values_mut().for_each(|database| database.expire_all(now));
        let name = name.to_ascii_uppercase();
        if !asking.has_greeted && name != b"HELLO" {
            let refused = "ERR the model speaks RESP3 alone: HELLO 3 comes first";
            return vec![(client, Reply::Error(refused.to_owned()))];
        }
        let mut sent = Vec::new();
        match self.dispatch(now, client, (&name, arguments), &mut sent) {
            Ok(Some(reply)) => sent.push((client, reply)),
            Ok(None) => {}
            Err(error) => sent.push((client, Reply::Error(error))),
        }
        sent
    }

    /// Returns the reply, unless it is among what was sent.
    fn dispatch(
        &mut self,
        now: Time,
        client: u64,
        (name, arguments): (&[u8], &[Bytes]),
        sent: &mut Sent,
    ) -> Result<Option<Reply>, Error> {
        let reply = match (name, arguments) {
            (b"HELLO", _) => self.greet(client, arguments)?,
            (b"PING", []) => Reply::Simple("PONG".to_owned()),
            (b"PING", [text]) => Reply::Bulk(text.clone()),
            (b"SELECT", [number]) => self.select(client, number)?,
            (b"SUBSCRIBE" | b"UNSUBSCRIBE", [_, ..]) => {
                self.subscribe(client, arguments, name == b"SUBSCRIBE", sent);
                return Ok(None);
            }
            (b"PUBLISH", [channel, message]) => {
                let before = sent.len();
                send_to_subscribers(&self.clients, channel, message, sent);
                count(sent.len() - before)
            }
            (b"SCRIPT", [what, text]) if what.eq_ignore_ascii_case(b"LOAD") => self.teach(text)?,
            (b"EVALSHA", [script, keys, rest @ ..]) => {
                self.run(now, client, (script, keys, rest), sent)?
            }
            _ => self.data(now, client, name, arguments)?,
        };
        Ok(Some(reply))
    }

    /// Answers the commands for keys.
    fn data(
        &mut self,
        now: Time,
        client: u64,
        name: &[u8],
        arguments: &[Bytes],
    ) -> Result<Reply, Error> {
        let database = self.database(client);
        Ok(match (name, arguments) {
            (b"GET", [key]) => database.get(key)?.map_or(Reply::Null, Reply::Bulk),
            (b"SET", [key, text, options @ ..]) => set(database, now, (key, text), options)?,
            (b"DEL", [_, ..]) => count(database.delete(arguments)),
            (b"PEXPIRE", [key, lives]) => {
                Reply::Integer(i64::from(database.expire(now, key, lives)?))
            }
            (b"PTTL", [key]) => Reply::Integer(database.lives(now, key)),
            (b"HGETALL", [key]) => {
                let fields = database.hash_all(key)?.into_iter();
                let bulk = |(field, text)| (Reply::Bulk(field), Reply::Bulk(text));
                Reply::Map(fields.map(bulk).collect())
            }
            (b"HDEL", [key, fields @ ..]) if !fields.is_empty() => {
                count(database.hash_delete(key, fields)?)
            }
            _ => return Err(refusal(name, arguments)),
        })
    }

    fn client(&mut self, client: u64) -> &mut Client {
        self.clients.entry(client).or_default()
    }

    fn database(&mut self, client: u64) -> &mut Database {
        let number = self.client(client).database;
        self.databases.entry(number).or_default()
    }

    /// Answers `HELLO`, with or without a version and the credential of the user that exists.
    fn greet(&mut self, client: u64, arguments: &[Bytes]) -> Result<Reply, Error> {
        if let [version, ..] = arguments {
            let no_version = "ERR Protocol version is not an integer or out of range";
            if integer(version).ok_or(no_version)? != 3 {
                return Err("NOPROTO unsupported protocol version".to_owned());
            }
        }
        match arguments.get(1..).unwrap_or_default() {
            [] => {}
            [auth, user, _] if auth.eq_ignore_ascii_case(b"AUTH") && user[..] == *b"default" => {}
            [auth, ..] if auth.eq_ignore_ascii_case(b"AUTH") => {
                let refused = "WRONGPASS invalid username-password pair or user is disabled.";
                return Err(refused.to_owned());
            }
            _ => return Err("ERR Syntax error in HELLO".to_owned()),
        }
        let asking = self.client(client);
        asking.has_greeted |= !arguments.is_empty();
        if !asking.has_greeted {
            return Err("ERR the model speaks RESP3 alone".to_owned());
        }
        let id = i64::try_from(client).unwrap_or(i64::MAX);
        let said = [
            ("server", Reply::text("redis")),
            ("version", Reply::text("7.0.15")),
            ("proto", Reply::Integer(3)),
            ("id", Reply::Integer(id)),
            ("mode", Reply::text("standalone")),
            ("role", Reply::text("master")),
            ("modules", Reply::Array(Vec::new())),
        ];
        Ok(Reply::Map(said.into_iter().map(|(name, value)| (Reply::text(name), value)).collect()))
    }

    fn select(&mut self, client: u64, number: &[u8]) -> Result<Reply, Error> {
        let number = integer(number).ok_or(NO_INTEGER)?;
        if !(0..DATABASES).contains(&number) {
            return Err("ERR DB index is out of range".to_owned());
        }
        self.client(client).database = number;
        Ok(Reply::ok())
    }

    /// Begins or ends subscriptions; each is confirmed with a push.
    fn subscribe(&mut self, client: u64, channels: &[Bytes], begins: bool, sent: &mut Sent) {
        let kind = if begins { "subscribe" } else { "unsubscribe" };
        let subscribed = &mut self.client(client).channels;
        for channel in channels {
            match begins {
                true => subscribed.insert(channel.clone()),
                false => subscribed.remove(channel),
            };
            let confirmed =
                vec![Reply::text(kind), Reply::Bulk(channel.clone()), count(subscribed.len())];
            sent.push((client, Reply::Push(confirmed)));
        }
    }

    fn teach(&mut self, text: &[u8]) -> Result<Reply, Error> {
        let script = Script::of(text).ok_or("ERR the model knows no such script")?;
        let name = digest(text);
        let reply = Reply::text(&name);
        self.scripts.insert(name, script);
        Ok(reply)
    }

    fn run(
        &mut self,
        now: Time,
        client: u64,
        (name, keys, rest): (&Bytes, &Bytes, &[Bytes]),
        sent: &mut Sent,
    ) -> Result<Reply, Error> {
        let unknown = "NOSCRIPT No matching script. Please use EVAL.";
        if name.len() != DIGEST {
            return Err(unknown.to_owned());
        }
        let keys = integer(keys).ok_or(NO_INTEGER)?;
        let keys = usize::try_from(keys).map_err(|_| "ERR Number of keys can't be negative")?;
        let too_many = "ERR Number of keys can't be greater than number of args";
        let (keys, arguments) = rest.split_at_checked(keys).ok_or(too_many)?;
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        let script = *self.scripts.get(&name).ok_or(unknown)?;
        let number = self.client(client).database;
        let Self { databases, clients, .. } = self;
        let database = databases.entry(number).or_default();
        let mut publish =
            |channel: &_, message: &_| send_to_subscribers(clients, channel, message, sent);
        let run = Run { database, now, keys, arguments, publish: &mut publish };
        script.run(run).map_err(|error| format!("{error} script: {name}"))
    }
}

/// Sends a message to each client that has subscribed.
fn send_to_subscribers(
    clients: &BTreeMap<u64, Client>,
    channel: &Bytes,
    message: &Bytes,
    sent: &mut Sent,
) {
    let subscribers = clients.iter().filter(|(_, client)| client.channels.contains(channel));
    let words = [channel, message].map(|word| Reply::Bulk(word.clone()));
    let push = [vec![Reply::text("message")], words.to_vec()].concat();
    sent.extend(subscribers.map(|(client, _)| (*client, Reply::Push(push.clone()))));
}

/// Answers `SET`, with the options `PX` and `NX`.
fn set(
    database: &mut Database,
    now: Time,
    (key, text): (&Bytes, &Bytes),
    options: &[Bytes],
) -> Result<Reply, Error> {
    let (mut lives, mut is_new, mut options) = (None, false, options.iter());
    while let Some(option) = options.next() {
        match option.to_ascii_uppercase().as_slice() {
            b"NX" => is_new = true,
            b"PX" if lives.is_none() => lives = Some(options.next().ok_or("ERR syntax error")?),
            _ => return Err("ERR syntax error".to_owned()),
        }
    }
    let expires = lives.map(|lives| expiry(now, lives)).transpose()?;
    if is_new && database.has(key) {
        return Ok(Reply::Null);
    }
    database.set(key, text, expires);
    Ok(Reply::ok())
}

fn count(number: usize) -> Reply {
    Reply::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}

/// The commands that are known.
const COMMANDS: [&str; 14] = [
    "HELLO",
    "PING",
    "SELECT",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
    "PUBLISH",
    "SCRIPT",
    "EVALSHA",
    "GET",
    "SET",
    "DEL",
    "PEXPIRE",
    "PTTL",
    "HDEL",
];

/// Why a command is not done: its arguments, or its name.
fn refusal(name: &[u8], arguments: &[Bytes]) -> Error {
    let name = String::from_utf8_lossy(name);
    if COMMANDS.contains(&&*name) {
        let name = name.to_ascii_lowercase();
        return format!("ERR wrong number of arguments for '{name}' command");
    }
    let first = arguments.first().map(|word| String::from_utf8_lossy(word)).unwrap_or_default();
    format!("ERR unknown command '{name}', with args beginning with: '{first}'")
}
