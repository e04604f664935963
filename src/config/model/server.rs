//! `servers` and their `locations`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::settings::{Connection, Settings};
use super::tls::Tls;
use super::values::{Flag, ListenAddress};
use crate::config::decode::{
    Decode, DecodeContext, Field, HasShorthand, List, Required, Shorthand, Text, record,
};
use crate::config::tree::{Node, NodeKind};

record! {
    /// A virtual server.
    pub struct Server {
        /// Where it listens: `8080`, `127.0.0.1:8080`, `[::1]:8080`, `unix:/run/weir.sock`; `8443 ssl` for TLS. Default: *:80.
        listen: Field<List<Shorthand<Listen>>>,
        /// Hosts it answers for: `example.com`, `*.example.com`, `.example.com`, `www.example.*`, `~expr`. None given: whatever no other server claims.
        server_name: Field<List<Text>>,
        /// Its certificate and how TLS is spoken on its addresses; what is not given here holds as at the top level.
        tls: Field<Tls>,
        /// Where requests go that no location of their own sends elsewhere: an upstream's name or `http://host:port[/uri]`, `https://…`.
        proxy_pass: Field<Text>,
        /// The same for gRPC: an upstream's name or `grpc://host:port`, spoken to in HTTP/2.
        grpc_pass: Field<Text>,
        /// What requests are answered with that no location of their own sends elsewhere.
        r#return: Field<Return>,
        /// Paths with rules of their own.
        locations: Field<List<Location>>,
    }
    with settings: Settings, connection: Connection,
}

record! {
    /// One address to listen on.
    pub struct Listen {
        /// Where.
        address: Required<ListenAddress>,
        /// Clients speak TLS here. Default: false.
        tls: Field<Flag>,
        /// Every connection begins with a PROXY header, version 1 or 2; `real_ip` says whether it is believed. Default: false.
        proxy_protocol: Field<Flag>,
        /// Whether clients may speak HTTP/2 here, whatever its servers say. Default: as the address's default server says.
        http2: Field<Flag>,
        /// This server answers for hosts that nobody claims on this address. Default: false.
        default_server: Field<Flag>,
    }
}

impl HasShorthand for Listen {
    const KEY: &'static str = "address";
}

record! {
    /// A path and what holds there.
    pub struct Location {
        /// Which paths: a prefix such as `/api/`, `= /exact`, `^~ /prefix`, `~ expr` or `~* expr`, in nginx's order of preference.
        path: Required<Text>,
        /// Where requests go: an upstream's name or `http://host:port[/uri]`. Default: as the server says.
        proxy_pass: Field<Text>,
        /// The same for gRPC: an upstream's name or `grpc://host:port`, spoken to in HTTP/2.
        grpc_pass: Field<Text>,
        /// What requests are answered with, in place of being sent on.
        r#return: Field<Return>,
    }
    with settings: Settings,
}

/// `return`, as nginx writes it or in parts.
#[derive(Debug, Clone)]
pub enum Return {
    /// In parts.
    Parts(Box<ReturnParts>),
    /// `204`, `200 text`, `301 https://…` or `https://…`.
    Text(Text),
}

record! {
    /// An answer without an upstream.
    pub struct ReturnParts {
        /// Its status; 444 closes the connection without an answer. Default: 302 with `url`, else 200.
        status: Field<Text>,
        /// Its text. Default: a page about the status.
        body: Field<Text>,
        /// The type of the text. Default: text/plain.
        content_type: Field<Text>,
        /// Where a redirect leads.
        url: Field<Text>,
        /// The same as `url`.
        location: Field<Text>,
    }
}

impl Decode for Return {
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        match node.kind {
            NodeKind::Mapping(_) => context
                .record(node)
                .map(|parts| Self::Parts(Box::new(parts))),
            NodeKind::Scalar(_) => Text::decode(node, context).map(Self::Text),
            NodeKind::Null | NodeKind::Sequence(_) | NodeKind::Unset => {
                context.expected(
                    node,
                    "a status, or a mapping with `status` and `body` or `url`",
                );
                None
            }
        }
    }
}

impl JsonSchema for Return {
    fn schema_name() -> Cow<'static, str> {
        "Return".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let parts = generator.subschema_for::<ReturnParts>();
        json_schema!({ "anyOf": [{ "type": ["integer", "string"] }, parts] })
    }
}
