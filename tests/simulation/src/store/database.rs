//! The keys of one database of the store, and when they expire.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::resp::{Reply, integer};
use super::stream::{Id, Stream};

/// A time since the Unix epoch.
pub type Time = Duration;

/// The text of an error reply, which begins with its code.
pub type Error = String;

/// The keys of one database.
#[derive(Clone, Debug, Default)]
pub struct Database(BTreeMap<Bytes, Key>);

#[derive(Clone, Debug)]
struct Key {
    value: Value,
    /// Milliseconds since the Unix epoch after which it is no longer there.
    expires: Option<i64>,
}

#[derive(Clone, Debug)]
enum Value {
    Text(Bytes),
    Hash(BTreeMap<Bytes, Bytes>),
    Stream(Stream),
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
pub const NO_INTEGER: &str = "ERR value is not an integer or out of range";

impl Database {
    /// Forgets the keys that have expired.
    pub fn expire_all(&mut self, now: Time) {
        let now = millis(now);
        self.0.retain(|_, key| key.expires.is_none_or(|expires| now <= expires));
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        match self.0.get(key).map(|key| &key.value) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text.clone())),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    pub fn has(&self, key: &[u8]) -> bool {
        self.0.contains_key(key)
    }

    /// Sets a key until a time ([`expiry`]), or for ever; what it was before is gone.
    pub fn set(&mut self, key: &Bytes, text: &Bytes, expires: Option<i64>) {
        self.0.insert(key.clone(), Key { value: Value::Text(text.clone()), expires });
    }

    /// Returns how many of the keys there were.
    pub fn delete(&mut self, keys: &[Bytes]) -> usize {
        keys.iter().filter(|key| self.0.remove(&key[..]).is_some()).count()
    }

    /// Lets a key expire after milliseconds; at once if there are none. Returns whether there is
    /// such a key.
    pub fn expire(&mut self, now: Time, key: &Bytes, lives: &[u8]) -> Result<bool, Error> {
        let lives = integer(lives).ok_or(NO_INTEGER)?;
        let expires = millis(now).checked_add(lives);
        let expires = expires.ok_or("ERR invalid expire time in 'pexpire' command")?;
        let Some(found) = self.0.get_mut(key) else {
            return Ok(false);
        };
        found.expires = Some(expires);
        if lives <= 0 {
            self.0.remove(key);
        }
        Ok(true)
    }

    /// Returns the milliseconds for which a key lives; -1 for ever, and -2 if there is none.
    pub fn lives(&self, now: Time, key: &[u8]) -> i64 {
        match self.0.get(key) {
            None => -2,
            Some(key) => key.expires.map_or(-1, |expires| (expires - millis(now)).max(0)),
        }
    }

    /// Returns a hash, which is created.
    fn hash(&mut self, key: &Bytes) -> Result<&mut BTreeMap<Bytes, Bytes>, Error> {
        let new = || Key { value: Value::Hash(BTreeMap::new()), expires: None };
        match &mut self.0.entry(key.clone()).or_insert_with(new).value {
            Value::Hash(fields) => Ok(fields),
            _ => Err(WRONG_TYPE.to_owned()),
        }
    }

    pub fn hash_set(&mut self, key: &Bytes, field: &Bytes, value: Bytes) -> Result<(), Error> {
        self.hash(key)?.insert(field.clone(), value);
        Ok(())
    }

    /// Returns the fields of a hash. A server has them in any order.
    pub fn hash_all(&mut self, key: &Bytes) -> Result<Vec<(Bytes, Bytes)>, Error> {
        let fields = self.hash(key)?.clone().into_iter().collect();
        self.drop_empty(key);
        Ok(fields)
    }

    /// Returns how many of the fields there were.
    pub fn hash_delete(&mut self, key: &Bytes, fields: &[Bytes]) -> Result<usize, Error> {
        let hash = self.hash(key)?;
        let deleted = fields.iter().filter(|field| hash.remove(&field[..]).is_some()).count();
        self.drop_empty(key);
        Ok(deleted)
    }

    /// A hash without fields is no key.
    fn drop_empty(&mut self, key: &Bytes) {
        let value = self.0.get(key).map(|key| &key.value);
        if matches!(value, Some(Value::Hash(fields)) if fields.is_empty()) {
            self.0.remove(key);
        }
    }

    /// Adds an entry with one field to a stream, which is created, and keeps about `most` entries.
    pub fn stream_add(
        &mut self,
        now: Time,
        key: &Bytes,
        most: &[u8],
        (field, value): (&Bytes, &Bytes),
    ) -> Result<(), Error> {
        let most = integer(most).ok_or(NO_INTEGER)?;
        let most = usize::try_from(most).map_err(|_| "ERR The MAXLEN argument must be >= 0.")?;
        let new = || Key { value: Value::Stream(Stream::default()), expires: None };
        match &mut self.0.entry(key.clone()).or_insert_with(new).value {
            Value::Stream(stream) => {
                stream.add(millis(now).unsigned_abs(), field, value, most);
                Ok(())
            }
            _ => Err(WRONG_TYPE.to_owned()),
        }
    }

    /// Returns the entries of a stream after `id`, at most `count`; all for 0 and less.
    pub fn stream_read(&self, key: &[u8], id: &[u8], count: &[u8]) -> Result<Vec<Reply>, Error> {
        let count = integer(count).ok_or(NO_INTEGER)?;
        let none = Stream::default();
        let stream = match self.0.get(key).map(|key| &key.value) {
            None => &none,
            Some(Value::Stream(stream)) => stream,
            Some(_) => return Err(WRONG_TYPE.to_owned()),
        };
        let invalid = "ERR Invalid stream ID specified as stream command argument";
        let id = Id::parse(id).ok_or(invalid)?;
        let entries = stream.after(id, usize::try_from(count).unwrap_or(0));
        let reply = |entry: &super::stream::Entry| {
            let fields = [&entry.field, &entry.value].map(|word| Reply::Bulk(word.clone()));
            Reply::Array(vec![Reply::text(&entry.id.text()), Reply::Array(fields.to_vec())])
        };
        Ok(entries.map(reply).collect())
    }
}

/// Returns when a key expires that is set for milliseconds.
pub fn expiry(now: Time, lives: &[u8]) -> Result<i64, Error> {
    let lives = integer(lives).ok_or(NO_INTEGER)?;
    let expires = millis(now).checked_add(lives).filter(|_| lives > 0);
    Ok(expires.ok_or("ERR invalid expire time in 'set' command")?)
}

/// Whole milliseconds of a time.
pub fn millis(time: Time) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
