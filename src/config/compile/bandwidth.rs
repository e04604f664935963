//! `limit_rate` and `limit_rate_after`.

use super::Compiler;
use super::sites::Levels;
use super::templates::When;
use crate::config::decode::{Spanned, mistaken};
use crate::config::model::SizeText;
use crate::config::plan::{Bandwidth, Volume};
use crate::config::units;

impl Compiler<'_> {
    /// How fast answers may leave where `levels` hold.
    pub(super) fn bandwidth(&mut self, levels: Levels<'_>) -> Bandwidth {
        Bandwidth {
            rate: self.volume(levels.find(|s| &s.limit_rate)),
            after: self.volume(levels.find(|s| &s.limit_rate_after)),
        }
    }

    fn volume(&mut self, given: Option<&Spanned<SizeText>>) -> Volume {
        let Some(Spanned { value, span }) = given else {
            return Volume::default();
        };
        let text = Spanned {
            value: value.0.clone(),
            span: *span,
        };
        let template = self.template(&text, When::After);
        match template.as_literal() {
            Some("") => Volume::default(),
            Some(size) => {
                let bytes = units::size(size).map_err(|mistake| {
                    self.report.add(mistaken(*span, mistake));
                });
                Volume::Fixed(bytes.unwrap_or(0))
            }
            None => Volume::Told(template),
        }
    }
}
