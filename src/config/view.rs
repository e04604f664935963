//! The configuration as it was read, for those who look in: all files in one, and no secret in it.

use serde_json::{Map, Value};

use super::hidden::SecretIndex;
use super::secret::{HIDDEN, logins, without};
use super::tree::{Node, NodeKind, Scalar};

/// A tree as JSON, secrets replaced.
pub(super) fn shown(root: &Node, hidden: &SecretIndex) -> String {
    show(root, hidden).to_string()
}

fn show(node: &Node, hidden: &SecretIndex) -> Value {
    match &node.kind {
        NodeKind::Null | NodeKind::Unset => Value::Null,
        NodeKind::Scalar(scalar) => match hidden.shown(node) {
            Some(shown) => shown.into(),
            None => show_scalar(scalar),
        },
        NodeKind::Sequence(items) => items.iter().map(|item| show(item, hidden)).collect(),
        NodeKind::Mapping(pairs) => show_mapping(pairs, hidden),
    }
}

fn show_mapping(pairs: &[(Node, Node)], hidden: &SecretIndex) -> Value {
    let mut shown = Map::new();
    for (number, (key, value)) in pairs.iter().enumerate() {
        let name = match hidden.shown(key) {
            // Numbered, because no two keys of a mapping are the same.
            Some(name) => format!("{name} {}", number + 1),
            None => key.text().unwrap_or_default().to_owned(),
        };
        shown.insert(name, show(value, hidden));
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
    Value::String(without(text, &logins(text)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::config::load_text;

    #[test]
    fn what_runs_is_shown_and_secrets_are_not() {
        let text = r#"
workers: 2
admin: { token: "${TOKEN}" }
tracing: { otlp: "http://127.0.0.1:4318", headers: { x-team: team-word } }
stores:
  shared: { redis: "redis://user:pass-word@127.0.0.1:6379/2" }
  watched: { redis: redis://127.0.0.1, sentinel_master: m, sentinel_password: $entinel-word }
maps:
  $tier: { map: $http_x_api_key, default: free, values: { key-of-alice: gold, key-of-bob: free } }
  $backend_auth: { map: $host, default: Bearer default-word, values: { a: Bearer map-word } }
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
    proxy_set_header: { Authorization: "Basic YWxpY2U=", X-Tier: $tier, X-Place: $place, X-Token: $http_x_token, X-Session: $backend_auth }
"#;
        let (plan, _) = load_text("weir.yaml", text, |_| Some("from-outside".into())).unwrap();
        for secret in [
            "from-outside",
            "pass-word",
            "team-word",
            "entinel-word",
            "default-word",
            "map-word",
            "alice",
            "bob",
            "YWxpY2U",
        ] {
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
