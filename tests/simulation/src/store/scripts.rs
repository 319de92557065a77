//! The scripts of the gateway, line by line as in `crates/cluster/src/scripts`. Their
//! numbers are doubles, as in Lua.

use bytes::Bytes;

use super::database::{Database, Error, Time, expiry};
use super::resp::Reply;

/// A script of the gateway.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Script {
    Take,
    Beat,
    ChangeLogin,
    ReleaseLogin,
    Terminate,
    KeepRollback,
}

/// The scripts, and their texts.
pub const TEXTS: [(Script, &str); 6] = [
    (Script::Take, include_str!("../../../../crates/cluster/src/scripts/take.lua")),
    (Script::Beat, include_str!("../../../../crates/cluster/src/scripts/beat.lua")),
    (Script::ChangeLogin, include_str!("../../../../crates/cluster/src/scripts/change_login.lua")),
    (
        Script::ReleaseLogin,
        include_str!("../../../../crates/cluster/src/scripts/release_login.lua"),
    ),
    (Script::Terminate, include_str!("../../../../crates/cluster/src/scripts/terminate.lua")),
    (
        Script::KeepRollback,
        include_str!("../../../../crates/cluster/src/scripts/keep_rollback.lua"),
    ),
];

/// Returns the name that a server gives to a text: its SHA-1, in lower-case hexadecimal digits.
pub fn digest(text: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One run of a script.
pub struct Run<'a> {
    pub database: &'a mut Database,
    /// Stands still while it runs.
    pub now: Time,
    pub keys: &'a [Bytes],
    pub arguments: &'a [Bytes],
    /// Sends a message to a channel.
    pub publish: &'a mut dyn FnMut(&Bytes, &Bytes),
}

impl Script {
    /// Returns the script with this text.
    pub fn of(text: &[u8]) -> Option<Self> {
        TEXTS.into_iter().find(|(_, known)| known.as_bytes() == text).map(|(script, _)| script)
    }

    /// # Errors
    /// The error of a command; effects of earlier commands of the script stay.
    pub fn run(self, mut run: Run<'_>) -> Result<Reply, Error> {
        match self {
            Self::Take => run.take(),
            Self::Beat => run.beat(),
            Self::ChangeLogin => run.change_login(),
            Self::ReleaseLogin => run.release_login(),
            Self::Terminate => run.terminate(),
            Self::KeepRollback => run.keep_rollback(),
        }
    }
}

/// Ticks of 125 ns in a second, and the second from which they are counted.
const TICKS: f64 = 8e6;
const BEGIN: f64 = 1_767_225_600.0;

impl<'a> Run<'a> {
    fn key(&self, index: usize) -> Result<&'a Bytes, Error> {
        self.keys.get(index).ok_or_else(|| missing("KEYS", index))
    }

    fn argument(&self, index: usize) -> Result<&'a Bytes, Error> {
        self.arguments.get(index).ok_or_else(|| missing("ARGV", index))
    }

    fn number(&self, index: usize) -> Result<f64, Error> {
        number(self.argument(index)?).ok_or_else(|| missing("a number in ARGV", index))
    }

    fn take(&mut self) -> Result<Reply, Error> {
        if self.keys.is_empty() {
            return Err("ERR Wrong number of args calling Redis command from script".to_owned());
        }
        let (seconds, micros) = (self.now.as_secs() as f64, f64::from(self.now.subsec_micros()));
        let now = (seconds - BEGIN) * TICKS + micros * 8.0;
        let (mut arrivals, mut taken) = (Vec::new(), Vec::new());
        let (mut empty, mut wait) = (0, 0.0);
        // As for MGET, what is no text is not there.
        let stored = self.keys.iter().map(|key| self.database.get(key).ok().flatten());
        let stored: Vec<_> = stored.collect();
        for (index, (key, stored)) in self.keys.iter().zip(stored).enumerate() {
            let [interval, burst, wanted] = [0, 1, 2].map(|offset| self.number(3 * index + offset));
            let (interval, burst, wanted) = (interval?, burst?, wanted?);
            let full = now + burst * interval;
            let stored = stored.and_then(|text| number(&text)).unwrap_or(now);
            if stored > full {
                self.keep(key, full, full - now)?;
            }
            let arrival = now.max(stored.min(full));
            let free = ((full - arrival) / interval).floor();
            if free < 1.0 && arrival + interval - full > wait {
                (empty, wait) = (index + 1, arrival + interval - full);
            }
            taken.push(wanted.min(free));
            arrivals.push(arrival + wanted.min(free) * interval);
        }
        if empty > 0 {
            let index = i64::try_from(empty).unwrap_or(i64::MAX);
            return Ok(Reply::Array(vec![Reply::Integer(-index), Reply::Integer(wait as i64)]));
        }
        for (key, arrival) in self.keys.iter().zip(arrivals) {
            self.keep(key, arrival, arrival - now)?;
        }
        Ok(Reply::Array(taken.into_iter().map(|cells| Reply::Integer(cells as i64)).collect()))
    }

    /// Keeps the theoretical arrival time of a bucket until it is full, in `ticks`.
    fn keep(&mut self, key: &Bytes, arrival: f64, ticks: f64) -> Result<(), Error> {
        let lives = (ticks / 8000.0).ceil() + 1.0;
        let expires = expiry(self.now, format!("{lives:.0}").as_bytes())?;
        self.database.set(key, &format!("{arrival:.0}").into(), Some(expires));
        Ok(())
    }

    fn beat(&mut self) -> Result<Reply, Error> {
        let now = self.now.as_millis() as f64;
        let patience = number(self.argument(2)?);
        let (replicas, own) = (self.key(0)?, self.argument(0)?);
        let told = [format!("{now:.0} ").as_bytes(), self.argument(1)?].concat();
        self.database.hash_set(replicas, own, told.into())?;
        self.database.expire(self.now, replicas, self.argument(2)?)?;
        let patience = patience.ok_or_else(|| missing("a number in ARGV", 2))?;
        let mut alive = Vec::new();
        for (id, text) in self.database.hash_all(replicas)? {
            let (at, told) = heard(&text).map_or((0.0, None), |(at, told)| (at, Some(told)));
            let silent = now - at;
            if silent.abs() > patience {
                self.database.hash_delete(replicas, &[id])?;
            } else {
                let mut replica = vec![Reply::Bulk(id), Reply::Integer(silent.max(0.0) as i64)];
                replica.extend(told.map(Reply::Bulk));
                alive.push(Reply::Array(replica));
            }
        }
        let (last, count) = (self.argument(3)?, self.argument(4)?);
        let news = self.database.stream_read(self.key(1)?, last, count)?;
        Ok(Reply::Array(vec![Reply::Array(alive), Reply::Array(news)]))
    }

    fn change_login(&mut self) -> Result<Reply, Error> {
        if self.database.get(self.key(0)?)?.as_ref() != self.arguments.first() {
            return Ok(Reply::Integer(0));
        }
        match self.arguments.get(3) {
            Some(sealed) => {
                let expires = expiry(self.now, self.argument(4)?)?;
                self.database.set(self.key(1)?, sealed, Some(expires));
            }
            None => {
                self.database.delete(&[self.key(1)?.clone()]);
            }
        }
        let (channel, upstream) = (self.argument(1)?, self.argument(2)?);
        (self.publish)(channel, upstream);
        Ok(Reply::Integer(1))
    }

    fn release_login(&mut self) -> Result<Reply, Error> {
        let lock = self.key(0)?;
        let holder = self.database.get(lock)?;
        if holder.is_some() && holder.as_ref() == self.arguments.first() {
            self.database.delete(std::slice::from_ref(lock));
        }
        Ok(Reply::Integer(1))
    }

    fn terminate(&mut self) -> Result<Reply, Error> {
        let stream = self.key(0)?;
        for session in self.arguments.iter().skip(2) {
            let entry = (&Bytes::from_static(b"s"), session);
            self.database.stream_add(self.now, stream, self.argument(0)?, entry)?;
        }
        let lives = self.argument(1)?;
        let is_there = self.database.expire(self.now, stream, lives)?;
        Ok(Reply::Integer(i64::from(is_there)))
    }

    fn keep_rollback(&mut self) -> Result<Reply, Error> {
        let (states, rollout) = (self.key(0)?, self.argument(0)?);
        let kept = self.database.hash_all(states)?.into_iter().find(|(name, _)| name == rollout);
        let changed = kept.and_then(|(_, state)| heard(&state)).map_or(-1.0, |(at, _)| at);
        if self.number(1)? >= changed {
            let state = [self.argument(1)?, &b" "[..], self.argument(2)?].concat();
            self.database.hash_set(states, rollout, state.into())?;
        }
        Ok(Reply::Null)
    }
}

/// Splits the text of a replica, or the state of a rollout, from its time.
fn heard(text: &Bytes) -> Option<(f64, Bytes)> {
    let space = text.iter().position(|byte| *byte == b' ')?;
    let is_time = space > 0 && text[..space].iter().all(u8::is_ascii_digit);
    is_time.then(|| Some((number(&text[..space])?, text.slice(space + 1..))))?
}

/// Reads a decimal number, as `tonumber`.
fn number(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

fn missing(what: &str, index: usize) -> Error {
    format!("ERR user_script: {what}[{}] is missing", index + 1)
}
