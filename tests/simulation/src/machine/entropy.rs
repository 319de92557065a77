//! Randomness that the seed decides: that of the gateway, and that of the standard library.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use base::platform::Entropy;

/// The state of SplitMix64 (Steele, Lea and Flood, 2014).
static STATE: AtomicU64 = AtomicU64::new(0);

/// Starts the sequence of a seed.
pub fn begin(seed: u64) {
    STATE.store(seed, Ordering::SeqCst);
}

fn next() -> u64 {
    const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut mixed = STATE.fetch_add(GAMMA, Ordering::SeqCst).wrapping_add(GAMMA);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

fn fill(bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&next().to_le_bytes()[..chunk.len()]);
    }
}

/// The randomness of the simulated machine.
pub struct Seeded;

impl Entropy for Seeded {
    fn fill(&self, bytes: &mut [u8]) {
        fill(bytes);
    }
}

/// Replaces the function of the C library, from which the standard library takes the seeds of its
/// hash maps, and with them tokio the order in which `select!` looks at its branches. The standard
/// library has no other way to decide them.
///
/// # Safety
/// `buffer` has room for `length` bytes: the contract of getrandom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    // SAFETY: by the contract above.
    fill(unsafe { std::slice::from_raw_parts_mut(buffer, length) });
    length as isize
}
