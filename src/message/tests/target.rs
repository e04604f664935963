//! What hosts and paths become.

use http::Request;
use proptest::prelude::*;

use super::*;

fn head(method: &str, uri: &str, version: Version, hosts: &[&str]) -> Parts {
    let mut request = Request::builder().method(method).uri(uri).version(version);
    for host in hosts {
        request = request.header("host", HeaderValue::from_bytes(host.as_bytes()).unwrap());
    }
    request.body(()).unwrap().into_parts().0
}

fn named(target: &Target, head: &Parts) -> String {
    String::from_utf8_lossy(target.host(head)).into_owned()
}

fn get(uri: &str, host: &str) -> Result<(String, String), Error> {
    let head = head("GET", uri, Version::HTTP_11, &[host]);
    let target = Target::parse(&head)?;
    let path = String::from_utf8_lossy(target.path(&head)).into_owned();
    Ok((named(&target, &head), path))
}

fn host(host: &str) -> Result<String, Error> {
    get("/", host).map(|(host, _)| host)
}

fn path(path: &str) -> Result<String, Error> {
    get(path, "h").map(|(_, path)| path)
}

#[test]
fn a_host_loses_its_port_its_last_dot_and_its_capitals() {
    for (sent, meant) in [
        ("example.com", "example.com"),
        ("example.com:8080", "example.com"),
        ("example.com:", "example.com"),
        ("example.com.", "example.com"),
        ("EXAMPLE.Com.:80", "example.com"),
        ("under_score", "under_score"),
        ("127.0.0.1:80", "127.0.0.1"),
        ("[::1]", "[::1]"),
        ("[2001:DB8::1]:443", "[2001:db8::1]"),
    ] {
        assert_eq!(host(sent).as_deref(), Ok(meant), "{sent}");
    }
}

#[test]
fn what_is_not_a_host_is_refused() {
    for sent in [
        "", ".", ":80", "a..b", "a/b", "a b", "a\tb", "u@h", "a:b", "a:80:80", "[::1", "[::1]x",
        "[zz]", "[]", "a\"b", "h\u{e4}", "a?b", "a#b", "a\\b", "[::1]:x",
    ] {
        assert_eq!(host(sent), Err(Error::Host), "{sent}");
    }
}

#[test]
fn one_host_field_is_needed_and_one_only() {
    let parse = |version, hosts: &[&str]| {
        let head = head("GET", "/", version, hosts);
        Target::parse(&head).map(|target| named(&target, &head))
    };
    assert_eq!(parse(Version::HTTP_11, &[]), Err(Error::HostMissing));
    assert_eq!(parse(Version::HTTP_11, &["a", "b"]), Err(Error::HostTwice));
    assert_eq!(parse(Version::HTTP_11, &["a", "a"]), Err(Error::HostTwice));
    assert_eq!(parse(Version::HTTP_10, &["a", "a"]), Err(Error::HostTwice));
    assert_eq!(parse(Version::HTTP_10, &[]).as_deref(), Ok(""));
    assert_eq!(parse(Version::HTTP_10, &["A"]).as_deref(), Ok("a"));
}

#[test]
fn a_target_in_absolute_form_names_the_host_that_the_field_names_too() {
    let found = get("http://Real.example:80/x?y", "real.example:80").unwrap();
    assert_eq!(found, ("real.example".into(), "/x".into()));
    assert_eq!(get("http://h?y", "h").unwrap().1, "/");
    assert_eq!(get("http://h:80/", "H").unwrap().0, "h");
    assert_eq!(get("http://h/", "h:80").unwrap().0, "h");
    assert_eq!(get("http://user@h/", "user@h"), Err(Error::Host));
    assert_eq!(get("ftp://h/", "h"), Err(Error::Scheme));
    for at_odds in ["other.example", "real.example:81", "b@d", ""] {
        let found = get("http://real.example/", at_odds);
        assert_eq!(found, Err(Error::HostAtOdds), "{at_odds}");
    }
    let lonely = head("GET", "http://h/", Version::HTTP_11, &[]);
    assert_eq!(Target::parse(&lonely).unwrap_err(), Error::HostMissing);
    let old = head("GET", "http://h/", Version::HTTP_10, &[]);
    assert_eq!(Target::parse(&old).unwrap().host(&old), b"h");
}

#[test]
fn authority_and_star_are_for_connect_and_options() {
    let parse = |method, uri| {
        let host = if method == "CONNECT" { "a:443" } else { "h" };
        let head = head(method, uri, Version::HTTP_11, &[host]);
        Target::parse(&head).map(|target| (named(&target, &head), target.path(&head).to_vec()))
    };
    assert_eq!(parse("GET", "h:80"), Err(Error::Form));
    assert_eq!(parse("GET", "*"), Err(Error::Form));
    assert_eq!(parse("CONNECT", "/"), Err(Error::Form));
    assert_eq!(parse("CONNECT", "a:443"), Ok(("a".into(), b"/".to_vec())));
    assert_eq!(parse("OPTIONS", "*"), Ok(("h".into(), b"/".to_vec())));
}

/// The left side was sent to nginx 1.22, the right side is its `$uri`.
#[test]
fn paths_become_what_nginx_makes_of_them() {
    for (sent, meant) in [
        ("/", "/"),
        ("/a/b", "/a/b"),
        ("//a///b//", "/a/b/"),
        ("/a/./b", "/a/b"),
        ("/a/../b", "/b"),
        ("/a/b/..", "/a/"),
        ("/a/.", "/a/"),
        ("/a/..", "/"),
        ("/a//../b", "/b"),
        ("/%61%2Fb", "/a/b"),
        ("/a/%2e%2E/b", "/b"),
        ("/a%2f..%2fb", "/b"),
        ("/%252e", "/%2e"),
        ("/a%3fb%23c", "/a?b#c"),
        ("/a;x=1/b", "/a;x=1/b"),
        ("/.well-known/x", "/.well-known/x"),
        ("/a/...", "/a/..."),
        ("/a/..b", "/a/..b"),
        ("/a+b%20c", "/a+b c"),
        ("/a?b=%zz/../..", "/a"),
    ] {
        assert_eq!(path(sent).as_deref(), Ok(meant), "{sent}");
    }
}

#[test]
fn paths_that_lie_are_refused() {
    for (sent, error) in [
        ("/..", Error::AboveRoot),
        ("/../a", Error::AboveRoot),
        ("/a/../../b", Error::AboveRoot),
        ("//..", Error::AboveRoot),
        ("/%2e%2e/a", Error::AboveRoot),
        ("/%00", Error::Encoding),
        ("/a%", Error::Encoding),
        ("/a%2", Error::Encoding),
        ("/a%zz", Error::Encoding),
        ("/a%+1", Error::Encoding),
    ] {
        assert_eq!(path(sent), Err(error), "{sent}");
    }
}

#[test]
fn encoding_escapes_what_nginx_escapes() {
    assert_eq!(
        encode_path(b"/a b%?#\"<>\\^`{|}\x00\x1f\x7f\xc3\xa4"),
        "/a%20b%25%3F%23%22%3C%3E%5C%5E%60%7B%7C%7D%00%1F%7F%C3%A4"
    );
    let kept = "/aZ09-._~!$&'()*+,;=:@[]/";
    assert_eq!(encode_path(kept.as_bytes()), kept);
}

proptest! {
    #[test]
    fn normalising_again_changes_nothing(path in "/(\\.{1,3}|%2[eEfF5]|%[0-9a-f]{2}|[a-b/;]){0,24}") {
        if let Ok(normal) = normalise(path.as_bytes()) {
            let text = String::from_utf8_lossy(&normal).into_owned();
            prop_assert!(text.starts_with('/'));
            prop_assert!(!text.contains("//") && !text.contains("/../") && !text.contains("/./"));
            prop_assert!(!text.ends_with("/..") && !text.ends_with("/."));
            prop_assert_eq!(normalise(encode_path(&normal).as_bytes()), Ok(normal));
        }
    }

    #[test]
    fn a_path_taken_as_it_stands_is_already_normal(path in "/[a-c./]{0,16}") {
        if is_normal(path.as_bytes()) {
            prop_assert_eq!(normalise(path.as_bytes()), Ok(path.into_bytes()));
        }
    }
}
