//! The laws of ARCHITECTURE.md, read off the sources. Each test says how many places it looked at,
//! so that none passes over nothing.

use std::fs;
use std::path::{Path, PathBuf};

/// The layers of the request path: each may import what stands to its right.
const PATH: [&str; 5] = ["downstream", "session", "policy", "router", "upstream"];
/// What every layer may import.
const SHARED: [&str; 5] = ["domain", "seal", "config", "telemetry", "audit"];

struct Source {
    /// Relative to `src`, with forward slashes.
    path: String,
    /// Without comments and without the tests at the end.
    code: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    let read = |file: PathBuf| {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let path = file.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
        Source { path, code: lines.collect::<Vec<_>>().join("\n") }
    };
    let sources: Vec<_> = files.into_iter().map(read).collect();
    assert!(sources.len() > 50, "the sources were found: {}", sources.len());
    sources
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => collect(&path, files),
            false if path.extension().is_some_and(|e| e == "rs") => files.push(path),
            false => {}
        }
    }
}

/// The top-level modules that a source imports from this crate.
fn imports(source: &Source) -> Vec<String> {
    let after = |(at, _): (usize, &str)| {
        let rest = &source.code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => group
                .split('}')
                .next()
                .unwrap_or_default()
                .split(',')
                .map(|part| part.trim().split(':').next().unwrap_or_default().to_owned())
                .collect::<Vec<_>>(),
            None => {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                vec![rest[..end.unwrap_or(rest.len())].to_owned()]
            }
        }
    };
    source.code.match_indices("crate::").flat_map(after).filter(|name| !name.is_empty()).collect()
}

/// Where `needle` stands in code, outside of the files that may hold it.
fn found_outside<'a>(sources: &'a [Source], needle: &str, allowed: &[&str]) -> Vec<&'a str> {
    let elsewhere = |s: &&Source| !allowed.iter().any(|a| s.path.starts_with(a));
    let hits: Vec<_> = sources.iter().filter(|s| s.code.contains(needle)).collect();
    assert!(!hits.is_empty(), "`{needle}` was found somewhere");
    hits.into_iter().filter(elsewhere).map(|s| s.path.as_str()).collect()
}

#[test]
fn imports_point_to_the_right_and_down_only() {
    let mut looked_at = 0;
    for source in sources() {
        let layer = source.path.split('/').next().unwrap_or_default();
        let Some(place) = PATH.iter().position(|l| *l == layer) else {
            continue;
        };
        for import in imports(&source) {
            looked_at += 1;
            let right = PATH.iter().skip(place).any(|l| *l == import);
            // The proof of the gate is named where it is demanded: the one arrow back.
            let proof = layer == "router"
                && import == "policy"
                && source.code.matches("crate::policy").count()
                    == source.code.matches("crate::policy::Permitted;").count();
            let allowed = right || proof || SHARED.contains(&import.as_str());
            assert!(allowed, "{} imports {import}", source.path);
        }
    }
    assert!(looked_at > 50, "{looked_at}");
}

#[test]
fn nobody_but_the_commands_imports_app() {
    for source in sources() {
        let is_root = source.path.starts_with("cli/") || source.path == "main.rs";
        assert!(is_root || !imports(&source).contains(&"app".to_owned()), "{}", source.path);
    }
}

#[test]
fn domain_imports_no_runtime() {
    // Pure functions on bytes and text beside std, serde, serde_json and thiserror; `scan` is its own.
    let allowed = [
        "std",
        "super",
        "crate",
        "serde",
        "serde_json",
        "thiserror",
        "base64",
        "ipnet",
        "memchr",
        "scan",
    ];
    let mut looked_at = 0;
    for source in sources().iter().filter(|s| s.path.starts_with("domain/")) {
        let uses = source.code.lines().filter_map(|line| line.trim().strip_prefix("use "));
        for import in uses {
            looked_at += 1;
            let root = import.split([':', ';']).next().unwrap_or_default();
            assert!(allowed.contains(&root), "{} uses {root}", source.path);
        }
        let inner: Vec<_> = imports(source).into_iter().filter(|i| i != "domain").collect();
        assert!(inner.is_empty(), "{} imports {inner:?}", source.path);
    }
    assert!(looked_at > 20, "{looked_at}");
}

#[test]
fn only_session_and_handshake_branch_on_the_era() {
    let sources = sources();
    let allowed = ["session/", "upstream/handshake/", "domain/revision.rs"];
    for needle in ["Era::", ".era()"] {
        assert_eq!(found_outside(&sources, needle, &allowed), Vec::<&str>::new());
    }
}

#[test]
fn only_name_knows_the_separator() {
    let sources = sources();
    // Variables of the environment have a separator of their own.
    let allowed = ["domain/name.rs", "config/raw.rs"];
    assert_eq!(found_outside(&sources, "\"__\"", &allowed), Vec::<&str>::new());
}

#[test]
fn only_respond_makes_an_error_response() {
    let sources = sources();
    // What is said upstream is no response of ours to a client.
    let upstream = ["downstream/respond.rs", "upstream/answer.rs"];
    assert_eq!(found_outside(&sources, "\\\"error\\\":", &upstream), Vec::<&str>::new());
    let allowed = ["domain/code.rs"];
    let codes = ["-32700", "-32600"];
    for code in codes {
        assert_eq!(found_outside(&sources, code, &allowed), Vec::<&str>::new());
    }
}

#[test]
fn only_refresh_stores_a_catalog() {
    let allowed = ["router/refresh/"];
    assert_eq!(found_outside(&sources(), "catalog.store(", &allowed), Vec::<&str>::new());
}

#[test]
fn permitted_is_constructed_only_in_policy() {
    let sources = sources();
    let allowed = ["policy/"];
    assert_eq!(found_outside(&sources, "Permitted::new(", &allowed), Vec::<&str>::new());
    let definition = sources.iter().find(|s| s.path == "policy/permitted.rs").unwrap();
    assert!(definition.code.contains("    value: T,\n"), "its fields are private");
    assert!(definition.code.contains("pub(super) fn new("), "its constructor is policy's own");
}

#[test]
fn every_spawned_task_is_tracked() {
    for source in sources() {
        let spawns = source.code.matches("tokio::spawn(").count();
        assert_eq!(spawns, 0, "{} spawns past the trackers", source.path);
    }
}

#[test]
fn secrets_are_exposed_in_few_places() {
    let sources = sources();
    let allowed = ["config/", "upstream/http.rs", "upstream/oauth.rs", "upstream/stdio.rs"];
    assert_eq!(found_outside(&sources, ".expose()", &allowed), Vec::<&str>::new());
}

#[test]
fn files_stay_short_enough_to_read() {
    for source in sources() {
        let lines = source.code.lines().count();
        assert!(lines <= 480, "{} has {lines} lines of code: split it by meaning", source.path);
    }
}
