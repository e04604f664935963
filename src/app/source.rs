//! Where the configuration comes from, as often as it is asked for.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::demo;
use crate::config::{self, ConfigFiles, Plan, Report};
use crate::spool;
use crate::tls::{self, ExpiryPolicy};

/// Where the configuration comes from.
#[derive(Debug, Clone)]
pub enum ConfigSource {
    /// The embedded demo, before an echo at this address.
    Demo(SocketAddr),
    /// A file, and what it includes.
    File(PathBuf),
}

impl ConfigSource {
    /// The files it is made of, if it is.
    #[must_use]
    pub fn watch(&self) -> Option<ConfigFiles> {
        match self {
            Self::Demo(_) => None,
            Self::File(path) => Some(config::watch(path)),
        }
    }

    /// Reads and compiles it, and looks at the files it names. What is only doubtful comes with the plan.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn load(&self) -> Result<(Plan, Report), Report> {
        let (plan, mut report) = match self {
            Self::Demo(echo) => config::load_text("demo.yaml", demo::CONFIGURATION, |name| {
                (name == "ECHO").then(|| echo.to_string())
            }),
            Self::File(path) => config::load(path),
        }?;
        tls::check(&plan, &mut report, ExpiryPolicy::Wished);
        spool::check(&plan, &mut report);
        match report.errors() {
            0 => Ok((plan, report)),
            _ => Err(report),
        }
    }
}
