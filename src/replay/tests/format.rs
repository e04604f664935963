//! Formats of logs: guessed and given ones, lines of text and of JSON, and their escapes.

use proptest::prelude::*;

use super::*;

fn values(format: &InputFormat, line: &str, wanted: &[&str]) -> Option<Vec<String>> {
    let wanted: Vec<_> = wanted.iter().map(|name| (*name).to_owned()).collect();
    let mut cut = CutFields::default();
    let fits = format.splitter(&wanted).split(line.as_bytes(), &mut cut);
    let value = |at| String::from_utf8_lossy(cut.value(line.as_bytes(), at)).into_owned();
    fits.then(|| (0..wanted.len()).map(value).collect())
}

const COMBINED: &str = r#"192.0.2.7 - - [16/Nov/2026:02:03:23 +0000] "GET /a?b=c HTTP/1.1" 200 42 "-" "curl/8 \x22x\x22""#;

#[test]
fn well_known_formats_are_recognised() {
    let format = InputFormat::guess(COMBINED.as_bytes()).unwrap();
    let wanted = [
        "remote_addr",
        "time_local",
        "request",
        "remote_user",
        "http_user_agent",
        "http_none",
    ];
    assert_eq!(
        values(&format, COMBINED, &wanted).unwrap(),
        [
            "192.0.2.7",
            "16/Nov/2026:02:03:23 +0000",
            "GET /a?b=c HTTP/1.1",
            "",
            r"curl/8 \x22x\x22",
            ""
        ]
    );
    let common = COMBINED.split(" \"-\"").next().unwrap();
    let format = InputFormat::guess(common.as_bytes()).unwrap();
    assert_eq!(values(&format, common, &["status"]).unwrap(), ["200"]);
    assert!(!format.variables().contains(&"http_referer"));
    assert!(
        InputFormat::guess(br#"{"time":"x"}"#)
            .is_some_and(|format| matches!(format, InputFormat::Json(_)))
    );
    for strange in ["", "hello", "{", "192.0.2.7 GET /"] {
        assert!(
            InputFormat::guess(strange.as_bytes()).is_none(),
            "{strange}"
        );
    }
}

/// nginx's packages come with a `main` that is combined and one field more.
#[test]
fn combined_may_have_more_fields_at_its_end() {
    let line = format!("{COMBINED} \"10.0.0.1\"");
    let format = InputFormat::guess(line.as_bytes()).unwrap();
    assert_eq!(
        values(&format, &line, &["http_user_agent"]).unwrap(),
        [r"curl/8 \x22x\x22"]
    );
}

#[test]
fn a_line_of_another_format_does_not_fit() {
    let format = InputFormat::combined();
    let half = COMBINED.split(" HTTP").next().unwrap();
    for line in ["", "x", "1.2.3.4 - - [", half] {
        assert!(values(&format, line, &["remote_addr"]).is_none(), "{line}");
    }
}

fn text_values(format: &str, line: &str, wanted: &[&str]) -> Option<Vec<String>> {
    values(&InputFormat::parse(format).unwrap(), line, wanted)
}

#[test]
fn values_are_split_at_the_texts_between_them() {
    let found = text_values("<$a> ${b}x$c", "<1> twox three", &["c", "a", "b"]);
    assert_eq!(found.unwrap(), [" three", "1", "two"]);
    assert_eq!(text_values("$a|$b|", "1|2|3", &["a"]), None);
    assert_eq!(
        text_values("$a costs $ 5", "it costs $ 5", &["a"]).unwrap(),
        ["it"]
    );
}

#[test]
fn an_escaped_quote_belongs_to_the_value() {
    let found = text_values(r#""$a" "$b""#, r#""x\" \"y" "z\\""#, &["a", "b"]);
    assert_eq!(found.unwrap(), [r#"x\" \"y"#, r"z\\"]);
}

#[test]
fn a_whole_log_format_directive_is_parsed() {
    let text = "log_format  main  '$remote_addr [$time_local] '\n    '\"$request\"';";
    let found = text_values(text, "1.2.3.4 [now] \"GET /\"", &["request", "time_local"]);
    assert_eq!(found.unwrap(), ["GET /", "now"]);
    let json = InputFormat::parse(r#"log_format j escape=json '{"a":"$uri"}';"#).unwrap();
    assert_eq!(
        (json.escape(), json.variables()),
        (EscapeStyle::Json, vec!["uri"])
    );
}

#[test]
fn a_format_that_cannot_be_split_is_an_error() {
    assert_eq!(
        InputFormat::parse("$a$b").unwrap_err(),
        FormatError::Adjacent("a".into(), "b".into())
    );
    assert_eq!(
        InputFormat::parse("${a").unwrap_err(),
        FormatError::Unclosed
    );
    assert_eq!(
        InputFormat::parse("combind").unwrap_err(),
        FormatError::Unknown("combind".into())
    );
}

fn json_values(line: &str, wanted: &[&str]) -> Option<Vec<String>> {
    values(&InputFormat::Json(Vec::new()), line, wanted)
}

#[test]
fn json_members_are_found_among_nested_values() {
    let line = r#"{"time":"x","n":{"host":"no","l":[1,"}"]},"uri":"/a\"b", "host" : "h","request_time":0.017,"z":null}"#;
    let wanted = ["host", "request_uri", "request_time", "z", "time"];
    assert_eq!(
        json_values(line, &wanted).unwrap(),
        ["h", r#"/a\"b"#, "0.017", "", "x"]
    );
    assert_eq!(json_variables(line.as_bytes()).len(), 6);
    assert_eq!(json_values("{}", &["a"]).unwrap(), [""]);
}

#[test]
fn malformed_json_does_not_fit() {
    for line in [
        "",
        "[]",
        "{",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1"#,
        r#"{"a":"b}"#,
        r#"{"a":1}x"#,
        r#"{"a":[1}"#,
        r#"{"a":1,}"#,
    ] {
        assert!(json_values(line, &["a"]).is_none(), "{line}");
    }
}

proptest! {
    #[test]
    fn any_line_can_be_scanned(line in "[{}\\[\\]\",:\\\\a1 ]{0,40}") {
        json_values(&line, &["a"]);
    }

    // The underscore keeps the key from being one that stands for a variable of another name, such as `ts`.
    #[test]
    fn values_of_serde_json_are_read(key in "_[a-z]{1,5}", text: String, number: u32) {
        let line = serde_json::json!({ &key: text, "n_1": number }).to_string();
        let found = json_values(&line, &[&key, "n_1"]).unwrap();
        let back: String = serde_json::from_str(&format!("\"{}\"", found[0])).unwrap();
        prop_assert!(back == text || text == "-");
        prop_assert_eq!(&found[1], &number.to_string());
    }
}

fn plain(value: &str, escape: EscapeStyle) -> Vec<u8> {
    let mut out = Vec::new();
    unescape(value.as_bytes(), escape, &mut out);
    out
}

#[test]
fn escapes_are_decoded() {
    assert_eq!(
        plain(r"a\x22b\x5Cc\xff", EscapeStyle::Backslash),
        b"a\"b\\c\xff"
    );
    assert_eq!(plain(r#"a\"b\\c\/"#, EscapeStyle::Json), b"a\"b\\c/");
    assert_eq!(
        plain(r"\u00e9\ud83d\ude00\n", EscapeStyle::Json),
        "é😀\n".as_bytes()
    );
    assert_eq!(plain(r"\x22", EscapeStyle::None), br"\x22");
}

#[test]
fn unknown_escapes_stay() {
    for text in [r"\", r"\q", r"\x", r"\xg0", r"\u12", r"\ud800"] {
        assert_eq!(plain(text, EscapeStyle::Json), text.as_bytes(), "{text}");
    }
}

proptest! {
    #[test]
    fn json_strings_are_decoded_as_they_were_encoded(text: String) {
        let written = serde_json::to_string(&text).unwrap();
        let inside = written.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap();
        prop_assert_eq!(plain(inside, EscapeStyle::Json), text.as_bytes());
    }
}
