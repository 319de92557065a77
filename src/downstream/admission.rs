//! Admission control: limits on calls, bytes of messages and streams, over all clients and transports.

use std::sync::{Arc, Mutex};

use dashmap::DashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::Limits;
use crate::domain::caller::Caller;
use crate::domain::fault::TransportFault;
use crate::session::CallPermit;

/// The limits of one configuration and what is in use of them. A request that exceeds one is refused at once,
/// with `Retry-After` over HTTP.
pub(crate) struct Admission {
    /// One permit for each call in flight.
    calls: Arc<Semaphore>,
    /// One permit for each call that waits for its user.
    suspended: Arc<Semaphore>,
    /// [`COPIES`] permits for each KiB of a message.
    kibibytes: Arc<Semaphore>,
    /// One permit for each notification stream.
    streams: Arc<Semaphore>,
    /// The number of streams of each authenticated caller. Only callers with a stream have an entry.
    streams_by_caller: Arc<DashMap<Caller, usize>>,
    limits: Limits,
}

/// The permit of one call, among the calls in flight or among the suspended calls.
struct AdmittedCall {
    suspended: Arc<Semaphore>,
    permit: Mutex<OwnedSemaphorePermit>,
}

impl CallPermit for AdmittedCall {
    fn suspend(&self) -> bool {
        let mut permit = self.permit.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if Arc::ptr_eq(permit.semaphore(), &self.suspended) {
            return true;
        }
        let suspended = self.suspended.clone().try_acquire_owned();
        suspended.map(|suspended| *permit = suspended).is_ok()
    }
}

/// What is in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionUsage {
    /// Calls in flight.
    pub calls: usize,
    /// Calls that wait for their users.
    pub suspended: usize,
    /// Bytes reserved for messages, in units of 1024.
    pub bytes: usize,
    /// Open notification streams.
    pub streams: usize,
}

/// The permit of one notification stream, released on drop.
#[derive(Debug)]
#[must_use]
pub(crate) struct StreamPermit {
    _permit: OwnedSemaphorePermit,
    _of_caller: Option<CallerStream>,
}

/// One stream in the count of its caller.
#[derive(Debug)]
struct CallerStream {
    streams_by_caller: Arc<DashMap<Caller, usize>>,
    caller: Caller,
}

impl Admission {
    /// Creates the admission control of the first configuration.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            calls: Arc::new(Semaphore::new(limits.in_flight)),
            // As many again: suspended calls use memory, but no time.
            suspended: Arc::new(Semaphore::new(limits.in_flight)),
            kibibytes: Arc::new(Semaphore::new(limits.in_flight_bytes / 1024)),
            streams: Arc::new(Semaphore::new(limits.streams)),
            streams_by_caller: Arc::default(),
            limits: limits.clone(),
        }
    }

    /// Creates the admission control of the next configuration. A limit that has not changed keeps its
    /// permits, and with them what is in use. A changed limit starts with all permits free: what is in use
    /// now does not count against it.
    pub(crate) fn renew(&self, limits: &Limits) -> Self {
        let streams_by_caller = self.streams_by_caller.clone();
        let mut renewed = Self { streams_by_caller, ..Self::new(limits) };
        let before = &self.limits;
        if before.in_flight == limits.in_flight {
            renewed.calls = self.calls.clone();
            renewed.suspended = self.suspended.clone();
        }
        if before.in_flight_bytes == limits.in_flight_bytes {
            renewed.kibibytes = self.kibibytes.clone();
        }
        if before.streams == limits.streams {
            renewed.streams = self.streams.clone();
        }
        renewed
    }

    /// Returns what is in use.
    pub(crate) fn usage(&self) -> AdmissionUsage {
        let Limits { in_flight, in_flight_bytes, streams, .. } = self.limits;
        AdmissionUsage {
            calls: in_flight - self.calls.available_permits(),
            suspended: in_flight - self.suspended.available_permits(),
            bytes: (in_flight_bytes / 1024 - self.kibibytes.available_permits()) * 1024,
            streams: streams - self.streams.available_permits(),
        }
    }

    /// Admits a call.
    ///
    /// # Errors
    /// `overloaded` when `in_flight` calls are in flight.
    pub(crate) fn call(&self) -> Result<Arc<dyn CallPermit>, TransportFault> {
        let permit = self.calls.clone().try_acquire_owned();
        let permit = permit.map_err(|_| TransportFault::Overloaded)?;
        Ok(Arc::new(AdmittedCall { suspended: self.suspended.clone(), permit: Mutex::new(permit) }))
    }

    /// Reserves memory for a message of `size` bytes.
    ///
    /// # Errors
    /// `overloaded` when `in_flight_bytes` would be exceeded.
    pub(crate) fn budget(&self, size: usize) -> Result<BodyBudget, TransportFault> {
        let mut budget = BodyBudget { kibibytes: self.kibibytes.clone(), reserved: None };
        budget.grow_to(size)?;
        Ok(budget)
    }

    /// Admits a notification stream. Anonymous callers have no limit per caller, as they cannot be told
    /// apart.
    ///
    /// # Errors
    /// `overloaded` when `streams` are open; `too_many_streams` when the caller has
    /// `streams_per_caller` open.
    pub(crate) fn stream(&self, caller: &Caller) -> Result<StreamPermit, TransportFault> {
        let permit = self.streams.clone().try_acquire_owned();
        let permit = permit.map_err(|_| TransportFault::Overloaded)?;
        let of_caller = (!caller.is_anonymous()).then(|| self.caller_stream(caller)).transpose()?;
        Ok(StreamPermit { _permit: permit, _of_caller: of_caller })
    }

    fn caller_stream(&self, caller: &Caller) -> Result<CallerStream, TransportFault> {
        let mut count = self.streams_by_caller.entry(caller.clone()).or_default();
        if *count >= self.limits.streams_per_caller {
            return Err(TransportFault::TooManyStreams);
        }
        *count += 1;
        let streams_by_caller = self.streams_by_caller.clone();
        Ok(CallerStream { streams_by_caller, caller: caller.clone() })
    }
}

impl Drop for CallerStream {
    fn drop(&mut self) {
        if let Some(mut count) = self.streams_by_caller.get_mut(&self.caller) {
            *count -= 1;
        }
        self.streams_by_caller.remove_if(&self.caller, |_, count| *count == 0);
    }
}

/// Copies of a message in memory at once: its bytes, and the request that is read from them.
const COPIES: usize = 2;

/// Memory that is reserved for one message, released on drop. It grows with the bytes received, so an
/// announced length alone reserves nothing.
#[derive(Debug)]
#[must_use]
pub(crate) struct BodyBudget {
    kibibytes: Arc<Semaphore>,
    reserved: Option<OwnedSemaphorePermit>,
}

impl BodyBudget {
    /// Grows the reservation to a message of `size` bytes.
    ///
    /// # Errors
    /// `overloaded` when `in_flight_bytes` would be exceeded; the reservation stays as it was.
    pub(crate) fn grow_to(&mut self, size: usize) -> Result<(), TransportFault> {
        let reserved = self.reserved.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = (size.div_ceil(1024) * COPIES).saturating_sub(reserved);
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        let more = self.kibibytes.clone().try_acquire_many_owned(missing);
        let more = more.map_err(|_| TransportFault::Overloaded)?;
        match &mut self.reserved {
            Some(reserved) => reserved.merge(more),
            None => self.reserved = Some(more),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    #[test]
    fn p6_streams_are_limited_per_caller() {
        let toml = "[server.limits]\nstreams = 5\nstreams_per_caller = 2\n";
        let admission =
            Admission::new(&Config::parse("g", toml, Path::new(""), &[]).unwrap().server.limits);
        let ci = Caller::new("ci");
        let other = Caller::new("other");
        let first = admission.stream(&ci).unwrap();
        let _second = admission.stream(&ci).unwrap();
        assert_eq!(admission.stream(&ci).err(), Some(TransportFault::TooManyStreams));
        let others =
            [admission.stream(&other).unwrap(), admission.stream(&Caller::anonymous()).unwrap()];
        let _last = admission.stream(&Caller::anonymous()).unwrap();
        assert_eq!(admission.stream(&other).err(), Some(TransportFault::Overloaded));
        drop(first);
        drop(others);
        let _again = admission.stream(&ci).unwrap();
        assert_eq!(admission.streams_by_caller.len(), 1, "callers without a stream have no entry");
    }

    #[test]
    fn k3_permits_in_use_count_after_a_reload_that_keeps_the_limit() {
        let limits = |toml: &str| {
            let toml = format!("[server.limits]\n{toml}");
            Config::parse("g", &toml, Path::new(""), &[]).unwrap().server.limits
        };
        let before = Admission::new(&limits("in_flight = 1\nstreams = 1\n"));
        let call = before.call().unwrap();
        let stream = before.stream(&Caller::new("ci")).unwrap();
        let after = before.renew(&limits("in_flight = 1\nstreams = 2\nstreams_per_caller = 1\n"));
        assert!(after.call().is_err());
        assert!(after.stream(&Caller::new("ci")).is_err(), "the caller has one already");
        assert!(after.stream(&Caller::new("other")).is_ok());
        drop(call);
        drop(stream);
        assert!(after.call().is_ok());
    }

    #[test]
    fn m3_memory_is_reserved_by_received_bytes_and_released_on_drop() {
        let toml = "[server.limits]\nin_flight_bytes = \"2MiB\"\nbody_size = \"1MiB\"\n";
        let admission =
            Admission::new(&Config::parse("g", toml, Path::new(""), &[]).unwrap().server.limits);
        let mut first = admission.budget(0).unwrap();
        let mut second = admission.budget(1).unwrap();
        first.grow_to(1023 << 10).unwrap();
        assert_eq!(second.grow_to(1025), Err(TransportFault::Overloaded));
        second.grow_to(1024).unwrap();
        drop(first);
        second.grow_to(1 << 20).unwrap();
        assert!(admission.budget(1).is_err());
    }
}
