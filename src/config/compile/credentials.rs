//! Texts that are compared with credentials, or become some: they are hidden like secrets.
//!
//! The keys of a map of `$http_authorization` are as good as the passwords in them, and so are the overrides of a zone
//! by `$http_x_api_key`.

use super::limits::entries;
use super::templates::names;
use super::{Compiler, Resolved};
use crate::config::decode::{NamedMap, Spanned, Text};
use crate::config::plan::{Part, SetHeader, Variable};
use crate::config::secret::{is_credential, is_variable};

impl Compiler<'_> {
    /// Hides what is compared with credentials.
    pub(super) fn hide_credential_keys(&mut self) {
        let config = self.config;
        for (_, map) in entries(&config.maps) {
            let source = map.value.map.value();
            if let Some(values) = map.value.values.value()
                && source.is_some_and(|source| self.reads_credentials(&source.text, MOST_MAPS))
            {
                self.hide_keys(values);
            }
        }
        for (_, zone) in entries(&config.limit_req_zones) {
            let key = zone.value.key.value();
            if let Some(overrides) = zone.value.overrides.value()
                && key.is_some_and(|key| self.reads_credentials(&key.text, MOST_MAPS))
            {
                self.hide_keys(overrides);
            }
        }
    }

    /// Hides what the value of a header field is made of, if that is a credential; `text` is how it was written.
    pub(super) fn hide_credential_value(&mut self, header: &SetHeader, text: &Spanned<Text>) {
        if !is_credential(header.name.as_str()) {
            return;
        }
        match header.value.as_variable() {
            Some(Variable::Map(index)) => self.hide_values(*index),
            Some(_) => {}
            None => {
                let hidden = self.report.hidden_mut();
                hidden.add_text(&text.value.text, text.span);
                for part in &header.value.parts {
                    if let Part::Variable(Variable::Map(index)) = part {
                        self.hide_values(*index);
                    }
                }
            }
        }
    }

    /// Whether a text is made from what clients show to prove who they are; `most` maps are followed.
    fn reads_credentials(&self, text: &str, most: usize) -> bool {
        names(text).any(|name| match self.maps.find(name) {
            Resolved::At(index) => {
                let map = entries(&self.config.maps).get(index);
                let source = map.and_then(|(_, map)| map.value.map.value());
                most > 0 && source.is_some_and(|map| self.reads_credentials(&map.text, most - 1))
            }
            Resolved::Broken | Resolved::Nowhere => is_credential(name),
        })
    }

    fn hide_keys<T>(&mut self, named: &NamedMap<T>) {
        for (key, _) in &named.entries {
            self.report.hidden_mut().add_key(&key.value, key.span);
        }
    }

    /// Hides what a map becomes.
    fn hide_values(&mut self, index: usize) {
        let Some((_, map)) = entries(&self.config.maps).get(index) else {
            return;
        };
        let values = map.value.values.value();
        let values = values.map_or(&[][..], |values| &values.entries);
        let values = values.iter().map(|(_, value)| value);
        for text in values.chain(map.value.default.get()) {
            if !text.value.text.is_empty() && !is_variable(&text.value.text) {
                let hidden = self.report.hidden_mut();
                hidden.add_text(&text.value.text, text.span);
            }
        }
    }
}

/// How long a chain of maps is followed; circles are complained about elsewhere.
const MOST_MAPS: usize = 8;
