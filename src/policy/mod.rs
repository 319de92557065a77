//! The gate: the only way from a call to the router.
//!
//! For now everything is permitted; authentication, access rules, limits and the audit record have
//! their place in [`Gate::admit`], in front of the one constructor of [`Permitted`].

mod permitted;

pub use permitted::Permitted;

use crate::domain::call::Call;
use crate::domain::caller::Caller;
use crate::domain::fault::{Fault, TransportFault};

/// Decides who may ask what.
#[derive(Debug, Default)]
pub struct Gate;

impl Gate {
    /// Who a request comes from, decided before its body is read.
    pub fn authenticate(&self) -> Result<Caller, TransportFault> {
        Ok(Caller::anonymous())
    }

    /// Lets a call through to the router, or says why not.
    pub fn admit(&self, call: Call) -> Result<Permitted<Call>, Fault> {
        Ok(Permitted::new(call))
    }
}
