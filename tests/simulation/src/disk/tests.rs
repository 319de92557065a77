//! The guarantees of the disk, and its losses at a crash.

use std::collections::BTreeSet;
use std::io::{ErrorKind, SeekFrom};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime};

use base::platform::disk::{Disk, Links, OpenFile, OpenOptions, Readers};
use fastrand::Rng;
use rustix::io::Errno;
use tokio::sync::Notify;

use super::model::equals_a_real_disk;
use super::{Faults, Setup, SimDisk};

/// The checks of the disk.
pub const CHECKS: &[(&str, fn())] = &[
    ("disk_equals_a_real_disk", equals_a_real_disk),
    ("disk_crash_keeps_synced_bytes_and_some_of_the_others", crash_keeps_synced_bytes),
    ("disk_crash_tears_only_unsynced_bytes", crash_tears_only_unsynced_bytes),
    ("disk_crash_may_take_back_unsynced_overwrites", crash_may_take_back_overwrites),
    ("disk_crash_keeps_a_first_part_of_the_entries", crash_keeps_first_entries),
    ("disk_crash_leaves_an_earlier_tree", crash_leaves_an_earlier_tree),
    ("disk_crash_leaves_a_rename_whole", crash_leaves_a_rename_whole),
    ("disk_sync_of_a_folder_keeps_its_entries", sync_of_folder_keeps_entries),
    ("disk_sync_of_a_file_keeps_its_entry_where_set_up", sync_of_file_keeps_entry),
    ("disk_crash_leaves_other_machines", crash_leaves_other_machines),
    ("disk_failed_sync_loses_bytes_for_good", failed_sync_loses_bytes),
    ("disk_crash_closes_handles", crash_closes_handles),
    ("disk_without_power_answers_nothing", without_power),
    ("disk_fails_as_its_faults_say", faults_fail),
    ("disk_takes_what_fits_its_capacity", capacity_is_kept),
    ("disk_notifies_watchers", watchers_are_notified),
    ("disk_sees_damage_links_and_times", damage_links_and_times),
    ("disk_same_seed_has_the_same_history", same_seed_same_history),
];

const SEEDS: u64 = 200;

/// Of the machine that crashes.
const ROOT: &str = "/m";

const NEW: OpenOptions = OpenOptions {
    read: true,
    write: true,
    append: false,
    create: true,
    create_new: false,
    truncate: false,
    readers: Readers::Usual,
    refuses_links: false,
};
const READ: OpenOptions = OpenOptions { write: false, create: false, ..NEW };

/// Returns a setup without leniency: nothing but syncs of folders keep entries, and sectors tear.
pub(super) fn setup(seed: u64) -> Setup {
    Setup {
        rng: Rng::with_seed(seed),
        clock: Box::new(|| SystemTime::UNIX_EPOCH + Duration::from_secs(7)),
        owner: rustix::process::geteuid().as_raw(),
        sync_keeps_entry: false,
        tears_sectors: true,
        is_remote: false,
        sync_time: std::sync::Arc::new(|| ()),
    }
}

fn disk(setup: Setup) -> SimDisk {
    let disk = SimDisk::new(setup);
    disk.create_folder(Path::new(ROOT));
    disk
}

fn path(name: &str) -> PathBuf {
    Path::new(ROOT).join(name)
}

fn open(disk: &SimDisk, name: &str, options: OpenOptions) -> Box<dyn OpenFile> {
    disk.open(&path(name), &options).unwrap()
}

fn crash(disk: &SimDisk) {
    disk.crash(Path::new(ROOT));
    disk.power_on(Path::new(ROOT));
}

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().map(|error| Errno::from_io_error(&error).unwrap())
}

/// Returns what `outcome` gives for many seeds.
fn outcomes<T: Ord>(outcome: impl Fn(u64) -> T) -> BTreeSet<T> {
    (0..SEEDS).map(outcome).collect()
}

fn crash_keeps_synced_bytes() {
    let lengths = outcomes(|seed| {
        let disk = disk(Setup {
            tears_sectors: false,
            sync_time: std::sync::Arc::new(|| ()),
            ..setup(seed)
        });
        disk.write(&path("a"), b"synced ");
        let file = open(&disk, "a", OpenOptions { append: true, ..NEW });
        file.write(b"synced, too ").unwrap();
        file.sync_data().unwrap();
        file.write(b"not ").unwrap();
        file.write(b"synced").unwrap();
        crash(&disk);
        let left = disk.read(&path("a")).unwrap();
        assert!(b"synced synced, too not synced".starts_with(&left), "{left:?}");
        left.len()
    });
    assert_eq!(lengths, (19..=29).collect());
}

fn crash_tears_only_unsynced_bytes() {
    // Bytes synced, whether the file is then truncated, and bytes written behind them.
    for (synced, truncate, unsynced) in [(700, false, 2000), (700, true, 300)] {
        let torn = outcomes(|seed| {
            let disk = disk(setup(seed));
            disk.write(&path("a"), &vec![1; synced]);
            let file = open(&disk, "a", OpenOptions { truncate, ..NEW });
            file.seek(SeekFrom::End(0)).unwrap();
            file.write(&vec![1; unsynced]).unwrap();
            crash(&disk);
            let left = disk.read(&path("a")).unwrap();
            let whole = left.iter().take_while(|byte| **byte == 1).count();
            let sector = left.len().saturating_sub(1) / 512 * 512;
            let kept = if truncate { 0 } else { synced };
            assert!(whole >= sector.max(kept), "{whole} of {}", left.len());
            match &left[whole..] {
                [] => "whole",
                torn if torn.iter().all(|byte| *byte == 0) => "zeros",
                _ => "garbage",
            }
        });
        assert_eq!(torn, BTreeSet::from(["whole", "zeros", "garbage"]));
    }
}

fn crash_may_take_back_overwrites() {
    let left = outcomes(|seed| {
        let disk = disk(Setup {
            tears_sectors: false,
            sync_time: std::sync::Arc::new(|| ()),
            ..setup(seed)
        });
        disk.write(&path("a"), b"1234");
        let file = open(&disk, "a", NEW);
        file.write(b"ab").unwrap();
        file.set_len(1).unwrap();
        drop(open(&disk, "a", OpenOptions { truncate: true, ..NEW }));
        assert_eq!(disk.read(&path("a")).unwrap(), b"");
        crash(&disk);
        disk.read(&path("a")).unwrap()
    });
    let states = ["1234", "a234", "ab34", "a", ""];
    assert_eq!(left, states.into_iter().map(|state| state.as_bytes().to_vec()).collect());
}

fn crash_keeps_first_entries() {
    let left = outcomes(|seed| {
        let disk = disk(setup(seed));
        disk.write(&path("old"), b"");
        for name in ["a", "b"] {
            open(&disk, name, NEW).sync_all().unwrap();
        }
        disk.remove_file(&path("old")).unwrap();
        disk.hard_link(&path("a"), &path("c")).unwrap();
        disk.create_dir_all(&path("d"), Readers::Owner).unwrap();
        crash(&disk);
        disk.list(Path::new(ROOT)).join(" ")
    });
    assert_eq!(
        left,
        BTreeSet::from(["old", "a old", "a b old", "a b", "a b c", "a b c d"].map(str::to_owned))
    );
}

fn crash_leaves_an_earlier_tree() {
    let folders = [path("d"), path("e")];
    let steps_lost = outcomes(|seed| {
        let disk = disk(setup(seed));
        folders.iter().for_each(|folder| disk.create_folder(folder));
        let mut rng = Rng::with_seed(seed);
        let mut any = || folders[rng.usize(..2)].join(["a", "b", "c"][rng.usize(..3)]);
        let mut trees = vec![tree(&disk, &folders)];
        for step in 0..20 {
            // Most fail at first, and then meet what the others left.
            let _ = match step % 4 {
                0 => disk.open(&any(), &OpenOptions { create_new: true, ..NEW }).map(drop),
                1 => disk.hard_link(&any(), &any()),
                2 => disk.rename(&any(), &any()),
                _ => disk.remove_file(&any()),
            };
            trees.push(tree(&disk, &folders));
        }
        crash(&disk);
        let left = tree(&disk, &folders);
        let lost = trees.iter().rev().position(|tree| *tree == left);
        lost.unwrap_or_else(|| panic!("seed {seed}: {left:?} is none of {trees:?}"))
    });
    assert!(steps_lost.len() > 10, "{steps_lost:?}");
}

/// Returns the entries of folders with the inodes that they lead to.
fn tree(disk: &SimDisk, folders: &[PathBuf]) -> Vec<(PathBuf, Option<(u64, u64)>)> {
    let entries = folders
        .iter()
        .flat_map(|folder| disk.list(folder).into_iter().map(|name| folder.join(name)));
    let inode = |path: &PathBuf| disk.metadata(path, Links::Keep).unwrap().inode;
    entries.map(|path| (path.clone(), inode(&path))).collect()
}

fn crash_leaves_a_rename_whole() {
    let left = outcomes(|seed| {
        let disk = disk(setup(seed));
        disk.create_folder(&path("d"));
        disk.write(&path("d/temporary"), b"new");
        disk.write(&path("a"), b"old");
        disk.rename(&path("d/temporary"), &path("a")).unwrap();
        // Either folder keeps the whole rename.
        if seed % 3 > 0 {
            open(&disk, ["d", "."][seed as usize % 2], READ).sync_all().unwrap();
        }
        crash(&disk);
        let renamed = disk.list(&path("d")).is_empty();
        assert_eq!(disk.read(&path("a")).unwrap(), if renamed { b"new" } else { b"old" });
        assert!(renamed || seed % 3 == 0);
        renamed
    });
    assert_eq!(left, BTreeSet::from([false, true]));
}

fn sync_of_folder_keeps_entries() {
    let outer = outcomes(|seed| {
        let disk = disk(setup(seed));
        disk.create_dir_all(&path("d/e"), Readers::Usual).unwrap();
        open(&disk, "d/e/a", NEW).sync_all().unwrap();
        open(&disk, "d/e", READ).sync_all().unwrap();
        let inner = open(&disk, "d", READ);
        inner.sync_all().unwrap();
        open(&disk, "d/e/later", NEW);
        crash(&disk);
        let found = disk.list(&path("d/e"));
        assert!(found.is_empty() || found[0] == "a", "{found:?}");
        disk.list(Path::new(ROOT)).len()
    });
    // The folder that nobody synced may take the others with it.
    assert_eq!(outer, BTreeSet::from([0, 1]));
}

fn sync_of_file_keeps_entry() {
    let kept = |sync_keeps_entry| {
        outcomes(|seed| {
            let disk = disk(Setup { sync_keeps_entry, ..setup(seed) });
            disk.create_dir_all(&path("d/e"), Readers::Usual).unwrap();
            let file = open(&disk, "d/e/a", NEW);
            file.write(b"bytes").unwrap();
            file.sync_all().unwrap();
            crash(&disk);
            disk.read(&path("d/e/a")).is_some_and(|bytes| bytes == b"bytes")
        })
    };
    assert_eq!(kept(true), BTreeSet::from([true]));
    assert_eq!(kept(false), BTreeSet::from([false, true]));
}

fn crash_leaves_other_machines() {
    for seed in 0..SEEDS {
        let disk = disk(setup(seed));
        disk.create_folder(Path::new("/other"));
        let other = disk.open(Path::new("/other/a"), &NEW).unwrap();
        other.write(b"unsynced").unwrap();
        open(&disk, "b", NEW);
        disk.rename(&path("b"), Path::new("/other/b")).unwrap();
        crash(&disk);
        other.write(b", alive").unwrap();
        assert_eq!(disk.read(Path::new("/other/a")).unwrap(), b"unsynced, alive");
        assert_eq!(disk.list(Path::new("/other")), ["a", "b"]);
        assert!(disk.list(Path::new(ROOT)).is_empty());
    }
}

fn failed_sync_loses_bytes() {
    for seed in 0..SEEDS {
        let disk = disk(setup(seed));
        disk.write(&path("a"), b"old ");
        let faults = Faults { fail_next_sync_loses: true, ..Faults::default() };
        disk.set_faults(Path::new(ROOT), faults);
        open(&disk, ".", READ).sync_all().unwrap();
        let file = open(&disk, "a", OpenOptions { append: true, ..NEW });
        file.write(b"lost ").unwrap();
        assert_eq!(errno(file.sync_all()), Some(Errno::IO));
        file.write(b"kept").unwrap();
        file.sync_all().unwrap();
        assert_eq!(disk.read(&path("a")).unwrap(), b"old lost kept");
        crash(&disk);
        assert_eq!(disk.read(&path("a")).unwrap(), b"old \0\0\0\0\0kept");
    }
}

fn crash_closes_handles() {
    let disk = disk(setup(1));
    let (file, folder) = (open(&disk, "a", NEW), open(&disk, ".", READ));
    let clone = file.try_clone().unwrap();
    file.try_lock().unwrap();
    clone.try_lock().unwrap();
    disk.write(&path("a"), b"before");
    assert_eq!(disk.open_handles(Path::new(ROOT)), 2);
    crash(&disk);
    assert_eq!(disk.open_handles(Path::new(ROOT)), 0);
    assert_eq!(errno(file.write(b"after")), Some(Errno::IO));
    assert_eq!(errno(clone.set_len(0)), Some(Errno::IO));
    assert_eq!(errno(file.read(&mut [0])), Some(Errno::IO));
    assert_eq!(errno(file.metadata()), Some(Errno::IO));
    assert_eq!(errno(file.try_clone()), Some(Errno::IO));
    assert_eq!(errno(folder.sync_all()), Some(Errno::IO));
    assert_eq!(disk.read(&path("a")).unwrap(), b"before");
    let next = open(&disk, "a", READ);
    next.try_lock().unwrap();
    drop((file, clone));
    let refused = open(&disk, "a", READ).try_lock().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
}

fn without_power() {
    let disk = disk(setup(1));
    let file = open(&disk, "a", NEW);
    disk.power_off(Path::new(ROOT));
    assert_eq!(errno(file.write(b"bytes")), Some(Errno::IO));
    assert_eq!(errno(disk.open(&path("a"), &READ)), Some(Errno::IO));
    assert_eq!(errno(disk.metadata(&path("missing/a"), Links::Keep)), Some(Errno::IO));
    assert_eq!(errno(disk.rename(&path("a"), Path::new("/a"))), Some(Errno::IO));
    disk.symlink(&path("a"), Path::new("/link"));
    assert_eq!(errno(disk.open(Path::new("/link"), &READ)), Some(Errno::IO));
    disk.power_on(Path::new(ROOT));
    assert_eq!(file.write(b"bytes").unwrap(), 5);
    disk.crash(Path::new(ROOT));
    assert_eq!(errno(disk.read_dir(Path::new(ROOT))), Some(Errno::IO));
}

fn faults_fail() {
    let disk = disk(setup(1));
    disk.create_folder(&path("well"));
    let file = open(&disk, "a", NEW);
    let all = Faults { write: 1.0, sync: 1.0, open: 1.0, read: 1.0, ..Faults::default() };
    disk.set_faults(Path::new(ROOT), all);
    disk.set_faults(&path("well"), Faults::default());
    assert_eq!(errno(file.write(b"bytes")), Some(Errno::IO));
    assert_eq!(errno(file.sync_data()), Some(Errno::IO));
    assert_eq!(errno(file.read(&mut [0])), Some(Errno::IO));
    assert_eq!(errno(disk.open(&path("b"), &NEW)), Some(Errno::IO));
    assert_eq!(errno(disk.rename(&path("a"), &path("b"))), Some(Errno::IO));
    assert_eq!(disk.list(Path::new(ROOT)), ["a", "well"]);
    assert_eq!(open(&disk, "well/a", NEW).write(b"bytes").unwrap(), 5);

    disk.set_faults(Path::new(ROOT), Faults { short_write: 1.0, ..Faults::default() });
    let counts: BTreeSet<_> = (0..SEEDS).map(|_| file.write(b"bytes").unwrap()).collect();
    assert_eq!(counts, BTreeSet::from([1, 2, 3, 4]));
    assert_eq!(file.write(b"1").unwrap(), 1);
}

fn capacity_is_kept() {
    let disk = disk(setup(1));
    disk.write(&path("a"), &[0; 60]);
    disk.set_faults(Path::new(ROOT), Faults { capacity: Some(100), ..Faults::default() });
    let file = open(&disk, "b", NEW);
    assert_eq!(file.write(&[0; 50]).unwrap(), 40);
    assert_eq!(file.write(&[0; 10]).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(errno(file.set_len(41)), Some(Errno::NOSPC));
    file.seek(SeekFrom::Start(30)).unwrap();
    assert_eq!(file.write(&[1; 50]).unwrap(), 10);
    let removed = open(&disk, "a", READ);
    disk.remove_file(&path("a")).unwrap();
    assert_eq!(errno(file.write(&[0; 10])), Some(Errno::NOSPC));
    drop(removed);
    assert_eq!(file.write(&[0; 70]).unwrap(), 60);
}

fn watchers_are_notified() {
    let disk = disk(setup(1));
    let changed = Arc::new(Notify::new());
    let notified =
        || pin!(changed.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready();
    let watch = disk.watch(Path::new(ROOT), changed.clone()).unwrap();
    assert_eq!(errno(disk.watch(&path("missing"), changed.clone())), Some(Errno::NOENT));
    assert!(!notified());
    let file = open(&disk, "a", NEW);
    assert!(notified());
    file.write(b"bytes").unwrap();
    assert!(notified());
    disk.rename(&path("a"), Path::new("/a")).unwrap();
    assert!(notified());
    disk.write(Path::new("/b"), b"");
    assert!(!notified());
    disk.write(&path("c"), b"");
    assert!(disk.remove(&path("c")) && !disk.remove(&path("c")));
    assert!(notified());
    drop(watch);
    disk.write(&path("c"), b"");
    assert!(!notified());
}

fn damage_links_and_times() {
    let disk = disk(setup(1));
    disk.write(&path("a"), b"bytes");
    disk.symlink(Path::new("a"), &path("link"));
    disk.damage(&path("link"), 0, b'B');
    crash(&disk);
    assert_eq!(disk.read(&path("a")).unwrap(), b"Bytes");
    let refused = disk.open(&path("link"), &OpenOptions { refuses_links: true, ..READ });
    assert_eq!(errno(refused), Some(Errno::LOOP));
    let file = open(&disk, "b", OpenOptions { readers: Readers::Owner, ..NEW });
    let metadata = file.metadata().unwrap();
    let started = SystemTime::UNIX_EPOCH + Duration::from_secs(7);
    assert_eq!((metadata.mode, metadata.modified), (Some(0o600), Some(started)));
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let modified = disk.metadata(&path("b"), Links::Follow).unwrap().modified;
    assert_eq!(modified, Some(SystemTime::UNIX_EPOCH));
    // Relative to the root.
    assert_eq!(disk.canonicalize(Path::new("m/link")).unwrap(), path("a"));
}

fn same_seed_same_history() {
    let history = |seed| {
        let disk = disk(setup(seed));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let observed = lines.clone();
        disk.set_observer(Box::new(move |line| observed.lock().unwrap().push(line.to_owned())));
        let faults = Faults { write: 0.2, sync: 0.2, short_write: 0.5, ..Faults::default() };
        disk.set_faults(Path::new(ROOT), faults);
        for round in 0..20 {
            let file = open(&disk, &format!("{}", round % 3), NEW);
            let _ = file.write(&[round; 900]);
            let _ = file.sync_all();
            let _ = disk.rename(&path(&format!("{}", round % 3)), &path("last"));
            if round % 5 == 4 {
                crash(&disk);
            }
        }
        let names = disk.list(Path::new(ROOT));
        let left: Vec<_> = names.iter().map(|name| disk.read(&path(name))).collect();
        (lines.lock().unwrap().clone(), names, left)
    };
    assert_eq!(history(3), history(3));
    assert_ne!(history(3), history(4));
    let (lines, ..) = history(3);
    assert!(lines.iter().any(|line| line == "crash /m: ()"), "{lines:#?}");
    assert!(lines.iter().any(|line| line == "rename /m/1 -> /m/last: ()"), "{lines:#?}");
}
