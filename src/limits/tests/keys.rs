//! What becomes a key, and what does not.

use crate::config::plan::{OnAmbiguousKey, OnEmptyKey, Part, Template, Variable};
use crate::limits::key::{KeyFault, KeyLookup, KeySource};
use crate::limits::tests::support::{exchange_from, header, key, record};
use crate::message::RequestRecord;
use crate::message::variables::KeyReader;

fn found(source: &KeySource, record: &RequestRecord) -> KeyLookup<Vec<u8>> {
    source.find(record, |bytes| KeyLookup::Key(bytes.to_vec()))
}

fn binary(prefix: u8) -> KeySource {
    let template = Template::variable(Variable::BinaryRemoteAddr);
    KeySource::new(&template, prefix, OnEmptyKey::Skip)
}

#[test]
fn an_address_is_its_bytes() {
    let record = exchange_from("127.0.0.1", &[]);
    assert_eq!(
        found(&binary(128), &record),
        KeyLookup::Key(vec![127, 0, 0, 1])
    );
    let record = exchange_from("2001:db8::1", &[]);
    assert!(matches!(found(&binary(128), &record), KeyLookup::Key(key) if key.len() == 16));
}

#[test]
fn a_prefix_makes_one_key_of_a_network() {
    let one = found(&binary(64), &exchange_from("2001:db8:1:2:aaaa::1", &[]));
    let same = found(&binary(64), &exchange_from("2001:db8:1:2:bbbb::9", &[]));
    let other = found(&binary(64), &exchange_from("2001:db8:1:3:aaaa::1", &[]));
    assert_eq!(one, same);
    assert_ne!(one, other);
    let all = found(&binary(0), &exchange_from("2001:db8::1", &[]));
    assert_eq!(all, KeyLookup::Key(vec![0; 16]));
}

#[test]
fn a_prefix_leaves_ipv4_alone() {
    let one = found(&binary(64), &exchange_from("10.0.0.1", &[]));
    assert_eq!(one, KeyLookup::Key(vec![10, 0, 0, 1]));
}

#[test]
fn a_prefix_reaches_into_a_longer_key() {
    let source = KeySource::new(
        &Template {
            parts: Box::new([
                Part::Variable(Variable::ServerName),
                Part::Text("|".into()),
                Part::Variable(Variable::RemoteAddr),
            ]),
        },
        48,
        OnEmptyKey::Skip,
    );
    let record = exchange_from("2001:db8:1:2::7", &[]);
    assert_eq!(
        found(&source, &record),
        KeyLookup::Key(b"front|2001:db8:1::".to_vec())
    );
}

#[test]
fn a_header_is_a_key() {
    let source = KeySource::new(&key("x-api-key"), 128, OnEmptyKey::Skip);
    let record = record(&[header("x-api-key", "abc")]);
    assert_eq!(found(&source, &record), KeyLookup::Key(b"abc".to_vec()));
}

#[test]
fn an_empty_key_is_what_the_zone_says() {
    let source = |on_empty| KeySource::new(&key("x-api-key"), 128, on_empty);
    let record = exchange_from("127.0.0.1", &[]);
    assert_eq!(
        found(&source(OnEmptyKey::Skip), &record),
        KeyLookup::Nothing
    );
    assert_eq!(
        found(&source(OnEmptyKey::Refuse(None)), &record),
        KeyLookup::Refuse(KeyFault::Empty(None))
    );
    assert_eq!(
        found(&source(OnEmptyKey::Address), &record),
        KeyLookup::Key(vec![0, 127, 0, 0, 1])
    );
}

fn twice() -> [(http::HeaderName, http::HeaderValue); 2] {
    [header("x-api-key", "k"), header("x-api-key", "random")]
}

#[test]
fn a_key_given_twice_is_refused_or_joined() {
    let source = || KeySource::new(&key("x-api-key"), 128, OnEmptyKey::Skip);
    let record = record(&twice());
    assert_eq!(
        found(&source(), &record),
        KeyLookup::Refuse(KeyFault::Ambiguous)
    );
    assert_eq!(source().label(&record), "(ambiguous key)");
    let joined = source().with_reader(KeyReader {
        on_ambiguous: OnAmbiguousKey::Join,
        ..KeyReader::default()
    });
    assert_eq!(
        found(&joined, &record),
        KeyLookup::Key(b"k, random".to_vec())
    );
}

/// The same over IPv6, where addresses are cut to their prefix on the way.
#[test]
fn a_prefix_does_not_hide_that_a_key_is_given_twice() {
    let template = Template {
        parts: Box::new([
            Part::Variable(Variable::BinaryRemoteAddr),
            Part::Variable(Variable::Http("x-api-key".parse().unwrap())),
        ]),
    };
    let source = KeySource::new(&template, 64, OnEmptyKey::Skip);
    let record = exchange_from("2001:db8::1", &twice());
    assert_eq!(
        found(&source, &record),
        KeyLookup::Refuse(KeyFault::Ambiguous)
    );
}

/// A backend that gets both takes one for the other.
#[test]
fn an_underscore_is_a_hyphen_where_backends_see_it() {
    let source = |underscores| {
        KeySource::new(&key("x-api-key"), 128, OnEmptyKey::Skip).with_reader(KeyReader {
            underscores,
            ..KeyReader::default()
        })
    };
    let alone = record(&[header("x_api_key", "k")]);
    assert_eq!(found(&source(false), &alone), KeyLookup::Nothing);
    assert_eq!(found(&source(true), &alone), KeyLookup::Key(b"k".to_vec()));
    let both = record(&[header("x-api-key", "random"), header("x_api_key", "k")]);
    assert_eq!(
        found(&source(false), &both),
        KeyLookup::Key(b"random".to_vec())
    );
    assert_eq!(
        found(&source(true), &both),
        KeyLookup::Refuse(KeyFault::Ambiguous)
    );
}
