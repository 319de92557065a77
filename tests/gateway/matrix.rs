//! Every client reaches every upstream: each revision and transport downstream, before each
//! upstream.

use serde_json::{Value, json};

use crate::support::server::messages;
use crate::support::{ClientMode, Gateway, ModeClient, Server, ServerMode};

const CLIENTS: [ClientMode; 9] = [
    ClientMode::Sse("2024-11-05"),
    ClientMode::Http("2024-11-05"),
    ClientMode::Http("2025-03-26"),
    ClientMode::Http("2025-06-18"),
    ClientMode::Http("2025-11-25"),
    ClientMode::Modern,
    ClientMode::Stdio("2025-03-26"),
    ClientMode::Stdio("2025-11-25"),
    ClientMode::ModernStdio,
];

const UPSTREAMS: [ServerMode; 9] = [
    ServerMode::Sse,
    ServerMode::Http("2024-11-05"),
    ServerMode::Http("2025-03-26"),
    ServerMode::Http("2025-06-18"),
    ServerMode::Http("2025-11-25"),
    ServerMode::Modern,
    ServerMode::Stdio,
    ServerMode::ModernStdio,
    ServerMode::Library,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l7_every_client_reaches_every_upstream() {
    let rows = UPSTREAMS.map(|server_mode| tokio::spawn(row(server_mode)));
    println!("pages/contents/completions/notices of {CLIENTS:?}");
    let mut count = 0;
    for (server_mode, row) in UPSTREAMS.iter().zip(rows) {
        let cells = row.await.unwrap_or_else(|e| panic!("{server_mode:?}: {e}"));
        let shown = cells.iter().map(|Cell { pages, contents, completions, notices }| {
            format!("{pages}/{contents}/{completions}/{notices}")
        });
        println!("{:20} {}", format!("{server_mode:?}"), shown.collect::<Vec<_>>().join(" "));
        count += cells.len();
    }
    assert_eq!(count, CLIENTS.len() * UPSTREAMS.len());
}

/// The messages that a client got from an upstream.
#[derive(Clone, Debug, Default, PartialEq)]
struct Cell {
    pages: usize,
    contents: usize,
    completions: usize,
    notices: usize,
}

/// All clients before one upstream.
async fn row(server_mode: ServerMode) -> Vec<Cell> {
    let server = Server::start(server_mode).await;
    let toml = format!(
        "[listing]\npage_size = 2\ndebounce = \"10ms\"\n[telemetry]\nlog = \"warn\"\n{}",
        server.table
    );
    let gateway = Gateway::start(&toml).await;
    let summary = gateway.summary().await;
    assert_eq!(summary, [("up".to_owned(), 3, None)], "{server_mode:?}");
    let mut clients = Vec::new();
    for client_mode in CLIENTS {
        clients.push((client_mode, ModeClient::connect(&gateway, client_mode).await));
    }
    let mut cells = vec![Cell::default(); CLIENTS.len()];
    for ((client_mode, client), cell) in clients.iter_mut().zip(&mut cells) {
        let (names, pages) = names(client).await;
        assert_eq!(names, ["up__all", "up__change", "up__last"], "{client_mode:?} {server_mode:?}");
        cell.pages = pages;
        cell.contents = get_all(client, *client_mode, server_mode).await;
        let argument = json!({"name": "a", "value": "x"});
        let params =
            json!({"ref": {"type": "ref/prompt", "name": "up__all"}, "argument": argument});
        let completed = client.ask("completion/complete", params).await;
        assert_eq!(
            completed["completion"]["values"],
            json!(["xylophone"]),
            "{client_mode:?} {server_mode:?}"
        );
        cell.completions = 1;
    }
    for expected in [4, 3] {
        server.change(&gateway.client()).await;
        for ((client_mode, client), cell) in clients.iter_mut().zip(&mut cells) {
            client.await_list_changed().await;
            assert_eq!(names(client).await.0.len(), expected, "{client_mode:?} {server_mode:?}");
            cell.notices += 1;
        }
    }
    cells
}

/// The names of all pages, of which there are two, and their number.
async fn names(client: &mut ModeClient) -> (Vec<String>, usize) {
    let (mut names, mut params, mut pages) = (Vec::new(), json!({}), 0);
    loop {
        let result = client.ask("prompts/list", params).await;
        let prompts = result["prompts"].as_array().unwrap().iter();
        names.extend(prompts.map(|prompt| prompt["name"].as_str().unwrap().to_owned()));
        pages += 1;
        match result.get("nextCursor") {
            Some(cursor) => params = json!({"cursor": cursor}),
            None => break,
        }
    }
    assert_eq!(pages, 2);
    (names, pages)
}

async fn get_all(
    client: &mut ModeClient,
    client_mode: ClientMode,
    server_mode: ServerMode,
) -> usize {
    let result = client.ask("prompts/get", json!({"name": "up__all"})).await;
    let is_modern = matches!(client_mode, ClientMode::Modern | ClientMode::ModernStdio);
    assert_eq!(result.get("resultType").is_some(), is_modern);
    let got: Vec<_> = contents(&result["messages"]);
    let expected = match server_mode {
        // A library embeds files, and links to nothing.
        ServerMode::Library => library_contents(client_mode),
        _ => contents(&translated(client_mode)),
    };
    assert_eq!(got, expected, "{client_mode:?} {server_mode:?}");
    let kinds: Vec<_> = got.iter().map(|content| content["type"].as_str().unwrap()).collect();
    let audio = if client_mode == ClientMode::Http("2024-11-05")
        || client_mode == ClientMode::Sse("2024-11-05")
    {
        "resource"
    } else {
        "audio"
    };
    assert_eq!(kinds[..5], ["text", "image", audio, "resource", "resource"], "{client_mode:?}");
    kinds.len()
}

fn contents(messages: &Value) -> Vec<Value> {
    messages.as_array().unwrap().iter().map(|message| message["content"].clone()).collect()
}

/// The upstream's content, as a client of this mode must get it.
fn translated(client_mode: ClientMode) -> Value {
    let revision = match client_mode {
        ClientMode::Sse(revision) | ClientMode::Http(revision) | ClientMode::Stdio(revision) => {
            revision
        }
        ClientMode::Modern | ClientMode::ModernStdio => "2026-07-28",
    };
    let mut messages = messages();
    if revision < "2025-03-26" {
        messages[2]["content"] = json!({"type": "resource", "resource":
            {"uri": "promptgate://up__all/2", "blob": "UklGRg==", "mimeType": "audio/wav"}});
    }
    if revision < "2025-06-18" {
        messages[5]["content"] = json!({"type": "text", "text": "The x: https://a.example/x"});
    }
    messages
}

/// The contents that a client gets of a prompt of the library.
fn library_contents(client_mode: ClientMode) -> Vec<Value> {
    let [text, image, audio, ..] = &contents(&translated(client_mode))[..] else {
        unreachable!("there are six")
    };
    let embedded = |resource: Value| json!({"type": "resource", "resource": resource});
    let text_file = json!({"uri": "promptgate://up/x.txt", "mimeType": "text/plain", "text": "x"});
    let binary = json!({"uri": "promptgate://up/b.bin", "mimeType": "application/octet-stream",
        "blob": "/wAA"});
    vec![text.clone(), image.clone(), audio.clone(), embedded(text_file), embedded(binary)]
}
