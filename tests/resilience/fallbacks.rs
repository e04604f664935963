//! Fallbacks.
