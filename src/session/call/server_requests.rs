//! Questions that clients were asked on a stream, until they are answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use tokio::sync::oneshot;

use crate::domain::fault::excerpt;
use crate::domain::json::Json;
use crate::domain::jsonrpc::{Id, Outcome};
use crate::domain::server_request::{Answer, Question};
use crate::session::token::Nonce;

/// As many entries as calls in flight have asked, each at most `question_rounds` times.
#[derive(Clone, Debug, Default)]
pub struct Questions {
    open: Arc<DashMap<(Nonce, Id), Open>>,
    next: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Open {
    question: Question,
    answer: oneshot::Sender<Answer>,
}

/// A question that was asked; taken back with this value.
#[derive(Debug)]
pub struct AskedQuestion {
    open: Arc<DashMap<(Nonce, Id), Open>>,
    key: (Nonce, Id),
}

impl Questions {
    /// Notes a question to the client of a session.
    pub fn ask(
        &self,
        session: Nonce,
        question: Question,
        answer: oneshot::Sender<Answer>,
    ) -> AskedQuestion {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let key = (session, Id::of_text(&format!("promptgate-{number}")));
        self.open.insert(key.clone(), Open { question, answer });
        AskedQuestion { open: self.open.clone(), key }
    }

    /// Takes in what a client says to a question; what is no answer to one of its own passes by.
    pub fn answered(&self, session: Nonce, id: Id, outcome: Outcome<'_>) {
        let Some((_, Open { question, answer })) = self.open.remove(&(session, id)) else {
            return;
        };
        let error = |code, message: &str| Answer::Error { code, message: excerpt(message) };
        let said = match outcome {
            Outcome::Result(result) => match question.read_answer(result) {
                Some(result) => Answer::Result(result),
                None => error(-32602, "the client's answer does not fit the question"),
            },
            Outcome::Error { code, message, .. } => {
                error(code, &message.and_then(Json::as_str).unwrap_or_default())
            }
        };
        // Nobody may wait any more.
        let _ = answer.send(said);
    }
}

impl AskedQuestion {
    /// Whether it was not answered yet.
    pub fn is_open(&self) -> bool {
        self.open.contains_key(&self.key)
    }

    /// The id under which the client is asked.
    pub fn id(&self) -> &Id {
        &self.key.1
    }
}

impl Drop for AskedQuestion {
    fn drop(&mut self) {
        self.open.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a8_only_the_session_that_was_asked_can_answer_and_once() {
        let questions = Questions::default();
        let question = || Question::read("roots/list", None).unwrap();
        let (sender, answer) = oneshot::channel();
        let asked = questions.ask([1; 16], question(), sender);
        let result = Json::parse(br#"{"roots":[]}"#, 4).unwrap();
        let say = |session| {
            questions.answered(session, asked.id().clone(), Outcome::Result(result));
        };
        say([2; 16]);
        say([1; 16]);
        say([1; 16]);
        assert!(matches!(answer.await, Ok(Answer::Result(_))));
        let (sender, answer) = oneshot::channel();
        drop(questions.ask([1; 16], question(), sender));
        assert!(answer.await.is_err() && questions.open.is_empty());
    }
}
