//! Not built yet.

pub mod check;
pub mod paint;
pub mod schema;
