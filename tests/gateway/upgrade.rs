//! The folder of a gateway of an earlier build: what it wrote opens, and goes on.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::support::process::command;
use crate::support::{Process, eventually};

/// Copies a folder for its owner alone, as the gateway wrote it: git keeps no such modes.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
            fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).unwrap();
}

#[tokio::test]
async fn a_folder_of_the_build_before_opens_with_all_that_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    copy(Path::new("tests/formats/folder-1"), folder);
    let run = async |arguments: &[&str]| {
        let mut command = command(folder, arguments);
        command.env("PROMPTGATE_ADMIN_TOKEN", "t");
        let output = tokio::process::Command::from(command).output().await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout) + &text(output.stderr))
    };
    let says = async |arguments: &[&str], expected: &[&str]| {
        let (code, said) = run(arguments).await;
        let is_said = expected.iter().all(|expected| said.contains(expected));
        assert!(code == Some(0) && is_said, "{arguments:?}: {code:?} {said}");
    };
    says(&["check"], &["gateway.toml is valid. Upstreams: lib, wiki", "lib: 1 prompt"]).await;
    says(&["audit", "verify"], &["intact"]).await;
    says(&["logins"], &["wiki      valid  https://id.example"]).await;
    let (process, admin) = Process::serve_admin(folder, &[]).await;
    let client = process.client();
    let listed = eventually(async || client.names().await.0, |names| !names.is_empty()).await;
    assert_eq!(listed, ["lib__refund"], "approved by the lock file");
    let labels = ["audit", "find", "--event", "labels"];
    says(&labels, &["label_moved", "by=ada", "from=1", "to=2", "why=kinder"]).await;
    says(&["labels", "set", "lib__refund", "production", "1", "--reason", "back"], &["2 → 1"])
        .await;
    says(&["labels", "history"], &["why=kinder", "why=back"]).await;
    drop(admin);
    process.stop().await;
    says(&["audit", "verify"], &["intact"]).await;
    let usage = fs::read_dir(folder.join("usage")).unwrap();
    let names: Vec<_> = usage.map(|entry| entry.unwrap().file_name()).collect();
    let is_set_aside = |name: &std::ffi::OsString| name.to_string_lossy().contains(".v");
    assert!(names.iter().any(|name| name == "usage.db"), "{names:?}");
    assert!(!names.iter().any(is_set_aside), "its index is read, not made again: {names:?}");
}
