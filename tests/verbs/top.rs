//! `weir top`, in a terminal: limited keys, healthy and unhealthy backends, and the keyboard.

use super::{limited, told};
use crate::support::api::TOKEN;
use crate::support::weir::BINARY;
use crate::support::{Origin, Terminal, Weir, eventually, get};

/// Runs it in a terminal, and after it what the shell has to say.
fn top(weir: &Weir, before: &str, after: &str) -> Terminal {
    let admin = weir.admin_address();
    Terminal::run(&format!(
        "export WEIR_ADMIN={admin} WEIR_TOKEN={TOKEN} {before}; {BINARY} top; {after}"
    ))
}

/// Keeps asking until all of this is on the screen at once, and stays for a moment.
fn busy_until(weir: &Weir, terminal: &Terminal, what: &[&str]) -> String {
    let mut screen = String::new();
    eventually(&format!("{what:?} on the screen"), || {
        get(weir.address(), "/some/path");
        let before = std::mem::replace(&mut screen, terminal.screen());
        what.iter().all(|part| screen.contains(part)) && before == screen
    });
    screen
}

#[test]
fn the_overview_shows_limited_keys_and_the_backend() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let terminal = top(&weir, "", "");
    let quiet = terminal.shows("no requests are being limited");
    assert!(quiet.contains("● the backend is healthy"), "{quiet}");
    let parts = [
        "requests/s, mostly of 127.0.0.1",
        "── keys of one by $binary_remote_addr: 1r/m, burst 2",
        "▶ one ",
        "▷ 127.0.0.1 ",
        "→ 429 GET",
        "█",
    ];
    let screen = busy_until(&weir, &terminal, &parts);
    let first: Vec<_> = screen.lines().take(3).collect();
    assert!(first[1].starts_with("● one (1r/m) refuses "), "{screen}");
    assert_eq!(screen.trim_end().lines().count(), 24, "{screen}");
    assert!(terminal.colours().contains("\u{1b}["), "in colours");
    told(&weir, &["disable", "app", &origin.address().to_string()]);
    terminal.shows("● app has no available server");
}

#[test]
fn keys_select_and_mark_after_a_question() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let terminal = top(&weir, "", "");
    busy_until(&weir, &terminal, &["▷ 127.0.0.1 "]);
    terminal.press(&["Tab", "b"]);
    terminal.shows("block 127.0.0.1 in one for 10m?");
    terminal.press(&["n"]);
    terminal.shows("q quit");
    assert!(
        !told(&weir, &["zones", "one"]).contains("block"),
        "no is no"
    );
    terminal.press(&["b", "y"]);
    terminal.shows("blocked 127.0.0.1 in one for 10m");
    assert!(told(&weir, &["zones", "one"]).contains("block"));
    terminal.press(&["Enter"]);
    terminal.shows("127.0.0.1 in zone one");
    terminal.press(&["Escape"]);
    terminal.press(&["Tab", "Tab", "Down"]);
    terminal.shows("▶ paths ");
    terminal.press(&["?"]);
    terminal.shows("Any key goes back");
    terminal.press(&["q"]);
    terminal.shows("▶ paths ");
}

#[test]
fn it_fills_the_window_it_has() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let terminal = top(&weir, "NO_COLOR=1", "");
    terminal.shows("q quit");
    for (columns, rows) in [("120", "40"), ("50", "12"), ("20", "5")] {
        terminal.resize(columns, rows);
        eventually("a frame of that size", || {
            let screen = terminal.screen();
            let lines: Vec<_> = screen.lines().collect();
            lines.len().to_string() == rows && lines[0].starts_with("weir")
        });
    }
    assert!(!terminal.colours().contains("\u{1b}["), "NO_COLOR was said");
}

#[test]
fn the_terminal_is_given_back() {
    let origin = Origin::start();
    let weir = limited(&origin);
    for end in ["q", "C-c", "TERM"] {
        let terminal = top(&weir, "", "echo status $?; stty -a; echo the end; sleep 60");
        terminal.shows("q quit");
        assert_eq!(
            (
                terminal.state("alternate_on"),
                terminal.state("cursor_flag")
            ),
            ("1".into(), "0".into())
        );
        match end {
            "TERM" => {
                let shell = terminal.state("pane_pid");
                let line = format!("kill -TERM $(cat /proc/{shell}/task/{shell}/children)");
                let sent = std::process::Command::new("sh")
                    .args(["-c", &line])
                    .status();
                assert!(sent.is_ok_and(|status| status.success()), "{line}");
            }
            key => terminal.press(&[key]),
        }
        let screen = terminal.shows("the end");
        assert!(screen.contains("status 0"), "{end}: {screen}");
        let words: Vec<_> = screen.split_whitespace().collect();
        assert!(
            words.contains(&"icanon") && words.contains(&"echo"),
            "{end}: {screen}"
        );
        assert_eq!(
            (
                terminal.state("alternate_on"),
                terminal.state("cursor_flag")
            ),
            ("0".into(), "1".into())
        );
    }
}

#[test]
fn the_terminal_shows_that_weir_has_stopped() {
    let origin = Origin::start();
    let mut weir = limited(&origin);
    let terminal = top(&weir, "", "");
    terminal.shows("q quit");
    weir.signal("TERM");
    assert_eq!(weir.wait().code(), Some(0));
    terminal.shows("● nothing listens at");
}

#[test]
fn without_a_terminal_top_prints_advice() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let output = super::verb(&weir, &["top"]);
    assert_eq!(output.status.code(), Some(1));
    let why = super::text(&output.stderr);
    assert!(why.contains("top needs a terminal"), "{why}");
}
