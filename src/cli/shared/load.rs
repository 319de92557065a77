//! Loading of the configuration file.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::failure::Failure;
use config::{Config, ConfigError};

/// Loads the configuration file at `path`.
pub(crate) fn load(path: &Path) -> Result<Config, Failure> {
    demand(path)?;
    Ok(load_supervised(path)?)
}

/// Demands that the configuration file at `path` exists.
pub(crate) fn demand(path: &Path) -> Result<(), Failure> {
    if path.exists() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "There is no configuration file {}. Run `promptgate init` to create a commented gateway.toml in \
         the current directory, or give the path of another file with --config FILE.",
        path.display()
    )))
}

/// Loads the configuration file at `path` for a gateway whose child processes this binary
/// supervises.
pub(crate) fn load_supervised(path: &Path) -> Result<Config, ConfigError> {
    let mut config = Config::load(path)?;
    // Looked up once: an upgrade that replaces the binary changes the name that the system reports,
    // and with another supervisor every stdio upstream would count as changed and be restarted.
    static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| std::env::current_exe().ok());
    if cfg!(target_os = "linux")
        && let Some(program) = &*PROGRAM
    {
        config.supervise_children(program);
    }
    Ok(config)
}
