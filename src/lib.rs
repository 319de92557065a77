pub mod config;
pub mod domain;
pub mod policy;
pub mod router;
pub mod seal;
pub mod session;
pub mod upstream;
