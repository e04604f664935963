//! `tracing`.

use std::time::Duration;

use http::{HeaderName, HeaderValue};

use super::Compiler;
use crate::config::Secret;
use crate::config::decode::{NamedMap, Spanned, Text, mistaken};
use crate::config::model;
use crate::config::plan::{
    CallShare, HttpVersion, ServerNameSent, SessionReuse, TlsVersion, Tracing, UpstreamAddress,
    UpstreamTls, Verify,
};
use crate::config::units;

/// Where a collector is.
struct OtlpEndpoint {
    host: Box<str>,
    port: u16,
    path: Box<str>,
    tls: bool,
}

impl Compiler<'_> {
    /// `tracing`
    pub(super) fn tracing(&mut self) -> Option<Tracing> {
        let given = self.config.tracing.get()?;
        if !cfg!(feature = "otel") {
            let sentence = "this weir was built without tracing";
            let hint = "build it with `--features otel`, or leave `tracing` out";
            self.complain_with(given.span, sentence, hint);
        }
        let tracing = &given.value;
        let headers = tracing.headers.value();
        let headers = headers.map_or_else(Vec::new, |headers| self.collector_headers(headers));
        let interval = self.batch_interval(tracing.interval.get());
        let name = tracing.service_name.value();
        let endpoint = self.endpoint(tracing.otlp.get()?)?;
        Some(Tracing {
            tls: endpoint.tls.then(|| met_as(&endpoint.host)),
            host: endpoint.host,
            port: endpoint.port,
            path: endpoint.path,
            headers,
            service_name: name.map_or("weir", |name| &name.text).into(),
            sample: tracing
                .sample
                .value()
                .map_or(CallShare(10), |share| share.0),
            context: tracing
                .context
                .value()
                .map(|word| word.0)
                .unwrap_or_default(),
            interval,
            batch_size: tracing.batch_size.value().map_or(512, |size| size.0),
        })
    }

    fn endpoint(&mut self, otlp: &Spanned<Text>) -> Option<OtlpEndpoint> {
        let text = otlp.value.text.as_str();
        let (tls, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            _ => {
                let sentence = format!("`{text}` is not the address of a collector");
                let hint = "expected for example `http://127.0.0.1:4318`: OTLP over HTTP";
                self.complain_with(otlp.span, sentence, hint);
                return None;
            }
        };
        let (host, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (host, port) = match units::host_port(host, if tls { 443 } else { 80 }) {
            Ok(UpstreamAddress::Tcp { host, port }) => (host, port),
            Ok(UpstreamAddress::Unix(_)) => {
                let sentence = "a collector on a unix socket is not supported by this version";
                self.complain(otlp.span, sentence);
                return None;
            }
            Err(mistake) => {
                self.report.add(mistaken(otlp.span, mistake));
                return None;
            }
        };
        if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            self.complain(otlp.span, format!("`{path}` cannot be asked for"));
        }
        if port == 4317 {
            let hint = "collectors take OTLP over HTTP on port 4318";
            self.warn(otlp.span, "4317 is where gRPC is spoken", hint);
        }
        let path = if path == "/" { "/v1/traces" } else { path };
        Some(OtlpEndpoint {
            host,
            port,
            path: path.into(),
            tls,
        })
    }

    fn collector_headers(&mut self, named: &NamedMap<Secret>) -> Vec<(HeaderName, HeaderValue)> {
        let mut headers = Vec::new();
        for (key, value) in &named.entries {
            let name = HeaderName::try_from(key.value.as_str());
            let text = HeaderValue::try_from(value.value.expose());
            match (name, text) {
                (Ok(name), _) if OWN.contains(&name.as_str()) => {
                    let sentence = format!("`{name}` is written by weir itself");
                    self.complain(key.span, sentence);
                }
                (Ok(name), Ok(mut text)) => {
                    text.set_sensitive(true);
                    headers.push((name, text));
                }
                (Err(_), _) => {
                    let sentence = format!("`{}` is not the name of a header", key.value);
                    self.complain(key.span, sentence);
                }
                // Not repeated: it may be a secret.
                (_, Err(_)) => self.complain(value.span, "this cannot stand in a header"),
            }
        }
        headers
    }

    fn batch_interval(&mut self, given: Option<&Spanned<model::Time>>) -> Duration {
        let Some(given) = given else { return INTERVAL };
        let wanted = Duration::from_millis(10)..=Duration::from_secs(600);
        if !wanted.contains(&given.value.0) {
            let hint = "expected 10ms to 10m; the default is 5s";
            self.complain_with(given.span, "no useful time to send spans together", hint);
        }
        given.value.0
    }
}

/// A collector is who its certificate says, by the system's roots.
fn met_as(host: &str) -> UpstreamTls {
    UpstreamTls {
        name: host.into(),
        verify: Verify::On,
        depth: None,
        trusted: None,
        crl: None,
        certificate: None,
        server_name: ServerNameSent::On,
        protocols: vec![TlsVersion::Tls12, TlsVersion::Tls13],
        ciphers: Vec::new(),
        session_reuse: SessionReuse::On,
        version: HttpVersion::One,
    }
}

/// nginx's.
const INTERVAL: Duration = Duration::from_secs(5);

/// Fields that say how a message is framed.
const OWN: [&str; 5] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
];
