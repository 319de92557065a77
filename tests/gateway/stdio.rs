//! Upstreams as child processes, well behaved and not (fault matrix, S).

use serde_json::json;

use crate::health::{provoke, two_keys};
use crate::support::{Gateway, Pipe, Scripted, Upstream, eventually};
#[cfg(target_os = "linux")]
use crate::support::{Process, is_alive};

/// A prompt server in a few lines of shell. `$1` names what it does wrong.
const CHILD: &str = r#"
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
refuse() { printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}\n' "$id"; }
[ -n "$STARTS" ] && echo started >> "$STARTS"
[ "$1" = fails ] && exit 1
[ "$1" = stderr ] && head -c 2000000 /dev/zero | tr '\0' 'e' >&2
list='{"prompts":[{"name":"p"}]}'
[ "$1" = picky ] && list='{"prompts":[{"name":"boom"},{"name":"fine"}]}'
while read -r line; do
    id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
    case "$line" in
    *'"server/discover"'*)
        case "$1" in
        modern) answer '{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"prompts":{}},"ttlMs":0,"cacheScope":"public"}' ;;
        silent) ;;
        late) asked=$id ;;
        dies) exit 1 ;;
        garbage) echo 'not json'; printf '\000\377\n'; echo '{"a":1}{"b":2}'; echo; refuse ;;
        *) refuse ;;
        esac ;;
    *'"initialize"'*)
        if [ "$1" = late ]; then
            mine=$id; id=$asked
            answer '{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"prompts":{}},"ttlMs":0,"cacheScope":"public"}'
            id=$mine; refuse
            continue
        fi
        answer '{"protocolVersion":"2025-06-18","capabilities":{"prompts":{"listChanged":true}},"serverInfo":{"name":"sh","version":"1"}}' ;;
    *'"prompts/list"'*)
        answer "$list" ;;
    *'"prompts/get"'*)
        case "$1" in
        crash) exit 1 ;;
        picky)
            case "$line" in
            *'"boom"'*) exit 1 ;;
            *) answer '{"messages":[]}' ;;
            esac ;;
        hang) ;;
        stuck) sleep 300 ;;
        orphan) sleep 300 & exit 1 ;;
        long) head -c 100000 /dev/zero | tr '\0' 'x'; sleep 60 ;;
        env) answer "{\"messages\":[{\"role\":\"user\",\"content\":{\"type\":\"text\",\"text\":\"$(env | cut -d= -f1 | sort | tr '\n' ' ')\"}}]}" ;;
        change)
            list='{"prompts":[{"name":"p"},{"name":"q"}]}'
            echo '{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}'
            answer '{"messages":[]}' ;;
        ping)
            echo '{"jsonrpc":"2.0","id":"mine","method":"ping"}'
            read -r pong
            answer "{\"messages\":[{\"role\":\"user\",\"content\":{\"type\":\"text\",\"text\":\"$(printf '%s' "$pong" | sed 's/"/\\"/g')\"}}]}" ;;
        *) answer '{"messages":[{"role":"user","content":{"type":"text","text":"hello"}}]}' ;;
        esac ;;
    esac
done
"#;

fn table(id: &str, fault: &str) -> String {
    let script = serde_json::to_string(CHILD).unwrap().replace("\\u0000", "\\\\u0000");
    format!(
        "[upstreams.{id}]\ntransport = \"stdio\"\ncommand = [\"sh\", \"-c\", {script}, \"child\", \"{fault}\"]\n"
    )
}

async fn child(fault: &str) -> Gateway {
    Gateway::start(&table("sh", fault)).await
}

async fn text(gateway: &Gateway) -> String {
    let result = gateway.client().ask("prompts/get", json!({"name": "sh__p"})).await;
    result["messages"][0]["content"]["text"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn s8_the_era_of_a_child_is_found_whatever_it_says_to_the_question() {
    for fault in ["modern", "legacy", "dies", "garbage"] {
        let gateway = child(fault).await;
        assert_eq!(gateway.client().names().await.0, ["sh__p"], "{fault}");
        assert_eq!(text(&gateway).await, "hello", "{fault}");
    }
    let gateway = Gateway::start(&(table("sh", "silent") + "probe = \"100ms\"\n")).await;
    assert_eq!(text(&gateway).await, "hello", "silence means legacy");
    let gateway = Gateway::start(&(table("sh", "late") + "probe = \"100ms\"\n")).await;
    assert_eq!(text(&gateway).await, "hello", "a late answer still makes it modern");
}

#[tokio::test]
async fn s1_a_command_that_is_missing_fails_by_itself_and_no_shell_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made");
    let command = format!("[\"/no/such; touch {0}\", \"$(touch {0})\"]", made.display());
    let toml = table("sh", "legacy")
        + &format!("[upstreams.none]\ntransport = \"stdio\"\ncommand = {command}\n");
    let gateway = Gateway::start(&toml).await;
    let list = gateway.client().ask("prompts/list", json!({})).await;
    assert_eq!(list["prompts"], json!([{"name": "sh__p"}]));
    let incomplete = &list["_meta"]["promptgate/incomplete"][0];
    assert_eq!(
        (&incomplete["upstream"], &incomplete["reason"]),
        (&json!("none"), &json!("upstream_unavailable"))
    );
    assert!(!made.exists(), "a shell has read it");
}

#[tokio::test]
async fn s1_a_child_sees_few_variables_and_the_configured_ones() {
    let toml = table("sh", "env") + "env = { GIVEN = \"x\", TOKEN = { value = \"t\" } }\n";
    let gateway = Gateway::start(&toml).await;
    let seen = text(&gateway).await;
    for name in ["GIVEN", "TOKEN", "PATH"] {
        assert!(seen.split(' ').any(|n| n == name), "{name}: {seen}");
    }
    // Variables that the shell sets by itself, the number of gateways before the child, and no
    // other variable of the gateway.
    let of_shell = ["PWD", "OLDPWD", "SHLVL", "_"];
    let known = ["GIVEN", "TOKEN", "PATH", "HOME", "LANG", "TMPDIR", "PROMPTGATE_DEPTH"];
    let of_network = |name: &str| {
        let name = name.to_uppercase();
        ["_PROXY", "_CA_CERTS", "_CA_BUNDLE", "_CERT_FILE", "_CERT_DIR"]
            .iter()
            .any(|end| name.ends_with(end))
    };
    let is_known =
        |name: &&str| known.contains(name) || of_shell.contains(name) || of_network(name);
    let foreign: Vec<_> = seen.split_whitespace().filter(|name| !is_known(name)).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}

#[tokio::test]
async fn s1_a_child_inherits_what_the_defaults_and_its_upstream_name() {
    let given = |name: &&str| std::env::var_os(name).is_some();
    // Cargo sets these for its tests, and most shells the others.
    let names: Vec<_> =
        ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR", "USER", "OLDPWD", "SHELL", "TERM", "LOGNAME"]
            .into_iter()
            .filter(given)
            .collect();
    let [of_defaults, own, ..] = names[..] else { panic!("{names:?}") };
    let toml = format!("[defaults]\ninherit = [\"{of_defaults}\"]\n")
        + &table("sh", "env")
        + &format!("inherit = [\"{own}\", \"NOT_SET_ANYWHERE\"]\n");
    let seen = text(&Gateway::start(&toml).await).await;
    let has = |name: &str| seen.split_whitespace().any(|seen| seen == name);
    assert!(has(of_defaults) && has(own) && !has("NOT_SET_ANYWHERE"), "{seen}");
}

/// A gateway before a child whose starts are counted.
async fn counted(fault: &str, settings: &str) -> (Gateway, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let env = format!("env = {{ STARTS = \"{}\" }}\n", folder.path().join("starts").display());
    (Gateway::start(&(table("sh", fault) + settings + &env)).await, folder)
}

fn starts(folder: &tempfile::TempDir) -> usize {
    std::fs::read_to_string(folder.path().join("starts")).map_or(0, |text| text.lines().count())
}

async fn get_error(gateway: &Gateway) -> serde_json::Value {
    gateway.client().ask_error("prompts/get", json!({"name": "sh__p"})).await
}

#[tokio::test]
async fn s2_a_child_that_crashes_in_a_call_is_told_at_once_and_started_again() {
    let (gateway, folder) = counted("crash", "").await;
    let error = get_error(&gateway).await;
    assert_eq!(
        (&error["code"], &error["data"]["reason"]),
        (&json!(-32603), &json!("upstream_reset"))
    );
    eventually(async || starts(&folder), |seen| *seen == 2).await;
    assert_eq!(gateway.client().names().await.0, ["sh__p"]);
}

#[tokio::test]
async fn s2_a_child_that_cannot_live_is_not_started_over_and_over() {
    let refusing = Upstream::start(|_| Scripted::Http(503, vec![], vec![])).await;
    let beside = Gateway::start(&refusing.patient_table("refusing")).await;
    let (gateway, folder) = counted("fails", "").await;
    let list = gateway.client().ask_error("prompts/list", json!({})).await;
    assert_eq!(list["data"]["reason"], "upstream_unavailable");
    // Backoff shows in comparison: a server that refuses is tried after the same waits, which
    // double, so that one is at most one try ahead of the other. A child that is started without
    // waits is far ahead by then.
    refusing
        .until(|received| {
            received.iter().filter(|request| request.method() == "server/discover").count() == 6
        })
        .await;
    // Two starts a try, of the modern era and of the legacy one.
    let tries = starts(&folder).div_ceil(2);
    assert!(tries <= 8, "{tries} tries of a child beside 6 of a server");
    drop(beside);
}

#[tokio::test]
async fn s3_a_child_that_hangs_ends_at_the_deadline_and_others_are_served() {
    let toml = table("sh", "hang") + "timeout = \"100ms\"\n" + &table("ok", "legacy");
    let gateway = Gateway::start(&toml).await;
    assert_eq!(get_error(&gateway).await["data"]["reason"], "upstream_timeout");
    gateway.client().ask("prompts/get", json!({"name": "ok__p"})).await;
}

#[tokio::test]
async fn s3_a_child_that_hangs_for_good_is_replaced() {
    let settings = "timeout = \"100ms\"\npage_timeout = \"100ms\"\npoll = \"20ms\"\n";
    let (gateway, folder) = counted("stuck", settings).await;
    assert_eq!(get_error(&gateway).await["data"]["reason"], "upstream_timeout");
    eventually(async || starts(&folder), |seen| *seen >= 2).await;
}

#[tokio::test]
async fn s3_a_child_whose_output_is_held_open_by_another_is_still_gone() {
    let (gateway, folder) = counted("orphan", "").await;
    assert_eq!(get_error(&gateway).await["data"]["reason"], "upstream_reset");
    eventually(async || starts(&folder), |seen| *seen >= 2).await;
}

#[tokio::test]
async fn s4_two_megabytes_on_standard_error_block_nobody() {
    assert_eq!(text(&child("stderr").await).await, "hello");
}

#[tokio::test]
async fn s4_what_a_child_said_last_on_standard_error_is_shown_to_the_operator() {
    // Its last words matter most.
    let script = "echo 'first' >&2; exec 1>&-; cat >/dev/null; printf '\\033[31mno such table\\n' >&2; exit 1";
    let toml = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[upstreams.sh]\ntransport = \"stdio\"\n\
         command = [\"sh\", \"-c\", {}]\n",
        json!(script)
    );
    let gateway = Gateway::start(&toml).await;
    let said = eventually(
        async || {
            let shown = gateway.admin().send("GET", "/api/v1/upstreams", &[], b"").await.json();
            shown["upstreams"][0]["stderr"].as_array().cloned().unwrap_or_default()
        },
        |said| said.len() >= 2,
    )
    .await;
    // Another attempt may have said the same already.
    assert_eq!(said[..2], [json!("first"), json!(" [31mno such table")]);
}

/// The row of the only upstream on the admin side, once `accept` holds for it.
async fn admin_row(
    gateway: &Gateway,
    accept: impl Fn(&serde_json::Value) -> bool,
) -> serde_json::Value {
    let row = async || {
        let shown = gateway.admin().send("GET", "/api/v1/upstreams", &[], b"").await.json();
        shown["upstreams"][0].clone()
    };
    eventually(row, |row| accept(row)).await
}

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

/// The table of a child that runs this shell script.
fn script(script: &str) -> String {
    format!(
        "[upstreams.sh]\ntransport = \"stdio\"\ncommand = [\"sh\", \"-c\", {}]\n",
        json!(script)
    )
}

#[tokio::test]
async fn u13_operators_read_how_the_last_attempt_of_a_child_ended_and_clients_do_not() {
    // Asked in the modern era it complains of that, asked in the legacy era of its own trouble.
    let asked =
        "read line; case $line in *server/discover*) echo 'unknown method' >&2; exit 4;; esac\n";
    for (end, expected) in [
        ("echo 'no such table' >&2; exit 3", "exited with code 3: no such table"),
        ("echo 'no such table' >&2; kill -9 $$", "was ended by signal 9: no such table"),
        ("exit 0", "exited with code 0, and wrote nothing that says why"),
    ] {
        let toml = ADMIN.to_owned() + &script(&format!("{asked}{end}"));
        let gateway = Gateway::start(&toml).await;
        let row = admin_row(&gateway, |row| row["error"].is_object()).await;
        assert_eq!(row["error"]["message"], expected);
        assert_eq!(row["error"]["reason"], "upstream_reset");
        if expected.contains("table") {
            assert_eq!(row["stderr"], json!(["no such table"]), "not of the attempt before");
        }
        let list = gateway.client().modern("prompts/list", json!({})).await;
        let get = gateway.client().modern("prompts/get", json!({"name": "sh__p"})).await;
        for reply in [list, get] {
            let said = String::from_utf8(reply.body).unwrap();
            assert!(!said.contains("table") && !said.contains("unknown method"), "{said}");
        }
    }
}

#[tokio::test]
async fn s8_a_child_that_lives_and_does_not_answer_is_given_up_after_startup() {
    let settings = "startup = \"200ms\"\nprobe = \"100ms\"\n";
    let toml = ADMIN.to_owned()
        + &script("echo 'installing packages' >&2; while read line; do :; done")
        + settings;
    let gateway = Gateway::start(&toml).await;
    let expected = "has not answered within startup = 0.2 s: installing packages";
    // Not each attempt gets as far as that within the time.
    let row = admin_row(&gateway, |row| row["error"]["message"] == expected).await;
    assert_eq!(row["error"]["reason"], "upstream_timeout");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn s8_a_child_may_take_longer_to_start_than_a_probe_and_a_walk() {
    let folder = tempfile::tempdir().unwrap();
    let go = Pipe::new(folder.path(), "go");
    // The first list returns once both limits have passed.
    let settings = "probe = \"50ms\"\nwalk_timeout = \"100ms\"\npage_timeout = \"100ms\"\n";
    let toml =
        "[listing]\ndeadline = \"300ms\"\n".to_owned() + &waiting("slow", folder.path()) + settings;
    let gateway = Gateway::start(&toml).await;
    let list = gateway.client().modern("prompts/list", json!({})).await.json();
    assert_eq!(list["error"]["data"]["reason"], "upstream_unavailable", "{list}");
    go.open();
    eventually(
        async || gateway.client().modern("prompts/list", json!({})).await.json(),
        |list| list["result"]["prompts"].as_array().is_some_and(|prompts| prompts.len() == 1),
    )
    .await;
    assert_eq!(starts(&folder), 1, "it was not started again");
}

#[tokio::test]
async fn an_upstream_that_works_and_has_no_prompts_is_shown_as_such() {
    let empty = "works, but its list of prompts is empty";
    let undeclared = "works, but declares no prompts";
    let bare = Upstream::modern(|asked| {
        (asked.method() == "prompts/list").then(|| asked.list(&json!([])))
    })
    .await;
    let tools = Upstream::modern(|asked| {
        (asked.method() == "server/discover").then(|| {
            asked.result(json!({"resultType": "complete", "ttlMs": 0, "cacheScope": "public",
                "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}))
        })
    })
    .await;
    for (upstream, expected) in [(&bare, empty), (&tools, undeclared)] {
        let gateway = Gateway::start(&(ADMIN.to_owned() + &upstream.table("up"))).await;
        let row = admin_row(&gateway, |row| row["note"].is_string()).await;
        assert_eq!((&row["note"], &row["state"]), (&json!(expected), &json!("up")));
        assert!(row.get("error").is_none(), "{row}");
    }
}

/// A child that waits for the pipe `go` before it answers well, under the name of its folder.
#[cfg(target_os = "linux")]
fn waiting(id: &str, folder: &std::path::Path) -> String {
    let wait = "echo started >> starts; : < go\n";
    let script = serde_json::to_string(&(wait.to_owned() + CHILD)).unwrap();
    format!(
        "[upstreams.{id}]\ntransport = \"stdio\"\ncwd = {folder:?}\n\
         command = [\"sh\", \"-c\", {}, {folder:?}, \"legacy\"]\n",
        script.replace("\\u0000", "\\\\u0000")
    )
}

/// How many children of this process have this text on their command line.
#[cfg(target_os = "linux")]
fn children(text: &str) -> usize {
    let me = format!("PPid:\t{}\n", std::process::id());
    let is_child = |process: &std::path::PathBuf| {
        let read = |name: &str| std::fs::read_to_string(process.join(name)).unwrap_or_default();
        read("status").contains(&me) && read("cmdline").contains(text)
    };
    let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    processes.filter(is_child).count()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn s9_a_hundred_children_are_started_a_few_at_a_time_and_all_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let tables: String = (0..100).map(|n| waiting(&format!("c{n}"), folder.path())).collect();
    let toml = format!(
        "[listing]\ndeadline = \"0s\"\n[defaults]\nprobe = \"60s\"\nstartup = \"90s\"\n{tables}"
    );
    let go = Pipe::new(folder.path(), "go");
    let gateway = Gateway::start(&toml).await;
    // All upstreams connect at once, and a process exists long before its script runs: by now all
    // would be there.
    eventually(async || starts(&folder), |seen| *seen >= 16).await;
    assert_eq!(children(folder.path().to_str().unwrap()), 16);
    go.open();
    eventually(
        async || {
            let list = gateway.client().modern("prompts/list", json!({})).await.json();
            list["result"]["prompts"].as_array().map_or(0, Vec::len)
        },
        |seen| *seen == 100,
    )
    .await;
    assert_eq!(starts(&folder), 100, "each was started once");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn s10_after_a_thousand_children_no_process_and_no_descriptor_is_left() {
    use crate::support::PATIENCE;
    use config::Config;
    use std::sync::Arc;
    use tokio::time::timeout;
    use upstream::call::correlator::NotificationSinks;
    use upstream::connection::connect::Connector;
    let path = std::path::Path::new(".");
    let config = Config::parse("test", &table("sh", "legacy"), path, &[]).unwrap();
    let upstream = Arc::new(config.upstreams.into_iter().next().unwrap());
    let (tasks, leave) =
        (tokio_util::task::TaskTracker::new(), Arc::new(tokio::sync::Semaphore::new(8)));
    let connector =
        Connector::new(upstream, NotificationSinks::new("sh"), tasks.clone(), leave, None);
    let connector = Arc::new(connector.unwrap());
    let round = async |children: usize| {
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..children {
            let connector = connector.clone();
            all.spawn(async move { connector.connect().await.unwrap().close().await });
        }
        while let Some(one) = all.join_next().await {
            one.unwrap();
        }
        tasks.close();
        timeout(PATIENCE, tasks.wait()).await.expect("its tasks end");
        tasks.reopen();
    };
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // Children of this process that are dead and not waited for. Other tests run beside this one.
    let defunct = || {
        let me = std::process::id().to_string();
        let stats = std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("stat")).ok());
        let is_ours = |stat: &String| {
            let rest = stat.rsplit(") ").next().unwrap_or_default();
            let mut fields = rest.split(' ');
            fields.next() == Some("Z") && fields.next() == Some(&me) && stat.contains("(sh)")
        };
        stats.filter(is_ours).count()
    };
    round(20).await;
    let before = descriptors();
    for _ in 0..20 {
        round(50).await;
    }
    eventually(async || defunct(), |seen| *seen == 0).await;
    // Descriptors of concurrent tests come and go.
    eventually(async || descriptors(), |seen| *seen <= before + 200).await;
}

#[tokio::test]
async fn s5_a_line_without_end_is_cut_off_at_the_limit() {
    let (gateway, folder) = counted("long", "max_message = \"64KiB\"\n").await;
    let error = get_error(&gateway).await;
    assert_eq!(error["data"]["reason"], "upstream_reset");
    let id = error["data"]["correlationId"].as_str().expect("where the log has the cause");
    assert_eq!(id.len(), 16, "{error}");
    eventually(async || starts(&folder), |seen| *seen >= 2).await;
}

#[tokio::test]
async fn a_child_says_that_its_list_has_changed() {
    let gateway =
        Gateway::start(&("[listing]\ndebounce = \"10ms\"\n".to_owned() + &table("sh", "change")))
            .await;
    assert_eq!(gateway.client().names().await.0, ["sh__p"]);
    gateway.client().ask("prompts/get", json!({"name": "sh__p"})).await;
    eventually(async || gateway.client().names().await.0, |seen| *seen == ["sh__p", "sh__q"]).await;
}

#[tokio::test]
async fn a_child_may_ask_whether_we_are_there() {
    let gateway = child("ping").await;
    assert_eq!(text(&gateway).await, r#"{"jsonrpc":"2.0","id":"mine","result":{}}"#);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn nothing_is_left_of_a_child_when_the_gateway_ends() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let script =
        "echo $$ >> pids; sleep 300 & echo $! >> pids; while read -r line; do :; done; sleep 300";
    let toml = format!(
        "[server.limits]\npre_drain = \"0s\"\n[upstreams.sh]\ntransport = \"stdio\"\n\
         command = [\"sh\", \"-c\", \"{script}\"]\ncwd = \"{}\"\n",
        folder.path().display()
    );
    let gateway = Gateway::start(&toml).await;
    let pids = eventually(
        async || std::fs::read_to_string(&pids).unwrap_or_default(),
        |pids| pids.ends_with('\n') && pids.lines().count() == 2,
    )
    .await;
    gateway.drain().await;
    for pid in pids.lines() {
        // A killed process takes a moment to go; one that was forgotten never does.
        eventually(async || is_alive(pid), |alive| !alive).await;
    }
}

/// The processes in a file that still run.
#[cfg(target_os = "linux")]
fn alive(pids: &str) -> Vec<&str> {
    pids.lines().filter(|pid| is_alive(pid)).collect()
}

/// A child that ignores the end of its input and requests to end, with a grandchild, one that was
/// let go, and one in a session of its own.
const STUBBORN: &str = "trap '' TERM HUP; echo $$ >> pids; \
    sleep 300 & echo $! >> pids; \
    (sleep 300 & echo $! >> pids); \
    setsid sh -c 'echo $$ >> pids; exec sleep 300' & \
    while read -r line; do :; done; sleep 300; sleep 300";

#[cfg(target_os = "linux")]
#[tokio::test]
async fn s3_nothing_is_left_of_a_stubborn_child_even_when_the_gateway_is_killed() {
    for is_killed in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let script = serde_json::to_string(STUBBORN).unwrap();
        let toml = format!(
            "[server.limits]\npre_drain = \"0s\"\ngrace = \"0s\"\n[listing]\ndeadline = \"0s\"\n\
             [upstreams.sh]\ntransport = \"stdio\"\ncommand = [\"sh\", \"-c\", {script}]\ncwd = \".\"\n"
        );
        std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
        let gateway = Process::serve(folder.path()).await;
        let pids = eventually(
            async || std::fs::read_to_string(folder.path().join("pids")).unwrap_or_default(),
            |pids| pids.ends_with('\n') && pids.lines().count() == 4,
        )
        .await;
        assert_eq!(alive(&pids).len(), 4);
        if is_killed {
            gateway.kill().await;
        } else {
            gateway.stop().await;
        }
        eventually(async || alive(&pids), |seen| seen.is_empty()).await;
    }
}

#[tokio::test]
async fn s6_a_child_that_does_not_read_holds_up_its_own_calls_only() {
    let folder = tempfile::tempdir().unwrap();
    let starts = folder.path().join("starts");
    let deaf = "echo >> \"$STARTS\"; read -r a; printf '{\"jsonrpc\":\"2.0\",\"id\":0,\"error\":{\"code\":-32601,\"message\":\"\"}}\\n'; \
        read -r b; printf '{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{\"prompts\":{}},\"serverInfo\":{\"name\":\"d\",\"version\":\"1\"}}}\\n'; \
        read -r c; read -r d; id=$(printf '%s' \"$d\" | sed 's/^[^,]*,\"id\":\\([0-9]*\\).*/\\1/'); \
        printf '{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"prompts\":[{\"name\":\"p\"}]}}\\n' \"$id\"; sleep 300";
    let script = serde_json::to_string(deaf).unwrap();
    let toml = format!(
        "[upstreams.deaf]\ntransport = \"stdio\"\ncommand = [\"sh\", \"-c\", {script}]\ntimeout = \"300ms\"\n\
         env = {{ STARTS = \"{}\" }}\n{}",
        starts.display(),
        table("ok", "legacy")
    );
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    eventually(async || client.names().await.0.len(), |seen| *seen == 2).await;
    // More than a pipe holds.
    let long = "x".repeat(100_000);
    let params = json!({"name": "deaf__p", "arguments": {"a": long}});
    let error = client.ask_error("prompts/get", params.clone()).await;
    assert_eq!(error["data"]["reason"], "upstream_timeout");
    client.ask("prompts/get", json!({"name": "ok__p"})).await;
    // At its write deadline the child is given up, and started again.
    eventually(
        async || {
            client.ask_error("prompts/get", params.clone()).await;
            std::fs::read_to_string(&starts).unwrap().lines().count()
        },
        |seen| *seen > 1,
    )
    .await;
}

#[tokio::test]
async fn s7_a_flood_of_notices_holds_up_no_answer() {
    let flood = "while read -r line; do
        id=$(printf '%s' \"$line\" | sed 's/^[^,]*,\"id\":\\([0-9]*\\).*/\\1/')
        case \"$line\" in
        *server/discover*) printf '{\"jsonrpc\":\"2.0\",\"id\":%s,\"error\":{\"code\":-32601,\"message\":\"\"}}\\n' \"$id\" ;;
        *initialize\\\"*) printf '{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{\"prompts\":{\"listChanged\":true}},\"serverInfo\":{\"name\":\"d\",\"version\":\"1\"}}}\\n' \"$id\" ;;
        *prompts/list*) printf '{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"prompts\":[{\"name\":\"p\"}]}}\\n' \"$id\" ;;
        *prompts/get*)
            yes '{\"jsonrpc\":\"2.0\",\"method\":\"notifications/prompts/list_changed\"}' | head -n 50000
            printf '{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"messages\":[]}}\\n' \"$id\" ;;
        esac
    done";
    let script = serde_json::to_string(flood).unwrap();
    let toml =
        format!("[upstreams.up]\ntransport = \"stdio\"\ncommand = [\"sh\", \"-c\", {script}]\n");
    let gateway = Gateway::start(&toml).await;
    // A subscriber that reads nothing meanwhile.
    let mut slow = gateway.client().listen().await;
    for _ in 0..3 {
        let result = gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
        assert_eq!(result["messages"], json!([]));
    }
    // The list is the same: nobody is told anything.
    gateway.drain().await;
    let last = slow.event().await.expect("the end of the subscription").json();
    assert!(last.get("result").is_some(), "{last}");
}

#[tokio::test]
async fn w14_five_hundred_clients_share_one_child_and_get_their_own_answers() {
    let echo = "while read -r line; do
        id=$(printf '%s' \"$line\" | sed 's/^[^,]*,\"id\":\\([0-9]*\\).*/\\1/')
        case \"$line\" in
        *server/discover*) printf '{\"jsonrpc\":\"2.0\",\"id\":%s,\"error\":{\"code\":-32601,\"message\":\"\"}}\\n' \"$id\" ;;
        *initialize\\\"*) printf '{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{\"prompts\":{}},\"serverInfo\":{\"name\":\"d\",\"version\":\"1\"}}}\\n' \"$id\" ;;
        *prompts/list*) printf '{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"prompts\":[{\"name\":\"p\"}]}}\\n' \"$id\" ;;
        *prompts/get*)
            who=$(printf '%s' \"$line\" | sed 's/.*\"who\":\"\\([^\"]*\\)\".*/\\1/')
            printf '{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"messages\":[{\"role\":\"user\",\"content\":{\"type\":\"text\",\"text\":\"%s\"}}]}}\\n' \"$id\" \"$who\" ;;
        esac
    done";
    let script = serde_json::to_string(echo).unwrap();
    let toml = format!(
        "[server.limits]\nshare = 1.0\n[upstreams.up]\ntransport = \"stdio\"\ncommand = [\"sh\", \"-c\", {script}]\n\
         queue = 500\nqueue_wait = \"60s\"\ntimeout = \"60s\"\n"
    );
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    for (i, text) in gateway.texts_at_once(500).await.iter().enumerate() {
        assert_eq!(*text, format!("client-{i}"));
    }
}

#[tokio::test]
async fn a_child_that_the_call_of_one_caller_ends_is_there_for_the_others() {
    let gateway = Gateway::start(&(two_keys() + &table("sh", "picky"))).await;
    gateway.summary().await;
    provoke(&gateway, "sh").await;
}
