//! `promptgate check`: validates the configuration.

use std::path::Path;

use super::failure::Failure;
use super::load::load;
use super::output::print;

pub(super) fn run(path: &Path) -> Result<(), Failure> {
    let config = load(path)?;
    let upstreams: Vec<_> = config.upstreams.iter().map(|u| u.id.as_str()).collect();
    let upstreams = if upstreams.is_empty() { "none".to_owned() } else { upstreams.join(", ") };
    print(&format!("{} is valid. Upstreams: {upstreams}", path.display()))
}
