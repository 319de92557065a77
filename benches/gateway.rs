//! The work of each request, and of each change of a list: `cargo bench`.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use base::seal::{SealKeys, Sealer, TokenKind};
use catalog::reply::{ListReply, PromptReply, Reply, ResultOrigin};
use catalog::segment::SegmentWriter;
use catalog::view::{ListView, ViewPage};
use catalog::view_cache::ListKind;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use domain::calls::cursor::{CacheScope, PagePosition};
use domain::json::Json;
use domain::json::document::Document;
use domain::name::{Naming, Prefix, UpstreamId};
use domain::prompts::content;
use domain::prompts::merge::{MergeSource, merge};
use domain::prompts::prompt::Prompt;
use domain::protocol::revision::Revision;
use domain::time::unix_time::UnixSeconds;
use front::session::dialect::{Dialect, ResultForm, ServerIdentity};
use tokio::time::Instant;

fn prompts(count: usize) -> Vec<Prompt> {
    let prompt = |i: usize| {
        let text = format!(
            r#"{{"name":"prompt-{i:05}","title":"Prompt {i}","description":"Does one of the many things that prompts do.","arguments":[{{"name":"text","description":"What it is about","required":true}},{{"name":"tone"}}]}}"#
        );
        Prompt::read(Json::parse(text.as_bytes(), 64).expect("JSON")).expect("a prompt")
    };
    (0..count).map(prompt).collect()
}

fn view(upstreams: usize, each: usize) -> ListView {
    let prompts = prompts(each);
    let prefixes: Vec<_> = (0..upstreams)
        .map(|i| Prefix::parse(&format!("upstream-{i}")).expect("a prefix"))
        .collect();
    let names: HashSet<&str> = prefixes.iter().map(Prefix::as_str).collect();
    let naming = Naming::new("__", 128);
    let segments: Vec<_> = prefixes
        .iter()
        .map(|prefix| {
            let source = MergeSource { prefix, prompts: &prompts };
            let merged = merge(&[source], &names, &naming, |name| Cow::Borrowed(name));
            let mut segment = SegmentWriter::default();
            for entry in merged.entries {
                let name = entry.public_name.as_str();
                segment.push(name.into(), |out| prompts[entry.prompt].write(name, out));
            }
            Arc::new(segment.finish())
        })
        .collect();
    ListView::whole(&segments)
}

/// A list of a thousand prompts out of ten thousand, from a warm catalog.
fn lists(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("list");
    group.sample_size(20);
    group.bench_function("merge 10 x 1000", |b| b.iter(|| black_box(view(10, 1000))));
    let view = view(10, 1000);
    let reply = |page: ViewPage<'_>| {
        Reply::List(ListReply {
            kind: ListKind::Prompts,
            digest: *view.digest(),
            scope: CacheScope::Public,
            incomplete: Vec::new(),
            elements: page.pieces,
            next_cursor: Some("x".repeat(200)),
            ttl: Duration::from_secs(60),
            now: Instant::now(),
        })
    };
    let identity = ServerIdentity::new("promptgate", None);
    let dialect = Dialect::new(Revision::V2026_07_28);
    group.bench_function("page of 1000", |b| {
        b.iter(|| {
            let page = view.page(Some("upstream-4__prompt-00499"), 1000);
            black_box(dialect.reply(black_box(&reply(page)), ResultForm::Prompt, &identity))
        });
    });
    group.finish();
}

/// The way of a result: scan, check, dress; beside it what a tree of values would cost.
fn gets(criterion: &mut Criterion) {
    let identity = ServerIdentity::new("promptgate", None);
    let dialect = Dialect::new(Revision::V2026_07_28);
    for (name, data) in [("1 KiB", "QUJD".repeat(256)), ("6 MiB", "QUJD".repeat((6 << 20) / 4))] {
        let result = format!(
            r#"{{"description":"d","messages":[{{"role":"user","content":{{"type":"image","data":"{data}","mimeType":"image/png"}}}}]}}"#
        );
        let mut group = criterion.benchmark_group(format!("get {name}"));
        group.sample_size(20).throughput(Throughput::Bytes(result.len() as u64));
        group.bench_function("scan, check, dress", |b| {
            b.iter(|| {
                let result = Document::parse(result.clone().into_bytes(), 64).expect("JSON");
                content::check_result(result.json()).expect("a good result");
                let upstream = UpstreamId::parse("a").expect("an id");
                let origin = ResultOrigin {
                    upstream,
                    digest: "sha256:0".into(),
                    name: "a__p".into(),
                    version: None,
                    rollout: None,
                };
                black_box(dialect.reply(
                    &Reply::Prompt(PromptReply::of(result, origin)),
                    ResultForm::Prompt,
                    &identity,
                ))
            });
        });
        group.bench_function("serde_json tree and back", |b| {
            b.iter(|| {
                let tree: serde_json::Value =
                    serde_json::from_slice(&result.clone().into_bytes()).expect("JSON");
                black_box(tree.to_string())
            });
        });
        group.finish();
    }
}

/// The cost of sealing, which each page and each legacy request has on top of its work.
fn seals(criterion: &mut Criterion) {
    let sealer = Sealer::new(&SealKeys::ephemeral());
    let place = PagePosition {
        caller: "anonymous".into(),
        scope: CacheScope::Public,
        issued_at: UnixSeconds(1_700_000_000),
        last: "upstream-4__prompt-00499".into(),
        owner: "upstream-4".into(),
    };
    let token = sealer.seal(TokenKind::Cursor, "/mcp", &place.encode());
    let mut group = criterion.benchmark_group("cursor");
    group.bench_function("seal", |b| {
        b.iter(|| black_box(sealer.seal(TokenKind::Cursor, "/mcp", &place.encode())));
    });
    group.bench_function("open", |b| {
        b.iter(|| {
            PagePosition::decode(&sealer.open(TokenKind::Cursor, "/mcp", &token).expect("ours"))
        });
    });
    group.finish();
}

criterion_group!(benches, lists, gets, seals);
criterion_main!(benches);
