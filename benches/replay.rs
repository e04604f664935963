//! How many lines of a log a replay judges in a second of processor time.
//!
//! ```console
//! $ cargo bench --bench replay
//! ```
//!
//! The log is made up in a temporary file: combined or JSON, half a million lines of twenty thousand clients, a few of them
//! busy. Processor time, not the clock on the wall: neighbours on the machine count only by what they do to its caches.
#![expect(clippy::print_stdout, reason = "it is what a bench is for")]

#[path = "growth/cpu.rs"]
mod cpu;

use std::io::Write;
use std::path::Path;

use cpu::Cpu;
use weir::replay::ReplayOptions;
use weir::replay::run;

const LINES: u32 = 500_000;

fn main() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    for (name, line) in [("combined", combined as fn(u32) -> String), ("json", json)] {
        let path = folder.path().join(name);
        let mut file = std::io::BufWriter::new(std::fs::File::create(&path)?);
        for number in 0..LINES {
            file.write_all(line(number).as_bytes())?;
        }
        file.flush()?;
        for (key, what) in [
            ("$binary_remote_addr", "one zone by address"),
            ("$host$uri", "one zone by host and path"),
        ] {
            if key.contains("host") && name == "combined" {
                continue;
            }
            measure(&path, name, key, what);
        }
    }
    Ok(())
}

fn measure(path: &Path, name: &str, key: &str, what: &str) {
    let yaml = format!(
        "limit_req_zones: {{ one: {{ key: '{key}', size: 10m, rate: 10r/s }} }}
servers:
- listen: 8080
  limit_req: {{ zone: one, burst: 20, nodelay: true }}
  locations: [ {{ path: /api/, return: 200 }}, {{ path: /static/, return: 200 }}, {{ path: /, return: 200 }} ]
"
    );
    let options = ReplayOptions {
        files: vec![path.to_owned()],
        window: 30,
        top: 10,
        ..ReplayOptions::default()
    };
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let (plan, _) =
            weir::config::load_text("weir.yaml", &yaml, |_| None).expect("it is a good one");
        let start = Cpu::now();
        let report = run(plan, &options, &mut |_| {}, None).expect("it can be replayed");
        best = best.min(start.elapsed().as_secs_f64());
        assert_eq!(report.requests.total(), u64::from(LINES));
    }
    let millions = f64::from(LINES) / best / 1e6;
    println!(
        "{name:<9} {what:<26} {millions:5.2} million lines a second, {:4.0} ns each",
        best * 1e9 / f64::from(LINES)
    );
}

/// Of twenty thousand clients every tenth request is one of four.
fn client(number: u32) -> [u8; 4] {
    let mixed = number.wrapping_mul(2_654_435_761) >> 8;
    let who = if mixed.is_multiple_of(10) {
        mixed % 40 / 10
    } else {
        mixed % 20_000
    };
    let [_, a, b, c] = who.to_be_bytes();
    [10, a, b, c]
}

fn target(number: u32) -> String {
    match number % 4 {
        0 => "/".to_owned(),
        1 => format!("/api/items?page={}", number % 97),
        2 => "/static/app.js".to_owned(),
        _ => format!("/products/{}/reviews", number % 1009),
    }
}

fn combined(number: u32) -> String {
    let [a, b, c, d] = client(number);
    let second = number / 1000;
    let (minute, second) = (second / 60, second % 60);
    format!(
        "{a}.{b}.{c}.{d} - - [16/Nov/2026:02:{minute:02}:{second:02} +0000] \"GET {} HTTP/1.1\" 200 {} \"-\" \"Mozilla/5.0 (X11; Linux x86_64) \
         AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36\"\n",
        target(number),
        number % 9973
    )
}

fn json(number: u32) -> String {
    let [a, b, c, d] = client(number);
    let (second, millis) = (number / 1000, number % 1000);
    let (minute, second) = (second / 60, second % 60);
    format!(
        "{{\"time\":\"2026-11-16T02:{minute:02}:{second:02}.{millis:03}+00:00\",\"remote_addr\":\"{a}.{b}.{c}.{d}\",\"method\":\"GET\",\
         \"uri\":\"{}\",\"host\":\"example.com\",\"status\":200,\"request_time\":0.{:03},\"body_bytes_sent\":42,\"referer\":\"\",\
         \"user_agent\":\"Mozilla/5.0\",\"request_id\":\"0123456789abcdef0123456789abcdef\"}}\n",
        target(number),
        number % 50
    )
}
