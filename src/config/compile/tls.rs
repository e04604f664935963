//! `tls` of servers and `proxy_ssl_…` of upstreams: what is written about files, not what stands in them.

use std::path::Path;
use std::time::Duration;

use super::Compiler;
use super::sites::SettingLevels;
use crate::config::decode::{Field, List, Spanned, Text};
use crate::config::model;
use crate::config::plan::{
    Certificate, Cipher, HttpVersion, ServerNameSent, SessionReuse, SessionTickets, Tls, TlsFile,
    TlsVersion, UpstreamTls, Verify, VerifyClient,
};
use crate::config::span::Span;

impl Compiler<'_> {
    /// What a server meets clients with that come over TLS; `listens` says where it was told that some do.
    pub(super) fn tls(
        &mut self,
        server: &Spanned<model::Server>,
        listens: Option<Span>,
    ) -> Option<Tls> {
        let config = self.config;
        let own = server.value.tls.value();
        match (own, listens) {
            (_, Some(listens)) => {
                let levels: Vec<&model::Tls> = own.into_iter().chain(config.tls.value()).collect();
                if levels.is_empty() {
                    // One that is there and could not be understood was complained about.
                    if server
                        .value
                        .tls
                        .key()
                        .or_else(|| config.tls.key())
                        .is_none()
                    {
                        self.complain_with(
                            listens,
                            "this server listens with TLS and has no `tls`",
                            "add `tls: { certificate: fullchain.pem, key: key.pem }` to it",
                        );
                    }
                    return None;
                }
                self.server_tls(&levels, listens)
            }
            (Some(_), None) => {
                if let Some(key) = server.value.tls.key() {
                    self.warn(
                        key,
                        "this server has a certificate and never listens with TLS",
                        "write `listen: { address: …, tls: true }`",
                    );
                }
                None
            }
            (None, None) => None,
        }
    }

    fn server_tls(&mut self, levels: &[&model::Tls], listens: Span) -> Option<Tls> {
        let certificates = self.certificates(levels, listens);
        let verify_client =
            find(levels, |tls| &tls.verify_client).map_or(VerifyClient::Off, |word| word.value.0);
        let client_ca = find(levels, |tls| &tls.client_ca).map(|text| self.file(text));
        let crl = find(levels, |tls| &tls.crl).map(|text| self.file(text));
        if let Some(word) = find(levels, |tls| &tls.verify_client)
            && client_ca.is_none()
            && matches!(verify_client, VerifyClient::On | VerifyClient::Optional)
        {
            self.complain_with(
                word.span,
                "clients cannot be verified without roots to trust",
                "name a PEM file with `client_ca`",
            );
        }
        if let Some(crl) = crl.as_ref().filter(|_| client_ca.is_none()) {
            self.complain_with(
                crl.span,
                "`crl` without `client_ca` has nothing to apply to",
                "it is about clients' certificates",
            );
        }
        Some(Tls {
            certificates,
            protocols: protocols(find(levels, |tls| &tls.protocols)),
            ciphers: ciphers(find(levels, |tls| &tls.ciphers)),
            verify_client,
            client_ca,
            verify_depth: find(levels, |tls| &tls.verify_depth).map_or(1, |depth| depth.value.0),
            crl,
            session_timeout: find(levels, |tls| &tls.session_timeout)
                .map_or(Duration::from_secs(300), |time| time.value.0),
            session_tickets: match find(levels, |tls| &tls.session_tickets) {
                Some(flag) if !flag.value.0 => SessionTickets::Off,
                _ => SessionTickets::On,
            },
        })
    }

    fn certificates(&mut self, levels: &[&model::Tls], listens: Span) -> Vec<Certificate> {
        // A certificate and its key come from one level: half of each would never fit.
        let Some(level) = levels
            .iter()
            .find(|tls| tls.certificate.key().or_else(|| tls.key.key()).is_some())
        else {
            let hint = "add `certificate: fullchain.pem` and `key: key.pem` to its `tls`";
            self.complain_with(listens, "this server has no certificate for TLS", hint);
            return Vec::new();
        };
        let chains = list(&level.certificate);
        let keys = list(&level.key);
        let staples = list(&level.stapling_file);
        let place = level.certificate.key().or_else(|| level.key.key());
        let place = place.unwrap_or(listens);
        if level.certificate.key().is_none() || level.key.key().is_none() {
            let (there, missing) = match level.certificate.key() {
                Some(_) => ("certificate", "key"),
                None => ("key", "certificate"),
            };
            self.complain(place, format!("`{there}` without a `{missing}`"));
        } else if chains.len() != keys.len() {
            let sentence = format!(
                "{} certificates and {} keys cannot belong together",
                chains.len(),
                keys.len()
            );
            self.complain_with(
                place,
                sentence,
                "each certificate has its key at the same place in the list",
            );
        }
        if let Some(stray) = staples.get(chains.len()) {
            self.complain(
                stray.span,
                "a `stapling_file` more than there are certificates",
            );
        }
        chains
            .iter()
            .zip(keys)
            .enumerate()
            .map(|(index, (chain, key))| Certificate {
                chain: self.file(chain),
                key: self.file(key),
                staple: staples.get(index).map(|staple| self.file(staple)),
            })
            .collect()
    }

    /// How a server behind `https://` is met, as a place in the plan: the same for the same settings.
    pub(super) fn upstream_tls(
        &mut self,
        host: &str,
        version: HttpVersion,
        levels: SettingLevels<'_>,
    ) -> usize {
        let flag = |given: Option<&Spanned<model::Flag>>| given.is_none_or(|flag| flag.value.0);
        let certificate = levels.find(|s| &s.proxy_ssl.proxy_ssl_certificate);
        let key = levels.find(|s| &s.proxy_ssl.proxy_ssl_certificate_key);
        if let (Some(alone), None) | (None, Some(alone)) = (certificate, key) {
            let sentence =
                "`proxy_ssl_certificate` and `proxy_ssl_certificate_key` belong together";
            self.complain(alone.span, sentence);
        }
        let certificate = certificate.zip(key).map(|(chain, key)| Certificate {
            chain: self.file(chain),
            key: self.file(key),
            staple: None,
        });
        let mut file = |given: Option<&Spanned<Text>>| given.map(|text| self.file(text));
        let tls = UpstreamTls {
            trusted: file(levels.find(|s| &s.proxy_ssl.proxy_ssl_trusted_certificate)),
            crl: file(levels.find(|s| &s.proxy_ssl.proxy_ssl_crl)),
            name: self.upstream_name(host, levels),
            verify: match flag(levels.find(|s| &s.proxy_ssl.proxy_ssl_verify)) {
                true => Verify::On,
                false => Verify::Off,
            },
            depth: levels
                .find(|s| &s.proxy_ssl.proxy_ssl_verify_depth)
                .map(|depth| depth.value.0),
            certificate,
            server_name: match flag(levels.find(|s| &s.proxy_ssl.proxy_ssl_server_name)) {
                true => ServerNameSent::On,
                false => ServerNameSent::Off,
            },
            protocols: protocols(levels.find(|s| &s.proxy_ssl.proxy_ssl_protocols)),
            ciphers: ciphers(levels.find(|s| &s.proxy_ssl.proxy_ssl_ciphers)),
            session_reuse: match flag(levels.find(|s| &s.proxy_ssl.proxy_ssl_session_reuse)) {
                true => SessionReuse::On,
                false => SessionReuse::Off,
            },
            version,
        };
        let known = self.upstream_tls.iter().position(|known| *known == tls);
        known.unwrap_or_else(|| {
            self.upstream_tls.push(tls);
            self.upstream_tls.len() - 1
        })
    }

    fn upstream_name(&mut self, host: &str, levels: SettingLevels<'_>) -> Box<str> {
        let given = levels.find(|s| &s.proxy_ssl.proxy_ssl_name);
        if let Some(given) = given {
            let text = given.value.text.as_str();
            if text.contains('$') {
                let sentence = "variables in `proxy_ssl_name` are not supported by this version";
                self.complain(given.span, sentence);
            } else if text.is_empty() || text.contains(['/', ' ']) {
                let sentence = format!("`{text}` cannot be the name in a certificate");
                self.complain(given.span, sentence);
            }
        }
        let host = given.map_or(host, |given| given.value.text.as_str());
        without_port(host).to_ascii_lowercase().into()
    }

    /// A file as it is named: relative to the file that names it.
    pub(super) fn file(&mut self, text: &Spanned<Text>) -> TlsFile {
        if text.value.text.is_empty() {
            self.complain(text.span, "an empty name of a file");
        }
        let home = Path::new(self.report.sources().name(text.span.file)).parent();
        TlsFile {
            path: home.unwrap_or_else(|| Path::new("")).join(&text.value.text),
            span: text.span,
        }
    }
}

/// Name or address without a port, an IPv6 one without brackets.
fn without_port(host: &str) -> &str {
    if let Some((address, _)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    match host.split_once(':') {
        Some((name, port)) if !port.contains(':') => name,
        _ => host,
    }
}

fn find<'a, T>(
    levels: &[&'a model::Tls],
    pick: impl Fn(&'a model::Tls) -> &'a Field<T>,
) -> Option<&'a Spanned<T>> {
    levels.iter().find_map(|tls| pick(tls).get())
}

fn list(field: &Field<List<Text>>) -> &[Spanned<Text>] {
    field.value().map_or(&[], |list| &list.0)
}

fn protocols(given: Option<&Spanned<List<model::Protocols>>>) -> Vec<TlsVersion> {
    let given: Vec<_> = given
        .into_iter()
        .flat_map(|given| &given.value.0)
        .flat_map(|words| words.value.0.iter().copied())
        .collect();
    match given.is_empty() {
        true => vec![TlsVersion::Tls12, TlsVersion::Tls13],
        false => given,
    }
}

fn ciphers(given: Option<&Spanned<List<model::Ciphers>>>) -> Vec<Cipher> {
    given
        .into_iter()
        .flat_map(|given| &given.value.0)
        .flat_map(|words| words.value.0.iter().copied())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_to_verify_has_no_port() {
        assert_eq!(without_port("app.internal:8443"), "app.internal");
        assert_eq!(without_port("[::1]:8443"), "::1");
        assert_eq!(without_port("::1"), "::1");
        assert_eq!(without_port("app"), "app");
    }
}
