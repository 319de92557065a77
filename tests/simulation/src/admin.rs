//! The admin side of the gateway, as an operator sees it.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use http::{Request, StatusCode, header, request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use toml_edit::{ArrayOfTables, DocumentMut, Table};

use crate::disk::SimDisk;
use crate::machine::trace;
use crate::plan::{ADMIN_TOKEN, Approvals, Approved, GATEWAY, LOCK, admin_of};
use crate::world::World;

/// The answer of a replica to an operator.
struct Answer {
    status: StatusCode,
    tag: String,
    body: Bytes,
}

/// Sends a request to a replica; `None` without an answer.
async fn ask(
    world: &World,
    replica: usize,
    request: request::Builder,
    body: String,
) -> Option<Answer> {
    let socket = world.machine.network.dial(GATEWAY, admin_of(replica)).await.ok()?;
    let (mut sender, driver) = http1::handshake(TokioIo::new(socket)).await.ok()?;
    let driver = tokio::spawn(async move { drop(driver.await) });
    let request = request
        .header(header::HOST, admin_of(replica).to_string())
        .header(header::AUTHORIZATION, format!("Bearer {ADMIN_TOKEN}"))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::<Bytes>::from(body));
    let answer = async {
        let response = sender.send_request(request.expect("a request")).await.ok()?;
        let tag = response.headers().get(header::ETAG).and_then(|tag| tag.to_str().ok());
        let (status, tag) = (response.status(), tag.unwrap_or_default().to_owned());
        Some(Answer { status, tag, body: response.into_body().collect().await.ok()?.to_bytes() })
    };
    let answer = answer.await;
    driver.abort();
    answer
}

/// The metrics of a replica, as text.
pub async fn metrics(world: &World, replica: usize) -> String {
    let answer = ask(world, replica, Request::get("/metrics"), String::new()).await;
    answer.map(|answer| String::from_utf8_lossy(&answer.body).into_owned()).unwrap_or_default()
}

/// Approves everything that is offered and was not approved.
pub async fn approve(world: &World, replica: usize) {
    const APPROVALS: &str = "/api/v1/approvals";
    let Some(approvals) = ask(world, replica, Request::get(APPROVALS), String::new()).await else {
        return;
    };
    let rows: Value = serde_json::from_slice(&approvals.body).unwrap_or_default();
    let rows = rows["prompts"].as_array().cloned().unwrap_or_default();
    let waiting =
        rows.iter().filter(|row| matches!(row["state"].as_str(), Some("pending" | "changed")));
    let names: Vec<_> = waiting.map(|row| row["name"].clone()).collect();
    if names.is_empty() {
        return;
    }
    let request =
        Request::post(format!("{APPROVALS}/approve")).header(header::IF_MATCH, &approvals.tag);
    let decision = json!({"prompts": names, "by": "an operator", "why": "it is good"});
    let Some(answer) = ask(world, replica, request, decision.to_string()).await else { return };
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    trace::note("operator", &format!("approves {names:?}: {} {text}", answer.status));
    // Meanwhile something else may be offered, or a text cannot be had.
    if !matches!(answer.status.as_u16(), 200 | 409 | 412 | 503) {
        world.violation(format!("an approval of {names:?} was answered with {text}"));
    }
}

/// The approvals in the lock file.
pub fn approvals(disk: &SimDisk) -> Approvals {
    let lock = disk.read(Path::new(LOCK)).unwrap_or_default();
    let lock: DocumentMut = String::from_utf8_lossy(&lock).parse().expect("the lock file is whole");
    let prompts = lock.get("prompts").and_then(|prompts| prompts.as_array_of_tables());
    let prompts = prompts.into_iter().flat_map(ArrayOfTables::iter);
    prompts.filter_map(|prompt| approval(disk, prompt)).collect::<BTreeMap<_, _>>()
}

fn approval(disk: &SimDisk, prompt: &Table) -> Option<((String, String), Approved)> {
    let text = |table: &Table, key| table.get(key)?.as_str().map(str::to_owned);
    let approved = prompt.get("approved")?.as_table()?;
    let digest = text(approved, "definition")?;
    let file = format!("{LOCK}.d/{}", digest.trim_start_matches("sha256:"));
    let definition = disk.read(Path::new(&file)).expect("what is approved is there");
    let definition: Value = serde_json::from_slice(&definition).expect("a definition");
    let description = definition["description"].as_str()?.to_owned();
    let approved = Approved { description, has_text: approved.contains_key("texts") };
    Some(((text(prompt, "upstream")?, text(prompt, "prompt")?), approved))
}
