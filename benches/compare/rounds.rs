//! Rounds: everyone is loaded in turn, and another begins each time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use crate::cases::{Case, Contender, Job};
use crate::machine::Cores;
use crate::proxies::Proxy;
use crate::{Options, Result, load};

/// What one proxy did and used in one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Round {
    /// Microseconds on a core for each request.
    pub(crate) cpu: f64,
    pub(crate) requests_per_second: f64,
    /// Milliseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// MB.
    pub(crate) memory: f64,
    pub(crate) wrong: u64,
}

/// All rounds of one case for each proxy that is installed.
pub(crate) fn measure(
    case: &Case,
    options: &Options,
    weir: &Path,
    cores: &Cores,
    backend: u16,
) -> Result<Vec<(Contender, Vec<Round>)>> {
    let mut proxies = Vec::new();
    for contender in case.contenders {
        proxies.extend(Proxy::start(*contender, case.job, weir, cores, backend)?);
    }
    for proxy in &proxies {
        check(case, proxy)?;
        load::run(case, cores, proxy.port(), 1)?;
    }
    let mut measured: Vec<_> = proxies
        .iter()
        .map(|proxy| (proxy.contender, Vec::new()))
        .collect();
    for number in 0..options.rounds {
        for place in 0..proxies.len() {
            let turn = (number + place) % proxies.len();
            let round = round(case, &proxies[turn], cores, options.seconds)?;
            measured[turn].1.push(round);
        }
    }
    Ok(measured)
}

fn round(case: &Case, proxy: &Proxy, cores: &Cores, seconds: u32) -> Result<Round> {
    // What the one before left behind, closing connections above all, is not to be charged to this one.
    sleep(Duration::from_millis(150));
    let before = proxy.process.cpu();
    let seen = load::run(case, cores, proxy.port(), seconds)?;
    sleep(Duration::from_millis(50));
    let used = proxy.process.cpu().saturating_sub(before);
    let requests = seen.requests as f64;
    Ok(Round {
        cpu: used as f64 / 1e3 / requests,
        requests_per_second: requests / seen.seconds,
        p50: seen.p50,
        p99: seen.p99,
        memory: proxy.process.memory() as f64 / 1024.0,
        wrong: seen.wrong(case),
    })
}

/// Whether it does the job at all: numbers of one that answers something else would be worth nothing.
fn check(case: &Case, proxy: &Proxy) -> Result<()> {
    // What loads it over HTTP/2 tells answers apart by itself.
    if case.job == Job::Http2 {
        return Ok(());
    }
    let mut answer = Vec::new();
    // The first two may pass where all others are refused.
    for _ in 0..3 {
        answer.clear();
        let mut stream = TcpStream::connect(proxy.address())?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            case.path
        );
        stream.write_all(request.as_bytes())?;
        stream.read_to_end(&mut answer)?;
    }
    let (status, length) = case.answer;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let body = end.map(|end| answer.len() - end - 4);
    let has_status = answer.starts_with(format!("HTTP/1.1 {status} ").as_bytes());
    if has_status && (length.is_none() || body == length) {
        return Ok(());
    }
    let answer = String::from_utf8_lossy(&answer);
    let start: String = answer.chars().take(500).collect();
    Err(format!(
        "{}, {}: answers\n{start}",
        case.name,
        proxy.contender.label()
    )
    .into())
}
