//! What a connection costs that has been answered and waits for its next request.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use crate::Result;
use crate::cases::{Contender, Job};
use crate::machine::Cores;
use crate::proxies::Proxy;
use crate::secure::{self, Stream};

/// How many: few enough for the usual limit on descriptors.
const CONNECTIONS: usize = 500;

/// One that is not idle for long may keep what it will soon need again.
const PATIENCE: Duration = Duration::from_secs(4);

/// Bytes for each idle connection of a proxy.
#[derive(Debug)]
pub(crate) struct Idle {
    contender: Contender,
    plain: f64,
    tls: f64,
}

/// Everyone in turn.
pub(crate) fn measure(weir: &Path, cores: &Cores, backend: u16) -> Result<Vec<Idle>> {
    let mut measured = Vec::new();
    for contender in [Contender::Nginx, Contender::Haproxy, Contender::Weir] {
        let each = |job| each(contender, job, weir, cores, backend);
        if let (Some(plain), Some(tls)) = (each(Job::Proxy)?, each(Job::Tls)?) {
            measured.push(Idle {
                contender,
                plain,
                tls,
            });
        }
    }
    Ok(measured)
}

fn each(
    contender: Contender,
    job: Job,
    weir: &Path,
    cores: &Cores,
    backend: u16,
) -> Result<Option<f64>> {
    let Some(proxy) = Proxy::start(contender, job, weir, cores, backend)? else {
        return Ok(None);
    };
    // What it allocates for its first client is not charged to the others.
    let first = ask(&proxy, job)?;
    sleep(PATIENCE);
    let before = proxy.process.memory();
    let idle = (0..CONNECTIONS)
        .map(|_| ask(&proxy, job))
        .collect::<Result<Vec<_>>>()?;
    sleep(PATIENCE);
    let used = proxy.process.memory().saturating_sub(before);
    drop((first, idle));
    Ok(Some(used as f64 * 1024.0 / CONNECTIONS as f64))
}

/// A connection after its first answer.
fn ask(proxy: &Proxy, job: Job) -> Result<Box<dyn Stream>> {
    let mut stream = secure::connect(proxy.address(), job.is_secured())?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut bytes = [0; 4096];
    let count = stream.read(&mut bytes)?;
    match bytes[..count].starts_with(b"HTTP/1.1 200") {
        true => Ok(stream),
        false => Err(format!("{} answers otherwise", proxy.contender.label()).into()),
    }
}

/// All of them as Markdown.
pub(crate) fn section(measured: &[Idle]) -> String {
    let mut text = format!(
        "## Idle connections\n\nBytes for each of {CONNECTIONS} connections that were answered once and are quiet since.\n\n\
         | | plain | inside TLS |\n| --- | --- | --- |\n"
    );
    for idle in measured {
        let (label, plain, tls) = (idle.contender.label(), idle.plain, idle.tls);
        text += &format!("| {label} | {plain:.0} | {tls:.0} |\n");
    }
    text
}
