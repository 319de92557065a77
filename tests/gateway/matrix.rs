//! Every client reaches every upstream: each revision and transport downstream, before each upstream.

use serde_json::{Value, json};

use crate::support::server::messages;
use crate::support::{Gateway, Manner, Party, Server, Speaks};

const CLIENTS: [Manner; 9] = [
    Manner::Sse("2024-11-05"),
    Manner::Http("2024-11-05"),
    Manner::Http("2025-03-26"),
    Manner::Http("2025-06-18"),
    Manner::Http("2025-11-25"),
    Manner::Modern,
    Manner::Stdio("2025-03-26"),
    Manner::Stdio("2025-11-25"),
    Manner::ModernStdio,
];

const UPSTREAMS: [Speaks; 9] = [
    Speaks::Sse,
    Speaks::Http("2024-11-05"),
    Speaks::Http("2025-03-26"),
    Speaks::Http("2025-06-18"),
    Speaks::Http("2025-11-25"),
    Speaks::Modern,
    Speaks::Stdio,
    Speaks::ModernStdio,
    Speaks::Library,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l7_every_client_reaches_every_upstream() {
    let rows = UPSTREAMS.map(|speaks| tokio::spawn(row(speaks)));
    println!("pages/contents/completions/notices of {CLIENTS:?}");
    let mut count = 0;
    for (speaks, row) in UPSTREAMS.iter().zip(rows) {
        let cells = row.await.unwrap_or_else(|e| panic!("{speaks:?}: {e}"));
        let shown = cells.iter().map(|Cell { pages, contents, completions, notices }| {
            format!("{pages}/{contents}/{completions}/{notices}")
        });
        println!("{:20} {}", format!("{speaks:?}"), shown.collect::<Vec<_>>().join(" "));
        count += cells.len();
    }
    assert_eq!(count, CLIENTS.len() * UPSTREAMS.len());
}

/// What a client had of an upstream.
#[derive(Clone, Debug, Default, PartialEq)]
struct Cell {
    pages: usize,
    contents: usize,
    completions: usize,
    notices: usize,
}

/// All clients before one upstream.
async fn row(speaks: Speaks) -> Vec<Cell> {
    let server = Server::start(speaks).await;
    let toml = format!(
        "[listing]\npage_size = 2\nsettle = \"10ms\"\n[telemetry]\nlog = \"warn\"\n{}",
        server.table
    );
    let gateway = Gateway::start(&toml).await;
    let summary = gateway.summary().await;
    assert_eq!(summary, [("up".to_owned(), 3, None)], "{speaks:?}");
    let mut parties = Vec::new();
    for manner in CLIENTS {
        parties.push((manner, Party::connect(&gateway, manner).await));
    }
    let mut cells = vec![Cell::default(); CLIENTS.len()];
    for ((manner, party), cell) in parties.iter_mut().zip(&mut cells) {
        let (names, pages) = names(party).await;
        assert_eq!(names, ["up__all", "up__change", "up__last"], "{manner:?} {speaks:?}");
        cell.pages = pages;
        cell.contents = get_all(party, *manner, speaks).await;
        let argument = json!({"name": "a", "value": "x"});
        let params =
            json!({"ref": {"type": "ref/prompt", "name": "up__all"}, "argument": argument});
        let completed = party.ask("completion/complete", params).await;
        assert_eq!(
            completed["completion"]["values"],
            json!(["xylophone"]),
            "{manner:?} {speaks:?}"
        );
        cell.completions = 1;
    }
    for expected in [4, 3] {
        server.change(&gateway.client()).await;
        for ((manner, party), cell) in parties.iter_mut().zip(&mut cells) {
            party.hear_of_change().await;
            assert_eq!(names(party).await.0.len(), expected, "{manner:?} {speaks:?}");
            cell.notices += 1;
        }
    }
    cells
}

/// The names of all pages, of which there are two, and their number.
async fn names(party: &mut Party) -> (Vec<String>, usize) {
    let (mut names, mut params, mut pages) = (Vec::new(), json!({}), 0);
    loop {
        let result = party.ask("prompts/list", params).await;
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

async fn get_all(party: &mut Party, manner: Manner, speaks: Speaks) -> usize {
    let result = party.ask("prompts/get", json!({"name": "up__all"})).await;
    let is_modern = matches!(manner, Manner::Modern | Manner::ModernStdio);
    assert_eq!(result.get("resultType").is_some(), is_modern);
    let got: Vec<_> = contents(&result["messages"]);
    let expected = match speaks {
        // A library embeds files, and links to nothing.
        Speaks::Library => contents(&result["messages"]),
        _ => contents(&translated(manner)),
    };
    assert_eq!(got, expected, "{manner:?} {speaks:?}");
    let kinds: Vec<_> = got.iter().map(|content| content["type"].as_str().unwrap()).collect();
    let audio = if manner == Manner::Http("2024-11-05") || manner == Manner::Sse("2024-11-05") {
        "resource"
    } else {
        "audio"
    };
    assert_eq!(kinds[..5], ["text", "image", audio, "resource", "resource"], "{manner:?}");
    kinds.len()
}

fn contents(messages: &Value) -> Vec<Value> {
    messages.as_array().unwrap().iter().map(|message| message["content"].clone()).collect()
}

/// What a client is to get of what the upstream sends.
fn translated(manner: Manner) -> Value {
    let revision = match manner {
        Manner::Sse(revision) | Manner::Http(revision) | Manner::Stdio(revision) => revision,
        Manner::Modern | Manner::ModernStdio => "2026-07-28",
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
