//! Compares the model with a real server: both get the same commands, drawn by a seed, and must
//! answer the same.
//!
//! The server runs in real time, so no answer may depend on a few milliseconds: what expires does
//! so within [`SHORT`], which is followed by a pause, or within [`LONG`]. A command that takes
//! longer, since the machine stood still, says nothing about the model: both begin again, empty.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;

use super::database::Time;
use super::model::Model;
use super::resp::{Reply, integer, request};
use super::scripts::{Script, TEXTS, digest};

/// Milliseconds.
const SHORT: &str = "5";
const LONG: &str = "100000";
const PAUSE: Duration = Duration::from_millis(12);

/// How far numbers of milliseconds and of ticks (125 ns) may be apart.
const MILLIS: i64 = 20;
const TICKS: i64 = 8_000 * MILLIS;

/// The name of a script that nobody has.
const NO_SCRIPT: &str = "0123456789abcdef0123456789abcdef01234567";

const STEPS: u32 = 5_000;

/// How long a command may take: what the model then stores is as near as the tolerance.
const MAX_STALL: Duration = Duration::from_millis(MILLIS.unsigned_abs());

/// The commands of a seed that may take longer.
const MAX_STALLS: u32 = 100;

/// The database that is emptied.
const DATABASE: &str = "9";

/// Compares the model with the server at `address`, whose scripts and database 9 are lost.
pub fn compare(address: &str) -> ExitCode {
    for seed in 0..4 {
        let compared = Comparison::begin(address, seed).and_then(Comparison::run);
        match compared {
            Ok(differences) if differences.is_empty() => {
                println!("seed {seed}: {STEPS} commands, and the same answers");
            }
            Ok(differences) => {
                differences.iter().for_each(|difference| println!("{difference}\n"));
                return ExitCode::FAILURE;
            }
            Err(error) => {
                println!("{address}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// A connection to the real server.
struct Real {
    output: TcpStream,
    input: BufReader<TcpStream>,
}

struct Comparison {
    address: String,
    rng: Rng,
    real: Real,
    model: Model,
    /// The last entries of the stream that were read, of the server and of the model.
    last: [Bytes; 2],
    /// Terminated sessions. Short ones fill a node of the stream by their number, and long ones by
    /// their bytes, in both cases whatever the numbers of the entries are, which differ by a
    /// millisecond at times.
    sessions: Vec<String>,
}

/// Before the first entry of a stream, of the server and of the model.
const NO_ENTRIES: [Bytes; 2] = [Bytes::from_static(b"0-0"), Bytes::from_static(b"0-0")];

/// The only client of the model.
const CLIENT: u64 = 1;

/// A command, as the server and the model get it, and what surrounds it.
struct Step {
    words: Vec<Bytes>,
    /// Whether a pause comes before and after it: it stores a time that is soon over, or may remove
    /// a stream, of which the next entry then gets another number in the same millisecond than in
    /// the next one.
    has_pause: bool,
    /// Numbers in the reply may differ by this.
    tolerance: i64,
    /// Whether it reads from the last entry on.
    is_beat: bool,
}

impl Comparison {
    fn begin(address: &str, seed: u64) -> io::Result<Self> {
        let (real, model) = both_empty(address)?;
        let sessions = match seed % 2 {
            0 => vec!["1".to_owned(), "session".to_owned()],
            _ => vec!["s".repeat(200)],
        };
        let (address, rng) = (address.to_owned(), Rng::with_seed(seed));
        Ok(Self { address, rng, real, model, last: NO_ENTRIES, sessions })
    }

    /// Goes on with both empty.
    fn begin_again(&mut self) -> io::Result<()> {
        (self.real, self.model) = both_empty(&self.address)?;
        self.last = NO_ENTRIES;
        Ok(())
    }

    /// Returns where they differ, at most a few times.
    fn run(mut self) -> io::Result<Vec<String>> {
        let (mut differences, mut stalls) = (Vec::new(), 0);
        for number in 0..STEPS {
            let step = self.draw();
            if step.has_pause {
                sleep(PAUSE);
            }
            let Some([real, model]) = self.ask(&step, number)? else {
                stalls += 1;
                if stalls > MAX_STALLS {
                    return Err(io::Error::other(format!("{stalls} commands took too long")));
                }
                self.begin_again()?;
                continue;
            };
            if step.has_pause {
                sleep(PAUSE);
            }
            let (real, model) = (canonical(real), canonical(model));
            if !is_near(&real, &model, step.tolerance) {
                let words: Vec<_> = step.words.iter().map(|w| &w[..w.len().min(60)]).collect();
                let words: Vec<_> = words.into_iter().map(String::from_utf8_lossy).collect();
                differences
                    .push(format!("{number} {words:?}\n  real  {real:?}\n  model {model:?}"));
            }
            if differences.len() >= 3 {
                break;
            }
        }
        Ok(differences)
    }

    /// Asks both, and returns what each of them has sent; `None` if the server took longer than
    /// [`MAX_STALL`], so that the time of the command is not known well enough.
    fn ask(&mut self, step: &Step, number: u32) -> io::Result<Option<[Vec<Reply>; 2]>> {
        let mut variants = [step.words.clone(), step.words.clone()];
        if step.is_beat {
            for (words, last) in variants.iter_mut().zip(&self.last) {
                words[8] = if words[8].is_empty() { last.clone() } else { words[8].clone() };
            }
        }
        let [to_real, to_model] = variants;
        // Replies after the time and before the answer of the `PING` belong to the command.
        let ping = [Bytes::from_static(b"PING"), format!("end-{number}").into()];
        let time = request(&words_of(&["TIME"]));
        let asked = [time.clone(), request(&to_real), request(&ping), time];
        self.real.output.write_all(&asked.concat())?;
        let now = self.real.read_time()?;
        let mut real = Vec::new();
        loop {
            match self.real.read()? {
                Reply::Bulk(end) if end == ping[1] => break,
                reply => real.push(reply),
            }
        }
        if self.real.read_time()?.saturating_sub(now) > MAX_STALL {
            return Ok(None);
        }
        let model = self.model.execute(now, CLIENT, &to_model);
        let model: Vec<_> = model.into_iter().map(|(_, reply)| reply).collect();
        if step.is_beat {
            for (last, replies) in self.last.iter_mut().zip([&real, &model]) {
                if let Some(entry) = last_entry(replies) {
                    *last = entry;
                }
            }
        }
        Ok(Some([real, model]))
    }

    fn draw(&mut self) -> Step {
        match self.rng.u8(..100) {
            0..30 => self.draw_plain(),
            30..40 => self.draw_channel(),
            40..43 => self.draw_refused(),
            43..48 => {
                let (_, text) = self.rng.choice(TEXTS).unwrap_or(TEXTS[0]);
                plain(&["SCRIPT", "LOAD", text])
            }
            48..63 => self.draw_take(),
            63..76 => self.draw_beat(),
            76..85 => self.draw_login(),
            85..92 => self.draw_rollback(),
            _ => self.draw_terminate(),
        }
    }

    fn one_of<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        texts[self.rng.usize(..texts.len())]
    }

    /// A key: mostly one that is meant for a kind of value.
    fn key(&mut self, kind: &str) -> String {
        let kinds = ["text", "lock", "login", "bucket", "replicas", "terminated"];
        let kind = if self.rng.u8(..) < 8 { self.one_of(&kinds) } else { kind };
        let number = if matches!(kind, "replicas" | "terminated") { 0 } else { self.rng.u8(..3) };
        format!("{{compared}}{kind}:{number}")
    }

    fn lives(&mut self) -> &'static str {
        self.one_of(&[LONG, LONG, LONG, SHORT, "0", "-7", "x", "9223372036854775807"])
    }

    fn draw_plain(&mut self) -> Step {
        let kind = self.one_of(&["text", "lock", "login", "bucket", "replicas", "terminated"]);
        let (key, lives) = (self.key(kind), self.lives());
        let text = self.one_of(&["a", "b", "9", "", "1e300", "-5", "99999999999999999"]);
        let texts = if matches!(kind, "replicas" | "terminated") { "text" } else { kind };
        let set_key = self.key(texts);
        let words: Vec<&str> = match self.rng.u8(..12) {
            0..3 => vec!["GET", &key],
            3 => vec!["SET", &set_key, text],
            4 => vec!["SET", &set_key, text, "PX", lives],
            5 => vec!["set", &set_key, text, "px", lives, "nx"],
            6 => vec!["SET", &set_key, text, "NX", "PX", lives],
            7 => vec!["DEL", &key, &set_key],
            8 => vec!["PEXPIRE", &key, lives],
            9 => vec!["HDEL", &key, "a", "b"],
            _ => vec!["PTTL", &key],
        };
        let tolerance = match words[0] {
            "PTTL" => MILLIS,
            // Of a bucket.
            "GET" => TICKS,
            _ => 0,
        };
        let removes = ["DEL", SHORT, "0", "-7"];
        let has_pause = removes.iter().any(|word| words.contains(word));
        Step { has_pause, tolerance, ..plain(&words) }
    }

    fn draw_channel(&mut self) -> Step {
        let channel = self.one_of(&["{compared}9:a", "{compared}9:b", "{compared}9:logins"]);
        let text = self.one_of(&["", "text", "\r\n"]);
        match self.rng.u8(..6) {
            0 => plain(&["SUBSCRIBE", channel]),
            1 => plain(&["SUBSCRIBE", channel, "{compared}9:a"]),
            2 => plain(&["UNSUBSCRIBE", channel]),
            3 => plain(&["PING"]),
            _ => plain(&["PUBLISH", channel, text]),
        }
    }

    fn draw_refused(&mut self) -> Step {
        let refused: [&[&str]; 16] = [
            &["GET"],
            &["SET", "a"],
            &["SET", "a", "b", "PX"],
            &["SET", "a", "b", "NONE"],
            &["UNKNOWN", "a"],
            &["SELECT", "99"],
            &["SELECT", "x"],
            &["EVALSHA", "0000", "0"],
            &["EVALSHA", "0000", "1"],
            &["EVALSHA", NO_SCRIPT, "0"],
            &["EVALSHA", NO_SCRIPT, "1"],
            &["EVALSHA", NO_SCRIPT, "-1", "a"],
            &["EVALSHA", NO_SCRIPT, "x"],
            &["HELLO", "4"],
            &["HELLO", "x"],
            &["HDEL", "a"],
        ];
        plain(refused[self.rng.usize(..refused.len())])
    }

    fn draw_take(&mut self) -> Step {
        let (mut keys, mut arguments) = (Vec::new(), Vec::new());
        // An hour, so that nothing fills meanwhile; or less than the pause.
        let is_short = self.rng.u8(..) < 64;
        let intervals: &[&str] = match is_short {
            true => &["1", "8", "8000"],
            false => &["28800000000", "86400000000"],
        };
        for _ in 0..self.rng.usize(1..4) {
            keys.push(self.key("bucket"));
            arguments.push(self.one_of(intervals));
            arguments.push(self.one_of(&["1", "2", "5"]));
            arguments.push(self.one_of(&["1", "1", "2", "100"]));
        }
        if is_short {
            // Another bucket than those that fill slowly.
            keys.iter_mut().for_each(|key| key.push_str(":short"));
        }
        Step { has_pause: is_short, tolerance: TICKS, ..script(Script::Take, &keys, &arguments) }
    }

    fn draw_beat(&mut self) -> Step {
        let keys = [self.key("replicas"), self.key("terminated")];
        let id = self.one_of(&["a", "b", "c", "d"]);
        let told = self.one_of(&["", "told", "told twice", "1 \n2"]);
        let patience = self.one_of(&[LONG, LONG, LONG, LONG, LONG, SHORT, "x"]);
        // Empty: from the last one on.
        let last = self.one_of(&["", "", "", "0-0", "0", "x"]);
        let count = self.one_of(&["1", "7", "250", "0", "-1", "x"]);
        let beat = script(Script::Beat, &keys, &[id, told, patience, last, count]);
        Step { has_pause: patience == SHORT, tolerance: MILLIS, is_beat: true, ..beat }
    }

    fn draw_login(&mut self) -> Step {
        let (lock, login) = (self.key("lock"), self.key("login"));
        let token = self.one_of(&["a", "b", "9"]);
        if self.rng.bool() {
            return script(Script::ReleaseLogin, &[lock], &[token]);
        }
        let mut arguments = vec![token, "{compared}9:logins", "upstream"];
        let lives = self.lives();
        if self.rng.bool() {
            arguments.extend(["sealed", lives]);
        }
        let change = script(Script::ChangeLogin, &[lock, login], &arguments);
        Step { has_pause: arguments.contains(&SHORT), ..change }
    }

    fn draw_rollback(&mut self) -> Step {
        let key = self.one_of(&["rollbacks", "rollbacks", "rollbacks", "text:0"]);
        let key = format!("{{compared}}{key}");
        if self.rng.bool() {
            return plain(&["HGETALL", &key]);
        }
        let rollout = self.one_of(&["slow", "quick"]);
        let changed = self.one_of(&["0", "9", "10", "1780000000", "x"]);
        let state = self.one_of(&["", "sealed", "1 2"]);
        script(Script::KeepRollback, &[key], &[rollout, changed, state])
    }

    fn draw_terminate(&mut self) -> Step {
        let most = self.one_of(&["0", "1", "50", "100", "150", "250", "-1", "x"]);
        let most = if self.rng.u8(..) < 200 { "150" } else { most };
        let lives = self.one_of(&[LONG, LONG, LONG, LONG, LONG, LONG, LONG, SHORT, "0", "x"]);
        let mut arguments = vec![most.to_owned(), lives.to_owned()];
        for _ in 0..self.rng.usize(..60) {
            arguments.push(self.sessions[self.rng.usize(..self.sessions.len())].clone());
        }
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let terminate = script(Script::Terminate, &[self.key("terminated")], &arguments);
        Step { has_pause: [SHORT, "0"].contains(&lives), ..terminate }
    }
}

fn plain(words: &[&str]) -> Step {
    Step { words: words_of(words), has_pause: false, tolerance: 0, is_beat: false }
}

fn script(script: Script, keys: &[String], arguments: &[&str]) -> Step {
    let text = TEXTS.iter().find(|(known, _)| *known == script).map_or("", |(_, text)| text);
    let (name, count) = (digest(text.as_bytes()), keys.len().to_string());
    let mut words = vec!["EVALSHA", &name, &count];
    words.extend(keys.iter().map(String::as_str));
    words.extend(arguments);
    plain(&words)
}

fn words_of(words: &[&str]) -> Vec<Bytes> {
    words.iter().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect()
}

/// Connects to the server, and empties its database and its scripts; the model is new.
fn both_empty(address: &str) -> io::Result<(Real, Model)> {
    let output = TcpStream::connect(address)?;
    output.set_read_timeout(Some(Duration::from_secs(5)))?;
    output.set_nodelay(true)?;
    let mut real = Real { input: BufReader::new(output.try_clone()?), output };
    for words in [&["HELLO", "3"][..], &["SELECT", DATABASE], &["FLUSHDB"], &["SCRIPT", "FLUSH"]] {
        real.output.write_all(&request(&words_of(words)))?;
        real.read()?;
    }
    let mut model = Model::default();
    model.connect(CLIENT);
    model.execute(Time::ZERO, CLIENT, &words_of(&["HELLO", "3"]));
    model.execute(Time::ZERO, CLIENT, &words_of(&["SELECT", DATABASE]));
    Ok((real, model))
}

/// Reads the reply to `TIME`.
fn time_of(reply: &Reply) -> Option<Time> {
    let Reply::Array(parts) = reply else { return None };
    let part = |index: usize| match parts.get(index)? {
        Reply::Bulk(text) => u64::try_from(integer(text)?).ok(),
        _ => None,
    };
    Some(Duration::from_secs(part(0)?) + Duration::from_micros(part(1)?))
}

impl Real {
    /// Reads the reply to `TIME`, which is the time of the command behind it but for some
    /// microseconds.
    fn read_time(&mut self) -> io::Result<Time> {
        Ok(time_of(&self.read()?).unwrap_or_default())
    }

    /// Reads a reply or a push.
    fn read(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.input.read_line(&mut line)?;
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, format!("{line:?}"));
        let (kind, rest) = line.trim_end().split_at_checked(1).ok_or_else(invalid)?;
        let number = || rest.parse::<i64>().map_err(|_| invalid());
        Ok(match kind {
            "+" => Reply::Simple(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(number()?),
            "_" => Reply::Null,
            "$" => {
                let mut bytes = vec![0; usize::try_from(number()?).map_err(|_| invalid())? + 2];
                self.input.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Reply::Bulk(bytes.into())
            }
            "*" => Reply::Array(self.read_all(number()?)?),
            ">" => Reply::Push(self.read_all(number()?)?),
            "%" => {
                let words = self.read_all(number()? * 2)?;
                Reply::Map(words.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
            }
            _ => return Err(invalid()),
        })
    }

    fn read_all(&mut self, count: i64) -> io::Result<Vec<Reply>> {
        (0..count).map(|_| self.read()).collect()
    }
}

/// Returns the number of the last entry that a beat has answered.
fn last_entry(replies: &[Reply]) -> Option<Bytes> {
    let Some(Reply::Array(answer)) = replies.last() else { return None };
    let Some(Reply::Array(news)) = answer.get(1) else { return None };
    let Some(Reply::Array(entry)) = news.last() else { return None };
    match entry.first() {
        Some(Reply::Bulk(id)) => Some(id.clone()),
        _ => None,
    }
}

/// Leaves out what may differ: the rest of an error, the order of replicas and fields, and the
/// numbers of entries.
fn canonical(replies: Vec<Reply>) -> Vec<Reply> {
    replies.into_iter().map(canonical_reply).collect()
}

fn canonical_reply(reply: Reply) -> Reply {
    match reply {
        Reply::Error(text) => {
            let shown = text.split(" script: ").next().unwrap_or_default();
            let of_script = ["user_script", "Wrong number of args"];
            let is_of_script = of_script.iter().any(|part| shown.contains(part));
            let shown = if is_of_script { "ERR in a script" } else { shown };
            let shown = shown.split(", with args").next().unwrap_or_default();
            Reply::Error(shown.to_owned())
        }
        Reply::Array(mut items) => {
            if let [Reply::Array(replicas), Reply::Array(entries)] = &mut items[..] {
                replicas.sort_by_key(|replica| format!("{replica:?}"));
                entries.iter_mut().for_each(|entry| {
                    if let Reply::Array(words) = entry {
                        words.remove(0);
                    }
                });
            }
            Reply::Array(items)
        }
        Reply::Map(mut fields) => {
            fields.sort_by_key(|field| format!("{field:?}"));
            Reply::Map(fields)
        }
        reply => reply,
    }
}

fn is_near(real: &[Reply], model: &[Reply], tolerance: i64) -> bool {
    let is_near = |(real, model): (&Reply, &Reply)| match (real, model) {
        (Reply::Array(real), Reply::Array(model)) => is_near(real, model, tolerance),
        // Small and negative numbers are counts and answers of their own.
        (Reply::Integer(real), Reply::Integer(model)) if *real > 100 || tolerance == MILLIS => {
            real == model || (*real.min(model) >= 0 && (real - model).abs() <= tolerance)
        }
        (Reply::Bulk(real), Reply::Bulk(model)) if real != model && tolerance == TICKS => {
            let [real, model] = [real, model].map(|text| integer(text).unwrap_or(i64::MIN));
            real > TICKS && real.abs_diff(model) <= TICKS.unsigned_abs()
        }
        _ => real == model,
    };
    real.len() == model.len() && real.iter().zip(model).all(is_near)
}
