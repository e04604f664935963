//! `limit_rate` and `limit_rate_after`.

use super::Compiler;
use super::sites::SettingLevels;
use super::templates::TemplatePhase;
use crate::config::decode::{Spanned, mistaken};
use crate::config::model::SizeText;
use crate::config::plan::{LimitRate, SizeTemplate};
use crate::config::units;

impl Compiler<'_> {
    /// How fast answers may leave where `levels` hold.
    pub(super) fn bandwidth(&mut self, levels: SettingLevels<'_>) -> LimitRate {
        LimitRate {
            rate: self.volume(levels.find(|s| &s.limit_rate)),
            after: self.volume(levels.find(|s| &s.limit_rate_after)),
        }
    }

    fn volume(&mut self, given: Option<&Spanned<SizeText>>) -> SizeTemplate {
        let Some(Spanned { value, span }) = given else {
            return SizeTemplate::default();
        };
        let text = Spanned {
            value: value.0.clone(),
            span: *span,
        };
        let template = self.template(&text, TemplatePhase::After);
        match template.as_literal() {
            Some("") => SizeTemplate::default(),
            Some(size) => {
                let bytes = units::size(size).map_err(|mistake| {
                    self.report.add(mistaken(*span, mistake));
                });
                SizeTemplate::Fixed(bytes.unwrap_or(0))
            }
            None => SizeTemplate::Told(template),
        }
    }
}
