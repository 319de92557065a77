//! Usage and the audit log of all replicas: each answers for itself, and one answer is made of
//! theirs.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::state::AdminState;
use audit::question::{Answer, Answers, Evidence, Question};
use audit::usage::{Query, Report, UsedPrompts};
use gateway::cluster::{ClusterMember, RelayError, Replica, ReplicaId};

impl AdminState {
    /// Asks all replicas that live, or only the one with a name, what `question` has for them by
    /// their names. Who has not answered by `until` is named.
    pub(super) async fn ask(
        &self,
        replica: Option<&str>,
        question: impl Fn(&str) -> Option<Question>,
        until: Instant,
    ) -> Answers {
        let own = Evidence { audit: self.audit.clone(), usage: self.usage.clone() };
        let Some(cluster) = &self.cluster else {
            let mut answers = Answers::default();
            if let Some(question) = question("") {
                answers.add(String::new(), Ok(own.answer(question, until).await));
            }
            return answers;
        };
        let replicas = cluster.replicas();
        let is_wanted = |other: &&Replica| replica.is_none_or(|name| other.presence.name == name);
        let mut asking = JoinSet::new();
        for replica in replicas.iter().filter(is_wanted) {
            let name = replica.presence.name.clone();
            let Some(question) = question(&name) else { continue };
            let (own, cluster, id) = (own.clone(), cluster.clone(), replica.id);
            asking.spawn(async move {
                let answer = if id == cluster.id() {
                    Ok(own.answer(question, until).await)
                } else {
                    ask_other(&cluster, id, &question, until).await
                };
                (name, answer)
            });
        }
        let mut all = asking.join_all().await;
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut answers = Answers::default();
        for (name, answer) in all {
            answers.add(name, answer);
        }
        let is_empty = answers.answered.is_empty() && answers.not_answered.is_empty();
        if let Some(name) = replica.filter(|_| is_empty) {
            answers.not_answered.push(format!("{name}: no replica of this name lives"));
        }
        answers
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
    let answer = cluster.ask(replica, question, until).await.map_err(|error| match error {
        RelayError::Unreachable => "no answer in time".to_owned(),
        RelayError::TooLarge { .. } => "the question is larger than cluster.relay_size".to_owned(),
        RelayError::OtherVersion => "another version of promptgate".to_owned(),
        RelayError::Overloaded => "too many questions at once".to_owned(),
    })?;
    serde_json::from_slice(&answer).map_err(|_| "another version of promptgate".to_owned())
}
