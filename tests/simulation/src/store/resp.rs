//! The protocol of the store: requests as arrays of bulk strings, and replies in RESP3.

use bytes::{Buf, Bytes, BytesMut};

/// A reply, or a push.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Simple(String),
    /// A code, such as `ERR`, and a text.
    Error(String),
    Integer(i64),
    Bulk(Bytes),
    Null,
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    /// A reply to no request: a message of a channel. Confirmations of subscriptions look the same.
    Push(Vec<Reply>),
}

impl Reply {
    pub fn ok() -> Self {
        Self::Simple("OK".to_owned())
    }

    pub fn text(text: &str) -> Self {
        Self::Bulk(Bytes::copy_from_slice(text.as_bytes()))
    }

    /// Returns the bytes of a reply.
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::new();
        self.write(&mut bytes);
        bytes.into()
    }

    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Simple(text) => write_line(to, '+', text),
            Self::Error(text) => write_line(to, '-', text),
            Self::Integer(number) => write_line(to, ':', number),
            Self::Bulk(bytes) => {
                write_line(to, '$', bytes.len());
                to.extend_from_slice(bytes);
                to.extend_from_slice(b"\r\n");
            }
            Self::Null => write_line(to, '_', ""),
            Self::Array(items) => write_all(to, '*', items),
            Self::Push(items) => write_all(to, '>', items),
            Self::Map(entries) => {
                write_line(to, '%', entries.len());
                for (name, value) in entries {
                    name.write(to);
                    value.write(to);
                }
            }
        }
    }
}

fn write_line(to: &mut Vec<u8>, kind: char, line: impl ToString) {
    // No line break gets into a line, whatever a request has had.
    let line = line.to_string().replace(['\r', '\n'], " ");
    to.extend_from_slice(format!("{kind}{line}\r\n").as_bytes());
}

fn write_all(to: &mut Vec<u8>, kind: char, items: &[Reply]) {
    write_line(to, kind, items.len());
    items.iter().for_each(|item| item.write(to));
}

/// Returns the bytes of a request.
pub fn request(words: &[Bytes]) -> Bytes {
    Reply::Array(words.iter().cloned().map(Reply::Bulk).collect()).encode()
}

/// The requests of one connection, as their bytes arrive.
#[derive(Default)]
pub struct Requests {
    buffer: BytesMut,
}

/// Bytes that are no request; what follows them has no meaning.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Malformed(pub &'static str);

/// Most words of one request.
const WORDS: usize = 1 << 16;

/// The longest word, in bytes; all words of a request together have not more either.
const LONGEST: usize = 64 << 20;

/// The longest line that says how many words or bytes follow, with its end.
const LINE: usize = 32;

impl Requests {
    /// Takes bytes that have arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next request; `None` until all of it has arrived. A request without words is
    /// skipped.
    ///
    /// # Errors
    /// [`Malformed`]. Commands in a line of their own are refused, too.
    pub fn take(&mut self) -> Result<Option<Vec<Bytes>>, Malformed> {
        loop {
            let Some((ends, length)) = scan(&self.buffer)? else {
                return Ok(None);
            };
            let mut request = self.buffer.split_to(length).freeze();
            let mut at = 0;
            let word = |(start, end): (usize, usize)| {
                request.advance(start - at);
                at = end;
                request.split_to(end - start)
            };
            let words: Vec<_> = ends.into_iter().map(word).collect();
            if !words.is_empty() {
                return Ok(Some(words));
            }
        }
    }
}

/// Where the words of a request are, and where it ends.
type Layout = (Vec<(usize, usize)>, usize);

/// Reads the layout of the first request; `None` if it is not complete.
fn scan(bytes: &[u8]) -> Result<Option<Layout>, Malformed> {
    let Some((count, mut at)) = number(bytes, 0, b'*')? else {
        return Ok(None);
    };
    let count = usize::try_from(count).unwrap_or(0);
    if count > WORDS {
        return Err(Malformed("invalid multibulk length"));
    }
    let (mut words, mut total) = (Vec::new(), 0);
    while words.len() < count {
        let Some((length, start)) = number(bytes, at, b'$')? else {
            return Ok(None);
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        total = length.saturating_add(total);
        if total > LONGEST {
            return Err(Malformed("invalid bulk length"));
        }
        let end = start + length;
        match bytes.get(end..end + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Err(Malformed("a bulk string is longer than it says")),
            None => return Ok(None),
        }
        words.push((start, end));
        at = end + 2;
    }
    Ok(Some((words, at)))
}

/// Reads the number of a line of this kind, and returns what follows the line; `None` if it is not
/// complete.
fn number(bytes: &[u8], at: usize, kind: u8) -> Result<Option<(i64, usize)>, Malformed> {
    let rest = bytes.get(at..).unwrap_or_default();
    let Some(first) = rest.first() else {
        return Ok(None);
    };
    if *first != kind {
        return Err(Malformed("expected an array of bulk strings"));
    }
    let line = &rest[..rest.len().min(LINE)];
    let Some(end) = line.windows(2).position(|pair| pair == b"\r\n") else {
        let is_over = line.len() == LINE;
        return if is_over { Err(Malformed("too big count string")) } else { Ok(None) };
    };
    let number = integer(&line[1..end]).ok_or(Malformed("invalid length"))?;
    Ok(Some((number, at + end + 2)))
}

/// Reads an integer as the store does: no plus sign, no leading zeros, no spaces.
pub fn integer(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok().filter(|number: &i64| number.to_string() == text)
}
