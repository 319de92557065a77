//! Approvers: who counts as another person where two must approve, by whichever door they come.

use serde_json::{Value, json};

use super::approvals::{Changeable, Folder, enforced};
use crate::support::client::Reply;
use crate::support::{Client, Process, eventually};

const TOKENS: &str = "[admin]\nwrite = true\ntoken = { value = \"shared\" }\n\
    [admin.tokens]\nada = { value = \"of ada\" }\nbob = { value = \"of bob\" }\n";

/// A gateway whose prompts take two approvals.
struct Desk {
    _up: Changeable,
    folder: Folder,
    process: Process,
    admin: Client,
}

impl Desk {
    async fn open() -> Self {
        let up = Changeable::start().await;
        let toml = enforced("approvers = 2\n") + TOKENS + &up.upstream.table("up");
        let folder = Folder::new(&toml);
        let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
        Self { _up: up, folder, process, admin }
    }

    /// The prompt, once the gateway has probed its text.
    async fn row(&self, accept: impl Fn(&Value) -> bool) -> Value {
        let token = [("authorization", "Bearer shared")];
        let read = async || {
            let reply = self.admin.send("GET", "/api/v1/approvals", &token, b"").await;
            let mut row = reply.json()["prompts"][0].take();
            row["etag"] = reply.header("etag").unwrap_or_default().into();
            row
        };
        let is_probed = |row: &Value| row["offered"]["texts"][0]["digest"].is_string();
        eventually(read, |row| is_probed(row) && accept(row)).await
    }

    async fn post(&self, action: &str, token: &str, body: Value) -> Reply {
        let tag = self.row(|_| true).await["etag"].as_str().unwrap().to_owned();
        let (token, mut body) = (format!("Bearer {token}"), body);
        body["prompts"] = json!(["up__p"]);
        let headers = [
            ("authorization", token.as_str()),
            ("content-type", "application/json"),
            ("if-match", &tag),
        ];
        let path = format!("/api/v1/approvals/{action}");
        self.admin.send("POST", &path, &headers, body.to_string().as_bytes()).await
    }

    /// Approves, and returns whether a second person must, too; or why it is refused.
    async fn approve(&self, token: &str, by: &str) -> Result<bool, String> {
        let reply = self.post("approve", token, json!({"by": by})).await;
        let answer = reply.json();
        match reply.status {
            200 => Ok(answer["needsSecondPerson"] == json!(["up__p"])),
            _ => Err(answer["error"].as_str().unwrap_or_default().to_owned()),
        }
    }
}

#[tokio::test]
async fn holders_of_the_shared_token_are_one_approver_whatever_names_they_claim() {
    let desk = Desk::open().await;
    assert_eq!(desk.approve("shared", "ada").await, Ok(true));
    let again = desk.approve("shared", "bob").await.unwrap_err();
    assert!(again.contains("ada has approved it already"), "{again}");
    assert!(again.contains("admin.tokens"), "{again}");
    // The same person with a token of her own, and at the command line.
    let own = desk.approve("of ada", "carol").await.unwrap_err();
    assert!(own.contains("another person must approve it"), "{own}");
    let offline = ["approve", "up__p", "--yes", "--offline"];
    let claimed = desk.folder.approvals_as("ADA ", "", &offline).await;
    assert!(claimed.stderr.contains("another person must approve it"), "{claimed:?}");
    assert_eq!(desk.approve("of bob", "nobody").await, Ok(false));
    let row = desk.row(|row| row["state"] == "approved").await;
    assert_eq!(row["approvedBy"], "ada, bob", "a token with a name decides as that name");
    assert!(desk.folder.lock().contains("proof = \"shared token\""), "{}", desk.folder.lock());
    desk.process.stop().await;
}

#[tokio::test]
async fn a_rollback_takes_two_approvers_also_to_a_version_that_was_withdrawn() {
    let desk = Desk::open().await;
    assert_eq!(desk.approve("of ada", "").await, Ok(true));
    assert_eq!(desk.approve("of bob", "").await, Ok(false));
    let digest = desk.row(|row| row["state"] == "approved").await["offered"]["definition"].clone();
    let withdrawn = desk.post("withdraw", "shared", json!({"by": "carol", "why": "wrong"})).await;
    assert_eq!(withdrawn.status, 200, "{:?}", withdrawn.json());
    desk.row(|row| row["state"] == "rejected").await;
    let back = json!({"to": digest, "why": "right after all"});
    let first = desk.post("rollback", "of ada", back.clone()).await.json();
    assert_eq!(first["needsSecondPerson"], json!(["up__p"]), "{first}");
    assert_eq!(desk.row(|_| true).await["state"], "rejected");
    let same = desk.post("rollback", "of ada", back.clone()).await;
    assert_eq!(same.status, 409, "{:?}", same.json());
    let second = desk.post("rollback", "of bob", back).await.json();
    assert_eq!(second["rolledBack"], json!(["up__p"]), "{second}");
    desk.row(|row| row["state"] == "approved").await;
    assert_eq!(desk.folder.recorded("prompt_rolled_back").await["by"], "bob");
    desk.process.stop().await;
}

#[tokio::test]
async fn reasons_and_names_that_people_would_not_read_are_refused_and_write_nothing() {
    let desk = Desk::open().await;
    let long = "x".repeat(4_097);
    for (body, expected) in [
        (json!({"by": "ada", "why": long}), "longer than 4096 bytes"),
        (json!({"by": "a".repeat(257)}), "longer than 256 bytes"),
    ] {
        let refused = desk.post("approve", "shared", body).await;
        assert_eq!(refused.status, 409);
        let why = refused.json()["error"].to_string();
        assert!(why.contains(expected), "{why}");
    }
    assert!(!desk.folder.path().join("promptgate.lock").exists());
    let fits = desk.post("approve", "shared", json!({"by": "ada", "why": &long[1..]})).await;
    assert_eq!(fits.status, 200, "{:?}", fits.json());
    desk.process.stop().await;
}
