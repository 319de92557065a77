//! The failure of a command.

use std::fmt;
use std::process::ExitCode;

use config::ConfigError;

/// Exit code of an invalid command line or configuration (`EX_USAGE` of sysexits.h).
pub(crate) const USAGE: u8 = 64;

/// The error text of a command, and its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
    config_error: Option<ConfigError>,
}

impl Failure {
    /// A failure with exit code 1.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 1, config_error: None }
    }

    /// An invalid command line or configuration, with exit code 64.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: USAGE, config_error: None }
    }

    /// Returns the mistakes in the configuration, if they are the failure.
    pub(crate) fn config_error(&self) -> Option<&ConfigError> {
        self.config_error.as_ref()
    }

    /// Prints the error text to standard error and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        eprintln!("{}", self.message);
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let count = error.mistakes.len();
        let noun = if count == 1 { "mistake" } else { "mistakes" };
        let failure = Self::usage(format!("{error}\n{count} {noun} in the configuration"));
        Self { config_error: Some(error), ..failure }
    }
}
