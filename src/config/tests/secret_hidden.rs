//! Nothing that is said about a file says a secret of it.

use crate::config::load_text;
use crate::config::report::{ColorChoice, Report};

/// What every secret in these tests is made of.
const MARK: &str = "Zq7";

const GOOD: &str = r#"
log: { level: debug }
admin:
  listen: 127.0.0.1:9900
  token: $Zq7Zq7Zq7Zq7
tracing:
  otlp: http://127.0.0.1:4318
  headers:
    x-team: Zq7Zq7Zq7Zq7
    Authorization: "Basic Zq7Zq7Zq7Zq7"
stores:
  one: { redis: "redis://user:Zq7Zq7Zq7Zq7@127.0.0.1:6379/2" }
  two:
    redis: [ redis://:Zq7Zq7Zq7Zq7@127.0.0.1, redis://:Zq7Zq7Zq7Zq7@127.0.0.2 ]
    sentinel_master: main
    sentinel_password: >
      Zq7Zq7Zq7Zq7
      Zq7Zq7Zq7Zq7
limit_req_zones:
  perip: { key: $binary_remote_addr, rate: 1r/s }
servers:
- listen: 8080
  limit_req: { zone: perip }
  locations:
  - path: /
    proxy_pass: http://127.0.0.1:9001
    proxy_set_header: { Authorization: Bearer Zq7Zq7Zq7Zq7, X-Api-Key: Zq7Zq7Zq7Zq7 }
"#;

/// All that is said of a text.
fn said(text: &str) -> String {
    let of = |report: Report| {
        let lines: Vec<_> = report.lines().collect();
        let drawn = [ColorChoice::Plain, ColorChoice::Coloured].map(|look| report.draw(look));
        format!("{}\n{}\n{report:?}", lines.join("\n"), drawn.join("\n"))
    };
    match load_text("weir.yaml", text, |_| Some(MARK.repeat(4))) {
        Ok((plan, report)) => format!("{}\n{}\n{plan:?}", of(report), plan.source),
        Err(report) => of(report),
    }
}

fn assert_silent(text: &str) {
    let said = said(text);
    // Half of one may stand behind what was put into its middle.
    let leak = said.lines().find(|line| line.contains(&MARK.repeat(2)));
    assert_eq!(leak, None, "of\n{text}\nis said\n{said}");
}

#[test]
fn a_good_file_says_nothing() {
    let (plan, report) = load_text("weir.yaml", GOOD, |_| None).unwrap();
    assert!(!format!("{plan:?}").contains(MARK), "{plan:?}");
    assert!(!plan.source.contains(MARK), "{}", plan.source);
    assert!(!report.draw(ColorChoice::Plain).contains(MARK));
    assert_eq!(plan.admin.unwrap().token.unwrap().expose(), "$Zq7Zq7Zq7Zq7");
}

#[test]
fn an_error_on_any_line_says_nothing() {
    for (number, line) in GOOD.lines().enumerate() {
        let with = |line: &str| {
            let mut lines: Vec<_> = GOOD.lines().collect();
            lines[number] = line;
            lines.join("\n")
        };
        for wrong in [
            format!("{line} }}"),
            format!("{line}: x"),
            format!("{line} {{"),
            format!("\t{line}"),
            format!(" {line}"),
            format!("{line}\n{line}"),
            format!("{line} ${{Not set}}"),
            line.replace(": ", "s: "),
            line.replace(": ", ": &a "),
            line.replace(": ", ": *a "),
            line.replace(": ", ": ["),
            line.replace(": ", ": { unknown: 1, "),
            line.replace(": ", " "),
            line.replace(':', " "),
            line.replace('"', ""),
            line.replace("redis:", "http:"),
            line.replace("127.0.0.1", "127.0.0.1:99999:1"),
            line.replace('@', "/"),
        ] {
            assert_silent(&with(&wrong));
        }
    }
}

#[test]
fn half_a_file_says_nothing() {
    for end in 0..GOOD.len() {
        assert_silent(GOOD.split_at(end).0);
    }
}

#[test]
fn a_slip_of_the_pen_says_nothing() {
    let fields = GOOD.find("proxy_set_header").unwrap();
    for at in 0..GOOD.len() {
        for slip in ["\"", "{", ":", "@", "\n", "$"] {
            // It may stand in the name of a header field, which is then another field.
            if slip == "$" && at > fields {
                continue;
            }
            let (before, after) = GOOD.split_at(at);
            assert_silent(&format!("{before}{slip}{after}"));
        }
    }
}

#[test]
fn what_is_not_a_mapping_may_be_a_token() {
    let token = MARK.repeat(4);
    for text in [
        token.clone(),
        format!("admin: {token}"),
        format!("stores: {{ one: {token} }}"),
        format!("admin: [ {token} ]"),
        format!("admin: {{ token: {{ {token}: {token} }} }}"),
        format!("admin: {{ token: a, token: {token} }}"),
        format!("admin: {{ bearer: {token} }}"),
        format!("admin: {{ token:{token} }}"),
        format!("proxy_set_header: {{ Authorization:{token} }}"),
        format!("admin: {{ token: {token}, listen: nowhere }}"),
        "admin: { token: '${TOKEN}', listen: nowhere }".to_owned(),
    ] {
        assert_silent(&text);
    }
}

#[test]
fn a_reference_to_the_environment_is_shown() {
    let text = "admin: { token: '${TOKEN}', listen: nowhere }\nservers: { return: 204 }\n";
    let said = load_text("weir.yaml", text, |_| Some("x".into())).unwrap_err();
    assert!(said.to_string().contains("'${TOKEN}'"), "{said}");
}

#[test]
fn the_marks_stay_where_they_belong() {
    let text = "admin: { token: s3cret, listen: nowhere }\nservers: { return: 204 }\n";
    let said = load_text("weir.yaml", text, |_| None).unwrap_err();
    insta::assert_snapshot!(said.to_string(), @r"
    error: `nowhere` is not an address to listen on
     --> weir.yaml:1:33
      |
    1 | admin: { token: ***, listen: nowhere }
      |                              ^^^^^^^ admin.listen
      |
    help: expected `8080`, `127.0.0.1:8080`, `*:8080`, `[::1]:8080` or `unix:/run/weir.sock`
    ");
}
