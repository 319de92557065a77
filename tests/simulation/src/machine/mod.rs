//! The simulated machine: every answer that the operating system would give, decided by the seed.

pub mod entropy;
pub mod network;
pub mod processes;
pub mod threads;
pub mod trace;

use std::net::IpAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use base::platform::{Clock, Platform};
use fastrand::Rng;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::disk::{Setup, SimDisk};
use network::{HostNetwork, SimNetwork};
use processes::SimProcesses;

/// The wall clock: virtual time since a fixed date, and what an administrator has set it forward or
/// back by.
#[derive(Clone)]
pub struct WallClock {
    began: Instant,
    offset_ms: Arc<AtomicI64>,
}

/// The date at the begin of each run: 2026-01-01 00:00 UTC.
const EPOCH: Duration = Duration::from_secs(1_767_225_600);

impl WallClock {
    fn begin() -> Self {
        Self { began: Instant::now(), offset_ms: Arc::default() }
    }

    /// Sets the clock forward, or back.
    pub fn step(&self, by_ms: i64) {
        trace::note("clock", &format!("stepped by {by_ms} ms"));
        self.offset_ms.fetch_add(by_ms, Ordering::SeqCst);
    }

    pub fn time(&self) -> SystemTime {
        let now = SystemTime::UNIX_EPOCH + EPOCH + self.began.elapsed();
        match self.offset_ms.load(Ordering::SeqCst) {
            offset @ 0.. => now + Duration::from_millis(offset.unsigned_abs()),
            offset => now - Duration::from_millis(offset.unsigned_abs()),
        }
    }
}

impl Clock for WallClock {
    fn now(&self) -> SystemTime {
        self.time()
    }
}

/// The scenario's handles of the machine.
#[derive(Clone)]
pub struct Machine {
    pub clock: WallClock,
    pub network: SimNetwork,
    pub disk: SimDisk,
    pub processes: SimProcesses,
    /// Until when syncs hang.
    frozen_until: Arc<Mutex<Instant>>,
}

impl Machine {
    /// Installs the machine of this process, on which the gateway is `host`.
    pub fn install(rng: &mut Rng, host: IpAddr) -> Self {
        let clock = WallClock::begin();
        let network = SimNetwork::new(rng.fork());
        let wall = clock.clone();
        // A good disk, or a bad one.
        let longest = if rng.bool() { 3_000 } else { 60_000 };
        let syncs = Mutex::new(rng.fork());
        let frozen_until = Arc::new(Mutex::new(Instant::now()));
        let thaws = frozen_until.clone();
        let disk = SimDisk::new(Setup {
            rng: rng.fork(),
            clock: Box::new(move || wall.time()),
            owner: rustix::process::geteuid().as_raw(),
            sync_keeps_entry: rng.bool(),
            tears_sectors: rng.bool(),
            is_remote: rng.bool(),
            sync_time: Arc::new(move || {
                let micros = syncs.lock().unwrap_or_else(PoisonError::into_inner).u64(..longest);
                let thaws = *thaws.lock().unwrap_or_else(PoisonError::into_inner);
                let frozen = thaws.saturating_duration_since(Instant::now());
                threads::pause(frozen + Duration::from_micros(micros));
            }),
        });
        disk.set_observer(Box::new(|line| trace::note("disk", line)));
        let processes = SimProcesses::default();
        Platform {
            clock: Box::new(clock.clone()),
            entropy: Box::new(entropy::Seeded),
            disk: Box::new(disk.clone()),
            processes: Box::new(processes.clone()),
            network: Box::new(HostNetwork { network: network.clone(), host }),
            threads: Box::new(threads::TakingTurns::new(Handle::current(), rng.fork())),
        }
        .install();
        Self { clock, network, disk, processes, frozen_until }
    }

    /// Makes every sync of the disk hang for a time, as one of a network does that is away.
    pub fn freeze_disk(&self, time: Duration) {
        trace::note("disk", &format!("hangs for {time:?}"));
        let mut until = self.frozen_until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = Instant::now() + time;
    }
}
