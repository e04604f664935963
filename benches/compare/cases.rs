//! What is measured: the jobs, and who does each of them.

use crate::Result;

/// Length of a large answer, in bytes.
pub(crate) const LARGE: usize = 100 * 1024;

/// One job that all proxies do.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What is said under the title.
    pub(crate) note: &'static str,
    pub(crate) job: Job,
    pub(crate) path: &'static str,
    pub(crate) connections: u32,
    /// Status and length of the body of every answer; a refusal's body is everyone's own.
    pub(crate) answer: (u16, Option<usize>),
    pub(crate) contenders: &'static [Contender],
}

/// What a job asks of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// Bodies of up to 1 MB.
    Bodies,
    Proxy,
    Refuse,
    /// The client asks for the connection to be closed after each answer.
    Close,
    /// The client speaks HTTP/2, many requests at once on every connection.
    Http2,
    /// Every request is logged to a file.
    Log,
    /// Inside TLS.
    Tls,
    /// Inside TLS, and a connection for each request.
    Handshake,
}

impl Job {
    pub(crate) fn is_secured(self) -> bool {
        matches!(self, Self::Tls | Self::Handshake)
    }

    /// Whether every request has a connection of its own.
    pub(crate) fn closes(self) -> bool {
        matches!(self, Self::Close | Self::Handshake)
    }
}

/// A proxy with its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    Nginx,
    NginxLargeBuffers,
    NginxBufferedLog,
    Haproxy,
    Weir,
}

impl Contender {
    /// What the others are compared with.
    pub(crate) const BASE: Self = Self::Nginx;

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::NginxLargeBuffers => "nginx, large buffers",
            Self::NginxBufferedLog => "nginx, buffered log",
            Self::Haproxy => "HAProxy",
            Self::Weir => "weir",
        }
    }
}

const EVERYONE: &[Contender] = &[Contender::Nginx, Contender::Haproxy, Contender::Weir];

static CASES: [Case; 8] = [
    Case {
        name: "small",
        title: "Small answers",
        note: "2 bytes over 64 connections that stay open; a limit is checked on every request and never reached.",
        job: Job::Proxy,
        path: "/",
        connections: 64,
        answer: (200, Some(2)),
        contenders: EVERYONE,
    },
    Case {
        name: "refused",
        title: "Refusals",
        note: "All requests of one client beyond its rate, answered with 429 over 64 connections that stay open.",
        job: Job::Refuse,
        path: "/",
        connections: 64,
        answer: (429, None),
        contenders: EVERYONE,
    },
    Case {
        name: "large",
        title: "Answers of 100 KB",
        note: "Over 32 connections that stay open. nginx once as it comes (`proxy_buffers 8 4k`) and once with \
               `proxy_buffers 16 32k`.",
        job: Job::Proxy,
        path: "/100k",
        connections: 32,
        answer: (200, Some(LARGE)),
        contenders: &[
            Contender::Nginx,
            Contender::NginxLargeBuffers,
            Contender::Haproxy,
            Contender::Weir,
        ],
    },
    Case {
        name: "close",
        title: "A connection per request",
        note: "Small answers to 64 clients that send `Connection: close`; connections to the backend stay open.",
        job: Job::Close,
        path: "/",
        connections: 64,
        answer: (200, Some(2)),
        contenders: EVERYONE,
    },
    Case {
        name: "http2",
        title: "HTTP/2",
        note: "Small answers to clients that speak HTTP/2 without TLS, by h2load: 8 connections with 16 requests at once \
               on each. To the backend all speak HTTP/1.",
        job: Job::Http2,
        path: "/",
        connections: 8,
        answer: (200, Some(2)),
        contenders: EVERYONE,
    },
    Case {
        name: "log",
        title: "Access log on",
        note: "Small answers, each with a line in a file: `combined` for nginx and weir, `httplog` for HAProxy. nginx \
               once as it comes (a write per request) and once with `buffer=64k flush=1s`; weir gathers lines by itself.",
        job: Job::Log,
        path: "/",
        connections: 64,
        answer: (200, Some(2)),
        contenders: &[
            Contender::Nginx,
            Contender::NginxBufferedLog,
            Contender::Haproxy,
            Contender::Weir,
        ],
    },
    Case {
        name: "tls",
        title: "TLS, small answers",
        note: "As small answers, inside TLS 1.3: 64 connections that stay open, ECDSA on P-256.",
        job: Job::Tls,
        path: "/",
        connections: 64,
        answer: (200, Some(2)),
        contenders: EVERYONE,
    },
    Case {
        name: "handshake",
        title: "TLS handshakes",
        note: "A connection with a full handshake per request, to 64 clients; tickets are sent, as all do by default.",
        job: Job::Handshake,
        path: "/",
        connections: 64,
        answer: (200, Some(2)),
        contenders: EVERYONE,
    },
];

/// The cases of these names, or all.
pub(crate) fn chosen(names: Option<&[String]>) -> Result<Vec<&'static Case>> {
    let Some(names) = names else {
        return Ok(CASES.iter().collect());
    };
    names
        .iter()
        .map(|name| {
            CASES
                .iter()
                .find(|case| case.name == name)
                .ok_or_else(|| format!("there is no case {name}\n\n{}", crate::USAGE).into())
        })
        .collect()
}
