//! State of each bucket, in shards that each have a lock.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use super::bucket::Bucket;

/// A value for each bucket that has one. Bounded: the value of the least recently used bucket is
/// dropped first.
pub(super) struct Sharded<V> {
    shards: Vec<Mutex<LruCache<String, V>>>,
    hasher: RandomState,
    /// Most values of one shard.
    capacity: usize,
}

/// Number of shards. A request locks the shards of its buckets in ascending order, which rules out
/// a deadlock.
pub(super) const SHARDS: usize = 16;

impl<V> Sharded<V> {
    /// Returns an empty store of at most `capacity` values, rounded down to whole shards.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        let shard = |_| Mutex::new(LruCache::unbounded());
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            hasher: RandomState::new(),
            capacity: (capacity / SHARDS).max(1),
        }
    }

    /// Locks the values of several buckets.
    pub(super) fn lock<'a>(&'a self, buckets: &'a [Bucket]) -> Locked<'a, V> {
        let shard_of =
            |bucket: &Bucket| self.hasher.hash_one(&bucket.key) as usize % self.shards.len();
        let homes: Vec<usize> = buckets.iter().map(shard_of).collect();
        let mut indexes = homes.clone();
        indexes.sort_unstable();
        indexes.dedup();
        let lock = |index: usize| {
            (index, self.shards[index].lock().unwrap_or_else(PoisonError::into_inner))
        };
        let shards = indexes.into_iter().map(lock).collect();
        Locked { buckets, homes, shards, capacity: self.capacity }
    }

    /// Returns the number of values.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap().len()).sum()
    }
}

/// The locked values of several buckets.
pub(super) struct Locked<'a, V> {
    buckets: &'a [Bucket],
    /// The index of each bucket's shard.
    homes: Vec<usize>,
    /// In ascending order of their indexes.
    shards: Vec<(usize, MutexGuard<'a, LruCache<String, V>>)>,
    capacity: usize,
}

impl<V> Locked<'_, V> {
    /// Returns the value of the bucket with this index, which becomes the most recently used one.
    pub(super) fn get(&mut self, index: usize) -> Option<&mut V> {
        let bucket = &self.buckets[index];
        let home = self.homes[index];
        self.shard(home).get_mut(&bucket.key)
    }

    /// Sets the value of the bucket with this index.
    pub(super) fn put(&mut self, index: usize, value: V) {
        let bucket = &self.buckets[index];
        let home = self.homes[index];
        let capacity = self.capacity;
        let shard = self.shard(home);
        match shard.get_mut(&bucket.key) {
            Some(known) => *known = value,
            None => {
                if shard.len() >= capacity {
                    shard.pop_lru();
                }
                shard.put(bucket.key.clone(), value);
            }
        }
    }

    fn shard(&mut self, home: usize) -> &mut LruCache<String, V> {
        let at = self.shards.partition_point(|(locked, _)| *locked < home);
        &mut self.shards[at].1
    }
}
