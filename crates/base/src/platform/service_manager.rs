//! The service manager that has started the process, such as systemd (sd_notify(3)). Without one,
//! and on systems other than Unix, it is not notified.

use std::time::Duration;

/// A state of the process, of which the service manager is notified.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ServiceState<'a> {
    /// The process serves: after the start, or after a reload, with a line for `systemctl status`.
    Ready(&'a str),
    Reloading,
    Stopping,
    /// The process is not stuck.
    Alive,
}

/// Notifies the service manager. A failure is ignored: serving does not depend on it.
pub fn notify(state: ServiceState<'_>) {
    #[cfg(unix)]
    {
        use sd_notify::NotifyState;
        let told = match state {
            ServiceState::Ready(line) => {
                sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(line)])
            }
            // The time tells this reload from an earlier one (Type=notify-reload).
            ServiceState::Reloading => NotifyState::monotonic_usec_now()
                .and_then(|now| sd_notify::notify(&[NotifyState::Reloading, now])),
            ServiceState::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
            ServiceState::Alive => sd_notify::notify(&[NotifyState::Watchdog]),
        };
        drop(told);
    }
    #[cfg(not(unix))]
    let _ = state;
}

/// Returns how often the service manager must hear that the process is alive: half of its watchdog
/// timeout. `None` if it does not watch the process.
pub fn watchdog_interval() -> Option<Duration> {
    #[cfg(unix)]
    return Some(sd_notify::watchdog_enabled()? / 2);
    #[cfg(not(unix))]
    None
}
