//! The description of everything that is served, in OpenAPI's format.
#[cfg(test)]
mod tests;

use axum::{
    http::{HeaderName, header},
    response::IntoResponse,
};

const DESCRIPTION: &str = include_str!("openapi.json");
const KIND: [(HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];

/// Returns the description.
pub(super) async fn get() -> impl IntoResponse {
    (KIND, DESCRIPTION)
}
