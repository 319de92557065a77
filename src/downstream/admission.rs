//! How much is being worked on at once, over all clients and transports.

use std::sync::{Arc, Mutex};

use dashmap::DashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::Limits;
use crate::domain::caller::Caller;
use crate::domain::fault::TransportFault;
use crate::session::CallPermit;

/// Places that run out: whoever finds none is refused early and asked to come back.
pub(crate) struct Admission {
    /// One permit for each request that is being worked on.
    calls: Arc<Semaphore>,
    /// One permit for each of those whose users think.
    suspended: Arc<Semaphore>,
    /// One permit for each KiB of their bodies, and of what is kept of them.
    kibibytes: Arc<Semaphore>,
    /// One permit for each open stream of notices.
    streams: Arc<Semaphore>,
    /// How many each caller has open; entries only of those that have one.
    streams_of: Arc<DashMap<Caller, usize>>,
    limits: Limits,
}

/// A call that runs, or whose user thinks.
struct AdmittedCall {
    suspended: Arc<Semaphore>,
    /// Of the one or of the other.
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

/// How many places are taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionUsage {
    pub calls: usize,
    /// Calls whose users think.
    pub suspended: usize,
    /// Of messages, rounded up to KiB each.
    pub bytes: usize,
    pub streams: usize,
}

/// A place among the open streams.
pub(crate) struct StreamPermit {
    _place: OwnedSemaphorePermit,
    _own: Option<OwnStream>,
}

/// One of the streams that a caller has open.
struct OwnStream {
    streams_of: Arc<DashMap<Caller, usize>>,
    caller: Caller,
}

impl Admission {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            calls: Arc::new(Semaphore::new(limits.in_flight)),
            // As many again: their calls do nothing, but are kept.
            suspended: Arc::new(Semaphore::new(limits.in_flight)),
            kibibytes: Arc::new(Semaphore::new(limits.in_flight_bytes / 1024)),
            streams: Arc::new(Semaphore::new(limits.streams)),
            streams_of: Arc::default(),
            limits: limits.clone(),
        }
    }

    /// The places of another configuration. Where there are as many as before they are the same ones;
    /// otherwise those that are taken now are given up beside the new ones.
    pub(crate) fn renew(&self, limits: &Limits) -> Self {
        let mut renewed = Self { streams_of: self.streams_of.clone(), ..Self::new(limits) };
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

    /// How many places are taken.
    pub(crate) fn now(&self) -> AdmissionUsage {
        let Limits { in_flight, in_flight_bytes, streams, .. } = self.limits;
        AdmissionUsage {
            calls: in_flight - self.calls.available_permits(),
            suspended: in_flight - self.suspended.available_permits(),
            bytes: (in_flight_bytes / 1024 - self.kibibytes.available_permits()) * 1024,
            streams: streams - self.streams.available_permits(),
        }
    }

    /// A place among the calls that run.
    pub(crate) fn call(&self) -> Result<Arc<dyn CallPermit>, TransportFault> {
        let permit = self.calls.clone().try_acquire_owned();
        let permit = permit.map_err(|_| TransportFault::Overloaded)?;
        Ok(Arc::new(AdmittedCall { suspended: self.suspended.clone(), permit: Mutex::new(permit) }))
    }

    /// Room for a message of this many bytes.
    pub(crate) fn budget(&self, size: usize) -> Result<BodyBudget, TransportFault> {
        let mut budget = BodyBudget { kibibytes: self.kibibytes.clone(), taken: None };
        budget.grow_to(size)?;
        Ok(budget)
    }

    /// A place among the open streams, and among those of the caller. Whoever is nobody in particular
    /// has no limit of its own.
    pub(crate) fn stream(&self, caller: &Caller) -> Result<StreamPermit, TransportFault> {
        let place = self.streams.clone().try_acquire_owned();
        let place = place.map_err(|_| TransportFault::Overloaded)?;
        let own = (!caller.is_anonymous()).then(|| self.own_stream(caller)).transpose()?;
        Ok(StreamPermit { _place: place, _own: own })
    }

    fn own_stream(&self, caller: &Caller) -> Result<OwnStream, TransportFault> {
        let mut count = self.streams_of.entry(caller.clone()).or_default();
        if *count >= self.limits.streams_per_caller {
            return Err(TransportFault::TooManyStreams);
        }
        *count += 1;
        Ok(OwnStream { streams_of: self.streams_of.clone(), caller: caller.clone() })
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        if let Some(mut count) = self.streams_of.get_mut(&self.caller) {
            *count -= 1;
        }
        self.streams_of.remove_if(&self.caller, |_, count| *count == 0);
    }
}

/// How often a message is there at once: as it came, and as what it asks for.
const KEPT: usize = 2;

/// Room for one message. It grows with what has come in, so that nobody takes room by announcing
/// what never comes.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    kibibytes: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

impl BodyBudget {
    /// Makes it large enough for this many bytes.
    pub(crate) fn grow_to(&mut self, size: usize) -> Result<(), TransportFault> {
        let taken = self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = (size.div_ceil(1024) * KEPT).saturating_sub(taken);
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        let more = self.kibibytes.clone().try_acquire_many_owned(missing);
        let more = more.map_err(|_| TransportFault::Overloaded)?;
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            None => self.taken = Some(more),
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
    fn p6_a_caller_has_streams_of_its_own_up_to_its_limit() {
        let toml = "[server.limits]\nstreams = 5\nstreams_per_caller = 2\n";
        let admission =
            Admission::new(&Config::parse("g", toml, Path::new(""), &[]).unwrap().server.limits);
        let (ci, other) = (Caller::new("ci"), Caller::new("other"));
        let one = admission.stream(&ci).unwrap();
        let _two = admission.stream(&ci).unwrap();
        assert_eq!(admission.stream(&ci).err(), Some(TransportFault::TooManyStreams));
        let others =
            (admission.stream(&other).unwrap(), admission.stream(&Caller::anonymous()).unwrap());
        let _all = admission.stream(&Caller::anonymous()).unwrap();
        assert_eq!(admission.stream(&other).err(), Some(TransportFault::Overloaded));
        drop((one, others));
        let _again = admission.stream(&ci).unwrap();
        assert_eq!(admission.streams_of.len(), 1, "whoever has none is forgotten");
    }

    #[test]
    fn k3_places_that_are_taken_count_after_a_reload_that_keeps_their_number() {
        let limits = |toml: &str| {
            let toml = format!("[server.limits]\n{toml}");
            Config::parse("g", &toml, Path::new(""), &[]).unwrap().server.limits
        };
        let before = Admission::new(&limits("in_flight = 1\nstreams = 1\n"));
        let held = (before.call().unwrap(), before.stream(&Caller::new("ci")).unwrap());
        let after = before.renew(&limits("in_flight = 1\nstreams = 2\nstreams_per_caller = 1\n"));
        assert!(after.call().is_err());
        assert!(after.stream(&Caller::new("ci")).is_err(), "it has one already");
        assert!(after.stream(&Caller::new("other")).is_ok());
        drop(held);
        assert!(after.call().is_ok());
    }

    #[test]
    fn m3_room_is_taken_by_what_has_come_and_given_back() {
        let toml = "[server.limits]\nin_flight_bytes = \"2MiB\"\nbody_size = \"1MiB\"\n";
        let admission =
            Admission::new(&Config::parse("g", toml, Path::new(""), &[]).unwrap().server.limits);
        let mut one = admission.budget(0).unwrap();
        let mut two = admission.budget(1).unwrap();
        one.grow_to(1023 << 10).unwrap();
        assert_eq!(two.grow_to(1025), Err(TransportFault::Overloaded));
        two.grow_to(1024).unwrap();
        drop(one);
        two.grow_to(1 << 20).unwrap();
        assert!(admission.budget(1).is_err());
    }
}
