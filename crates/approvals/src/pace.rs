//! The pace of the gateway's own calls. No limit of callers counts them, so they have
//! a bound and a rate for each upstream (docs/configuration.md).

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use domain::name::UpstreamId;
use policy::gcra::Quota;
use policy::limiter::Limiter;

/// The purpose of an own call. Each has buckets, so that a person does not wait for probes.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Purpose {
    /// A person looks at a prompt, or decides on it.
    Examination,
    /// The gateway learns the texts of a prompt without a request.
    Probe,
}

/// Own calls of one upstream for one purpose: a hundred a second, and as many at first as dozens of
/// prompts need.
const RATE: Quota =
    Quota { interval: Duration::from_millis(10), burst: NonZeroU32::new(1000).expect("not zero") };

/// Buckets that are kept: more than two for each upstream of a gateway.
const BUCKETS: usize = 10_000;

/// Own calls to one upstream at once.
pub(crate) const AT_ONCE: usize = 8;

/// Rates and places of own calls, by upstream.
pub(crate) struct OwnPace {
    rate: Limiter<(UpstreamId, Purpose)>,
    places: Mutex<HashMap<UpstreamId, Arc<Semaphore>>>,
}

impl Default for OwnPace {
    fn default() -> Self {
        Self { rate: Limiter::new(RATE, BUCKETS), places: Mutex::default() }
    }
}

impl OwnPace {
    /// Waits until a call may begin. It may run as long as the permit is held; semaphores are never
    /// closed, so there is one. Cancel safe.
    pub(crate) async fn turn(
        &self,
        upstream: &UpstreamId,
        purpose: Purpose,
    ) -> Option<OwnedSemaphorePermit> {
        while let Err(wait) = self.rate.take((upstream.clone(), purpose)) {
            sleep(wait).await;
        }
        let places = {
            let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            let of = places.entry(upstream.clone());
            of.or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE))).clone()
        };
        places.acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn own_calls_have_a_rate_for_each_upstream_and_no_examination_waits_for_probes() {
        let pace = OwnPace::default();
        let [up, other] = ["up", "other"].map(|id| UpstreamId::parse(id).unwrap());
        let begin = Instant::now();
        for _ in 0..1100 {
            drop(pace.turn(&up, Purpose::Probe).await);
        }
        let waited = begin.elapsed();
        assert!((900..1200).contains(&waited.as_millis()), "{waited:?}");
        for _ in 0..1000 {
            drop(pace.turn(&up, Purpose::Examination).await);
            drop(pace.turn(&other, Purpose::Probe).await);
        }
        assert_eq!(begin.elapsed(), waited);
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_own_calls_run_at_once() {
        let pace = OwnPace::default();
        let up = UpstreamId::parse("up").unwrap();
        let mut running = Vec::new();
        for _ in 0..AT_ONCE {
            running.push(pace.turn(&up, Purpose::Examination).await);
        }
        let next = async || timeout(Duration::from_secs(60), pace.turn(&up, Purpose::Probe)).await;
        assert!(next().await.is_err());
        running.pop();
        assert!(next().await.is_ok());
    }
}
