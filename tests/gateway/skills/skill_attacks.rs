//! Upstreams that lie about their skills, and callers that make URIs up.

use serde_json::{Value, json};

use super::{REFUNDS, file, read, reads, refused, simple, skill, upstream, uris};
use crate::support::Gateway;

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

async fn catalog(gateway: &Gateway) -> String {
    let document = gateway.admin().send("GET", "/api/v1/catalog", &[], b"").await;
    String::from_utf8_lossy(&document.body).into_owned()
}

/// A skill with a second file, of which the entry says something else.
fn lying(name: &str, lie: Value) -> Value {
    let mut entry = skill(&format!("skill://{name}"), &[("SKILL.md", REFUNDS), ("x.md", "x")]);
    for (member, value) in lie.as_object().unwrap() {
        entry["resources"][1][member] = value.clone();
    }
    entry
}

#[tokio::test]
async fn entries_that_repeat_files_or_exceed_the_bounds_are_left_out_and_the_reason_is_said() {
    let mut huge = lying("huge", json!({"size": 9 << 20}));
    huge["resources"][0]["size"] = json!(9 << 20);
    let mut wrapping = lying("wrapping", json!({"size": i64::MAX}));
    wrapping["resources"][0]["size"] = json!(i64::MAX);
    let hostile = upstream(
        json!([
            skill("skill://good", &[("SKILL.md", REFUNDS)]),
            lying("twice", json!({"uri": "skill://twice/SKILL.md"})),
            lying("negative", json!({"size": -1})),
            lying("unsized", json!({"size": null})),
            lying("short-digest", json!({"digest": "sha256:00"})),
            lying("other-digest", json!({"digest": format!("sha512:{}", "0".repeat(64))})),
            huge,
            wrapping,
        ]),
        |asked| file(asked, REFUNDS),
    )
    .await;
    let gateway = Gateway::start(&(ADMIN.to_owned() + &hostile.table("up"))).await;
    assert_eq!(uris(&gateway.client()).await, ["skill://up/good/SKILL.md"]);
    let catalog = catalog(&gateway).await;
    assert_eq!(catalog.matches("with a digest and a size, once").count(), 5, "{catalog}");
    assert_eq!(catalog.matches("more than 16 MiB").count(), 2, "{catalog}");
}

#[tokio::test]
async fn a_file_of_another_size_than_its_entry_says_is_not_served() {
    for size in [0, REFUNDS.len() - 1, REFUNDS.len() + 1, 16 << 20] {
        let mut entry = skill("skill://a", &[("SKILL.md", REFUNDS)]);
        entry["resources"][0]["size"] = json!(size);
        let lying = upstream(json!([entry]), |asked| file(asked, REFUNDS)).await;
        let gateway = Gateway::before(&[("up", &lying)]).await;
        let client = gateway.client();
        assert_eq!(uris(&client).await, ["skill://up/a/SKILL.md"], "{size}");
        let (reason, all) = refused(&client, "resources/read", "skill://up/a/SKILL.md").await;
        assert_eq!(reason, "upstream_protocol_error", "{all}");
        assert!(!all.contains("limits.md"), "{all}");
    }
}

#[tokio::test]
async fn an_upstream_without_a_prefix_takes_no_skill_of_another() {
    let mut reaching = lying("own", json!({"uri": "skill://other/secret/SKILL.md"}));
    reaching["resources"][1]["digest"] = reaching["resources"][0]["digest"].clone();
    let stolen = skill("skill://other/secret", &[("SKILL.md", REFUNDS)]);
    let around = skill("skill://other", &[("SKILL.md", REFUNDS), ("secret/SKILL.md", REFUNDS)]);
    let bare = skill("skill://plain", &[("SKILL.md", REFUNDS)]);
    let skills = json!([stolen, around, reaching, bare]);
    let hostile = upstream(skills, |asked| file(asked, "stolen")).await;
    let other = simple("skill://secret").await;
    let toml = ADMIN.to_owned() + &hostile.table("up") + "prefix = \"\"\n" + &other.table("other");
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    let secret = "skill://other/secret/SKILL.md";
    assert_eq!(uris(&client).await, [secret, "skill://plain/SKILL.md"]);
    assert_eq!(read(&client, secret).await["contents"][0]["text"], REFUNDS);
    assert_eq!((reads(&other), reads(&hostile)), (1, 0));
    let catalog = catalog(&gateway).await;
    let claimed = "begins with the prefix \\\"other\\\" of another upstream";
    assert_eq!(catalog.matches(claimed).count(), 2, "{catalog}");
}

#[tokio::test]
async fn more_skills_than_the_bound_of_prompts_leave_the_prompts() {
    let skills: Vec<Value> =
        (0..6).map(|n| skill(&format!("skill://s{n}"), &[("SKILL.md", REFUNDS)])).collect();
    let many = upstream(json!(skills), |asked| file(asked, REFUNDS)).await;
    let toml = ADMIN.to_owned() + &many.table("up") + "max_prompts = 5\n";
    let gateway = Gateway::start(&toml).await;
    assert_eq!(gateway.client().names().await.0, ["up__p"]);
    let catalog = catalog(&gateway).await;
    assert!(catalog.contains("its skills cannot be listed"), "{catalog}");
}

#[tokio::test]
async fn names_that_callers_make_up_open_no_file_by_the_tools() {
    let (up, other) = (simple("skill://good").await, simple("skill://secret").await);
    let toml = "[server]\nexpose = [\"prompts\", \"tools\"]\n".to_owned()
        + &up.table("up")
        + &other.table("other")
        + "[views.sales]\nupstreams = [\"up\"]\n";
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    for (name, file) in [
        ("up/../other/secret", "SKILL.md"),
        ("up/good", "../../other/secret/SKILL.md"),
        ("up/good", "%2e%2e/secret/SKILL.md"),
        ("up/good", "/SKILL.md"),
        ("up%2Fgood", "SKILL.md"),
        ("skill://up/good", "SKILL.md"),
        ("file:///etc", "passwd"),
        ("up/good/", "SKILL.md"),
    ] {
        let arguments = json!({"name": name, "file": file});
        let called = json!({"name": "read_skill", "arguments": arguments});
        let result = client.ask("tools/call", called).await;
        assert_eq!(result["_meta"]["promptgate/reason"], "unknown_resource", "{name:?} {file:?}");
    }
    // Nor by an endpoint that does not serve the skill.
    let read = json!({"name": "read_skill", "arguments": {"name": "other/secret"}});
    let reply = super::post_at(&client, "/mcp/sales", "tools/call", read).await.json();
    assert_eq!(reply["result"]["_meta"]["promptgate/reason"], "unknown_resource", "{reply}");
    assert_eq!((reads(&up), reads(&other)), (0, 0));
}
