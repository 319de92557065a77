//! The rate-limit buckets that all replicas share.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Link;
use super::store::StoreUnavailable;
use base::seal::hex::hex;

/// A request for cells of one bucket.
#[derive(Clone, Copy, Debug)]
pub struct Take<'a> {
    /// The bucket. The store sees a blinded name.
    pub key: &'a str,
    /// Emission interval.
    pub interval: Duration,
    pub burst: NonZeroU32,
    /// The most cells to take, at least 1.
    pub cells: u32,
}

/// The outcome of a take.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Taken {
    /// The cells that were taken from each bucket, at least one of each.
    Cells(Vec<u32>),
    /// No cell was taken. Among the empty buckets, this bucket fills last.
    Empty { index: usize, retry_after: Duration },
}

/// Nanoseconds of one tick (`take.lua`).
const TICK: u128 = 125;

/// The buckets in the store.
pub struct StoredBuckets {
    link: Arc<Link>,
    /// Increases whenever buckets may be full again: with each connection to the store, and each
    /// seal key.
    generation: AtomicU64,
}

impl StoredBuckets {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self { link, generation: AtomicU64::new(0) }
    }

    /// A number that is the same as long as buckets that were empty can only fill with time.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Notes that buckets may be full again.
    pub(super) fn note_refilled(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes cells from several buckets in one step, or from no bucket: one round trip.
    ///
    /// # Errors
    /// [`StoreUnavailable`]: the cells may have been taken.
    pub async fn take(&self, takes: &[Take<'_>]) -> Result<Taken, StoreUnavailable> {
        let Link { store, scripts, sealer, .. } = &*self.link;
        let sealer = sealer.load();
        let mut invocation = scripts.take.prepare_invoke();
        for take in takes {
            invocation.key(store.key(&hex(&sealer.blind(take.key))));
            let interval = (take.interval.as_nanos() + TICK / 2) / TICK;
            invocation.arg(u64::try_from(interval.max(1)).unwrap_or(u64::MAX));
            invocation.arg(take.burst.get()).arg(take.cells);
        }
        drop(sealer);
        let run = store
            .run(async |mut connection| invocation.invoke_async::<Vec<i64>>(&mut connection).await);
        read(&run.await?).filter(|taken| taken.is_for(takes.len())).ok_or(StoreUnavailable)
    }
}

impl Taken {
    fn is_for(&self, count: usize) -> bool {
        match self {
            Self::Cells(cells) => cells.len() == count,
            Self::Empty { index, .. } => *index < count,
        }
    }
}

/// Reads the answer of `take.lua`.
fn read(answer: &[i64]) -> Option<Taken> {
    match *answer {
        [empty, wait] if empty < 0 => {
            let index = usize::try_from(empty.unsigned_abs() - 1).ok()?;
            let nanos = u64::try_from(wait).ok()?.saturating_mul(TICK as u64);
            Some(Taken::Empty { index, retry_after: Duration::from_nanos(nanos) })
        }
        _ => {
            let cells = answer.iter().map(|cells| u32::try_from(*cells).ok().filter(|n| *n > 0));
            cells.collect::<Option<_>>().map(Taken::Cells)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_script_are_read_and_others_refused() {
        let retry_after = Duration::from_millis(1);
        assert_eq!(read(&[-2, 8000]), Some(Taken::Empty { index: 1, retry_after }));
        assert_eq!(read(&[1, 7]), Some(Taken::Cells(vec![1, 7])));
        assert_eq!(read(&[1, 0]), None);
        assert_eq!(read(&[1, -1]), None);
        assert!(!Taken::Cells(vec![1]).is_for(2));
        assert!(!Taken::Empty { index: 1, retry_after }.is_for(1));
    }
}
