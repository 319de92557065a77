//! The admin side of the gateway, as an operator sees it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use http::{Request, StatusCode, header, request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::time::sleep;
use toml_edit::{ArrayOfTables, DocumentMut, Table};

use crate::disk::SimDisk;
use crate::machine::trace;
use crate::plan::{ADMIN_TOKEN, Approvals, Approved, GATEWAY, LOCK, admin_of};
use crate::skills;
use crate::upstream::versions::VERSIONED;
use crate::world::World;
use domain::approval::markdown;

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

const APPROVALS: &str = "/api/v1/approvals";

/// Approves all prompts or all skills that are offered and were not approved, by the list of
/// approvals.
pub async fn approve_all(world: &World, replica: usize, rng: &mut Rng) {
    let Some((names, tag)) = waiting(world, replica).await else { return };
    let is_of_skill = |name: &Value| name.as_str().is_some_and(is_skill);
    let (skills, prompts): (Vec<_>, Vec<_>) = names.into_iter().partition(is_of_skill);
    let chosen = if !skills.is_empty() && rng.bool() { skills } else { prompts };
    if !chosen.is_empty() {
        decide(world, replica, "approve", &chosen, &tag).await;
    }
}

/// Whether the public name of what can be approved is that of a skill.
fn is_skill(name: &str) -> bool {
    name.starts_with("skill://")
}

/// Takes back the approval of one skill.
pub async fn withdraw_a_skill(world: &World, replica: usize, rng: &mut Rng) {
    let Some((rows, tag)) = rows(world, replica).await else { return };
    let approved = rows.iter().filter(|row| row["approved"].is_object()).map(|row| &row["name"]);
    let skills: Vec<_> = approved.filter(|name| name.as_str().is_some_and(is_skill)).collect();
    if let Some(name) = rng.choice(skills) {
        decide(world, replica, "withdraw", std::slice::from_ref(name), &tag).await;
    }
}

/// Decides on versions of an upstream's prompt: approves or rejects some that wait, or takes an
/// approval back. Returns whether that was carried out.
pub async fn decide_on_versions(
    world: &World,
    replica: usize,
    upstream: &str,
    rng: &mut Rng,
) -> bool {
    let Some((rows, tag)) = rows(world, replica).await else { return false };
    let begin = format!("{upstream}__{VERSIONED}@");
    let of_version =
        |row: &&Value| row["name"].as_str().is_some_and(|name| name.starts_with(&begin));
    let (waiting, decided): (Vec<_>, Vec<_>) =
        rows.iter().filter(of_version).partition(|row| is_waiting(row));
    let (action, chosen) = match rng.u8(..16) {
        0 => {
            let approved = decided.into_iter().filter(|row| row["approved"].is_object());
            ("withdraw", Vec::from_iter(rng.choice(approved.collect::<Vec<_>>())))
        }
        1..5 => ("reject", Vec::from_iter(rng.choice(waiting))),
        5..12 => ("approve", Vec::from_iter(rng.choice(waiting))),
        _ => ("approve", waiting),
    };
    let names: Vec<_> = chosen.into_iter().map(|row| row["name"].clone()).collect();
    !names.is_empty() && decide(world, replica, action, &names, &tag).await
}

/// Approves what is offered of one prompt, as it is shown. Nothing else becomes approved, whatever
/// the upstream answers meanwhile.
pub async fn approve_what_is_shown(world: &World, replica: usize, rng: &mut Rng) {
    let Some((names, _)) = waiting(world, replica).await else { return };
    let name = rng.choice(names).expect("one waits");
    let encoded = name.as_str().unwrap_or_default().replace(':', "%3A").replace('/', "%2F");
    let path = format!("{APPROVALS}/{encoded}");
    let Some(shown) = ask(world, replica, Request::get(path), String::new()).await else { return };
    let shown: Value = serde_json::from_slice(&shown.body).unwrap_or_default();
    let Some(tag) = shown["tag"].as_str() else { return };
    sleep(Duration::from_millis(rng.u64(..2_000))).await;
    if decide(world, replica, "approve", std::slice::from_ref(&name), tag).await {
        let key =
            [&shown["upstream"], &shown["rawName"]].map(|part| part.as_str().unwrap_or_default());
        let approved = entries(&world.machine.disk).into_iter().find(|(names, _)| names == &key);
        let digests = approved.map(|(_, digests)| digests).unwrap_or_default();
        if digests.is_empty() || digests.iter().any(|digest| shown["objects"].get(digest).is_none())
        {
            let why = format!("{name} was approved with {digests:?}, which was not shown: {shown}");
            world.violation(why);
        }
    }
}

/// Begins the rollout of a prompt again.
pub async fn rearm(world: &World, replica: usize, prompt: &str) {
    let request = Request::post(format!("/api/v1/rollouts/{prompt}"));
    let answer = ask(world, replica, request, json!({"action": "rearm"}).to_string()).await;
    let text = answer.as_ref().map(|answer| String::from_utf8_lossy(&answer.body));
    trace::note("operator", &format!("rearms {prompt}: {text:?}"));
    if answer.as_ref().is_none_or(|answer| answer.status != StatusCode::OK) {
        world.violation(format!("the rollout of {prompt} cannot begin again: {text:?}"));
    }
}

/// The list of approvals, and its tag.
async fn rows(world: &World, replica: usize) -> Option<(Vec<Value>, String)> {
    let approvals = ask(world, replica, Request::get(APPROVALS), String::new()).await?;
    let rows: Value = serde_json::from_slice(&approvals.body).unwrap_or_default();
    Some((rows["prompts"].as_array().cloned().unwrap_or_default(), approvals.tag))
}

/// The names of the prompts and skills that wait for a decision, and the tag of their list.
async fn waiting(world: &World, replica: usize) -> Option<(Vec<Value>, String)> {
    let (rows, tag) = rows(world, replica).await?;
    let waiting = rows.iter().filter(|row| is_waiting(row));
    let names: Vec<_> = waiting.map(|row| row["name"].clone()).collect();
    (!names.is_empty()).then_some((names, tag))
}

fn is_waiting(row: &Value) -> bool {
    matches!(row["state"].as_str(), Some("pending" | "changed"))
}

/// Sends a decision; returns whether it was carried out.
async fn decide(world: &World, replica: usize, action: &str, names: &[Value], tag: &str) -> bool {
    let request = Request::post(format!("{APPROVALS}/{action}")).header(header::IF_MATCH, tag);
    let decision = json!({"prompts": names, "by": "an operator", "why": "it is good",
        "unseen": action == "approve"});
    let Some(answer) = ask(world, replica, request, decision.to_string()).await else {
        return false;
    };
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    trace::note("operator", &format!("{action} {names:?}: {} {text}", answer.status));
    // Meanwhile something else may be offered, or a text cannot be had.
    if !matches!(answer.status.as_u16(), 200 | 409 | 412 | 503) {
        world.violation(format!("{action} {names:?} was answered with {text}"));
    }
    answer.status == StatusCode::OK
}

/// The approvals in the lock file.
pub fn approvals(disk: &SimDisk) -> Approvals {
    let entries = entries(disk).into_iter();
    let (skills, prompts): (Vec<_>, Vec<_>) =
        entries.partition(|([_, name], _)| skills::is_skill(name));
    let skills = skills.into_iter().filter_map(|([upstream, name], digests)| {
        Some(((upstream, name), object(disk, digests.first()?)))
    });
    let prompts = prompts.into_iter().filter_map(|([upstream, name], digests)| {
        let mut objects = digests.iter().map(|digest| object(disk, digest));
        let definition = objects.next()?;
        let description = definition["description"].as_str()?.to_owned();
        // A library has a source instead of texts, with the text that is rendered at its end.
        let texts: Vec<Value> = objects.collect();
        let text_for = |whom: &str| {
            texts.iter().find_map(|object| {
                let source = || Some(object["source"].as_str()?.rsplit_once("---\n")?.1);
                let text = object["messages"][0]["content"]["text"].as_str().or_else(source)?;
                let text = text.strip_prefix(&format!("{upstream} says "))?;
                Some(text.strip_suffix(&format!(" for {whom}"))?.to_owned())
            })
        };
        let (text, mut template) = (text_for(""), text_for("{{ nonce }}"));
        if texts.iter().any(|object| object.get("source").is_some()) {
            // A source without such a text is of no text that a client may get.
            template.get_or_insert_default();
        }
        Some(((upstream, name), Approved { description, text, template }))
    });
    let withdrawn = withdrawn(disk);
    Approvals { prompts: prompts.collect(), skills: skills.collect(), withdrawn }
}

/// The object with this digest, a text (Markdown) or a definition (JSON).
fn object(disk: &SimDisk, digest: &str) -> Value {
    let read = |kind: &str| {
        let name = digest.trim_start_matches("sha256:");
        let file = disk.read(Path::new(&format!("{LOCK}.d/{name}{kind}")))?;
        Some(String::from_utf8_lossy(&file).into_owned())
    };
    let text = || markdown::read(&read(".md")?);
    let object = read(".json").or_else(text).expect("what is approved is there");
    serde_json::from_str(&object).unwrap_or_default()
}

/// The upstream and raw name of each approved prompt or skill, with the digests of its definition,
/// and of its texts or files.
fn entries(disk: &SimDisk) -> Vec<([String; 2], Vec<String>)> {
    let lock = lock(disk);
    let entries =
        [("prompts", "prompt"), ("skills", "skill")].into_iter().flat_map(|(all, one)| {
            let entries = lock.get(all).and_then(|entries| entries.as_array_of_tables());
            entries.into_iter().flat_map(ArrayOfTables::iter).map(move |entry| (entry, one))
        });
    let read = |(prompt, kind): (&Table, &str)| {
        let approved = prompt.get("approved")?.as_table()?;
        let texts = approved.get("texts").and_then(|texts| texts.as_array_of_tables());
        let texts = texts.into_iter().flat_map(ArrayOfTables::iter);
        let digests = [text(approved, "definition")?];
        let digests = digests.into_iter().chain(text(approved, "source"));
        let digests = digests.chain(texts.filter_map(|table| text(table, "digest")));
        let files = approved.get("files").and_then(|files| files.as_table());
        let files = files.into_iter().flat_map(Table::iter);
        let digests =
            digests.chain(files.filter_map(|(_, digest)| Some(digest.as_str()?.to_owned())));
        Some(([text(prompt, "upstream")?, text(prompt, kind)?], digests.collect()))
    };
    entries.filter_map(read).collect()
}

/// The upstream and raw name of each prompt of which an approval was taken back, and no version
/// approved since.
fn withdrawn(disk: &SimDisk) -> BTreeSet<(String, String)> {
    let lock = lock(disk);
    let prompts = lock.get("prompts").and_then(|prompts| prompts.as_array_of_tables());
    let withdrawn = prompts.into_iter().flat_map(ArrayOfTables::iter).filter_map(|prompt| {
        let version = |table: &Table| (text(table, "definition"), text(table, "source"));
        let rejected = version(prompt.get("rejected")?.as_table()?);
        let mut previous = prompt.get("previous")?.as_array_of_tables()?.iter();
        let is_withdrawn =
            prompt.get("approved").is_none() && previous.any(|table| version(table) == rejected);
        is_withdrawn.then_some((text(prompt, "upstream")?, text(prompt, "prompt")?))
    });
    withdrawn.collect()
}

fn lock(disk: &SimDisk) -> DocumentMut {
    let lock = disk.read(Path::new(LOCK)).unwrap_or_default();
    String::from_utf8_lossy(&lock).parse().expect("the lock file is whole")
}

fn text(table: &Table, key: &str) -> Option<String> {
    table.get(key)?.as_str().map(str::to_owned)
}
