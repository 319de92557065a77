//! Forgets sign-ins that no gateway uses any longer, so that tokens of upstreams that were removed
//! from the configuration do not stay for ever.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::store::LoginBackend;
use audit::Audit;
use audit::record::AuditEvent;
use base::platform::wall_clock;
use domain::time::backoff::jittered;

/// Longest time between two marks of a sign-in as used.
const DAY: Duration = Duration::from_hours(24);

/// Marks the sign-ins of an edition as used, and forgets sign-ins that no gateway has used for
/// `logins.idle`: at once, and then at least daily, until `stop`.
pub async fn keep(
    store: LoginBackend,
    upstreams: Vec<String>,
    idle: Duration,
    audit: Audit,
    stop: CancellationToken,
) {
    let sweeping = async {
        loop {
            sweep(&store, &upstreams, &audit).await;
            sleep(jittered(period(idle), fastrand::f64())).await;
        }
    };
    stop.run_until_cancelled(sweeping).await;
}

async fn sweep(store: &LoginBackend, upstreams: &[String], audit: &Audit) {
    let now = wall_clock();
    for upstream in upstreams {
        if let Err(error) = store.mark_used(upstream, now).await {
            warn!(upstream, %error, "the sign-in cannot be marked as used");
        }
    }
    let forgotten = store.forget_idle(upstreams, now).await;
    let forgotten =
        forgotten.inspect_err(|error| warn!(%error, "unused sign-ins cannot be removed"));
    for upstream in forgotten.unwrap_or_default() {
        info!(upstream, "a sign-in that no gateway has used for logins.idle was removed");
        audit.note(AuditEvent::new("login_forgotten").text("upstream", &upstream));
    }
}

/// The time between two marks: several within `idle`.
fn period(idle: Duration) -> Duration {
    DAY.min(idle / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_in_use_is_marked_several_times_within_idle() {
        assert_eq!(period(Duration::from_hours(90 * 24)), DAY);
        assert_eq!(period(Duration::from_hours(1)), Duration::from_mins(15));
    }
}
