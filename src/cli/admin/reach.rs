//! Which admin listener a verb speaks to, and the token it shows there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

use super::AdminClient;
use crate::cli::{UsageError, paint};
use crate::config::{self, Secret};

/// How the running weir is found. The first that is given counts.
#[derive(Debug, Args)]
pub(in crate::cli) struct AdminOptions {
    /// Where the admin listener is; else what --config says, $WEIR_ADMIN, or 127.0.0.1:9900
    #[arg(long, value_name = "ADDR", value_parser = address, help_heading = "The running weir")]
    admin: Option<String>,
    /// A file with the token; else what --config says, or $WEIR_TOKEN
    // Never the token itself: everybody on the machine can read a command line.
    #[arg(long, value_name = "FILE", help_heading = "The running weir")]
    token_file: Option<PathBuf>,
    /// The configuration it runs with, to take both from
    #[arg(short, long, value_name = "FILE", help_heading = "The running weir")]
    config: Option<PathBuf>,
}

impl AdminOptions {
    /// The listener, not yet spoken to.
    pub(in crate::cli) fn admin(&self) -> anyhow::Result<AdminClient> {
        let configured = match &self.config {
            Some(path) => Some(configured(path)?),
            None => None,
        };
        let (listen, configured) = match configured {
            Some(admin) => (Some(reachable(admin.listen).to_string()), admin.token),
            None => (None, None),
        };
        let address = match self.admin.clone().or(listen) {
            Some(address) => address,
            None => match std::env::var("WEIR_ADMIN") {
                Ok(text) if !text.is_empty() => {
                    address(&text).map_err(|why| UsageError(format!("WEIR_ADMIN: {why}")))?
                }
                _ => DEFAULT.to_owned(),
            },
        };
        let token = match &self.token_file {
            Some(path) => Some(read(path)?),
            None => configured.or_else(|| {
                let token = std::env::var("WEIR_TOKEN").ok();
                token.filter(|token| !token.is_empty()).map(Secret::new)
            }),
        };
        if let Some(token) = &token
            && !token
                .expose()
                .bytes()
                .all(|byte| matches!(byte, b' '..=b'~'))
        {
            return Err(
                UsageError("the token has letters that no header can carry".to_owned()).into(),
            );
        }
        Ok(AdminClient::new(address, token))
    }
}

/// `admin` of a configuration.
fn configured(path: &Path) -> anyhow::Result<config::plan::Admin> {
    let (plan, _) = match config::load(path) {
        Ok(loaded) => loaded,
        Err(report) => {
            paint::draw(&report)?;
            let what = format!("{} says nothing about a listener", path.display());
            return Err(UsageError(what).into());
        }
    };
    plan.admin.ok_or_else(|| {
        UsageError(format!(
            "{} has no `admin`, so there is no listener to speak to; `admin: {{ listen: {DEFAULT} }}` makes one",
            path.display()
        ))
        .into()
    })
}

/// Where to call what listens on all addresses.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

fn read(path: &Path) -> anyhow::Result<Secret> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the token from {}", path.display()))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(UsageError(format!("there is no token in {}", path.display())).into());
    }
    Ok(Secret::new(token))
}

/// `127.0.0.1:9900`, `gateway:9900`, `9900` or `http://…/`.
fn address(text: &str) -> Result<String, String> {
    let wrong = || format!("`{text}` is no address; expected one as in `{DEFAULT}`");
    if text.starts_with("https://") {
        return Err(
            "the admin listener speaks plain HTTP; come through a tunnel from elsewhere".to_owned(),
        );
    }
    let bare = text.strip_prefix("http://").unwrap_or(text);
    let bare = bare.strip_suffix('/').unwrap_or(bare);
    if bare.parse::<u16>().is_ok() {
        return Ok(format!("127.0.0.1:{bare}"));
    }
    if bare.parse::<SocketAddr>().is_ok() {
        return Ok(bare.to_owned());
    }
    let (host, port) = bare.rsplit_once(':').ok_or_else(wrong)?;
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    if host.is_empty() || !host.chars().all(is_name) || port.parse::<u16>().is_err() {
        return Err(wrong());
    }
    Ok(bare.to_owned())
}

const DEFAULT: &str = "127.0.0.1:9900";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_written_in_several_ways() {
        for (text, expected) in [
            ("127.0.0.1:9900", "127.0.0.1:9900"),
            ("9901", "127.0.0.1:9901"),
            ("http://127.0.0.1:9900/", "127.0.0.1:9900"),
            ("[::1]:9900", "[::1]:9900"),
            ("gateway.example:80", "gateway.example:80"),
        ] {
            assert_eq!(address(text).as_deref(), Ok(expected), "{text}");
        }
        for text in [
            "",
            "127.0.0.1",
            "::1",
            "host:",
            ":80",
            "host:99999",
            "a b:80",
            "a\r\nX: y:80",
            "user@host:80",
            "https://host:80",
        ] {
            assert!(address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_listens_everywhere_is_called_on_this_machine() {
        for (listen, expected) in [
            ("0.0.0.0:9900", "127.0.0.1:9900"),
            ("[::]:9900", "[::1]:9900"),
            ("192.0.2.1:9900", "192.0.2.1:9900"),
        ] {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), expected);
        }
    }
}
