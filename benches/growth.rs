//! The growth of what reads texts that a caller, an upstream or an author chose:
//! `cargo bench --bench growth`, some seconds.
//!
//! Each function runs on its worst inputs (one character again and again, nesting, repetition, many
//! places) of n bytes and of 4 n, and fails above five times the time. Other work on the machine
//! only adds time, so the best of several runs counts. Where a deadline ends the work, n is beyond
//! it.

use std::fs;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

use access::{Decisions, RuleSet};
use approvals::words::marked_lines;
use approvals::{compared_messages, compared_text};
use base::seal::{SealKeys, Sealer, TokenKind, prompt_text_digest};
use config::Settings;
use config::labels::LabelFile;
use domain::approval::template::{differing_form, fill, is_filled, template};
use domain::approval::{ApprovalState, Form, TemplateArguments, canonical_text, markdown};
use domain::calls::caller::Caller;
use domain::calls::cursor::PagePosition;
use domain::calls::link::Link;
use domain::calls::rights::PromptRef;
use domain::guards::built_in::BUILT_INS;
use domain::guards::hook_answer;
use domain::guards::pattern::Pattern;
use domain::guards::text_guard::{TextGuard, Texts, masked};
use domain::json::Json;
use domain::json::document::Document;
use domain::prompts::content;
use domain::prompts::content_repair;
use domain::prompts::hidden_text;
use domain::protocol::mcp_name;
use domain::protocol::method::Method;
use domain::redaction::Secrets;
use domain::text::glob::Glob;
use domain::text::line_decoder::LineDecoder;
use domain::text::sse_decoder::SseDecoder;
use domain::tool::search::SearchQuery;
use domain::uri;
use library::{LibraryLabels, LibrarySnapshot};
use serde_json::json;
use tokio::time::Instant;

/// Bytes of the smaller input.
const N: usize = 32 << 10;

/// Most times that the larger input may take; four is linear.
const MOST: f64 = 5.;

/// Runs of one input, and the time after which there are no more: the first ones fill caches.
const RUNS: usize = 9;
const ENOUGH: Duration = Duration::from_millis(60);

/// Measurements of a function that seems to grow: other work on the machine does not last for all.
const ATTEMPTS: usize = 20;

const DEPTH: usize = 64;

/// The measurements.
struct Growth {
    failed: usize,
    only: Option<String>,
}

impl Growth {
    /// Measures `run` on inputs that `input` makes of n and of 4 n bytes.
    fn check<I, O>(&mut self, name: &str, input: impl Fn(usize) -> I, run: impl Fn(&I) -> O) {
        self.check_from(N, name, input, run);
    }

    fn check_from<I, O>(
        &mut self,
        n: usize,
        name: &str,
        input: impl Fn(usize) -> I,
        run: impl Fn(&I) -> O,
    ) {
        if self.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            return;
        }
        let (small, large) = (input(n), input(4 * n));
        let (mut shortest, mut times) = ([Duration::MAX; 2], f64::MAX);
        for _ in 0..ATTEMPTS {
            // Four small runs together, so that other work meets both alike.
            for (shortest, (input, runs)) in shortest.iter_mut().zip([(&small, 4), (&large, 1)]) {
                let together = || (0..runs).for_each(|_| drop(black_box(run(input))));
                *shortest = best(together).min(*shortest);
            }
            times = 4. * shortest[1].as_secs_f64() / shortest[0].as_secs_f64();
            if times <= MOST {
                break;
            }
        }
        let [small, large] = [shortest[0] / 4, shortest[1]];
        let verdict = if times <= MOST { "" } else { "  GROWS" };
        println!("{times:6.2} x  {small:>10.1?} {large:>10.1?}  {name}{verdict}");
        self.failed += usize::from(times > MOST);
    }

    /// As [`Growth::check`], for a function of a text, on the text that is repeated.
    fn check_text<O>(&mut self, name: &str, units: &[&str], run: impl Fn(&str) -> O) {
        for unit in units {
            let shown: String = unit.escape_debug().take(24).collect();
            self.check(&format!("{name}: {shown}…"), |n| repeated(unit, n), |text| run(text));
        }
    }
}

/// The shortest time of several runs.
fn best(run: impl Fn()) -> Duration {
    let (began, mut best) = (Instant::now(), Duration::MAX);
    for _ in 0..RUNS {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed());
        if began.elapsed() > ENOUGH {
            break;
        }
    }
    best
}

fn repeated(unit: &str, bytes: usize) -> String {
    unit.repeat(bytes / unit.len())
}

/// A result with one message of a text.
fn result(text: &str) -> Document {
    let message = json!({"role": "user", "content": {"type": "text", "text": text}});
    document(&json!({"messages": [message]}).to_string())
}

fn document(text: &str) -> Document {
    Document::parse(text.as_bytes().to_vec(), DEPTH).expect("JSON")
}

fn main() -> ExitCode {
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let mut growth = Growth { failed: 0, only };
    redaction(&mut growth);
    json_scan(&mut growth);
    digests(&mut growth);
    approved_templates(&mut growth);
    differences(&mut growth);
    rules(&mut growth);
    library(&mut growth);
    tokens(&mut growth);
    streams_and_content(&mut growth);
    guards(&mut growth);
    println!("{} of them grow faster than their inputs", growth.failed);
    ExitCode::from(u8::from(growth.failed > 0))
}

/// Each written form of a secret, where it begins again and again and never ends.
fn redaction(growth: &mut Growth) {
    let beginning = format!("{}b", "a".repeat(4_000));
    let breaks = "\n\n\n\n\n\n-token";
    let secrets = Secrets::new(["sk/live+key==\\\"x", breaks, "aaaaaaaaaaab", &beginning, "key"]);
    let units = [
        "\\",
        "\\n",
        "\\\\n",
        "\\u000a",
        "\\u005c",
        "\\x5c",
        "\\ud83d\\ude00",
        "%",
        "%0A",
        "%5c",
        "%25",
        "&",
        "&#10;",
        "&#x0000",
        "&amp;",
        "&quot;",
        "+",
        "a",
        "s",
        "sk/live",
        "sk%2Flive",
        "sk\\/live",
        "c2sv",
        "YWFh",
        breaks,
        "ke",
    ];
    growth.check_text("redact", &units, |text| secrets.redact(text).len());
    let runs = |n: usize| format!("{}n", "\\".repeat(n / 6)).repeat(6);
    let found = |n: usize| format!("{}key", runs(n));
    growth.check("redact: a secret behind runs", found, |text| secrets.redact(text).len());
}

fn json_scan(growth: &mut Growth) {
    let parse = |text: &String| Document::parse(text.clone().into_bytes(), DEPTH);
    for unit in ["[", "{\"a\":", " ", "1", "-", "1e", "\"", "tru"] {
        growth.check(&format!("JSON: {unit}…"), |n| repeated(unit, n), parse);
    }
    for (begin, unit, end) in [
        ("\"", "a", "\""),
        ("\"", "\\u0061", "\""),
        ("\"", "\\ud83d\\ude00", "\""),
        ("\"", "é", "\""),
        ("[", "1,", "1]"),
        ("[", "[],", "1]"),
        ("[", "{\"a\":null},", "1]"),
        ("[", "1.5e3,", "1]"),
    ] {
        let text = move |n: usize| format!("{begin}{}{end}", repeated(unit, n));
        growth.check(&format!("JSON: {begin}{unit}…{end}"), text, parse);
        growth.check(
            &format!("JSON outline: {begin}{unit}…{end}"),
            |n| document(&text(n)),
            |document| {
                let json = document.json();
                let members = json.elements().map(|element| element.members().count());
                (members.sum::<usize>(), json.as_str().map(|text| text.len()))
            },
        );
    }
    growth.check("JSON: members", members, parse);
    growth.check("JSON: nested members", nested, parse);
    growth.check(
        "JSON: the last member",
        |n| document(&members(n)),
        |document| document.json().get("none").is_some(),
    );
}

/// An object with many members in no order.
fn members(n: usize) -> String {
    let member = |at: usize| format!("\"{:08x}\":1", (at as u32).wrapping_mul(2_654_435_761));
    format!("{{{}}}", (0..n / 13).map(member).collect::<Vec<_>>().join(","))
}

/// Objects that are as deep as they may be, again and again.
fn nested(n: usize) -> String {
    let one = format!("{}1{}", "{\"a\":".repeat(DEPTH - 2), "}".repeat(DEPTH - 2));
    format!("[{}]", vec![one.as_str(); n / one.len() + 1].join(","))
}

fn digests(growth: &mut Growth) {
    let digest = |document: &Document| prompt_text_digest(&canonical_text(document.json()));
    for unit in ["a", "\\", "\u{1}", "é", "\"", "\u{2028}"] {
        let shown = unit.escape_debug().to_string();
        growth.check(&format!("digest: {shown}…"), |n| result(&repeated(unit, n)), digest);
    }
    let of = |value: String| document(&format!("{{\"messages\":[{value}]}}"));
    growth.check("digest: members", |n| of(members(n)), digest);
    growth.check("digest: numbers", |n| of(format!("[{}1]", repeated("1.50e3,", n))), digest);
    let deep = |n: usize| of(nested(n).replace("{\"a\":{\"a\":{\"a\":{\"a\":1}}}}", "1"));
    growth.check("digest: nesting", deep, digest);
}

fn approved_templates(growth: &mut Growth) {
    let key = r#"{"a":"{{ a }}","b":"{{ b }}"}"#;
    let arguments = TemplateArguments::read(key).expect("places");
    for (unit, value) in [
        ("{{ a }}", ""),
        ("{{ a }}", "a"),
        ("{{ a }}{{ b }}", "{{ a }}"),
        ("{{ ", "a"),
        ("{{ a }", "{"),
        ("a", "a"),
        ("{{ a }} ", "\\\\"),
        ("aaaaaaab", "aaaaaaa"),
    ] {
        let given = format!(r#"{{"a":"{value}","b":"{value}"}}"#);
        let given = Json::accepted(&given);
        let text = |n: usize| canonical_text(result(&repeated(unit, n)).json());
        let both = |n: usize| {
            let text = text(n);
            let filled = fill(&text, given, usize::MAX).expect("no bound");
            (Form::new(text.clone(), &arguments), text, filled)
        };
        let name = |what: &str| format!("approved template, {what}: {unit}… of {value:?}");
        growth.check(&name("read"), text, |text| Form::new(text.clone(), &arguments));
        growth.check(&name("compare"), both, |(form, text, filled)| {
            let is_alike = form.is_alike(&[value, value], Json::accepted(filled));
            (is_alike, is_filled(text, given, filled))
        });
        growth.check(&name("learn"), text, |text| {
            let markers = [("c".to_owned(), "aaaaaaab".to_owned())];
            template(text, &markers)
        });
        growth.check_from(N / 2, &name("form"), both, |(_, text, filled)| {
            differing_form(text, given, &filled.replacen("user", "usr", 1))
        });
        growth.check(&name("markdown"), text, |text| markdown::read(&markdown::write(text)));
    }
    let of_members = |n: usize| {
        let text = canonical_text(document(&format!("{{\"messages\":[{}]}}", members(n))).json());
        (Form::new(text.clone(), &arguments), text)
    };
    growth.check("approved template: members", of_members, |(form, text)| {
        assert!(form.is_alike(&["", ""], Json::accepted(text)));
    });
}

/// Differences end at deadlines, so the smaller inputs are beyond them.
fn differences(growth: &mut Growth) {
    let numbered = |n: usize, of: usize| -> String {
        (0..n / 8).map(|line| format!("{:07x}\n", line * of % 99_991)).collect()
    };
    growth.check_from(
        8 << 20,
        "difference: lines alike",
        |n| numbered(n, 7),
        |text| compared_text(text, &text.replace("00\n", "01\n")),
    );
    let other = |n: usize| (numbered(n, 7), numbered(n, 13));
    growth.check_from(1 << 20, "difference: other lines", other, |(one, other)| {
        compared_text(one, other)
    });
    let words = |n: usize| {
        let line = |of: usize| (0..99).map(|at| format!("{} ", at * of % 97)).collect::<String>();
        let (old, new) = (line(5), line(7));
        let lines = n / (old.len() + new.len());
        let side = |sign: &str, line: &str| format!("{sign}{line}\n").repeat(lines);
        format!("@@ -1,{lines} +1,{lines} @@\n{}{}", side("-", &old), side("+", &new))
    };
    growth.check("word marks: many lines", words, |diff| marked_lines(diff));
    let long = |n: usize| {
        let line =
            |of: usize| (0..n / 6).map(|at| format!("{} ", at * of % 97)).collect::<String>();
        format!("@@ -1 +1 @@\n-{}\n+{}\n", line(5), line(7))
    };
    growth.check_from(48 << 10, "word marks: a long line", long, |diff| marked_lines(diff));
    let signs = |n: usize| format!("@@ -1,{n} +1,{n} @@\n{}", repeated("-\n+\n", n));
    growth.check("word marks: short lines", signs, |diff| marked_lines(diff));
    let messages = |n: usize| {
        let message = |at: usize, end: &str| json!({"role": "user", "content": {"type": "text", "text": format!("{at} a b c {end}")}});
        let text = |end: &str| {
            let messages: Vec<_> = (0..n / 80).map(|at| message(at, end)).collect();
            canonical_text(document(&json!({"messages": messages}).to_string()).json())
        };
        (text("one"), text("other"))
    };
    growth.check_from(1 << 20, "difference: messages", messages, |(before, after)| {
        compared_messages(before, after)
    });
}

/// Rules on names and URIs.
fn rules(growth: &mut Growth) {
    let stars = format!("{}b", "*a".repeat(99));
    for pattern in ["*a", "*ab", "a*aab*b", "*aaaaaaaaaaaaaaab", &stars] {
        let glob = Glob::parse(pattern).expect("a pattern");
        let name = format!("pattern {:.20}", pattern);
        growth.check(&name, |n| "a".repeat(n), |text| glob.matches(text));
    }
    let units = ["a", "%", "%2e", "/", "..", "/./", "%25", " ", "\\", ":", "é", "\u{200b}"];
    growth.check_text("URI", &units, |text| {
        let uri = format!("file://{text}");
        let facts = [uri::is_valid(&uri), uri::is_resolved(&uri), uri::is_unsafe(&uri)];
        (facts, uri::repaired(&uri), uri::repaired(text))
    });
    growth.check_text("header of a name", &["a", "%", "=?", "é", "\u{1}"], |text| {
        mcp_name::decode(&mcp_name::encode(text)).is_some()
    });
    let mut rules = RuleSet::default();
    let policy = r#"permit(principal, action, resource) when { resource.name like "*a*ab*b" };"#;
    rules.add_file(policy).expect("a policy");
    growth.check(
        "policy on names",
        |n| "a".repeat(n),
        |name| {
            let state = ApprovalState::default();
            let prompt = PromptRef { upstream: "up", raw_name: name, state };
            let decisions = Decisions::new(&rules);
            decisions.decide(&Caller::new("ada"), Method::Get, prompt)
        },
    );
    let query = SearchQuery::new(&"a ab aab ".repeat(9));
    growth.check_text("search", &["a", "a ", "ab", "É", "-"], |text| {
        let prompt = json!({"name": text, "title": text, "description": text}).to_string();
        query.score(Json::accepted(&prompt))
    });
}

/// Files of an author: front matter, templates and labels.
fn library(growth: &mut Growth) {
    let folder = tempfile::tempdir().expect("a folder");
    let load = |text: &String| {
        fs::write(folder.path().join("a.md"), text).expect("a file");
        let labels = LibraryLabels::default();
        LibrarySnapshot::load(folder.path(), "lib", &Settings::default(), &labels)
            .expect("a folder")
    };
    let front = |more: &str| format!("---\nname: a\ndescription: d\n{more}---\n");
    for (begin, unit, end) in [
        ("arguments:\n", "  - name: a\n", ""),
        ("x: ", "[", "\n"),
        ("x: ", "{a: ", "\n"),
        ("x: \"", "\\u0061", "\"\n"),
        ("x: \"", "\\", "\"\n"),
        ("x: &a [1]\ny: [", "*a, ", "1]\n"),
        ("x: |\n", "  a\n", ""),
        ("", "# a\n", ""),
        ("x: ", "a ", "\n"),
        ("x: ", "- ", "\n"),
        ("x: '", "''", "'\n"),
        ("", "? a\n", ""),
        ("", "\n", ""),
        ("x: ", "!", "\n"),
    ] {
        let text = |n: usize| front(&format!("{begin}{}{end}", repeated(unit, n)));
        growth.check(&format!("front matter: {begin:?} {unit:?}…"), text, load);
    }
    for unit in [
        "{",
        "}",
        "{{",
        "{% if n %}",
        "{{ n }}",
        "{{ 'a' }}\n",
        "## user\na\n",
        "```\n",
        "#",
        "{a} ",
        "{# a #}",
        "{% raw %}",
        "{{ n == n }}",
        "{{ n[0][1] }}",
        "a\n",
        "{{ embed('b') }}\n",
    ] {
        let text = |n: usize| front("arguments:\n  - name: n\n") + &repeated(unit, n);
        growth.check_from(N / 2, &format!("template: {unit}…"), text, load);
    }
    for body in [
        "{{ n }}",
        "{{ n | upper }}",
        "{% if n == n %}{% endif %}",
        "{% if 'b' in n %}{% endif %}",
        "{{ n[-1] }}",
        "{{ n | trim('a') | length }}",
        "{{ n | split('a') | length }}",
        "{{ n | list | sort | unique | length }}",
        "{% for a in n[:99] %}{{ a in n }}{% endfor %}",
        "{% for a in range(99) %}{{ n == n ~ a }}{% endfor %}",
    ] {
        let snapshot = load(&(front("arguments:\n  - name: n\n") + body));
        let given = |n: usize| json!({"n": "a".repeat(n)}).to_string();
        growth.check(&format!("render: {body}"), given, |given| {
            snapshot.get("a", Some(Json::accepted(given)), None)
        });
    }
    for unit in ["[a]\n", "a = [", "[[proposed]]\n", "# a\n", "a.", "\"", "[", "a = {", "'''"] {
        growth.check(
            &format!("labels: {unit:?}…"),
            |n| repeated(unit, n),
            |text| LabelFile::parse(text),
        );
    }
    let labels = |n: usize| {
        (0..n / 24).map(|at| format!("[prompt-{at}]\nlive = {}\n", at + 1)).collect::<String>()
    };
    growth.check("labels: many prompts", labels, |text| LabelFile::parse(text));
}

/// Cursors, states, and links.
fn tokens(growth: &mut Growth) {
    let keys = SealKeys::new(vec![[7; 32]]).expect("one key");
    let sealer = Sealer::new(&keys);
    growth.check_text("sealed token", &["a", ".", "_", "-", "é"], |token| {
        let kinds = [TokenKind::Cursor, TokenKind::State, TokenKind::Session, TokenKind::Link];
        kinds.map(|kind| sealer.open(kind, "/mcp", token).is_some())
    });
    growth.check_text("position", &["a", "\0", "\u{1}", "\u{7f}"], |text| {
        (PagePosition::decode(text.as_bytes()), Link::decode(text.as_bytes()))
    });
}

/// Streams of upstreams, and the contents of their results.
fn guards(growth: &mut Growth) {
    let units = [
        "a",
        "4 ",
        "4111 1111 ",
        "-----BEGIN PRIVATE KEY-----",
        "a@",
        "a.b@c.de ",
        "https://a/",
        "DE89 3704 ",
        "ghp_",
        "QUtJQQ",
        "%41KIA",
        "\u{200b}é",
    ];
    for known in &BUILT_INS {
        let patterns = vec![Pattern::parse(known.name, &[]).expect("a built-in pattern")];
        let guard = TextGuard { masks: true, patterns };
        let name = format!("guard {}", known.name);
        growth.check_text(&name, &units, |text| masked(text, &guard.find(text)));
    }
    let replaced = |n: usize| {
        let texts = vec!["text"; n / "\"text\",".len()];
        let last = texts.len() - 256..texts.len();
        let replacement = |at| json!({"pointer": format!("/{at}"), "value": "***"});
        let replacements: Vec<_> = last.map(replacement).collect();
        let answer = json!({"decision": "mask", "replacements": replacements});
        let document = json!(texts).to_string().into_bytes();
        (answer.to_string().into_bytes(), Document::parse(document, DEPTH).expect("texts"))
    };
    growth.check("answer of a hook", replaced, |(answer, document)| {
        hook_answer::decision(answer.clone(), document, Texts::Content).expect("a mask")
    });
}

fn streams_and_content(growth: &mut Growth) {
    growth.check_text("event stream", &["\n", "data:\n", "data: a\n", "a", "\r", ":\n"], |text| {
        [1, text.len()].map(|size| {
            let (mut decoder, mut events) = (SseDecoder::new(1 << 30), Vec::new());
            let mut pieces = text.as_bytes().chunks(size);
            (pieces.all(|piece| decoder.feed(piece, &mut events).is_ok()), events)
        })
    });
    growth.check_text("lines of a child", &["\n", "a\n", "a"], |text| {
        [1, text.len()].map(|size| {
            let (mut decoder, mut lines) = (LineDecoder::new(1 << 30), Vec::new());
            text.as_bytes().chunks(size).for_each(|piece| decoder.feed(piece, &mut lines));
            lines
        })
    });
    let treat = |result: &Document| {
        let is_valid = content::inspect_result(result.json()).is_ok();
        (is_valid, hidden_text::stripped(result.json()), content_repair::repaired(result.json()))
    };
    growth.check_text("contents", &["a", "\u{200b}", "\u{e0041}", "\\", "é", "\u{202e}"], |text| {
        treat(&result(text))
    });
    let messages = |n: usize| {
        let message = json!({"role": "user", "content": {"type": "text", "text": "a"}});
        document(&json!({"messages": vec![message; n / 60]}).to_string())
    };
    growth.check("contents: messages", messages, treat);
}
