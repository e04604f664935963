//! Which texts the keys of a zone may be.

use super::*;

fn can_be(parts: &[Part], text: &str) -> bool {
    let maps = [Map {
        name: "tier".into(),
        source: Template::default(),
        lookup: crate::config::maps::MapLookup::Geo(crate::config::maps::Geo {
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
