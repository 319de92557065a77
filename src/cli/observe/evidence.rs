//! Usage and audit logs of all replicas, as the running gateway collects them.

use serde_json::{Value, json};

use crate::cli::shared::admin_api::{fetch_once, send_once};
use crate::cli::shared::args::{ConfigFile, ReplicaChoice};
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::printable;
use crate::cli::shared::reach::Reach;
use crate::cli::shared::runtime::runtime;
use audit::question::{Answers, Question};
use config::Records;

/// The path of the questions in the admin API.
const PATH: &str = "/api/v1/evidence";

/// Asks the replicas through the gateway that runs with a configuration file, and names replicas
/// that did not answer on standard error. `None` if the caller must read the files of this replica:
/// they are wanted, there is no cluster, or no gateway answers.
pub(crate) fn ask(
    file: &ConfigFile,
    records: &Records,
    choice: &ReplicaChoice,
    question: &Question,
) -> Result<Option<Answers>, Failure> {
    if choice.offline || (!records.is_replica && choice.replica.is_none()) {
        return Ok(None);
    }
    let asked = runtime()?.block_on(post(file, choice.replica.as_deref(), question));
    let document = match asked {
        Ok(document) => document,
        Err(failure) if choice.replica.is_some() => return Err(failure),
        Err(failure) => {
            eprintln!("{failure}\nOnly the files of this replica are read.");
            return Ok(None);
        }
    };
    let other = |_| Failure::new("the running gateway is another version of promptgate");
    let answers: Answers = serde_json::from_value(document).map_err(other)?;
    let not_answered = &answers.not_answered;
    if answers.answered.is_empty() {
        let why = printable(&not_answered.join("; "));
        return Err(Failure::new(format!("no replica has answered: {why}")));
    }
    for why in not_answered {
        eprintln!("{}", printable(&format!("not answered: {why}")));
    }
    Ok(Some(answers))
}

async fn post(
    file: &ConfigFile,
    replica: Option<&str>,
    question: &Question,
) -> Result<Value, Failure> {
    let Some(url) = Reach::running_admin(file) else {
        return Err(Failure::new(
            "no gateway runs here with this configuration and an admin API, which would ask the other replicas",
        ));
    };
    if replica.is_some() && fetch_once(&url, "/api/v1/replicas").await?["store"] == "none" {
        return Err(Failure::usage("--replica: the gateway stands alone, without [cluster]"));
    }
    send_once(&url, PATH, &json!({"question": question, "replica": replica})).await
}
