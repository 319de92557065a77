//! Questions that one replica asks another about its audit log and its usage, so that one answer
//! covers the cluster.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::Audit;
use crate::search::{self, Find, LogEntry, SearchResult};
use crate::tail::Position;
use crate::usage::{DailyUses, GatewayUsage, Query, Report, UsagePart, UsedPrompts};
use base::platform::blocking;

/// The audit log and the usage of one gateway.
#[derive(Clone)]
pub struct Evidence {
    pub audit: Audit,
    pub usage: Arc<GatewayUsage>,
}

/// A question about the evidence of one gateway.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Question {
    Usage(Query),
    /// The prompts that were used since a time.
    Used {
        from: SystemTime,
    },
    /// The uses of prompts on each day of the last week.
    Daily {
        prompts: Vec<String>,
    },
    /// Entries before a position; `None`: the newest.
    Find {
        find: Box<Find>,
        limit: usize,
        before: Option<Position>,
    },
    /// A record by its number.
    Record {
        seq: u64,
    },
}

/// The answer to a [`Question`].
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    Usage(UsagePart),
    Used(UsedPrompts),
    Daily(DailyUses),
    /// `None`: there is no audit log.
    Found(Option<SearchResult>),
    Record(Option<Box<LogEntry>>),
    /// The reason why the replica has no answer.
    Failed(String),
}

/// The answers of replicas to one question.
#[derive(Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Answers {
    pub answered: Vec<ReplicaAnswer>,
    /// The replicas that gave no answer, with the reason.
    pub not_answered: Vec<String>,
}

/// The answer of one replica.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReplicaAnswer {
    /// The name of the replica; empty if it stands alone.
    pub replica: String,
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Map<String, serde_json::Value>"))]
    pub answer: Answer,
}

impl Answers {
    /// Adds the answer of a replica, or why there is none.
    pub fn add(&mut self, replica: String, answer: Result<Answer, String>) {
        match answer {
            Ok(Answer::Failed(why)) | Err(why) if replica.is_empty() => self.not_answered.push(why),
            Ok(Answer::Failed(why)) | Err(why) => {
                self.not_answered.push(format!("{replica}: {why}"));
            }
            Ok(answer) => self.answered.push(ReplicaAnswer { replica, answer }),
        }
    }

    /// Adds up the answers to [`Question::Usage`].
    pub fn report(self, query: &Query) -> Report {
        let Self { answered, not_answered } = self;
        let part = |own: ReplicaAnswer| match own.answer {
            Answer::Usage(part) => Some(part),
            _ => None,
        };
        let report = Report::of(answered.into_iter().filter_map(part).collect(), query);
        Report { partial: report.partial || !not_answered.is_empty(), not_answered, ..report }
    }

    /// Joins the answers to [`Question::Used`].
    pub fn used(self) -> UsedPrompts {
        let is_partial = !self.not_answered.is_empty();
        let mut all = UsedPrompts { is_partial, ..UsedPrompts::default() };
        for own in self.answered {
            if let Answer::Used(UsedPrompts { prompts, is_partial }) = own.answer {
                all.prompts.extend(prompts);
                all.is_partial |= is_partial;
            }
        }
        all
    }

    /// Adds up the answers to [`Question::Daily`].
    pub fn daily(self) -> DailyUses {
        let is_partial = !self.not_answered.is_empty();
        let mut all = DailyUses { is_partial, ..DailyUses::default() };
        for own in self.answered {
            if let Answer::Daily(daily) = own.answer {
                all.merge(&daily);
            }
        }
        all
    }

    /// Returns the entries that each replica found, with its name: the answers to
    /// [`Question::Find`].
    pub fn found(&self) -> impl Iterator<Item = (&str, &SearchResult)> {
        self.answered.iter().filter_map(|own| match &own.answer {
            Answer::Found(Some(found)) => Some((own.replica.as_str(), found)),
            _ => None,
        })
    }
}

/// Entries of one answer: a person reads less.
const MAX_ENTRIES: usize = 1_000;

impl Evidence {
    /// Answers a question from what can be read by `until`.
    pub async fn answer(&self, question: Question, until: Instant) -> Answer {
        match question {
            Question::Usage(query) => Answer::Usage(self.usage.part(query, until).await),
            Question::Used { from } => Answer::Used(self.usage.used(from, until).await),
            Question::Daily { prompts } => Answer::Daily(self.usage.daily(prompts, until).await),
            Question::Find { find, limit, before } => {
                let limit = limit.min(MAX_ENTRIES);
                let Some(path) = self.audit.path() else { return Answer::Found(None) };
                let found = blocking(move || search::find(&path, &find, limit, before, until));
                Answer::read(found.await.map(|found| found.map(|found| Answer::Found(Some(found)))))
            }
            Question::Record { seq } => {
                let Some(path) = self.audit.path() else { return Answer::Record(None) };
                let found = blocking(move || search::record(&path, seq, until));
                let record = |entry: Option<LogEntry>| Answer::Record(entry.map(Box::new));
                Answer::read(found.await.map(|found| found.map(record)))
            }
        }
    }

    /// Answers the question of another replica, in at most `limit` bytes.
    pub async fn answer_text(&self, question: &[u8], until: Instant, limit: usize) -> Vec<u8> {
        let mut answer = match serde_json::from_slice(question) {
            Ok(question) => self.answer(question, until).await,
            Err(error) => Answer::Failed(format!("it does not know the question: {error}")),
        };
        loop {
            let text = serde_json::to_vec(&answer).unwrap_or_default();
            if text.len() <= limit {
                return text;
            }
            if !answer.shorten() {
                answer = Answer::Failed("its answer is larger than cluster.relay_size".to_owned());
            }
        }
    }
}

impl Answer {
    fn read<E>(found: Result<io::Result<Self>, E>) -> Self {
        match found {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Self::Failed(format!("its audit log cannot be read: {error}")),
            Err(_) => Self::Failed("its audit log was not read".to_owned()),
        }
    }

    /// Leaves out the least important part, and marks the answer as incomplete. Returns whether the
    /// answer got shorter.
    fn shorten(&mut self) -> bool {
        match self {
            Self::Usage(part) => [2_000, 500, 100].into_iter().any(|keep| part.cut(keep)),
            Self::Used(used) => {
                let keep = used.prompts.len() / 2;
                used.prompts = std::mem::take(&mut used.prompts).into_iter().take(keep).collect();
                used.is_partial = true;
                keep > 0
            }
            Self::Found(Some(found)) => found.cut(found.entries.len() / 2),
            Self::Daily(_) | Self::Found(None) | Self::Record(_) | Self::Failed(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::record::AuditEvent;
    use config::Config;

    fn found(times: &[&str], next: Option<u64>) -> SearchResult {
        let entry = |time: &&str| LogEntry { time: (*time).to_owned(), ..LogEntry::default() };
        let place = |offset| Position { segment: 1, offset };
        SearchResult {
            entries: times.iter().map(entry).collect(),
            places: (0..times.len() as u64).map(|index| place(100 - index)).collect(),
            next: next.map(place),
            complete: next.is_none(),
            ..SearchResult::default()
        }
    }

    #[test]
    fn an_answer_that_is_too_long_is_shortened_and_can_go_on() {
        let mut answer = Answer::Found(Some(found(&["4", "3", "2", "1"], None)));
        assert!(answer.shorten());
        let Answer::Found(Some(short)) = &answer else { panic!("{answer:?}") };
        assert_eq!((short.entries.len(), short.complete), (2, false));
        assert_eq!(short.next, Some(Position { segment: 1, offset: 99 }));
        assert!(answer.shorten() && !answer.shorten(), "at least one entry stays");
        let prompts = ["a", "b", "c"].map(str::to_owned).into();
        let mut used = Answer::Used(UsedPrompts { prompts, is_partial: false });
        assert!(used.shorten());
        assert!(matches!(used, Answer::Used(UsedPrompts { is_partial: true, .. })));
    }

    #[test]
    fn pages_of_several_logs_have_each_entry_once_and_the_newest_first() {
        let logs = [("a", vec!["9", "7", "5", "3"]), ("b", vec!["8", "7", "1"]), ("c", vec![])];
        let mut before: Vec<Option<Position>> = vec![None; 3];
        let mut is_open = [true; 3];
        let mut seen = Vec::new();
        for _ in 0..9 {
            let page: Vec<_> = logs
                .iter()
                .enumerate()
                .filter(|(index, _)| is_open[*index])
                .map(|(index, (name, all))| {
                    // As a search in a log of these entries answers.
                    let skipped = match before[index] {
                        Some(Position { segment: 1, offset }) => 101 - offset as usize,
                        _ => 0,
                    };
                    let end = all.len().min(skipped + 2);
                    let mut own = found(&all[..end], (end < all.len()).then_some(101 - end as u64));
                    own.entries.drain(..skipped);
                    own.places.drain(..skipped);
                    (*name, before[index], own)
                })
                .collect();
            let asked: Vec<usize> = (0..3).filter(|index| is_open[*index]).collect();
            let page: Vec<_> = page.iter().map(|(name, at, own)| (*name, *at, own)).collect();
            let (entries, next) = SearchResult::merge(&page, 2);
            seen.extend(entries.into_iter().map(|entry| (entry.replica.unwrap(), entry.time)));
            for (index, next) in asked.into_iter().zip(next) {
                (is_open[index], before[index]) = (next.is_some(), next);
            }
        }
        let seen: Vec<String> = seen.iter().map(|(name, time)| format!("{name}{time}")).collect();
        assert_eq!(seen, ["a9", "b8", "a7", "b7", "a5", "a3", "b1"]);
    }

    #[tokio::test]
    async fn a_question_about_too_many_records_gets_a_part_of_them_and_where_it_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let toml = format!("[audit]\nkey = {{ value = \"{}=\" }}\n", "A".repeat(43));
        let config = Config::parse("gateway.toml", &toml, folder.path(), &[]).unwrap();
        let audit = Audit::open(config.audit.as_ref()).unwrap();
        for number in 0..MAX_ENTRIES as u64 + 200 {
            audit.note(AuditEvent::new("guard").number("number", number));
        }
        audit.close();
        let evidence = Evidence { audit, usage: Arc::default() };
        let find = Box::new(Find { event: Some("guard".into()), ..Find::default() });
        let question = Question::Find { find, limit: 100_000, before: None };
        let until = Instant::now() + Duration::from_secs(60);
        let Answer::Found(Some(found)) = evidence.answer(question.clone(), until).await else {
            panic!("an answer")
        };
        assert_eq!((found.entries.len(), found.complete), (MAX_ENTRIES, false));
        let question = serde_json::to_vec(&question).unwrap();
        let text = evidence.answer_text(&question, until, 32 << 10).await;
        assert!(text.len() <= 32 << 10, "{}", text.len());
        let Answer::Found(Some(part)) = serde_json::from_slice(&text).unwrap() else {
            panic!("an answer")
        };
        assert!(!part.entries.is_empty() && part.entries.len() < MAX_ENTRIES);
        assert!(part.next.is_some() && part.next != found.next, "it goes on behind the part");
    }

    #[tokio::test]
    async fn a_question_that_is_not_known_is_answered_with_the_reason() {
        let evidence = Evidence { audit: Audit::default(), usage: Arc::default() };
        let answer = evidence.answer_text(b"{\"later\":{}}", Instant::now(), 1 << 20).await;
        let answer: Answer = serde_json::from_slice(&answer).unwrap();
        assert!(matches!(answer, Answer::Failed(why) if why.contains("later")));
    }
}
