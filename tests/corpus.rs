//! The corpus of the fuzz targets, replayed: what once was found stays found.

#[path = "../fuzz/bodies.rs"]
mod bodies;

use std::path::Path;

fn replay(target: &str, least: usize, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut replayed = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        body(&std::fs::read(entry.unwrap().path()).unwrap());
        replayed += 1;
    }
    assert!(replayed >= least, "only {replayed} inputs for {target}");
}

#[test]
fn json_is_read_as_serde_json_reads_it() {
    replay("json", 20, bodies::json);
}

#[test]
fn event_streams_may_be_cut_anywhere() {
    replay("sse", 11, bodies::sse);
}

#[test]
fn lines_may_be_cut_anywhere() {
    replay("stdio", 7, bodies::stdio);
}

#[test]
fn names_come_back_and_never_meet() {
    replay("names", 9, bodies::names);
}

#[test]
fn no_bytes_are_a_token_of_ours() {
    replay("cursor", 7, bodies::cursor);
}

#[test]
fn states_come_back_byte_for_byte() {
    replay("state", 6, bodies::state);
}

#[test]
fn what_is_written_for_others_is_as_good_as_what_came() {
    replay("translate", 9, bodies::translate);
}
