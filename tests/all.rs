//! Every integration test in one binary: one link instead of many.

mod config_errors;
