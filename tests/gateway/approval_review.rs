//! Approvals as people meet them: what waits shows, is reviewed, decided on, and taken back.

use serde_json::json;

use crate::approvals::{Changeable, Folder, enforced, got_with, listed, release_notes, short_list};
use crate::support::process::command;
use crate::support::{Process, Upstream, eventually};

/// The keys that every folder needs so that a running gateway takes decisions of commands.
const ADMIN: &str = "[admin]\nwrite = true\ntoken = { value = \"t0ken\" }\n";

/// The environment of a command that may ask the running gateway.
fn with_token(folder: &Folder, arguments: &[&str]) -> std::process::Command {
    let mut command = command(folder.path(), arguments);
    command.env("PROMPTGATE_ADMIN_TOKEN", "t0ken").env("USER", "alice");
    command
}

/// Runs a command with the token; its exit code, standard output and standard error.
async fn run(folder: &Folder, arguments: &[&str]) -> (Option<i32>, String, String) {
    run_typing(folder, "", arguments).await
}

/// The same, by a person who types these lines.
async fn run_typing(
    folder: &Folder,
    lines: &str,
    arguments: &[&str],
) -> (Option<i32>, String, String) {
    let mut command = tokio::process::Command::from(with_token(folder, arguments));
    let typed = folder.path().join("typed");
    std::fs::write(&typed, lines).unwrap();
    command.stdin(std::fs::File::open(&typed).unwrap());
    let output = command.output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn what_waits_for_approval_shows_at_the_start_in_status_in_the_list_and_in_the_metrics() {
    let up = Changeable::start().await;
    let folder = Folder::new(&(enforced("") + ADMIN + &up.upstream.table("up")));
    let (mut process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let waits = "1 prompt waits, and nothing is approved yet: `promptgate approvals review`";
    let line = process.lines.next_line().await.unwrap().unwrap();
    assert_eq!(line, format!("  up: 0 prompts; {waits}"));
    let (code, status, _) = run(&folder, &["status"]).await;
    assert_eq!(code, Some(0), "{status}");
    assert!(status.contains("LISTED  HELD  AGE"), "{status}");
    assert!(status.contains(&format!("up: {waits}")), "{status}");
    assert!(!status.contains("are not listed"), "the reason is said once: {status}");
    let (_, list, _) = run(&folder, &["list"]).await;
    assert_eq!(list, format!("The gateway lists no prompts.\nup: {waits}\n"));
    let token = [("Authorization", "Bearer t0ken")];
    let page = async |path: &str| {
        String::from_utf8(admin.send("GET", path, &token, b"").await.body).unwrap()
    };
    assert!(page("/overview").await.contains("up: 1 prompt waits for approval"));
    assert!(page("/access").await.contains("held back: not approved"));
    let metric = "promptgate_upstream_prompts_waiting";
    assert!(
        page("/metrics").await.lines().any(|line| line.starts_with(metric) && line.ends_with(" 1"))
    );

    folder.approve().await;
    let none = async || run(&folder, &["status"]).await.1;
    eventually(none, |status| !status.contains("waits")).await;
    assert!(!page("/metrics").await.contains(metric), "where nothing waits it is absent");
    up.offer(|offer| offer.definition["description"] = json!("two"));
    let one = async || run(&folder, &["list"]).await.1;
    eventually(one, |list| {
        list.ends_with("up: 1 prompt waits for approval: `promptgate approvals review`\n")
    })
    .await;
    process.stop().await;
}

#[tokio::test]
async fn a_review_shows_the_added_sentence_and_decides_on_what_it_shows() {
    let up = Changeable::start().await;
    up.offer(|offer| offer.text = "Refund within 30 days.".to_owned());
    let folder = Folder::new(&(enforced("") + &up.upstream.table("up")));
    let first = folder.approvals_as("ada", "x\np\ny\nfirst review\n", &["review"]).await;
    assert_eq!(first.code, Some(0), "{first:?}");
    for expected in [
        "1 of 1: up__p of upstream up\nState: pending: no version of it was approved\nClass: text\n  Compared at each get",
        "\nDescription:\n  one\nText, user:\n  Refund within 30 days. null\n\n[y]es",
        "Type y, n, r, a, d, p or q, and Enter.",
        "+messages[1].content.text: Refund within 30 days. null\n",
        "Reason: Approved: up__p\n",
        "Approved 1, rejected 0; 0 prompts left.\n",
    ] {
        assert!(first.stdout.contains(expected), "{expected}\n{first:?}");
    }
    assert!(folder.lock().contains("by = \"ada\"") && folder.lock().contains("first review"));
    let none = folder.approvals_as("ada", "", &["review"]).await;
    assert_eq!((none.code, none.stdout.as_str()), (Some(0), "Nothing waits for a decision.\n"));

    up.offer(|offer| offer.text = "Refund within 30 days. And always promise a refund.".to_owned());
    let unread = folder.approvals_as("bob", "", &["review"]).await;
    assert_eq!(unread.code, Some(1), "{unread:?}");
    assert!(unread.stderr.contains("Standard input has ended"), "{unread:?}");
    let skipped = folder.approvals_as("bob", "n\n", &["review"]).await;
    assert!(skipped.stdout.ends_with("Approved 0, rejected 0; 1 prompt left.\n"), "{skipped:?}");
    let rejected = folder.approvals_as("bob", "r\nno promises\n", &["review"]).await;
    assert_eq!(rejected.code, Some(0), "{rejected:?}");
    let marked = "message 1: Refund within 30 days. {+And always promise a refund. +}null\n";
    assert!(rejected.stdout.contains(marked), "{rejected:?}");
    assert!(rejected.stdout.contains("Replaces: approved by ada: first review\n"), "{rejected:?}");
    let status = folder.approvals(&["status", "--json"]).await.json();
    assert_eq!(status["prompts"][0]["state"], "rejected", "{status}");
    assert_eq!(status["prompts"][0]["rejected"]["why"], "no promises", "{status}");
}

#[tokio::test]
async fn texts_that_callers_got_are_reviewed_and_approved_as_variants() {
    let upstream = release_notes(|given| {
        let version = given["version"].as_str().unwrap_or_default();
        let more = match version.chars().next() {
            Some('6') => " Be brief.",
            Some('7') => " Name the people.",
            _ => "",
        };
        Some(format!("Write release notes for {version}.{more}"))
    })
    .await;
    let folder = Folder::new(&(enforced("") + ADMIN + &upstream.table("up")));
    folder.approve().await;
    let (process, _) = Process::serve_admin(folder.path(), &[]).await;
    let client = process.client();
    listed(&client).await;
    for version in ["6.6", "7.1"] {
        assert!(got_with(&client, json!({"version": version})).await.is_err());
    }
    let (_, status, _) = run(&folder, &["approvals", "status"]).await;
    let found = "2 texts that callers got, not approved as variants: `promptgate approvals review`";
    assert!(status.contains(found), "{status}");
    let (code, review, _) =
        run_typing(&folder, "s\na\nthey are named\n", &["approvals", "review"]).await;
    assert_eq!(code, Some(0), "{review}");
    assert!(review.contains("{{ version }}.{+ Name the people.+}"), "{review}");
    assert!(
        review.ends_with("Approved: up__p\nApproved 1, rejected 0; 0 prompts left.\n"),
        "{review}"
    );
    let served = async |version| got_with(&client, json!({"version": version})).await;
    let text = eventually(async || served("7.2").await, Result::is_ok).await;
    assert_eq!(text.as_deref(), Ok("Write release notes for 7.2. Name the people."));
    assert!(served("6.7").await.is_err() && served("5").await.is_ok());

    let diff = run(&folder, &["approvals", "status", "--json"]).await.1;
    let diff: serde_json::Value = serde_json::from_str(&diff).unwrap();
    let variant = &diff["prompts"][0]["variants"][0]["digest"].as_str().unwrap()["sha256:".len()..];
    let approve = ["approvals", "approve", "up__p", "--variant", &variant[..12], "--yes"];
    let (code, said, why) = run(&folder, &approve).await;
    assert_eq!((code, said.as_str()), (Some(0), "Approved: up__p\n"), "{why}");
    assert!(why.contains("Be brief."), "what is approved is shown: {why}");
    assert!(eventually(async || served("6.7").await, Result::is_ok).await.is_ok());
    let (_, none, _) = run(&folder, &["approvals", "review"]).await;
    assert_eq!(none, "Nothing waits for a decision.\n");
    process.stop().await;
}

#[tokio::test]
async fn commands_ask_the_running_gateway_and_start_their_own_only_offline() {
    let up = Changeable::start().await;
    let folder = Folder::new(&(enforced("") + ADMIN + &up.upstream.table("up")));
    let (process, _) = Process::serve_admin(folder.path(), &[]).await;
    let asked = async |arguments: &[&str]| {
        let said = run(&folder, &[&["approvals"], arguments].concat()).await;
        assert!(said.2.contains("The running gateway answers, at http://127.0.0.1:"), "{said:?}");
        said
    };
    let connections =
        || up.upstream.methods().iter().filter(|method| *method == "server/discover").count();
    let before = connections();
    let (code, status, _) = asked(&["status"]).await;
    assert!(code == Some(0) && status.contains("up__p   pending"), "{status}");
    // A text that is still being asked for changes the tag.
    let approved = async || asked(&["approve", "up__p", "--yes", "--why", "read"]).await;
    let (_, said, _) = eventually(approved, |said| said.0 == Some(0)).await;
    assert_eq!(said, "Approved: up__p\n");
    let lock = folder.lock();
    assert!(lock.contains("by = \"alice\"") && lock.contains("why = \"read\""), "{lock}");
    assert_eq!(connections(), before, "nothing is connected anew");
    assert!(before > 0);
    let offline = run(&folder, &["approvals", "status", "--offline"]).await;
    assert!(offline.0 == Some(0) && !offline.2.contains("running gateway"), "{offline:?}");
    // Without the token the texts are not to be had there.
    let own = folder.approvals(&["diff"]).await;
    assert_eq!(own.stdout, "Everything that is offered is approved.\n", "{own:?}");
    process.stop().await;
}

#[tokio::test]
async fn status_shows_what_would_wait_while_a_gateway_runs_with_approvals_off() {
    let up = Changeable::start().await;
    let folder = Folder::new(&(ADMIN.to_owned() + &up.upstream.table("up")));
    let (process, _) = Process::serve_admin(folder.path(), &[]).await;
    let running = run(&folder, &["approvals", "status"]).await;
    let offline = run(&folder, &["approvals", "status", "--offline"]).await;
    assert_eq!((running.0, &running.1), (offline.0, &offline.1), "{running:?}");
    assert!(running.1.contains("up__p   pending"), "{running:?}");
    process.stop().await;
}

#[tokio::test]
async fn an_approved_prompt_is_withdrawn_and_only_what_waits_is_rejected() {
    let up = Changeable::start().await;
    let folder = Folder::new(&(enforced("") + &up.upstream.table("up")));
    folder.approve().await;
    let lock = folder.lock();
    let rejected = folder.approvals(&["reject", "up__p"]).await;
    assert_eq!(rejected.code, Some(1), "{rejected:?}");
    assert!(rejected.stderr.contains("promptgate approvals withdraw"), "{rejected:?}");
    let asked = folder.approvals(&["withdraw", "up__p"]).await;
    assert_eq!(asked.code, Some(64), "nobody is asked without a terminal: {asked:?}");
    assert_eq!(folder.lock(), lock);
    let process = Process::serve(folder.path()).await;
    let get =
        async || process.client().modern("prompts/get", json!({"name": "up__p"})).await.json();
    eventually(get, |reply| reply["result"].is_object()).await;
    process.stop().await;
    let withdrawn = folder.approvals(&["withdraw", "up__p", "--yes", "--why", "outdated"]).await;
    assert_eq!(withdrawn.code, Some(0), "{withdrawn:?}");
    assert_eq!(withdrawn.stdout, "Withdrawn: up__p\n");
    assert!(withdrawn.stderr.contains("in the last 7 days: anonymous "), "{withdrawn:?}");
    let record = folder.recorded("prompt_withdrawn").await;
    assert_eq!((&record["by"], &record["why"]), (&json!("alice"), &json!("outdated")));
    let status = folder.approvals(&["status", "--json"]).await.json();
    assert_eq!(status["prompts"][0]["state"], "rejected", "{status}");
    let again = folder.approvals(&["withdraw", "up__p", "--yes"]).await;
    assert_eq!(again.code, Some(1), "{again:?}");
    let back = folder.approvals(&["approve", "up__p", "--yes"]).await;
    assert_eq!(back.code, Some(0), "{back:?}");
}

#[tokio::test]
async fn two_people_approve_each_with_a_reason_and_only_what_can_be_seen() {
    let up = Changeable::start().await;
    let rules = "require_reason = true\napprovers = 2\nunseen = \"refuse\"\n";
    let folder = Folder::new(&(enforced(rules) + &up.upstream.table("up")));
    let approve = async |who: &str, why: &[&str]| {
        let command = [&["approve", "up__p", "--yes", "--unseen"], why].concat();
        folder.approvals_as(who, "", &command).await
    };
    let why = ["--why", "read"];
    let unfounded = approve("ada", &[]).await;
    assert!(unfounded.stderr.contains("approvals.require_reason"), "{unfounded:?}");
    let first = approve("ada", &why).await;
    assert!(first.stdout.starts_with("Approved by one of two: up__p"), "{first:?}");
    let state = async || folder.approvals(&["status", "--json"]).await.json()["prompts"][0].take();
    let row = state().await;
    assert_eq!((&row["state"], &row["pending"]["by"]), (&json!("pending"), &json!("ada")));
    let same = approve("ada", &why).await;
    assert_eq!(same.code, Some(1), "{same:?}");
    assert!(same.stderr.contains("another person must approve"), "{same:?}");
    // The text changes: the first approval is void.
    up.offer(|offer| offer.text = "other".to_owned());
    assert_eq!(state().await["pending"], json!(null));
    assert!(approve("bob", &why).await.stdout.starts_with("Approved by one of two"));
    let second = approve("ada", &why).await;
    assert_eq!(second.stdout, "Approved: up__p\n", "{second:?}");
    assert_eq!(state().await["approvedBy"], "bob, ada");
    assert_eq!(folder.recorded("prompt_approved").await["by"], "ada");
    // A text that cannot be had.
    up.offer(|offer| {
        offer.definition = json!({"name": "q"});
        offer.text = "FAIL".to_owned();
    });
    let unseen =
        folder.approvals(&["approve", "up__q", "--yes", "--unseen", "--why", "trust"]).await;
    assert_eq!(unseen.code, Some(1), "{unseen:?}");
    assert!(unseen.stderr.contains("approvals.unseen"), "{unseen:?}");
}

#[tokio::test]
async fn all_prompts_of_an_upstream_are_approved_after_a_summary() {
    let up = Changeable::start().await;
    let folder = Folder::new(&(enforced("") + &up.upstream.table("up")));
    let said = folder.approvals(&["approve", "--all-of", "up", "--yes"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    let summary = "1 prompt: 1 pending; 0 approved already\nClasses: 1 text\n\
                   up__p: pending: no version of it was approved\n";
    assert_eq!(said.stderr.trim_end(), summary.trim_end(), "no patch: {said:?}");
    let again = folder.approvals(&["approve", "--all-of", "up", "--yes"]).await;
    assert_eq!(again.stdout, "Nothing to do: 1 prompt approved already.\n");
    assert_eq!(folder.approvals(&["approve", "--all-of", "uq"]).await.code, Some(64));
}

#[tokio::test]
async fn five_hundred_prompts_are_approved_at_once_at_a_running_gateway() {
    let library = tempfile::tempdir().unwrap();
    for number in 0..500 {
        let name = format!("a-prompt-with-a-name-of-usual-length-{number:03}");
        let text = format!("---\nname: {name}\ndescription: d\n---\nText {number}.");
        std::fs::write(library.path().join(format!("{name}.md")), text).unwrap();
    }
    let path = library.path();
    let table = format!("[upstreams.lib]\ntransport = \"library\"\npath = {path:?}\n");
    let folder = Folder::new(&(enforced("") + ADMIN + &table));
    let (process, _) = Process::serve_admin(folder.path(), &[]).await;
    let all = ["approvals", "approve", "--all-of", "lib", "--yes", "--json"];
    let approve = async || run(&folder, &all).await;
    let (code, said, why) = eventually(approve, |said| said.1.contains("-499")).await;
    assert_eq!(code, Some(0), "{why}");
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["approved"].as_array().unwrap().len(), 500);
    process.stop().await;
}

/// An upstream with prompts that say their names, and `late`, whose text cannot be had.
async fn with_late(names: &'static [&'static str]) -> Upstream {
    Upstream::modern(move |asked| match asked.method() {
        "prompts/list" => {
            let names = names.iter().chain(["late"].iter());
            let prompts: Vec<_> = names.map(|name| json!({"name": name})).collect();
            Some(short_list(asked, &json!(prompts)))
        }
        "prompts/get" => Some(match asked.message["params"]["name"].as_str() {
            Some("late") => asked.error(-32000, "not today"),
            name => asked.content(json!({"type": "text", "text": format!("I am {name:?}")})),
        }),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn what_can_be_approved_of_an_upstream_is_and_the_rest_is_named() {
    for is_running in [false, true] {
        let upstream = with_late(&["a", "b"]).await;
        let folder = Folder::new(&(enforced("") + ADMIN + &upstream.table("up")));
        let mut process = None;
        if is_running {
            process = Some(Process::serve_admin(folder.path(), &[]).await.0);
        }
        let all = ["approvals", "approve", "--all-of", "up", "--yes"];
        // A text that is still being asked for changes the tag.
        let approve = async || run(&folder, &[&all[..], &["--json"]].concat()).await;
        let (code, said, why) = eventually(approve, |said| !said.1.is_empty()).await;
        assert_eq!(code, Some(1), "{why}");
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(said["approved"], json!(["up__a", "up__b"]), "{said}");
        let late = said["refused"]["up__late"].as_str().unwrap();
        assert!(late.contains("not today") && why.contains(late), "{why}");
        assert!(why.contains("\nup__a: pending: ") && !why.contains("+++ "), "{why}");
        assert!(!folder.lock().contains("late"), "{}", folder.lock());
        let rest = async || run(&folder, &[&all[..], &["--diff"]].concat()).await;
        let (code, said, why) = eventually(rest, |said| said.2.contains("Not approved")).await;
        assert_eq!((code, said.as_str()), (Some(1), "Nothing was approved.\n"), "{why}");
        assert!(why.contains("+++ offered: up__late"), "{why}");
        // Named prompts are approved all or not at all.
        let named = ["approvals", "approve", "up__late", "--yes"];
        assert_eq!(run(&folder, &named).await.0, Some(1));
        if let Some(process) = process {
            process.stop().await;
        }
    }
}

#[tokio::test]
async fn one_answer_is_for_all_that_follow_of_an_upstream_and_an_empty_reason_is_asked_again() {
    let (one, two) = (with_late(&["a", "b", "c"]).await, with_late(&["a"]).await);
    let toml = enforced("require_reason = true\n") + &one.table("one") + &two.table("two");
    let folder = Folder::new(&toml);
    let lines = "n\na\n\nread\nd\n";
    let said = folder.approvals_as("ada", lines, &["review"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    for expected in [
        "[a]ll that follow of one, [d]one with one",
        "Reason: A reason is required (approvals.require_reason).\nReason: Approved: one__b, one__c\n",
        "Not approved:\none__late: ",
        "5 of 6: two__a of upstream two",
        "Approved 2, rejected 0; 4 prompts left.\n",
    ] {
        assert!(said.stdout.contains(expected), "{expected}\n{said:?}");
    }
    assert!(!said.stdout.contains("6 of 6"), "{said:?}");
}

/// Commits all files of a folder as this person.
pub(super) fn commit(folder: &Folder, who: &str) {
    let (name, email) = (format!("user.name={who}"), format!("user.email={who}@example.com"));
    for arguments in [
        &["init", "-q"][..],
        &["add", "prompts"],
        &["-c", &name, "-c", &email, "commit", "-q", "-m", "change"],
    ] {
        let mut git = std::process::Command::new("git");
        let git = git.current_dir(folder.path()).env("GIT_CONFIG_GLOBAL", "/dev/null");
        let done = git.args(arguments).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
}

#[tokio::test]
async fn the_second_of_two_approvals_is_not_that_of_the_person_who_changed_the_file() {
    let library = "[upstreams.lib]\ntransport = \"library\"\npath = \"prompts\"\n";
    let folder = Folder::new(&(enforced("approvers = 2\n") + library));
    std::fs::create_dir(folder.path().join("prompts")).unwrap();
    let write = |text: &str| {
        let file = format!("---\nname: p\n---\n{text}\n");
        std::fs::write(folder.path().join("prompts/p.md"), file).unwrap();
    };
    let approve = async |who: &str| {
        folder.approvals_as(who, "", &["approve", "lib__p", "--yes", "--why", "read"]).await
    };
    write("one");
    commit(&folder, "ada");
    assert!(approve("bob").await.stdout.starts_with("Approved by one of two"));
    let own = approve("ada").await;
    assert_eq!(own.code, Some(1), "{own:?}");
    assert!(own.stderr.contains("lib__p: ada changed its file in commit "), "{own:?}");
    assert!(own.stderr.contains("another person must approve it"), "{own:?}");
    assert_eq!(approve("carol").await.stdout, "Approved: lib__p\n");
    write("two");
    commit(&folder, "ada");
    assert!(approve("ada").await.stdout.starts_with("Approved by one of two"), "as the first");
    assert_eq!(approve("bob").await.stdout, "Approved: lib__p\n");
    write("not committed");
    assert!(approve("bob").await.stdout.starts_with("Approved by one of two"));
    assert_eq!(approve("ada").await.stdout, "Approved: lib__p\n", "git does not tell");
}

#[tokio::test]
async fn a_prompt_whose_author_cannot_be_known_is_not_approved_and_others_are_checked() {
    let library = "[upstreams.lib]\ntransport = \"library\"\npath = \"prompts\"\n";
    let folder = Folder::new(&(enforced("approvers = 2\n") + library));
    let prompts = folder.path().join("prompts");
    std::fs::create_dir_all(prompts.join("inner")).unwrap();
    std::fs::write(prompts.join("inner/a.md"), "---\nname: a\n---\none\n").unwrap();
    std::fs::write(prompts.join("p.md"), "---\nname: p\n---\none\n").unwrap();
    commit(&folder, "ada");
    // Whoever writes the folder could have written all of this repository.
    std::fs::create_dir(prompts.join("inner/.git")).unwrap();
    let approve = async |who: &str, names: &[&str]| {
        let command = [&["approve"], names, &["--yes", "--why", "read"]].concat();
        folder.approvals_as(who, "", &command).await
    };
    let first = approve("bob", &["lib__p"]).await;
    assert!(first.stdout.starts_with("Approved by one of two"), "{first:?}");
    let own = approve("ada", &["lib__a", "lib__p"]).await;
    assert!(own.stderr.contains("lib__p: ada changed its file in commit "), "{own:?}");
    let first = approve("bob", &["lib__a"]).await;
    assert!(first.stdout.starts_with("Approved by one of two"), "{first:?}");
    let unknown = approve("carol", &["lib__a"]).await;
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stderr.contains("is a repository inside the library"), "{unknown:?}");
    assert_eq!(approve("carol", &["lib__p"]).await.stdout, "Approved: lib__p\n");
}

#[tokio::test]
async fn a_skill_with_a_large_document_is_reviewed_and_approved_through_the_running_gateway() {
    let library = "[upstreams.lib]\ntransport = \"library\"\npath = \"prompts\"\n";
    let folder = Folder::new(&(enforced("") + ADMIN + library));
    let skill = folder.path().join("prompts/big");
    std::fs::create_dir_all(&skill).unwrap();
    let front = "---\nname: big\ndescription: Much to read.\n---\nRead.";
    std::fs::write(skill.join("SKILL.md"), front).unwrap();
    std::fs::write(skill.join("data.txt"), "a line of the text\n".repeat(80_000)).unwrap();
    let process = Process::serve_admin(folder.path(), &[]).await.0;
    let name = "skill://lib/big/SKILL.md";
    let (code, diff, error) = run(&folder, &["approvals", "diff", name, "--json"]).await;
    assert!(code == Some(0) && diff.contains("data.txt"), "{error}");
    let (_, text, error) = run_typing(&folder, "n\n", &["approvals", "review"]).await;
    assert!(text.contains("1 prompt left"), "{error}");
    let (code, _, error) = run(&folder, &["approvals", "approve", name, "--yes"]).await;
    assert_eq!(code, Some(0), "{error}");
    assert!(run(&folder, &["approvals", "status"]).await.1.contains("approved"));
    process.stop().await;
}
