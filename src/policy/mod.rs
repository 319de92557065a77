//! The gate: the only way from a call to the router.
//!
//! Access rules, limits and the audit record have their place in [`Gate::admit`], in front of the one
//! constructor of [`Permitted`]; for now whoever is known may do everything.

mod access;
mod authn;
mod permitted;

pub use access::{Access, Verdict};
pub use authn::{Credentials, Given};
pub use permitted::Permitted;

use std::sync::Arc;

use authn::Authenticator;

use crate::config::Config;
use crate::domain::call::Call;
use crate::domain::caller::Caller;
use crate::domain::fault::{Fault, TransportFault};
use crate::domain::rights::{Everything, Rights};

/// Decides who may ask what.
pub struct Gate {
    authenticator: Authenticator,
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
        Self { authenticator: Authenticator::new(&config.auth) }
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
        Ok(Permitted::new(call))
    }
}
