//! A prompt server without faults, in every revision and transport.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::upstream::good_modern;
use super::{Client, OpenStream, Received, Scripted, Upstream};

/// Transport and revision of a server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ServerMode {
    /// HTTP+SSE.
    Sse,
    /// Streamable HTTP of a legacy revision.
    Http(&'static str),
    /// Streamable HTTP of 2026-07-28.
    Modern,
    /// Standard streams, with a handshake.
    Stdio,
    /// Standard streams, 2026-07-28.
    ModernStdio,
    /// Files that the gateway reads.
    Library,
}

/// A server under the id `up`, with the prompts `all`, `change` and `last` on two pages; a get of
/// `change` adds `more` to them, or takes it away.
pub struct Server {
    pub table: String,
    pub server_mode: ServerMode,
    folder: tempfile::TempDir,
    _upstream: Option<Upstream>,
}

#[derive(Default)]
struct State {
    more: bool,
    /// Streams that hear of changes, and the tag of a subscription.
    streams: Vec<(OpenStream, Value)>,
}

const CHANGED: &str = "notifications/prompts/list_changed";

impl Server {
    pub async fn start(server_mode: ServerMode) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap().to_owned();
        let (table, upstream) = match server_mode {
            ServerMode::Library => {
                let library = "transport = \"library\"\npath = ".to_owned();
                for (file, bytes) in EMBEDDED {
                    std::fs::write(folder.path().join(file), bytes).unwrap();
                }
                for name in ["all", "change", "last"] {
                    write_prompt(folder.path(), name);
                }
                (format!("{library}\"{path}\"\n"), None)
            }
            ServerMode::Stdio | ServerMode::ModernStdio => {
                (child(folder.path(), server_mode == ServerMode::ModernStdio), None)
            }
            ServerMode::Sse | ServerMode::Http(_) | ServerMode::Modern => {
                let upstream = served(server_mode).await;
                let table =
                    format!("transport = \"http\"\nurl = \"http://{}/mcp\"\n", upstream.addr);
                (table, Some(upstream))
            }
        };
        let table = format!("[upstreams.up]\n{table}poll = \"0s\"\n");
        Self { table, server_mode, folder, _upstream: upstream }
    }

    /// Changes the list.
    pub async fn change(&self, client: &Client) {
        let more = self.folder.path().join("more.md");
        match (self.server_mode, more.exists()) {
            (ServerMode::Library, false) => write_prompt(self.folder.path(), "more"),
            (ServerMode::Library, true) => std::fs::remove_file(more).unwrap(),
            _ => drop(client.ask("prompts/get", json!({"name": "up__change"})).await),
        }
    }
}

/// The messages of `all`: every type of content.
pub fn messages() -> Value {
    let content = [
        json!({"type": "text", "text": "Hello"}),
        json!({"type": "image", "data": "iVBORw==", "mimeType": "image/png"}),
        json!({"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"}),
        json!({"type": "resource", "resource": {"uri": "a:text", "text": "x", "mimeType": "text/plain"}}),
        json!({"type": "resource", "resource": {"uri": "a:blob", "blob": "AAAA"}}),
        json!({"type": "resource_link", "uri": "https://a.example/x", "name": "x", "title": "The x"}),
    ];
    content.into_iter().map(|content| json!({"role": "user", "content": content})).collect()
}

fn page(cursor: Option<&str>, more: bool) -> Value {
    let argument = json!([{"name": "a", "required": false}]);
    match (cursor, more) {
        (None, _) => json!({"nextCursor": "2",
            "prompts": [{"name": "all", "arguments": argument}, {"name": "change"}]}),
        (Some(_), false) => json!({"prompts": [{"name": "last"}]}),
        (Some(_), true) => json!({"prompts": [{"name": "last"}, {"name": "more"}]}),
    }
}

fn completion() -> Value {
    json!({"completion": {"values": ["xylophone"], "total": 1, "hasMore": false}})
}

/// The result of a call, as an upstream of the legacy era gives it.
fn result(asked: &Received, more: bool) -> Value {
    match asked.method() {
        "prompts/list" => page(asked.message["params"]["cursor"].as_str(), more),
        "prompts/get" => json!({"description": "d", "messages": messages()}),
        _ => completion(),
    }
}

async fn served(server_mode: ServerMode) -> Upstream {
    let state = Arc::new(Mutex::new(State::default()));
    Upstream::start(move |asked| {
        let mut state = state.lock().unwrap();
        if asked.message["params"]["name"] == "change" {
            state.more = !state.more;
            for (stream, meta) in &state.streams {
                let params = json!({"_meta": meta});
                stream.send(&json!({"jsonrpc": "2.0", "method": CHANGED, "params": params}));
            }
        }
        match server_mode {
            ServerMode::Modern => modern(asked, &mut state),
            ServerMode::Http(revision) => legacy(asked, revision, &mut state),
            _ => sse(asked, &mut state),
        }
    })
    .await
}

fn modern(asked: &Received, state: &mut State) -> Scripted {
    match asked.method() {
        "server/discover" => asked.result(json!({
            "resultType": "complete", "ttlMs": 60_000, "cacheScope": "public",
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"prompts": {"listChanged": true}, "completions": {}},
        })),
        "subscriptions/listen" => {
            let (live, scripted) = OpenStream::new();
            let tag = json!({"io.modelcontextprotocol/subscriptionId": asked.message["id"]});
            let accepted = json!({"notifications": {"promptsListChanged": true}, "_meta": tag});
            let method = "notifications/subscriptions/acknowledged";
            live.send(&json!({"jsonrpc": "2.0", "method": method, "params": accepted}));
            state.streams.push((live, tag));
            scripted
        }
        "prompts/list" | "prompts/get" | "completion/complete" => {
            let mut result = result(asked, state.more);
            for (key, value) in [
                ("resultType", json!("complete")),
                ("ttlMs", json!(60_000)),
                ("cacheScope", json!("public")),
            ] {
                result[key] = value;
            }
            asked.result(result)
        }
        _ => good_modern(asked),
    }
}

fn initialized(revision: &str) -> Value {
    json!({"protocolVersion": revision, "serverInfo": {"name": "up", "version": "1"},
        "capabilities": {"prompts": {"listChanged": true}, "completions": {}}})
}

fn legacy(asked: &Received, revision: &str, state: &mut State) -> Scripted {
    match (asked.http_method.as_str(), asked.method()) {
        ("GET", _) => {
            let (live, scripted) = OpenStream::new();
            state.streams.push((live, json!({})));
            scripted
        }
        (_, "initialize") => asked.result(initialized(revision)),
        (_, "prompts/list" | "prompts/get" | "completion/complete") => {
            asked.result(result(asked, state.more))
        }
        (_, method) if method.starts_with("notifications/") => Scripted::Http(202, vec![], vec![]),
        _ => asked.error(-32601, "method not found"),
    }
}

/// POSTs to the URL of the stream itself are refused: it is no Streamable HTTP.
fn sse(asked: &Received, state: &mut State) -> Scripted {
    if asked.http_method == "GET" {
        let (live, scripted) = OpenStream::new();
        live.raw("event: endpoint\ndata: /messages?session=1\n\n");
        state.streams = vec![(live, json!({}))];
        return scripted;
    }
    if !asked.path.starts_with("/messages") {
        return Scripted::Http(405, vec![], b"Method Not Allowed".to_vec());
    }
    let answer = match asked.method() {
        "initialize" => Some(initialized("2024-11-05")),
        "prompts/list" | "prompts/get" | "completion/complete" => Some(result(asked, state.more)),
        _ => None,
    };
    if let Some(result) = answer {
        let id = &asked.message["id"];
        state.streams[0].0.send(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }
    Scripted::Http(202, vec![], b"Accepted".to_vec())
}

/// A server in a few lines of shell, which reads its answers from files.
const CHILD: &str = r#"
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$(cat "$DIR/$1.json")"; }
more=; listen=
while read -r line; do
    id=$(printf '%s' "$line" | sed 's/^[^,]*,"id":\([0-9]*\).*/\1/')
    case "$line" in
    *'"method":"server/discover"'*)
        [ -f "$DIR/discover.json" ] && answer discover ||
            printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}\n' "$id" ;;
    *'"method":"initialize"'*) answer initialize ;;
    *'"method":"subscriptions/listen"'*)
        listen=",\"params\":{\"_meta\":{\"io.modelcontextprotocol/subscriptionId\":$id}}" ;;
    *'"method":"prompts/list"'*'"cursor"'*) answer "page2$more" ;;
    *'"method":"prompts/list"'*) answer page1 ;;
    *'"method":"prompts/get"'*'"name":"change"'*)
        [ -n "$more" ] && more= || more=-more
        printf '{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"%s}\n' "$listen"
        answer get ;;
    *'"method":"prompts/get"'*) answer get ;;
    *'"method":"completion/complete"'*) answer completion ;;
    esac
done
"#;

fn child(folder: &std::path::Path, is_modern: bool) -> String {
    let capabilities = json!({"prompts": {"listChanged": true}, "completions": {}});
    let mut files = vec![
        ("page1", page(None, false)),
        ("page2", page(Some("2"), false)),
        ("page2-more", page(Some("2"), true)),
        ("get", json!({"description": "d", "messages": messages()})),
        ("completion", completion()),
        ("initialize", initialized("2025-06-18")),
    ];
    if is_modern {
        files.push((
            "discover",
            json!({"supportedVersions": ["2026-07-28"], "capabilities": capabilities}),
        ));
    }
    for (name, mut value) in files {
        if is_modern {
            for (key, hint) in [
                ("resultType", json!("complete")),
                ("ttlMs", json!(60_000)),
                ("cacheScope", json!("public")),
            ] {
                value[key] = hint;
            }
        }
        std::fs::write(folder.join(format!("{name}.json")), value.to_string()).unwrap();
    }
    let script = serde_json::to_string(CHILD).unwrap();
    let folder = folder.display();
    format!(
        "transport = \"stdio\"\ncommand = [\"sh\", \"-c\", {script}]\nenv = {{ DIR = \"{folder}\" }}\n"
    )
}

/// The files that prompts of a library embed.
const EMBEDDED: [(&str, &[u8]); 4] =
    [("i.png", b"\x89PNG"), ("a.wav", b"RIFF"), ("x.txt", b"x"), ("b.bin", b"\xff\0\0")];

/// A prompt of a library, with every type of content that one can hold.
fn write_prompt(folder: &std::path::Path, name: &str) {
    let text = format!(
        "---\nname: {name}\ndescription: d\narguments:\n  - name: a\n    choices: [xylophone]\n---\nHello\n\n\
         {{{{ embed(\"i.png\") }}}}\n\n{{{{ embed(\"a.wav\") }}}}\n\n{{{{ embed(\"x.txt\") }}}}\n\n{{{{ embed(\"b.bin\") }}}}\n"
    );
    std::fs::write(folder.join(format!("{name}.md")), text).unwrap();
}
