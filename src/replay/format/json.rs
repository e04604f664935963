//! Lines that are JSON objects: weir's own, or those of anybody who names fields as nginx names variables.
//!
//! Read by hand and flat: what stands inside an inner object or list is passed over.

use std::ops::Range;

use memchr::memchr2;

use super::CutFields;

/// The variables a line shows; none if it is not an object.
pub(super) fn names(line: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    let whole = walk(line, |key, _| names.push(variable(key).to_owned()));
    if whole { names } else { Vec::new() }
}

/// Finds the values of the wanted names; false if the line is not an object.
pub(super) fn cut(line: &[u8], wanted: &[String], cut: &mut CutFields) -> bool {
    walk(line, |key, span| {
        let name = variable(key);
        if let Some(which) = wanted.iter().position(|wanted| wanted == name) {
            cut.set(which, span);
        }
    })
}

/// What a key is called among nginx's variables.
fn variable(key: &[u8]) -> &str {
    match key {
        b"@timestamp" | b"timestamp" | b"ts" => "time",
        b"client_ip" | b"remote_ip" => "remote_addr",
        b"method" => "request_method",
        b"referer" => "http_referer",
        b"uri" => "request_uri",
        b"user_agent" => "http_user_agent",
        key => std::str::from_utf8(key).unwrap_or_default(),
    }
}

/// Goes through the members of an object; false if it is none.
fn walk(line: &[u8], mut member: impl FnMut(&[u8], Range<usize>)) -> bool {
    let mut at = spaces(line, 0);
    if line.get(at) != Some(&b'{') {
        return false;
    }
    at = spaces(line, at + 1);
    if line.get(at) == Some(&b'}') {
        return spaces(line, at + 1) == line.len();
    }
    loop {
        let Some(key) = string(line, at) else {
            return false;
        };
        at = spaces(line, key.end + 1);
        if line.get(at) != Some(&b':') {
            return false;
        }
        at = spaces(line, at + 1);
        let Some((span, after)) = value(line, at) else {
            return false;
        };
        member(&line[key], span);
        at = spaces(line, after);
        match line.get(at) {
            Some(b',') => at = spaces(line, at + 1),
            Some(b'}') => return spaces(line, at + 1) == line.len(),
            _ => return false,
        }
    }
}

fn spaces(line: &[u8], from: usize) -> usize {
    let rest = line.get(from..).unwrap_or_default();
    from + rest
        .iter()
        .take_while(|byte| byte.is_ascii_whitespace())
        .count()
}

/// The inside of a string that begins here.
fn string(line: &[u8], at: usize) -> Option<Range<usize>> {
    if line.get(at) != Some(&b'"') {
        return None;
    }
    let start = at + 1;
    let mut from = start;
    loop {
        let found = from + memchr2(b'"', b'\\', line.get(from..)?)?;
        if line[found] == b'"' {
            return Some(start..found);
        }
        from = found + 2;
    }
}

/// A value that begins here, and where it ends; `null`, objects and lists have nothing to show.
fn value(line: &[u8], at: usize) -> Option<(Range<usize>, usize)> {
    match line.get(at)? {
        b'"' => string(line, at).map(|inside| (inside.clone(), inside.end + 1)),
        b'{' | b'[' => nested(line, at).map(|end| (0..0, end)),
        _ => {
            let rest = line.get(at..)?;
            let length = rest.iter().position(|byte| {
                matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace()
            })?;
            let span = if rest.starts_with(b"null") {
                0..0
            } else {
                at..at + length
            };
            (length > 0).then_some((span, at + length))
        }
    }
}

/// Where an object or list that begins here ends.
fn nested(line: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        match line.get(at)? {
            b'"' => at = string(line, at)?.end,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values(line: &str, wanted: &[&str]) -> Option<Vec<String>> {
        let wanted: Vec<_> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let mut found = CutFields::default();
        found.reset(wanted.len());
        let whole = cut(line.as_bytes(), &wanted, &mut found);
        let value = |at| String::from_utf8_lossy(found.value(line.as_bytes(), at)).into_owned();
        whole.then(|| (0..wanted.len()).map(value).collect())
    }

    #[test]
    fn members_are_found_whatever_stands_between_them() {
        let line = r#"{"time":"x","n":{"host":"no","l":[1,"}"]},"uri":"/a\"b", "host" : "h","request_time":0.017,"z":null}"#;
        let wanted = ["host", "request_uri", "request_time", "z", "time"];
        assert_eq!(
            values(line, &wanted).unwrap(),
            ["h", r#"/a\"b"#, "0.017", "", "x"]
        );
        assert_eq!(names(line.as_bytes()).len(), 6);
        assert_eq!(values("{}", &["a"]).unwrap(), [""]);
    }

    #[test]
    fn what_is_no_object_is_none() {
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
            assert!(values(line, &["a"]).is_none(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_line_is_too_strange(line in "[{}\\[\\]\",:\\\\a1 ]{0,40}") {
            values(&line, &["a"]);
        }

        // The underscore keeps the key from being one that nginx calls otherwise, such as `ts`.
        #[test]
        fn what_is_json_is_read(key in "_[a-z]{1,5}", text: String, number: u32) {
            let line = serde_json::json!({ &key: text, "n_1": number }).to_string();
            let found = values(&line, &[&key, "n_1"]).unwrap();
            let back: String = serde_json::from_str(&format!("\"{}\"", found[0])).unwrap();
            prop_assert!(back == text || text == "-");
            prop_assert_eq!(&found[1], &number.to_string());
        }
    }
}
