//! `overrides` of a zone: whom each of them names, and that there can be somebody of that name.

use std::net::IpAddr;

use super::Compiler;
use super::limits::entries;
use crate::config::decode::{Field, NamedMap, Spanned};
use crate::config::model;
use crate::config::plan::{AlgorithmParams, Map, Override, OverrideKey, Part, Template, Variable};
use crate::config::units;

/// What the keys of a zone are made from.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyVariables<'p> {
    pub(super) template: &'p Template,
    pub(super) maps: &'p [Map],
}

impl Compiler<'_> {
    /// The `overrides` of a zone that counts like this; `keys` where they were understood.
    pub(super) fn overrides(
        &mut self,
        named: &Field<NamedMap<model::Override>>,
        zone: AlgorithmParams,
        keys: Option<KeyVariables<'_>>,
    ) -> Vec<Override> {
        let mut overrides: Vec<Override> = Vec::new();
        for (key, own) in entries(named) {
            if own
                .value
                .rate
                .key()
                .or_else(|| own.value.limit.key())
                .or_else(|| own.value.burst.key())
                .is_none()
            {
                self.complain_with(
                    key.span,
                    format!("`{}` has nothing of its own", key.value),
                    "give it a `rate`, a `limit` or a `burst`",
                );
            }
            let whom = self.whom(key);
            if let (OverrideKey::Text(text), Some(keys)) = (&whom, keys) {
                self.names_a_key(key, text, keys);
            }
            if overrides.iter().any(|known| known.key == whom) {
                self.complain(key.span, format!("`{}` is given twice", key.value));
            }
            overrides.push(Override {
                key: whom,
                own: self.own_numbers(&own.value, zone),
            });
        }
        overrides
    }

    fn whom(&mut self, key: &Spanned<String>) -> OverrideKey {
        let Ok((network, loose)) = units::network(&key.value) else {
            return OverrideKey::Text(key.value.as_str().into());
        };
        if let Some(loose) = loose {
            let sentence = format!("low address bits of `{}` are meaningless", key.value);
            self.warn(
                key.span,
                sentence,
                format!("it is read as `{}`", loose.meant),
            );
        }
        if network.prefix_len() == network.max_prefix_len() && network.addr().is_unspecified() {
            self.complain_with(
                key.span,
                format!("no client has the address `{}`", key.value),
                format!("write `{}/0` for all of them", network.addr()),
            );
        }
        OverrideKey::Network(network)
    }

    /// Complains of a text that no key of the zone can be.
    fn names_a_key(&mut self, key: &Spanned<String>, text: &str, keys: KeyVariables<'_>) {
        if text.is_empty() {
            self.complain_with(
                key.span,
                "an empty text names no key",
                "`on_empty_key` says what becomes of requests without one",
            );
            return;
        }
        if keys.can_be(text, keys.template) {
            return;
        }
        let hint = match keys.template.as_variable() {
            Some(Variable::BinaryRemoteAddr | Variable::RemoteAddr) => {
                "the keys of this zone are addresses: expected an address as in `192.0.2.7`, or a network as in `10.0.0.0/8`"
            }
            Some(Variable::Host) => "`$host` is in lower case and has no port",
            _ => "expected the whole text of a key, an address or a network",
        };
        let sentence = format!("`{text}` never applies: no key of this zone is this text");
        self.complain_with(key.span, sentence, hint);
    }
}

impl KeyVariables<'_> {
    /// Whether a template may give this text.
    fn can_be(self, text: &str, template: &Template) -> bool {
        let variables = template.parts.iter();
        let variables = variables.filter(|part| matches!(part, Part::Variable(_)));
        // Every way to divide the text is tried. Nobody writes keys of so many parts that this matters.
        let ways = text
            .len()
            .saturating_pow(u32::try_from(variables.count()).unwrap_or(u32::MAX));
        ways > MOST_WAYS || self.can_begin(text, &template.parts)
    }

    fn can_begin(self, text: &str, parts: &[Part]) -> bool {
        match parts {
            [] => text.is_empty(),
            [Part::Text(literal), rest @ ..] => text
                .strip_prefix(&**literal)
                .is_some_and(|behind| self.can_begin(behind, rest)),
            [Part::Variable(last)] => self.can_say(last, text),
            [Part::Variable(first), rest @ ..] => {
                let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
                let mut cuts = ends.map(|at| text.split_at(at));
                cuts.any(|(front, behind)| {
                    self.can_say(first, front) && self.can_begin(behind, rest)
                })
            }
        }
    }

    /// Whether a variable may have this value. In doubt it may.
    fn can_say(self, variable: &Variable, text: &str) -> bool {
        let is_trimmed = || text.trim_ascii() == text && !text.contains(|c: char| c.is_control());
        match variable {
            // Its bytes, which are no text.
            Variable::BinaryRemoteAddr => text == UNIX,
            Variable::RemoteAddr => {
                let address = text.parse::<IpAddr>();
                text == UNIX || address.is_ok_and(|address| address.to_string() == text)
            }
            Variable::Cookie(_) | Variable::Http(_) => is_trimmed(),
            Variable::Host => !text.contains(|c: char| c.is_ascii_uppercase()) && is_trimmed(),
            Variable::Map(index) => self.maps.get(*index).is_none_or(|map| {
                let mut outcomes = map.outcomes().into_iter();
                outcomes.any(|outcome| self.can_be(text, outcome))
            }),
            Variable::Scheme => ["http", "https"].contains(&text),
            _ => true,
        }
    }
}

/// What stands for the address of clients that have none.
const UNIX: &str = "unix:";

/// How many ways to divide a text are tried.
const MOST_WAYS: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn can_be(parts: &[Part], text: &str) -> bool {
        let maps = [Map {
            name: "tier".into(),
            source: Template::default(),
            lookup: crate::config::plan::MapLookup::Geo(crate::config::plan::Geo {
                values: vec![Template::literal("gold")],
                ..Default::default()
            }),
            default: Template::variable(Variable::BinaryRemoteAddr),
        }];
        let template = Template {
            parts: parts.into(),
        };
        let keys = KeyVariables {
            template: &template,
            maps: &maps,
        };
        keys.can_be(text, &template)
    }

    #[test]
    fn a_text_is_held_against_everything_a_key_may_be() {
        let variable = Part::Variable;
        let text = |text: &str| Part::Text(text.into());
        let name = || variable(Variable::ServerName);
        let address = || variable(Variable::RemoteAddr);
        let tier = || variable(Variable::Map(0));
        for (parts, possible, impossible) in [
            (vec![name()], &["a", "10.0.0.0/33"][..], &[][..]),
            (
                vec![address()],
                &["unix:"],
                &["gold", "10.0.0.0/33", "2001:DB8::1"],
            ),
            (vec![tier()], &["gold"], &["silver", "127.0.0.1"]),
            (
                vec![name(), text("|"), address()],
                &["front|127.0.0.1", "a|b|::1"],
                &["front", "front|", "front|127.0.0.1 ", "front|127.0.0.1|"],
            ),
            (
                vec![text("t:"), tier(), variable(Variable::Scheme)],
                &["t:goldhttp", "t:goldhttps"],
                &["goldhttp", "t:gold", "t:goldftp"],
            ),
            (
                vec![variable(Variable::Host)],
                &["a.example"],
                &["A.example"],
            ),
        ] {
            for candidate in possible {
                assert!(can_be(&parts, candidate), "{candidate} of {parts:?}");
            }
            for candidate in impossible {
                assert!(!can_be(&parts, candidate), "{candidate} of {parts:?}");
            }
        }
    }
}
