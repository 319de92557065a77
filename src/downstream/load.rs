//! How much is being worked on at once, over all clients and transports.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::Limits;
use crate::domain::fault::TransportFault;

/// Places that run out: whoever finds none is refused early and asked to come back.
#[derive(Debug)]
pub struct Load {
    /// One permit for each request that is being worked on.
    calls: Arc<Semaphore>,
    /// One permit for each KiB of their bodies.
    kibibytes: Arc<Semaphore>,
    /// One permit for each open stream of notices.
    streams: Arc<Semaphore>,
}

impl Load {
    pub fn new(limits: &Limits) -> Self {
        Self {
            calls: Arc::new(Semaphore::new(limits.in_flight)),
            kibibytes: Arc::new(Semaphore::new(limits.in_flight_bytes / 1024)),
            streams: Arc::new(Semaphore::new(limits.streams)),
        }
    }

    /// A place among the calls that run.
    pub fn call(&self) -> Result<OwnedSemaphorePermit, TransportFault> {
        self.calls.clone().try_acquire_owned().map_err(|_| TransportFault::Overloaded)
    }

    /// Room for a body of this many bytes.
    pub fn room(&self, size: usize) -> Result<OwnedSemaphorePermit, TransportFault> {
        let kibibytes = u32::try_from(size.div_ceil(1024)).unwrap_or(u32::MAX);
        let room = self.kibibytes.clone().try_acquire_many_owned(kibibytes);
        room.map_err(|_| TransportFault::Overloaded)
    }

    /// A place among the open streams.
    pub fn stream(&self) -> Result<OwnedSemaphorePermit, TransportFault> {
        self.streams.clone().try_acquire_owned().map_err(|_| TransportFault::Overloaded)
    }
}

/// The part of `room` that a body of this size really takes.
pub fn shrunk(mut room: OwnedSemaphorePermit, size: usize) -> OwnedSemaphorePermit {
    room.split(size.div_ceil(1024)).unwrap_or(room)
}
