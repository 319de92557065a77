//! Compresses closed segments on a separate thread.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::warn;

use crate::segments::folder::{compressed_name, segment_name, segment_numbers};
use crate::segments::segment_reader::{BLOCK, compress_block};
use base::platform::disk::{self, File, OpenOptions};
use base::platform::{Condvar, Locked, spawn_thread};

/// A handle on the thread, which runs while there is something to compress. When it is dropped,
/// the thread has ended, or hangs in the file system.
#[derive(Default)]
pub(crate) struct Compressor {
    work: Arc<Work>,
    /// The segment that was written when the thread was started last.
    current: u64,
}

#[derive(Default)]
struct Work {
    is_running: Mutex<bool>,
    ended: Condvar,
    stops: AtomicBool,
}

/// The name of an incomplete compressed file.
const TEMPORARY_FILE: &str = "compressed.tmp";

/// The time in which the thread stops: it asks after each block.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

impl Compressor {
    /// Starts to compress all segments before `current`, once for each `current`. A segment that
    /// cannot be compressed stays readable, and is tried again with the next `current`.
    pub(crate) fn compress_before(&mut self, folder: &Path, current: u64) {
        let mut is_running = self.work.is_running.locked();
        if *is_running || self.current == current {
            return;
        }
        self.current = current;
        let folder = folder.to_owned();
        let work = Running(self.work.clone());
        *is_running = true;
        drop(is_running);
        // A thread that cannot be started drops `work`, too.
        let started = spawn_thread("audit-compress", move || run(&folder, current, &work));
        if let Err(error) = started {
            warn!(%error, "closed audit segments are not compressed: no thread can be started");
        }
    }
}

impl Drop for Compressor {
    fn drop(&mut self) {
        self.work.stops.store(true, Ordering::Relaxed);
        drop(self.work.ended.wait_while(&self.work.is_running, STOP_TIMEOUT, |running| *running));
    }
}

impl Work {}

/// The side of the thread; dropped at its end.
struct Running(Arc<Work>);

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.is_running.locked() = false;
        self.0.ended.notify_all();
    }
}

fn run(folder: &Path, current: u64, work: &Running) {
    let stops = || work.0.stops.load(Ordering::Relaxed);
    let compressed = segment_numbers(folder).and_then(|numbers| {
        let mut closed = numbers.into_iter().filter(|number| *number < current && !stops());
        closed.try_for_each(|number| {
            let exists = |name| disk::metadata(&folder.join(name)).is_ok();
            match (exists(segment_name(number)), exists(compressed_name(number))) {
                (false, _) => Ok(()),
                (true, false) => compress(folder, number, &stops),
                // An older copy, or a leftover of a crash.
                (true, true) => disk::remove_file(&folder.join(segment_name(number))),
            }
        })
    });
    if let Err(error) = compressed {
        warn!(
            path = %folder.display(),
            %error,
            "a closed audit segment cannot be compressed; it is tried again with the next segment"
        );
    }
}

/// Compresses a closed segment. The plain file is removed once the compressed one is on the disk,
/// unless `stops` says so before.
pub(crate) fn compress(folder: &Path, number: u64, stops: &dyn Fn() -> bool) -> io::Result<()> {
    let plain = folder.join(segment_name(number));
    let compressed = folder.join(compressed_name(number));
    let temporary = folder.join(TEMPORARY_FILE);
    if !write_compressed(&plain, &temporary, stops)? {
        return Ok(());
    }
    disk::rename(&temporary, &compressed)?;
    disk::sync_folder(folder)?;
    match disk::remove_file(&plain) {
        // The segment has left the log meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => disk::remove_file(&compressed)?,
        removed => removed?,
    }
    disk::sync_folder(folder)
}

/// Writes the compressed text of a file to another one; returns whether it is complete.
fn write_compressed(from: &Path, to: &Path, stops: &dyn Fn() -> bool) -> io::Result<bool> {
    let mut plain = File::open(from)?;
    let modified = plain.metadata()?.modified;
    let options =
        OpenOptions { write: true, create: true, truncate: true, ..OpenOptions::private() };
    let mut file = options.open(to)?;
    let mut text = Vec::with_capacity(BLOCK);
    while Read::by_ref(&mut plain).take(BLOCK as u64).read_to_end(&mut text)? > 0 {
        file.write_all(&compress_block(&text)?)?;
        text.clear();
        if stops() {
            return Ok(false);
        }
    }
    // A search by time and the retention by age read the modification time.
    if let Some(modified) = modified {
        file.set_modified(modified)?;
    }
    file.sync_all()?;
    Ok(true)
}
