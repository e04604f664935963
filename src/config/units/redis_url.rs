//! `redis://user:password@host:6379/0`, `rediss://…`, `unix:/run/redis.sock`: where a Redis is.

use super::{ParseError, host_port};
use crate::config::Secret;
use crate::config::plan::{Login, UpstreamAddress};

/// What an address of a Redis says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::config) struct RedisUrl {
    /// Where it is.
    pub(in crate::config) address: UpstreamAddress,
    /// Whether it is spoken to over TLS.
    pub(in crate::config) tls: bool,
    /// What it is told.
    pub(in crate::config) login: Login,
}

/// Redis's port where none is given.
const PORT: u16 = 6379;

/// Reads one.
// What is wrong with it is said without repeating it: there may be a password in it.
pub(in crate::config) fn redis_url(text: &str) -> Result<RedisUrl, ParseError> {
    if text.starts_with("unix:") {
        return Ok(RedisUrl {
            address: host_port(text, PORT).map_err(|_| wrong())?,
            tls: false,
            login: Login::default(),
        });
    }
    let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
    let tls = match scheme {
        "redis" => false,
        "rediss" => true,
        _ => return Err(wrong()),
    };
    let (rest, database) = match rest.split_once('/') {
        None | Some((_, "")) => (rest.trim_end_matches('/'), 0),
        Some((rest, number)) => (rest, number.parse().map_err(|_| wrong())?),
    };
    let (login, host) = match rest.rsplit_once('@') {
        None => (Login::default(), rest),
        Some((login, host)) => (self::login(login)?, host),
    };
    if host.is_empty() || host.starts_with("unix:") {
        return Err(wrong());
    }
    Ok(RedisUrl {
        address: host_port(host, PORT).map_err(|_| wrong())?,
        tls,
        login: Login { database, ..login },
    })
}

/// `user:password`, `:password` or `user`, each with `%41` for a byte that has a meaning here.
fn login(text: &str) -> Result<Login, ParseError> {
    let (user, password) = match text.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (text, None),
    };
    Ok(Login {
        user: Some(decode(user)?).filter(|user| !user.is_empty()),
        password: password.map(decode).transpose()?.map(Secret::new),
        database: 0,
    })
}

fn decode(text: &str) -> Result<Box<str>, ParseError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let value = digit()
            .zip(digit())
            .and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        bytes.push(value.ok_or_else(wrong)?);
    }
    String::from_utf8(bytes)
        .map(Into::into)
        .map_err(|_| wrong())
}

fn wrong() -> ParseError {
    ParseError::new("this is not the address of a Redis").help(
        "expected `redis://host:6379`, `rediss://user:password@host:6379/0` or `unix:/run/redis.sock`; \
         in a user or password write `%40` for `@`, `%2F` for `/` and `%3A` for `:`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> UpstreamAddress {
        UpstreamAddress::Tcp {
            host: host.into(),
            port,
        }
    }

    #[test]
    fn addresses_are_read_as_redis_cli_reads_them() {
        let plain = redis_url("redis://localhost").unwrap();
        assert_eq!(plain.address, tcp("localhost", 6379));
        assert!(!plain.tls);
        let full = redis_url("rediss://me:p%40ss%2F@10.0.0.1:6380/3").unwrap();
        assert_eq!(full.address, tcp("10.0.0.1", 6380));
        assert!(full.tls);
        assert_eq!(full.login.user.as_deref(), Some("me"));
        assert_eq!(full.login.password, Some(Secret::new("p@ss/")));
        assert_eq!(full.login.database, 3);
        let password = redis_url("redis://:x@[::1]:1/").unwrap();
        assert_eq!(password.login.user, None);
        assert_eq!(password.address, tcp("::1", 1));
        assert!(matches!(
            redis_url("unix:/run/r.sock").unwrap().address,
            UpstreamAddress::Unix(_)
        ));
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for text in [
            "",
            "localhost:6379",
            "http://:secret@a",
            "redis://",
            "redis://:secret@",
            "redis://:%zz@a",
            "redis://:secret@a/x",
            "redis://:%ff@a",
        ] {
            let mistake = redis_url(text).unwrap_err();
            assert!(!mistake.sentence.contains("secret"), "{mistake:?}");
        }
    }
}
