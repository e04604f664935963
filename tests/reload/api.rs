//! Reloads through the API: access and responses.

use serde_json::Value;

use super::answering;
use crate::support::weir::output;
use crate::support::{Client, Weir, eventually, get};

fn with_admin(text: &str) -> String {
    format!(
        "admin: {{ listen: ADMIN, token: secret }}\n{}",
        answering(text)
    )
}

fn post(weir: &Weir, fields: &str) -> (u16, Value) {
    let mut client = Client::connect(weir.admin_address());
    client.send(format!(
        "POST /api/reload HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: 0\r\n\r\n"
    ));
    let response = client.response();
    let body = serde_json::from_slice(&response.body).expect("JSON");
    (response.status, body)
}

#[test]
fn the_api_reloads_with_the_token_and_returns_the_result() {
    let weir = Weir::start(&with_admin("one"));
    weir.rewrite(&with_admin("two"));
    assert_eq!(post(&weir, "").0, 401);
    assert_eq!(post(&weir, "Authorization: Bearer wrong\r\n").0, 401);
    assert_eq!(get(weir.address(), "/").text(), "one");
    let (status, told) = post(&weir, "Authorization: Bearer secret\r\n");
    assert_eq!(
        (status, &told["generation"]),
        (200, &Value::from(2)),
        "{told}"
    );
    assert_eq!(get(weir.address(), "/").text(), "two");

    weir.rewrite(&with_admin("three").replace("path: /", "pat: /"));
    let (status, told) = post(&weir, "Authorization: Bearer secret\r\n");
    assert_eq!(status, 422, "{told}");
    let problems = told["problems"].as_array().unwrap();
    assert!(
        problems
            .iter()
            .any(|one| one.as_str().unwrap().contains("unknown key `pat`")),
        "{told}"
    );
    assert!(told["report"].as_str().unwrap().contains(" --> "), "{told}");
    assert_eq!(get(weir.address(), "/").text(), "two");
    let metrics = get(weir.admin_address(), "/metrics").text();
    for line in [
        "weir_config_generation 2",
        "weir_config_last_reload_successful 0",
        "weir_config_reload_failures_total 1",
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line}");
    }
    assert_eq!(get(weir.admin_address(), "/api/reload").status, 405);
}

#[test]
fn the_api_reports_dropped_zones_and_pending_settings() {
    let yaml = |workers: u8, key: &str| {
        let text = with_admin("one").replace("path: /,", "path: /, limit_req: { zone: a },");
        format!(
            "workers: {workers}\nlimit_req_zones: {{ a: {{ key: {key}, rate: 1000r/s }} }}\n{text}"
        )
    };
    let weir = Weir::start(&yaml(2, "$host"));
    let reload = |workers, key| {
        weir.rewrite(&yaml(workers, key));
        let (status, told) = post(&weir, "Authorization: Bearer secret\r\n");
        assert_eq!(status, 200, "{told}");
        let warnings = told["warnings"].as_array().expect("a list").clone();
        let warnings = warnings.into_iter();
        let warnings = warnings.map(|one| one.as_str().expect("a text").to_owned());
        warnings.collect::<Vec<_>>()
    };
    let told = reload(1, "$server_name");
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("zone \"a\" starts afresh: its key has changed"));
    assert!(told[1].contains("workers: 1 is for the next start; there are 2"));
    for line in &told {
        weir.error_line(line);
    }
    assert_eq!(reload(2, "$server_name"), Vec::<String>::new());
}

#[test]
fn from_a_shell_the_exit_status_tells() {
    let weir = Weir::start(&with_admin("one"));
    let admin = weir.admin_address().to_string();
    let reload = |token: &str| {
        weir.rewrite_file("token", token);
        let file = weir.path("token").display().to_string();
        output(&["reload", "--admin", &admin, "--token-file", &file])
    };
    weir.rewrite(&with_admin("two"));
    let done = reload("wrong");
    assert_eq!(done.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&done.stderr).contains("token"),
        "{done:?}"
    );
    let done = reload("secret");
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(
        String::from_utf8_lossy(&done.stdout),
        "configuration 2 is in force\n"
    );
    weir.rewrite("nonsense: true\n");
    let done = reload("secret");
    assert_eq!(done.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&done.stderr).contains("unknown key `nonsense`"),
        "{done:?}"
    );
    assert_eq!(get(weir.address(), "/").text(), "two");
}

#[test]
fn files_that_change_are_read_again_with_all_they_include() {
    let included = |text: &str| format!("locations: [ {{ path: /, return: '200 {text}' }} ]\n");
    let yaml = "log: { level: info }\nservers:\n- listen: LISTEN\n  include: 'sites/*.yaml'\n";
    let weir = Weir::start_as(yaml, |command| {
        command.arg("--watch");
    });
    assert_eq!(get(weir.address(), "/").status, 404);
    let answers = |text: &str| eventually(text, || get(weir.address(), "/").text() == text);
    // A file that a pattern matches comes, is written over, and is replaced.
    std::fs::create_dir(weir.path("sites")).unwrap();
    weir.rewrite_file("sites/a.yaml", &included("one"));
    answers("one");
    std::fs::write(weir.path("sites/a.yaml"), included("two")).unwrap();
    answers("two");
    weir.rewrite_file("sites/a.yaml", "nonsense: true\n");
    weir.error_line("unknown key `nonsense`");
    assert_eq!(get(weir.address(), "/").text(), "two");
    weir.rewrite_file("sites/a.yaml", &included("three"));
    answers("three");
    weir.rewrite(&answering("four"));
    answers("four");
}
