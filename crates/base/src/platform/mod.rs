//! The services of the machine: the wall clock, randomness, network, disk, threads and child
//! processes, each behind a small trait with one real implementation. In addition `heap` allocates
//! large futures.
//!
//! A process has one [`Platform`], as it has one operating system: the real one, unless another is
//! installed before its first use. The monotonic clock is that of tokio, and jitter that of
//! `fastrand`, which can both be controlled.

pub mod disk;
pub mod heap;
pub mod memory;
pub mod network;
pub mod panics;
pub mod processes;
pub mod service_manager;
pub mod threads;

use std::sync::OnceLock;
use std::time::SystemTime;

use self::disk::Disk;
use self::network::Network;
use self::processes::Processes;
use self::threads::Threads;
pub use network::{Acceptor, Connect, ConnectError, Connecting, Dialling, Stream};
pub use threads::{
    BlockingError, Condvar, Locked, blocking, run_blocking, sleep, spawn_thread, yield_now,
};

/// The machine of this process.
pub struct Platform {
    pub clock: Box<dyn Clock>,
    pub entropy: Box<dyn Entropy>,
    pub disk: Box<dyn Disk>,
    pub network: Box<dyn Network>,
    pub processes: Box<dyn Processes>,
    pub threads: Box<dyn Threads>,
}

/// The wall clock. It may be set back.
pub trait Clock: Send + Sync {
    fn now(&self) -> SystemTime;
}

/// A source of random bytes for keys, nonces and ids.
pub trait Entropy: Send + Sync {
    /// Fills `bytes`.
    ///
    /// # Panics
    /// When there is no randomness: the gateway has no secrets without it and must not continue.
    fn fill(&self, bytes: &mut [u8]);
}

static PLATFORM: OnceLock<Platform> = OnceLock::new();

impl Platform {
    /// Makes this the machine of the process.
    ///
    /// # Panics
    /// When the process has used its machine before.
    pub fn install(self) {
        assert!(PLATFORM.set(self).is_ok(), "a process has one platform, from its start");
    }

    /// Returns the real machine.
    fn system() -> Self {
        Self {
            clock: Box::new(System),
            entropy: Box::new(System),
            disk: Box::new(System),
            network: Box::new(System),
            processes: Box::new(System),
            threads: Box::new(System),
        }
    }
}

/// The operating system.
struct System;

impl Clock for System {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

impl Entropy for System {
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the system's random number generator works");
    }
}

/// Returns the machine of this process.
pub fn platform() -> &'static Platform {
    PLATFORM.get_or_init(Platform::system)
}

/// Returns the time of the wall clock.
pub fn wall_clock() -> SystemTime {
    platform().clock.now()
}
