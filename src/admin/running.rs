//! `/api/config`: the configuration as it runs, secrets hidden.
//!
//! The file's own words, with the numbers in them that were changed since: who looks here at night must not be told of a
//! limit that does not hold.

use serde_json::{Map, Value};

use crate::proxy::Generation;

/// `GET /api/config`
pub(super) fn shown(live: &Generation) -> String {
    let source = &live.plan.source;
    let numbers = &live.amendment.numbers;
    if numbers.is_empty() {
        return source.to_string();
    }
    let Ok(mut config) = serde_json::from_str::<Value>(source) else {
        return source.to_string();
    };
    for (zone, numbers) in numbers {
        let of_zone = config.pointer_mut("/limit_req_zones");
        let of_zone = of_zone.and_then(|zones| zones.get_mut(&**zone)?.as_object_mut());
        match of_zone {
            Some(own) => {
                let names = ["rate", "limit"];
                overlay(own, numbers, &names);
                in_rules(&mut config, "limit_req", zone, numbers, "burst");
            }
            None => in_rules(&mut config, "limit_conn", zone, numbers, "limit"),
        }
    }
    config.to_string()
}

/// Puts a number into all rules, wherever they stand, that use a zone.
fn in_rules(
    config: &mut Value,
    kind: &str,
    zone: &str,
    numbers: &Map<String, Value>,
    name: &'static str,
) {
    match config {
        Value::Object(fields) => {
            for (field, value) in fields {
                match value {
                    Value::Object(rule) if field == kind => overlay_rule(rule, zone, numbers, name),
                    Value::Array(rules) if field == kind => {
                        for rule in rules.iter_mut().filter_map(Value::as_object_mut) {
                            overlay_rule(rule, zone, numbers, name);
                        }
                    }
                    value => in_rules(value, kind, zone, numbers, name),
                }
            }
        }
        Value::Array(values) => {
            for value in values {
                in_rules(value, kind, zone, numbers, name);
            }
        }
        _ => {}
    }
}

fn overlay_rule(
    rule: &mut Map<String, Value>,
    zone: &str,
    numbers: &Map<String, Value>,
    name: &'static str,
) {
    if rule.get("zone").is_some_and(|of| of == zone) {
        overlay(rule, numbers, &[name]);
    }
}

fn overlay(own: &mut Map<String, Value>, numbers: &Map<String, Value>, names: &[&'static str]) {
    for name in names {
        if let Some(number) = numbers.get(*name) {
            own.insert((*name).to_owned(), number.clone());
        }
    }
}
