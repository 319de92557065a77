//! Replays the corpus of every fuzz target, so that `cargo test` finds again what fuzzing found.

#[path = "../fuzz/bodies.rs"]
mod bodies;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A fuzz target: its name, which is also that of its corpus, and its body.
type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 19] = [
    ("approval", bodies::approval),
    ("cedar", bodies::cedar),
    ("cursor", bodies::cursor),
    ("hook_answer", bodies::hook_answer),
    ("hooks", bodies::hooks),
    ("host_file", bodies::host_file),
    ("json", bodies::json),
    ("jwks", bodies::jwks),
    ("labels", bodies::labels),
    ("library", bodies::library),
    ("lock", bodies::lock),
    ("names", bodies::names),
    ("otlp", bodies::otlp),
    ("sse", bodies::sse),
    ("state", bodies::state),
    ("stdio", bodies::stdio),
    ("stores", bodies::stores),
    ("translate", bodies::translate),
    ("uris", bodies::uris),
];

fn fuzz(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(folder)
}

/// The entries of a folder, without their extensions.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let name = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    entries.map(|entry| name(entry.unwrap().path())).collect()
}

fn replay(target: &str) {
    let (_, body) = TARGETS.iter().find(|(name, _)| *name == target).expect("a target");
    let folder = fuzz("corpus").join(target);
    let mut replayed = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        // Shown if the body panics.
        println!("{}", path.display());
        body(&std::fs::read(path).unwrap());
        replayed += 1;
    }
    assert!(replayed > 0, "{} holds no input", folder.display());
}

#[test]
fn every_fuzz_target_has_a_corpus_and_is_replayed() {
    let replayed: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(&fuzz("fuzz_targets")), replayed);
    assert_eq!(names(&fuzz("corpus")), replayed);
}

#[test]
fn a_get_is_its_template_with_the_values_of_the_caller_or_refused() {
    replay("approval");
}

#[test]
fn policies_are_read_or_refused() {
    replay("cedar");
}

#[test]
fn an_entry_of_a_host_file_is_there_once() {
    replay("host_file");
}

#[test]
fn a_key_set_has_a_key_or_is_refused() {
    replay("jwks");
}

#[test]
fn no_file_of_an_author_takes_more_than_it_may() {
    replay("library");
}

#[test]
fn a_lock_file_is_written_as_it_was_read() {
    replay("lock");
}

#[test]
fn answers_of_a_collector_are_read_or_refused() {
    replay("otlp");
}

#[test]
fn no_bytes_are_a_token_of_ours() {
    replay("cursor");
}

#[test]
fn json_is_read_as_serde_json_reads_it() {
    replay("json");
}

#[test]
fn names_come_back_and_never_meet() {
    replay("names");
}

#[test]
fn event_streams_may_be_cut_anywhere() {
    replay("sse");
}

#[test]
fn states_come_back_byte_for_byte() {
    replay("state");
}

#[test]
fn lines_may_be_cut_anywhere() {
    replay("stdio");
}

#[test]
fn what_is_written_for_others_is_as_good_as_what_came() {
    replay("translate");
}

#[test]
fn a_uri_has_one_normal_form() {
    replay("uris");
}

#[test]
fn a_moved_label_is_read_back_and_others_stay() {
    replay("labels");
}

#[test]
fn an_answer_of_a_hook_changes_texts_alone() {
    replay("hook_answer");
}

#[test]
fn a_webhook_is_signed_with_its_body() {
    replay("hooks");
}

#[test]
fn no_answer_of_a_store_leads_elsewhere() {
    replay("stores");
}
