//! The description of the admin API, in OpenAPI 3.1. The test of this module generates the file
//! from the routes and from the types of their documents, so that no binary has the generator.

/// The document of `/api/v1/openapi.json`.
pub(super) const OPENAPI: &str = include_str!("openapi.json");

#[cfg(test)]
mod tests;
