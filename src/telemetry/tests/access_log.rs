//! Lines as an operator sees them.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Request, StatusCode};
use serde_json::Value;

use super::*;
use crate::clock::Millis;
use crate::message::{Attempt, ClientConnection, LimitStatus, RemoteAddr, Target};

fn record(agent: Option<&[u8]>) -> RequestRecord {
    let mut request = Request::get("/a?b=c").body(()).unwrap();
    if let Some(agent) = agent {
        let agent = HeaderValue::from_bytes(agent).unwrap();
        request.headers_mut().insert(USER_AGENT, agent);
    }
    let peer = ClientConnection::new(
        RemoteAddr::Ip("127.0.0.2:4000".parse().unwrap()),
        None,
        1,
        Millis(0),
    );
    let mut record = RequestRecord::begin(
        Arc::new(crate::message::testing::plan()),
        0,
        Arc::new(peer),
        request.into_parts().0,
        Target::default(),
        Millis(1_000),
    );
    record.status = Some(StatusCode::OK);
    record.body_sent = 42;
    record.ended = Some(Millis(1_017));
    record
}

/// The line of an exchange, its newline checked and taken off.
fn line(format: LogFormat, record: &RequestRecord) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let writer = LogWriter::default();
    let plan = plan::AccessLog {
        path: LogPath::File(path.clone()),
        format,
    };
    let log = AccessLog::open(&plan, &writer).unwrap();
    log.write(record);
    assert!(writer.flush_and_stop(Duration::from_secs(20)));
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.strip_suffix('\n').expect("a line ends with a newline");
    assert!(!line.contains('\n'), "one line: {line}");
    line.to_owned()
}

/// The time is the variables' business; here it only has to stand in its place.
fn without_time(line: &str) -> String {
    let (before, rest) = line.split_once('[').unwrap();
    let (_, after) = rest.split_once(']').unwrap();
    format!("{before}[]{after}")
}

#[test]
fn combined_is_nginx_s() {
    let line = line(LogFormat::Combined, &record(Some(b"curl/8")));
    assert_eq!(
        without_time(&line),
        r#"127.0.0.2 - - [] "GET /a?b=c HTTP/1.1" 200 42 "-" "curl/8""#
    );
}

#[test]
fn a_client_cannot_leave_its_field() {
    let line = line(LogFormat::Combined, &record(Some(b"x\" 200 \\ \xc3\xa9\t")));
    assert!(
        line.ends_with(r#" "-" "x\x22 200 \x5C \xC3\xA9\x09""#),
        "{line}"
    );
}

#[test]
fn a_format_of_ones_own_shows_what_it_names() {
    let template = Template {
        parts: Box::new([
            Part::Variable(Variable::Status),
            Part::Text(" \"é\" ".into()),
            Part::Variable(Variable::Limit(LimitVariable::ReqStatus)),
            Part::Text(" ".into()),
            Part::Variable(Variable::SentHttp(HeaderName::from_static("x-cache"))),
        ]),
    };
    let mut record = record(None);
    assert_eq!(
        line(LogFormat::Text(template.clone()), &record),
        "200 \"é\" - -"
    );
    record.limit_req = Some(LimitStatus::Refuse);
    let hit = HeaderValue::from_static("hit");
    record
        .sent_headers
        .get_or_insert_default()
        .insert(HeaderName::from_static("x-cache"), hit);
    assert_eq!(
        line(LogFormat::Text(template), &record),
        "200 \"é\" REJECTED hit"
    );
}

#[test]
fn sent_headers_are_only_asked_for_where_they_are_shown() {
    let writer = LogWriter::default();
    let needs = |format| {
        let path = LogPath::Stdout;
        let plan = plan::AccessLog { path, format };
        AccessLog::open(&plan, &writer)
            .unwrap()
            .needs_sent_headers()
    };
    assert!(!needs(LogFormat::Combined));
    assert!(!needs(LogFormat::Json));
    let name = HeaderName::from_static("location");
    for (variable, expected) in [
        (Variable::SentHttp(name.clone()), true),
        (Variable::Map(0), true),
        (Variable::Http(name), false),
    ] {
        let format = LogFormat::Text(Template::variable(variable.clone()));
        assert_eq!(needs(format), expected, "{variable:?}");
    }
}

#[test]
fn json_has_numbers_as_numbers() {
    let mut record = record(Some(b"a\"b\xff"));
    record.limit_req = Some(LimitStatus::Pass);
    record.attempts = smallvec::smallvec![Attempt {
        address: "127.0.0.1:9001".into(),
        started: None,
        status: Some(StatusCode::OK),
        connect: None,
        header: None,
        response: Some(Duration::from_millis(12)),
    }];
    let line = line(LogFormat::Json, &record);
    let value: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(value["remote_addr"], "127.0.0.2");
    assert_eq!(value["method"], "GET");
    assert_eq!(value["uri"], "/a?b=c");
    assert_eq!(value["status"], 200);
    assert_eq!(value["request_time"], 0.017);
    assert_eq!(value["body_bytes_sent"], 42);
    assert_eq!(value["referer"], "");
    assert_eq!(value["user_agent"], "a\"b\u{fffd}");
    assert_eq!(value["upstream_addr"], "127.0.0.1:9001");
    assert_eq!(value["upstream_status"], 200);
    assert_eq!(value["upstream_response_time"], 0.012);
    assert_eq!(value["limit_req_status"], "PASSED");
    assert_eq!(value["request_id"], record.request_id());
    let time: jiff::Timestamp = value["time"].as_str().unwrap().parse().unwrap();
    let age = crate::clock::Clock::wall().as_secs() as i64 - time.as_second();
    assert!((0..60).contains(&age), "{line}");
}

#[test]
fn json_has_every_field_also_where_nothing_is_known() {
    let mut record = record(None);
    record.status = None;
    let line = line(LogFormat::Json, &record);
    let value: Value = serde_json::from_str(&line).unwrap();
    for number in ["status", "upstream_status", "upstream_response_time"] {
        assert_eq!(value[number], Value::Null, "{number}");
    }
    for text in [
        "user_agent",
        "upstream_addr",
        "limit_req_status",
        "limit_conn_status",
        "limit_verdict",
        "limit_zone",
        "trace_id",
        "span_id",
    ] {
        assert_eq!(value[text], "", "{text}");
    }
    assert_eq!(value.as_object().unwrap().len(), 23);
}

#[test]
fn a_log_that_cannot_be_opened_names_its_file() {
    let plan = plan::AccessLog {
        path: LogPath::File("/nonexistent/weir/access.log".into()),
        format: LogFormat::Combined,
    };
    let error = AccessLog::open(&plan, &LogWriter::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot open the access log /nonexistent/weir/access.log"
    );
}
