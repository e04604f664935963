//! The admin API as its users call it: a method, a path, JSON there and back.

use std::net::SocketAddr;

use serde_json::Value;

use super::Client;
use super::client::Response;

/// What tests configure as `admin.token`.
pub(crate) const TOKEN: &str = "a-token-for-tests";

/// An admin listener and the token for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Api(pub(crate) SocketAddr);

impl Api {
    /// What is there; it has to be.
    pub(crate) fn get(self, path: &str) -> Value {
        let (status, value) = self.call("GET", path, None);
        assert_eq!(status, 200, "GET {path}: {value}");
        value
    }

    /// Changes something, which has to work.
    pub(crate) fn change(self, method: &str, path: &str, body: &Value) -> Value {
        let (status, value) = self.call(method, path, Some(body));
        assert_eq!(status, 200, "{method} {path} {body}: {value}");
        value
    }

    /// Takes something back, which has to work.
    pub(crate) fn delete(self, path: &str) -> Value {
        let (status, value) = self.call("DELETE", path, None);
        assert_eq!(status, 200, "DELETE {path}: {value}");
        value
    }

    /// Any call with the token, and the status and JSON it gets.
    pub(crate) fn call(self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let token = format!("Authorization: Bearer {TOKEN}\r\n");
        let answer = match body {
            Some(body) => {
                let fields = format!("{token}Content-Type: application/json\r\n");
                self.send(method, path, &fields, &body.to_string())
            }
            None => self.send(method, path, &token, ""),
        };
        let text = answer.text();
        let value = serde_json::from_str(&text);
        let value = value.unwrap_or_else(|error| panic!("{method} {path}: {error} in {text:?}"));
        (answer.status, value)
    }

    /// Any call with exactly these header fields.
    pub(crate) fn send(self, method: &str, path: &str, fields: &str, body: &str) -> Response {
        let mut client = Client::connect(self.0);
        let length = match (method, body) {
            ("GET" | "DELETE", "") => String::new(),
            _ => format!("Content-Length: {}\r\n", body.len()),
        };
        client.send(format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\n{fields}{length}\r\n{body}",
            self.0
        ));
        client.response()
    }
}
