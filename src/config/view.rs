//! The configuration as it was read, for those who look in: all files in one, and no secret in it.
//!
//! What is a secret is told by its name, or by the name of what it is compared with: the keys of a map of
//! `$http_authorization` are as good as the passwords in them.

use serde_json::{Map, Value};

use super::tree::{Kind, Node, Scalar};

/// A tree as JSON, secrets replaced.
pub(super) fn shown(root: &Node) -> String {
    show(root, Place::Plain).to_string()
}

/// Where in the tree something stands, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Names are those of header fields.
    Fields,
    /// Names are what a secret is compared with.
    Guarded,
    Plain,
    /// It is one.
    Secret,
}

fn show(node: &Node, place: Place) -> Value {
    match &node.kind {
        Kind::Null | Kind::Unset => Value::Null,
        Kind::Scalar(scalar) => match place {
            Place::Secret if !is_template(&scalar.text) => HIDDEN.into(),
            _ => show_scalar(scalar),
        },
        Kind::Sequence(items) => items.iter().map(|item| show(item, place)).collect(),
        Kind::Mapping(pairs) => show_mapping(pairs, place),
    }
}

fn show_mapping(pairs: &[(Node, Node)], place: Place) -> Value {
    let text = |wanted: &str| {
        let mut pairs = pairs.iter();
        let found = pairs.find(|(key, _)| key.text() == Some(wanted));
        found
            .and_then(|(_, value)| value.text())
            .unwrap_or_default()
    };
    // A map is made of what it looks at, a zone of its key.
    let guarded = is_secret(text("map")) || is_secret(text("key"));
    let mut shown = Map::new();
    for (number, (key, value)) in pairs.iter().enumerate() {
        let name = key.text().unwrap_or_default();
        let below = match name.to_ascii_lowercase().as_str() {
            "password" | "secret" | "token" => Place::Secret,
            "overrides" | "values" if guarded => Place::Guarded,
            "add_header" | "headers" | "proxy_set_header" => Place::Fields,
            _ if place == Place::Fields && is_secret(name) => Place::Secret,
            _ if place == Place::Secret => Place::Secret,
            _ => Place::Plain,
        };
        let name = match place {
            Place::Guarded => format!("{HIDDEN} {}", number + 1),
            _ => name.to_owned(),
        };
        shown.insert(name, show(value, below));
    }
    Value::Object(shown)
}

fn show_scalar(scalar: &Scalar) -> Value {
    let text = &scalar.text;
    if text.contains("PRIVATE KEY-----") {
        return HIDDEN.into();
    }
    if !scalar.quoted
        && let Ok(value @ (Value::Bool(_) | Value::Number(_))) = serde_json::from_str(text)
    {
        return value;
    }
    Value::String(without_login(text))
}

/// A text without the name and the password that a URL in it may have.
fn without_login(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, after) = rest.split_at(end);
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://{HIDDEN}@{host}{after}"),
        None => text.to_owned(),
    }
}

/// Whether something of this name is nobody's business.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let words = [
        "auth",
        "cookie",
        "credential",
        "key",
        "password",
        "secret",
        "session",
        "token",
    ];
    words.iter().any(|word| name.contains(word))
}

/// Whether a text is made from a request, and says nothing by itself.
fn is_template(text: &str) -> bool {
    text.starts_with('$') && !text.contains(' ')
}

const HIDDEN: &str = "***";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::config::load_text;

    #[test]
    fn what_runs_is_shown_and_secrets_are_not() {
        let text = r#"
workers: 2
admin: { token: "${TOKEN}" }
stores: { shared: { redis: "redis://user:pass-word@127.0.0.1:6379/2" } }
maps:
  $tier: { map: $http_x_api_key, default: free, values: { key-of-alice: gold, key-of-bob: free } }
  $place: { geo: $remote_addr, default: out, values: { 10.0.0.0/8: in } }
limit_req_zones:
  perkey: { key: $http_x_api_key, rate: 1r/s, overrides: { key-of-alice: { rate: 5r/s } } }
  perip: { key: $binary_remote_addr, rate: 1r/s, overrides: { 10.0.0.1: { rate: 5r/s } } }
servers:
- listen: 8080
  limit_req: [ { zone: perip }, { zone: perkey } ]
  locations:
  - path: /
    proxy_pass: http://127.0.0.1:9001
    proxy_set_header: { Authorization: "Basic YWxpY2U=", X-Tier: $tier, X-Place: $place, X-Token: $http_x_token }
"#;
        let (plan, _) = load_text("weir.yaml", text, |_| Some("from-outside".into())).unwrap();
        for secret in ["from-outside", "pass-word", "alice", "bob", "YWxpY2U"] {
            assert!(!plan.source.contains(secret), "{secret} in {}", plan.source);
        }
        let shown: serde_json::Value = serde_json::from_str(&plan.source).unwrap();
        assert_eq!(shown["workers"], 2);
        assert_eq!(shown["admin"]["token"], "***");
        assert_eq!(
            shown["stores"]["shared"]["redis"],
            "redis://***@127.0.0.1:6379/2"
        );
        assert_eq!(
            shown["maps"]["$tier"]["values"],
            json!({ "*** 1": "gold", "*** 2": "free" })
        );
        assert_eq!(
            shown["maps"]["$place"]["values"],
            json!({ "10.0.0.0/8": "in" })
        );
        let zones = &shown["limit_req_zones"];
        assert_eq!(zones["perip"]["overrides"]["10.0.0.1"]["rate"], "5r/s");
        assert_eq!(zones["perkey"]["key"], "$http_x_api_key");
        let fields = &shown["servers"][0]["locations"][0]["proxy_set_header"];
        assert_eq!(
            (&fields["Authorization"], &fields["X-Tier"]),
            (&json!("***"), &json!("$tier"))
        );
        assert_eq!(fields["X-Token"], "$http_x_token");
    }
}
