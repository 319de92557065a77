//! `promptgate check`: says whether the configuration would run.

use std::path::Path;

use super::text::print;
use super::{Failure, load};

pub(super) fn run(path: &Path) -> Result<(), Failure> {
    let config = load(path)?;
    let upstreams: Vec<_> = config.upstreams.iter().map(|u| u.id.as_str()).collect();
    let listed = if upstreams.is_empty() { "none".to_owned() } else { upstreams.join(", ") };
    print(&format!("{} is valid. Upstreams: {listed}", path.display()))
}
