//! The laws of ARCHITECTURE.md, read off the sources. Each test says how many places it looked at,
//! so that none passes over nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

struct Source {
    /// The name of the crate and the path below its `src`, with forward slashes; the latter alone
    /// for the root package: `calls/lib.rs`, `cli/shared/args.rs`.
    path: String,
    /// The module with its crate: `["upstream", "call", "exchange"]`.
    module: Vec<String>,
    /// Without comments, string literals and the tests at the end.
    code: String,
    /// The same with its string literals.
    code_and_text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let members = fs::read_dir(root.join("crates")).unwrap();
    let mut folders: Vec<_> = members
        .map(|member| member.unwrap())
        .map(|member| (member.file_name().into_string().unwrap(), member.path().join("src")))
        .collect();
    folders.push((String::new(), root.join("src")));
    let mut sources = Vec::new();
    for (name, folder) in folders {
        let mut files = Vec::new();
        collect(&folder, &mut files);
        // Tests of a folder may name everything.
        files.retain(|file| !file.to_string_lossy().contains("/tests"));
        sources.extend(files.iter().map(|file| read_source(&name, &folder, file)));
    }
    assert!(sources.len() > 100, "the sources were found: {}", sources.len());
    sources
}

fn read_source(crate_name: &str, folder: &Path, file: &Path) -> Source {
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("\nmod tests {").next().unwrap_or_default();
    let below = file.strip_prefix(folder).unwrap().to_string_lossy().replace('\\', "/");
    let path = format!("{crate_name}/{below}").trim_start_matches('/').to_owned();
    let mut module = vec![crate_name.to_owned()];
    module.extend(below.trim_end_matches(".rs").split('/').map(str::to_owned));
    module.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
    let (code, code_and_text) = (stripped(code, Literals::Drop), stripped(code, Literals::Keep));
    Source { path, module, code, code_and_text }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Literals {
    Keep,
    Drop,
}

/// Code without its comments and, where asked, without the text in its string literals.
fn stripped(code: &str, literals: Literals) -> String {
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(literal) = literal(rest) {
            if literals == Literals::Keep {
                out.push_str(&rest[..literal]);
            } else {
                out.push_str("\"\"");
            }
            literal
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\") {
            // A character, not the begin of a string.
            rest[1..].find('\'').map_or(1, |end| end + 2)
        } else {
            out.push(first);
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    out
}

/// The length of the string literal that the code begins with, raw ones included.
fn literal(code: &str) -> Option<usize> {
    let hashes = code.strip_prefix('r').map(|raw| raw.chars().take_while(|c| *c == '#').count());
    if let Some(hashes) = hashes.filter(|hashes| code[1 + hashes..].starts_with('"')) {
        let end = format!("\"{}", "#".repeat(hashes));
        let start = hashes + 2;
        return code[start..].find(&end).map(|at| start + at + end.len());
    }
    let inner = code.strip_prefix('"')?;
    let mut escaped = false;
    let end = inner.find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.map(|end| end + 2)
}

/// All paths that a source names: those of its `use` trees, however nested, and those inside the
/// code.
fn paths(source: &Source) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = source.code.as_str();
    while let Some(at) = next_path(rest) {
        let end = path_end(&rest[at..]);
        expand(&[], &rest[at..at + end], &mut found);
        rest = &rest[at + end.max(1)..];
    }
    found
}

/// Where the next path of this crate, or the next `use`, begins.
fn next_path(code: &str) -> Option<usize> {
    let starts = ["crate::", "super::", "use "].into_iter().filter_map(|start| {
        let bounded = |at: &usize| {
            let before = code[..*at].chars().next_back();
            before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':')
        };
        let at = code.match_indices(start).map(|(at, _)| at).find(bounded)?;
        Some(if start == "use " { at + start.len() } else { at })
    });
    starts.min()
}

/// The length of a path or of a `use` tree.
fn path_end(code: &str) -> usize {
    let mut depth = 0;
    let ends = |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        let inside = depth > 0 && c != ';' || depth == 0 && c == '}' || c == '{';
        !(inside || c.is_alphanumeric() || "_:*".contains(c))
    };
    code.find(ends).unwrap_or(code.len())
}

fn expand(prefix: &[String], tree: &str, found: &mut Vec<Vec<String>>) {
    let (head, group) = tree.split_once('{').unwrap_or((tree, ""));
    let head = head.split(" as ").next().unwrap_or_default();
    let names = head.split("::").map(str::trim).filter(|name| !name.is_empty());
    let path: Vec<_> = prefix.iter().cloned().chain(names.map(str::to_owned)).collect();
    if group.is_empty() {
        found.push(path);
        return;
    }
    let (mut depth, mut start) = (0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            ',' if depth == 0 => {
                expand(&path, group[start..at].trim(), found);
                start = at + 1;
            }
            '}' if depth == 0 => {
                expand(&path, group[start..at].trim(), found);
                return;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
}

/// The module of the same crate that a path of this source leads to.
fn target(
    source: &Source,
    path: &[String],
    modules: &BTreeSet<Vec<String>>,
) -> Option<Vec<String>> {
    let mut base = source.module.clone();
    let names = match path.first()?.as_str() {
        "crate" => {
            base.truncate(1);
            &path[1..]
        }
        "self" => &path[1..],
        "super" => {
            let supers = path.iter().take_while(|name| *name == "super").count();
            base.truncate(base.len().checked_sub(supers)?);
            &path[supers..]
        }
        child => {
            base.push(child.to_owned());
            if !modules.contains(&base) {
                return None;
            }
            &path[1..]
        }
    };
    base.extend_from_slice(names);
    while !modules.contains(&base) {
        base.pop()?;
    }
    (!base.is_empty()).then_some(base)
}

/// The imports of each source, as modules.
fn imports(sources: &[Source]) -> Vec<(&Source, Vec<String>)> {
    let modules: BTreeSet<_> = sources.iter().map(|source| source.module.clone()).collect();
    let of = |source| {
        let targets = paths(source).into_iter().filter_map(|path| target(source, &path, &modules));
        let others = targets.filter(|target| *target != source.module);
        others.map(move |target| (source, target)).collect::<Vec<_>>()
    };
    let imports: Vec<_> = sources.iter().flat_map(of).collect();
    assert!(imports.len() > 500, "{} imports were found", imports.len());
    imports
}

/// Where `needle` stands in code, outside of the files that may hold it.
fn found_outside<'a>(sources: &'a [Source], needle: &str, allowed: &[&str]) -> Vec<&'a str> {
    let elsewhere = |s: &&Source| !allowed.iter().any(|a| s.path.starts_with(a));
    let hits: Vec<_> = sources.iter().filter(|s| s.code_and_text.contains(needle)).collect();
    assert!(!hits.is_empty(), "`{needle}` was found somewhere");
    hits.into_iter().filter(elsewhere).map(|s| s.path.as_str()).collect()
}

#[test]
fn the_reader_of_imports_sees_nested_trees_and_paths_in_code() {
    let code = "pub(crate) use crate::{a::{b, c::D as E}, f};\nuse super::super::g::*;\n\
                fn x(y: crate::h::I) { super::j::k(\"crate::text\"); } // crate::comment\n";
    let source = Source {
        path: "c/m/n.rs".to_owned(),
        module: ["c", "m", "n"].map(str::to_owned).to_vec(),
        code: stripped(code, Literals::Drop),
        code_and_text: String::new(),
    };
    let found: Vec<_> = paths(&source).iter().map(|path| path.join("::")).collect();
    let expected = [
        "crate::a::b",
        "crate::a::c::D",
        "crate::f",
        "super::super::g::*",
        "crate::h::I",
        "super::j::k",
    ];
    assert_eq!(found, expected);
}

#[test]
fn no_two_neighbours_import_each_other() {
    let sources = sources();
    // For each folder: which of its children imports which other.
    let mut folders: BTreeMap<Vec<String>, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (source, target) in imports(&sources) {
        let shared = source.module.iter().zip(&target).take_while(|(a, b)| a == b).count();
        if let (Some(from), Some(to)) = (source.module.get(shared), target.get(shared)) {
            let folder = folders.entry(target[..shared].to_vec()).or_default();
            folder.entry(from.clone()).or_default().insert(to.clone());
        }
    }
    assert!(folders.len() > 15, "{} folders were looked at", folders.len());
    for (folder, mut children) in folders {
        // Whatever imports nothing is taken away, until nothing or only cycles are left.
        loop {
            let left: BTreeSet<_> = children.keys().cloned().collect();
            let before = children.len();
            children.retain(|_, targets| targets.iter().any(|target| left.contains(target)));
            if children.len() == before {
                break;
            }
        }
        assert!(children.is_empty(), "a cycle in {}: {children:?}", folder.join("::"));
    }
}

/// Files in a folder: a newcomer reads their names at a glance.
const MOST_FILES: usize = 20;

#[test]
fn a_folder_has_at_most_twenty_files() {
    let mut folders = BTreeMap::<String, usize>::new();
    for source in &sources() {
        let folder = source.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        *folders.entry(folder.to_owned()).or_default() += 1;
    }
    assert!(folders.len() > 40, "{} folders were looked at", folders.len());
    folders.retain(|_, files| *files > MOST_FILES);
    assert_eq!(folders, BTreeMap::new());
}

/// Files that import from the `mod.rs` or `lib.rs` of their own folder, which imports from them:
/// the file is root and roof. Each commit may lower the number.
const ROOFS: usize = 67;

#[test]
fn files_that_import_from_the_root_of_their_folder_only_become_fewer() {
    let sources = sources();
    let imports = imports(&sources);
    let uses = |from: &[String], to: &[String]| {
        imports.iter().any(|(source, target)| source.module == from && target == to)
    };
    let ups: BTreeSet<_> = imports
        .iter()
        .filter(|(source, target)| source.module.split_last().is_some_and(|(_, up)| up == target))
        .filter(|(source, target)| uses(target, &source.module))
        .map(|(source, _)| source.path.as_str())
        .collect();
    assert_eq!(ups.len(), ROOFS, "{ups:?}");
}

/// A path begins with the name of its crate (`catalog/view.rs`), or of a folder of the repository.
#[test]
fn the_paths_that_architecture_md_names_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let quoted = text.split('`').skip(1).step_by(2);
    let paths = quoted.flat_map(|path| match path.split_once('{').zip(path.split_once('}')) {
        Some(((before, _), (names, after))) => {
            let names = names.rsplit('{').next().unwrap_or_default().split(',');
            names.map(|name| [before, name, after].concat()).collect()
        }
        None => vec![path.to_owned()],
    });
    let files: Vec<_> = paths.filter(|path| path.contains('/') && path.ends_with(".rs")).collect();
    let is_there = |path: &str| {
        let (name, below) = path.split_once('/').unwrap_or_default();
        let of_crate = root.join("crates").join(name).join("src").join(below);
        of_crate.exists() || root.join(path).exists()
    };
    assert!(files.len() > 60, "{}", files.len());
    let missing: Vec<_> = files.iter().filter(|path| !is_there(path)).collect();
    assert_eq!(missing, Vec::<&String>::new());
}

#[test]
fn only_session_and_handshake_branch_on_the_era() {
    let sources = sources();
    let allowed =
        ["front/session/", "upstream/connection/handshake/", "domain/protocol/revision.rs"];
    for needle in ["Era::", ".era()"] {
        assert_eq!(found_outside(&sources, needle, &allowed), Vec::<&str>::new());
    }
}

#[test]
fn only_name_knows_the_separator() {
    let sources = sources();
    // Variables of the environment have a separator of their own.
    let allowed = ["domain/name.rs", "config/reader/raw.rs"];
    assert_eq!(found_outside(&sources, "\"__\"", &allowed), Vec::<&str>::new());
}

#[test]
fn only_error_message_writes_errors_for_clients() {
    let sources = sources();
    // `reply` refuses requests of upstreams, which is no response to a client.
    let writers = ["front/downstream/error_message.rs", "upstream/call/reply.rs"];
    assert_eq!(found_outside(&sources, ".object(\"error\"", &writers), Vec::<&str>::new());
    for code in ["-32700", "-32600"] {
        assert_eq!(
            found_outside(&sources, code, &["domain/calls/error_code.rs"]),
            Vec::<&str>::new()
        );
    }
}

#[test]
fn only_refresh_stores_a_catalog() {
    let allowed = ["catalog/refresh/"];
    assert_eq!(found_outside(&sources(), "catalog.store(", &allowed), Vec::<&str>::new());
}

#[test]
fn one_function_makes_the_proof_that_an_upstream_demands() {
    let sources = sources();
    let makes = |source: &Source| source.code.matches("Authorized {").count();
    let all: usize = sources.iter().map(makes).sum();
    let door = sources.iter().find(|source| source.path == "policy/authorize.rs").unwrap();
    // Its definition, and its construction; `impl` names it with its lifetime.
    assert_eq!((all, makes(door)), (1, 1), "`Authorized` is constructed once");
    assert!(door.code.contains("Ok(Authorized { call, target })"));
}

/// Where tasks are spawned that live as long as a call, a connection or a request of an operator,
/// and how many. All others live as long as the gateway, and are spawned by `Supervisor`, which
/// notices when one fails.
const SHORT_TASKS: [(&str, usize); 31] = [
    ("admin/accounts.rs", 1),
    ("admin/evidence.rs", 1),
    ("admin/removals.rs", 1),
    ("app/replicas.rs", 7),
    // A write of the audit log.
    ("audit/ledger.rs", 1),
    // Lists of one caller.
    ("catalog/caller_lists/mod.rs", 3),
    ("catalog/caller_lists/watching.rs", 1),
    ("cluster/relay/mod.rs", 1),
    // A connection to the store.
    ("cluster/store/connect.rs", 1),
    ("front/downstream/channel.rs", 3),
    ("front/downstream/conn/listener.rs", 1),
    ("front/downstream/conn/mod.rs", 1),
    // A sign-in at the terminal.
    ("logins/sign_in/callback.rs", 1),
    ("approvals/examined.rs", 1),
    ("approvals/lib.rs", 1),
    ("calls/labels.rs", 1),
    ("calls/rollouts/changes.rs", 1),
    ("calls/rollouts/mod.rs", 1),
    ("calls/suspended_calls.rs", 1),
    ("front/session/call/run.rs", 2),
    // A webhook for the other replicas.
    ("front/session/mod.rs", 1),
    // Requests to the collector.
    ("telemetry/exporter.rs", 2),
    ("upstream/accounts/account.rs", 1),
    ("upstream/accounts/mod.rs", 2),
    ("upstream/auth/login.rs", 1),
    ("upstream/connection/dedicated.rs", 1),
    ("upstream/connection/examiner.rs", 1),
    // A call of git.
    ("library/git/program.rs", 1),
    ("upstream/transport/http_sse.rs", 1),
    // Two for the streams of a child, one for a message to it.
    ("upstream/transport/stdio.rs", 4),
    ("upstream/transport/streamable_http.rs", 3),
];

#[test]
fn every_spawned_task_is_supervised_or_short_and_every_thread_is_known() {
    let sources = sources();
    for source in &sources {
        let spawns = source.code.matches("tokio::spawn(").count();
        assert_eq!(spawns, 0, "{} spawns past the trackers", source.path);
    }
    // The supervisor itself, commands, and what spawns threads or processes.
    let beside = ["cli/", "base/platform/", "config/lock/store.rs", "policy/", "shutdown/lib.rs"];
    let spawning = sources.iter().filter_map(|source| {
        let count = source.code.matches(".spawn(").count();
        let is_beside = beside.iter().any(|path| source.path.starts_with(path));
        (count > 0 && !is_beside).then_some((source.path.as_str(), count))
    });
    let mut spawning: Vec<_> = spawning.collect();
    spawning.sort_unstable();
    let mut listed = SHORT_TASKS;
    listed.sort_unstable();
    assert_eq!(spawning, listed, "spawn what lives as long as the gateway by `supervise`");
    let supervised = sources.iter().map(|source| {
        let outside = source.path != "shutdown/lib.rs";
        if outside { source.code.matches(".supervise").count() } else { 0 }
    });
    let supervised: usize = supervised.sum();
    assert!(supervised > 15, "{supervised}");
    // Every thread has a name, so the short form is not used.
    let threads = [
        "audit/segments/compressor.rs",
        "audit/ledger.rs",
        "audit/sync_thread.rs",
        "base/platform/threads.rs",
    ];
    assert_eq!(found_outside(&sources, "spawn_thread(", &threads), Vec::<&str>::new());
    for source in &sources {
        assert!(!source.code.contains("thread::spawn("), "{}: name the thread", source.path);
    }
}

/// Each caller of these does it in `work_on`, or with a text that has a bound.
#[test]
fn large_texts_are_searched_and_rendered_in_listed_places() {
    let sources = sources();
    let listed: [(&str, &[&str]); _] = [
        ("redact_document(", &["domain/", "upstream/call/call_secrets.rs"]),
        ("remove_from_response(", &["upstream/call/"]),
        // At most 16 KiB for a message of an error, and 128 KiB for a form.
        ("without_secrets(", &["domain/", "upstream/upstream_secrets.rs", "calls/arguments.rs"]),
        (
            "holds_secret(",
            &["catalog/approval.rs", "calls/unapproved_texts.rs", "approvals/probe.rs"],
        ),
        ("verified.verify(", &["calls/withheld_text.rs"]),
        // A get, which `work_on` runs, and reading the folder, on a thread that may block.
        ("compiled.render(", &["library/lib.rs"]),
    ];
    for (needle, allowed) in listed {
        assert_eq!(found_outside(&sources, needle, allowed), Vec::<&str>::new(), "{needle}");
    }
}

#[test]
fn only_the_platform_reaches_the_machine() {
    let sources = sources();
    // Commands have a machine of their own, and `shutdown` its signals.
    let reached: [(&str, &[&str]); _] = [
        // SQLite opens its files itself; the simulation keeps no index of usage.
        ("open_with_flags", &["audit/usage/index/database.rs"]),
        ("rusqlite", &["audit/usage/index/"]),
        ("SystemTime::now", &[]),
        ("getrandom::", &[]),
        ("TcpListener", &["logins/sign_in/callback.rs"]),
        ("TcpStream", &[]),
        ("spawn_blocking", &[]),
        ("thread::Builder", &[]),
        ("thread::sleep", &[]),
        // The kernel has the resources of the process in files, too.
        ("std::fs", &["app/observe.rs"]),
        ("fs::", &["app/observe.rs"]),
        // Methods of paths.
        (".exists()", &[]),
        (".is_dir()", &[]),
        (".canonicalize()", &[]),
        ("recommended_watcher", &[]),
    ];
    for (needle, beside) in reached {
        let allowed = [&["cli/", "base/platform/"], beside].concat();
        assert_eq!(found_outside(&sources, needle, &allowed), Vec::<&str>::new(), "{needle}");
    }
}

/// The files that open others to write them. What replaces a file calls `durable_file::replace`;
/// the others create new files, or append to and lock their own, and follow no link that another
/// user or an author could have put there.
const WRITERS: [&str; 13] = [
    "audit/segments/compressor.rs",
    "audit/segments/folder.rs",
    "audit/usage/index/database.rs",
    "base/platform/disk.rs",
    "config/durable_file.rs",
    "config/lock/store.rs",
    "logins/store/folder.rs",
    "library/git/kept.rs",
    // A new file, or a copy beside one.
    "cli/operate/connect.rs",
    "cli/operate/init.rs",
    // A record in a folder of the user alone.
    "cli/shared/running.rs",
    // /dev/null.
    "cli/operate/supervise.rs",
    // A new key.
    "config/audit.rs",
];

#[test]
fn every_file_that_opens_others_to_write_them_is_known() {
    let opens =
        ["fs::write(", "File::create", "File::options(", "OpenOptions::new(", "OpenOptions {"];
    let sources = sources();
    let writing = sources.iter().filter(|source| opens.iter().any(|o| source.code.contains(o)));
    let mut writing: Vec<_> = writing.map(|source| source.path.as_str()).collect();
    writing.sort_unstable();
    let mut known = WRITERS;
    known.sort_unstable();
    assert_eq!(writing, known, "replace a file by `durable_file::replace`");
}

/// The longest text in each call of a macro, such as the message of `warn!`.
fn messages(code: &str, name: &str) -> Vec<String> {
    let opening = format!("{name}!(");
    let message = |call: &str| {
        let (mut rest, mut depth, mut longest) = (call, 1, "");
        while let Some(first) = rest.chars().next().filter(|_| depth > 0) {
            let length = match literal(rest) {
                Some(length) => {
                    let text = rest[..length].trim_matches('"');
                    longest = if text.len() > longest.len() { text } else { longest };
                    length
                }
                None => first.len_utf8(),
            };
            depth += i32::from(first == '(') - i32::from(first == ')');
            rest = &rest[length..];
        }
        longest.split("\\\n").map(str::trim_start).collect::<Vec<_>>().concat()
    };
    let calls = code.match_indices(&opening).filter(|(at, _)| !code[..*at].ends_with('_'));
    calls.map(|(at, _)| message(&code[at + opening.len()..])).collect()
}

#[test]
fn log_lines_md_says_what_to_do_about_each_warning_and_error_of_the_log() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/log-lines.md");
    let page = fs::read_to_string(page).unwrap();
    let mut looked_at = 0;
    let mut missing = Vec::new();
    for source in &sources() {
        for message in
            ["warn", "error"].iter().flat_map(|name| messages(&source.code_and_text, name))
        {
            let known = message.split([';', ':', '{', ',']).next().unwrap_or_default();
            looked_at += 1;
            if !page.contains(known.trim()) {
                missing.push(format!("{}: {message}", source.path));
            }
        }
    }
    assert!(looked_at > 40, "{looked_at}");
    assert!(missing.is_empty(), "not in docs/log-lines.md: {missing:#?}");
}

#[test]
fn each_promise_of_security_md_names_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/security.md")).unwrap();
    let (_, table) = page.split_once("## Tests of the promises").expect("a table");
    let mut named = 0;
    for row in table.lines().filter(|line| line.contains("`tests/")) {
        let cell = row.split('`').nth(1).unwrap_or_default();
        let (file, test) = cell.split_once(": ").unwrap_or_else(|| panic!("no test: {row}"));
        let code = fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(code.contains(&format!("fn {test}(")), "{file} has no test {test}");
        named += 1;
    }
    assert!(named > 10, "{named}");
}

#[test]
fn only_output_writes_the_json_of_commands() {
    let writes =
        |source: &&Source| source.path.starts_with("cli/") && source.code_and_text.contains(":#}");
    let sources = sources();
    let mut writers: Vec<_> = sources.iter().filter(writes).map(|source| &*source.path).collect();
    writers.sort_unstable();
    // `init` writes a file.
    assert_eq!(
        writers,
        ["cli/operate/init.rs", "cli/shared/output.rs"],
        "terminals get no control characters"
    );
}

#[test]
fn secrets_are_exposed_in_few_places() {
    let sources = sources();
    let allowed = [
        "config/",
        "audit/export/collector.rs",
        "cluster/store/connect.rs",
        "net/proxy.rs",
        "upstream/transport/streamable_http.rs",
        "library/git/calls.rs",
        "upstream/transport/stdio.rs",
        "upstream/auth/client_credentials.rs",
        "upstream/auth/exchange.rs",
        "upstream/auth/id_jag.rs",
        "upstream/auth/file_credential.rs",
        "upstream/auth/vault.rs",
        "upstream/auth/workload.rs",
        "oauth/client.rs",
        "logins/lib.rs",
        "logins/sign_in/mod.rs",
        "front/downstream/http/hook_signature.rs",
    ];
    assert_eq!(found_outside(&sources, ".expose()", &allowed), Vec::<&str>::new());
}

#[test]
fn a_type_has_its_methods_in_its_own_file_and_at_most_one_beside_it() {
    let mut files: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    let sources = sources();
    for source in &sources {
        for line in source.code.lines().filter(|line| line.starts_with("impl")) {
            if let Some(name) = inherent(line) {
                files.entry(name.to_owned()).or_default().insert(&source.path);
            }
        }
    }
    assert!(files.len() > 500, "{} types have methods", files.len());
    let torn: Vec<_> =
        files.iter().filter(|(_, files)| files.len() > 2).map(|(name, _)| name).collect();
    assert!(torn.is_empty(), "in more than two files: {torn:?}");
}

/// The name of the type whose inherent methods begin with this line.
fn inherent(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let rest = match rest.strip_prefix('<') {
        Some(parameters) => parameters.split_once("> ")?.1,
        None => rest.trim_start(),
    };
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (!rest.contains(" for ") && rest.ends_with('{')).then_some(name)
}
