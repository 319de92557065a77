//! The gate: the only way from a call to the router.
//!
//! Who calls is decided first, then how often they may; what they may use, the router asks where it knows
//! what a call is for. [`Gate::admit`] is in front of the one constructor of [`Permitted`].

mod access;
mod authn;
mod permitted;
mod rate_limit;

pub use access::{Access, Verdict};
pub use authn::{Credentials, Given};
pub use permitted::Permitted;

use std::net::IpAddr;
use std::sync::Arc;

use authn::Authenticator;
use governor::clock::DefaultClock;
use rate_limit::RateLimits;

use crate::config::Config;
use crate::domain::call::Call;
use crate::domain::caller::Caller;
use crate::domain::fault::{Fault, TransportFault};
use crate::domain::rights::{Everything, Rights};

/// Decides who may ask what.
pub struct Gate {
    authenticator: Authenticator,
    limits: Arc<RateLimits>,
}

/// Who may use which prompt, as the configuration says.
pub fn rights(config: &Config) -> Arc<dyn Rights> {
    match &config.access {
        Some(access) => Arc::new(Access::new(access)),
        None => Arc::new(Everything),
    }
}

impl Gate {
    pub fn new(config: &Config) -> Self {
        let limits = Arc::new(RateLimits::new(&config.limits, DefaultClock::default()));
        Self { authenticator: Authenticator::new(&config.auth), limits }
    }

    /// Counts a request before anything is known of it but where it comes from.
    pub fn check_address(&self, address: IpAddr) -> Result<(), TransportFault> {
        self.limits.check_address(address)
    }

    /// Who a request comes from, decided before its body is read.
    pub fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Caller, TransportFault> {
        self.authenticator.authenticate(credentials)
    }

    /// Who calls over standard streams.
    pub fn stdio_caller(&self) -> Caller {
        self.authenticator.of_stdio()
    }

    /// Lets a call through to the router, or says why not.
    pub fn admit(&self, call: Call) -> Result<Permitted<Call>, Fault> {
        self.limits.check_call(&call)?;
        Ok(Permitted::new(call, self.limits.clone()))
    }
}
