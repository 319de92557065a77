//! Usage and the audit log of all replicas: each answers for itself, and one answer is made of
//! theirs.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::state::AdminState;
use audit::question::{Answer, Answers, Evidence, Question};
use audit::search::{self, Find, LogEntry};
use audit::usage::{DailyUses, Query, Report, UsedPrompts};
use catalog::blocking::run_blocking;
use cluster::{ClusterMember, RelayError, Replica, ReplicaId};

/// A replica that lives, with its label in answers: its name, or `NAME/ID` where others have its
/// name, too.
type LabelledReplica = (String, ReplicaId);

fn labelled(replicas: &[Replica]) -> Vec<LabelledReplica> {
    let count = |name: &str| replicas.iter().filter(|other| other.presence.name == name).count();
    let label = |Replica { id, presence, .. }: &Replica| match count(&presence.name) {
        1 => (presence.name.clone(), *id),
        _ => (format!("{}/{id}", presence.name), *id),
    };
    replicas.iter().map(label).collect()
}

/// Returns the one replica whose label or id is `wanted`, or begins so as no other does.
fn chosen(replicas: Vec<LabelledReplica>, wanted: &str) -> Result<LabelledReplica, String> {
    let all = |is_meant: fn(&str, &str) -> bool| {
        let texts = |(label, id): &LabelledReplica| [label.clone(), id.to_string()];
        let own =
            |replica: &&LabelledReplica| texts(replica).iter().any(|text| is_meant(text, wanted));
        replicas.iter().filter(own).cloned().collect::<Vec<_>>()
    };
    let mut found = all(|text, wanted| text == wanted);
    if found.is_empty() {
        found = all(|text, wanted| text.starts_with(wanted));
    }
    let list = |replicas: &[LabelledReplica]| {
        replicas.iter().map(|(label, _)| label.as_str()).collect::<Vec<_>>().join(", ")
    };
    match found.as_slice() {
        [only] => Ok(only.clone()),
        [] => Err(format!(
            "{wanted}: no replica of this name lives; those that do: {}",
            list(&replicas)
        )),
        several => Err(format!("{wanted}: several replicas begin so: {}", list(several))),
    }
}

impl AdminState {
    /// Asks all live replicas, or only `replica`, the question that `question` returns for the
    /// label. A late replica is listed in `not_answered`. Other replicas have half of the time
    /// until `until`, so that a silent replica leaves time for further questions of a page.
    pub(super) async fn ask(
        &self,
        replica: Option<&str>,
        question: impl Fn(&str) -> Option<Question>,
        until: Instant,
    ) -> Answers {
        let own = Evidence { audit: self.audit.clone(), usage: self.usage.clone() };
        let mut answers = Answers::default();
        let Some(cluster) = &self.cluster else {
            if let Some(question) = question("") {
                answers.add(String::new(), Ok(own.answer(question, until).await));
            }
            return answers;
        };
        let mut wanted = labelled(&cluster.replicas());
        if let Some(name) = replica {
            match chosen(wanted, name) {
                Ok(only) => wanted = vec![only],
                Err(why) => {
                    answers.not_answered.push(why);
                    return answers;
                }
            }
        }
        let others_until = until - until.saturating_duration_since(Instant::now()) / 2;
        let mut asking = JoinSet::new();
        for (label, id) in wanted {
            let Some(question) = question(&label) else { continue };
            let (own, cluster) = (own.clone(), cluster.clone());
            asking.spawn(async move {
                let answer = if id == cluster.id() {
                    Ok(own.answer(question, until).await)
                } else {
                    ask_other(&cluster, id, &question, others_until).await
                };
                (label, answer)
            });
        }
        let mut all = asking.join_all().await;
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (label, answer) in all {
            answers.add(label, answer);
        }
        answers
    }

    /// Returns the latest entries of the log of this replica that are found within `time`, at most
    /// `limit`; empty if the log cannot be read, for which the page of the log gives the reason.
    pub(super) async fn latest(&self, find: Find, limit: usize, time: Duration) -> Vec<LogEntry> {
        let Some(path) = self.audit.path() else {
            return Vec::new();
        };
        let until = Instant::now() + time;
        let found = run_blocking(move || search::find(&path, &find, limit, None, until)).await;
        found.map(|found| found.entries).unwrap_or_default()
    }

    /// Counts the uses on all replicas, or on the one with a name.
    pub(super) async fn usage_report(
        &self,
        query: &Query,
        replica: Option<&str>,
        until: Instant,
    ) -> Report {
        let question = |_: &str| Some(Question::Usage(query.clone()));
        self.ask(replica, question, until).await.report(query)
    }

    /// Counts the uses of prompts on each day of the last week, on all replicas.
    pub(super) async fn daily_uses(&self, prompts: Vec<String>, until: Instant) -> DailyUses {
        let question = |_: &str| Some(Question::Daily { prompts: prompts.clone() });
        self.ask(None, question, until).await.daily()
    }

    /// Returns the prompts that were used on any replica since a time.
    pub(super) async fn used_prompts(&self, from: SystemTime, until: Instant) -> UsedPrompts {
        self.ask(None, |_| Some(Question::Used { from }), until).await.used()
    }
}

async fn ask_other(
    cluster: &Arc<ClusterMember>,
    replica: ReplicaId,
    question: &Question,
    until: Instant,
) -> Result<Answer, String> {
    let question = serde_json::to_vec(question).map_err(|error| error.to_string())?;
    let answer = cluster.relay().ask(replica, question, until).await;
    let answer = answer.map_err(|error| match error {
        RelayError::Unreachable => "no answer in time".to_owned(),
        RelayError::TooLarge { .. } => "the question is larger than cluster.relay_size".to_owned(),
        RelayError::OtherVersion => "another version of promptgate".to_owned(),
        RelayError::Overloaded => "too many questions at once".to_owned(),
    })?;
    serde_json::from_slice(&answer).map_err(|_| "another version of promptgate".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::Presence;

    fn replica(name: &str, byte: u8) -> Replica {
        let id = serde_json::from_str(&format!("{:?}", [byte; 8])).unwrap();
        let presence = Presence { name: name.to_owned(), ..Presence::default() };
        Replica { id, presence, seen: Instant::now() }
    }

    #[test]
    fn a_replica_is_named_by_what_no_other_has() {
        let all = labelled(&[replica("web", 1), replica("web-2", 0x2a), replica("web-2", 0x2b)]);
        let one = |wanted: &str| chosen(all.clone(), wanted).map(|(label, _)| label);
        let (second, third) = ("web-2/2a2a2a2a2a2a2a2a", "web-2/2b2b2b2b2b2b2b2b");
        for (wanted, label) in [
            ("web", "web"),
            ("0101010101010101", "web"),
            ("01", "web"),
            (second, second),
            ("2a2a2a2a2a2a2a2a", second),
            ("2b", third),
            ("web-2/2b", third),
        ] {
            assert_eq!(one(wanted).as_deref(), Ok(label), "{wanted}");
        }
        for (wanted, why) in [
            ("web-2", format!("several replicas begin so: {second}, {third}")),
            ("2", format!("several replicas begin so: {second}, {third}")),
            ("db", format!("no replica of this name lives; those that do: web, {second}, {third}")),
        ] {
            assert_eq!(one(wanted), Err(format!("{wanted}: {why}")));
        }
    }
}
