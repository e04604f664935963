//! A store that is still loading, and one that sends garbage.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::{degraded, gateway, passed};
use crate::support::eventually;
use crate::support::redis::Redis;

/// A millisecond for every key: six seconds in which it is there and answers nothing.
#[test]
fn a_redis_that_is_loading_is_an_outage_until_it_has_loaded() {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let path = directory.path().display().to_string();
    let mut redis = Redis::with(&[
        "--dir",
        &path,
        "--key-load-delay",
        "1000",
        "--loading-process-events-interval-bytes",
        "1024",
    ]);
    let fill = "for i = 1, 6000 do redis.call('SET', 'other:' .. i, 'something') end";
    redis.cli(&["EVAL", fill, "0"]);
    let store = format!("redis: '{}', timeout: 100ms", redis.url());
    let weir = gateway(&store, "rate: 1r/m", "burst: 8, nodelay: true");
    assert_eq!(passed(&[&weir], 4), 4);
    assert_eq!(redis.cli(&["SAVE"]).trim(), "OK");
    redis.kill();
    redis.restart();
    assert!(redis.cli(&["GET", "other:1"]).contains("LOADING"));
    assert_eq!(passed(&[&weir], 20), 5);
    eventually("the outage is noticed", || degraded(&weir));
    eventually("it has loaded", || !degraded(&weir));
    weir.error_line("store \"shared\" is back after");
    assert!(passed(&[&weir], 20) <= 5, "what was saved is still known");
}

/// Forwards between one gateway and a server, with faults that can be switched on.
pub(super) struct Relay {
    address: SocketAddr,
    faults: Arc<Faults>,
}

#[derive(Default)]
struct Faults {
    /// Responses are replaced with noise.
    noise: AtomicBool,
    /// All connections are closed.
    cut: AtomicBool,
}

impl Relay {
    pub(super) fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let address = listener.local_addr().expect("it is bound");
        let faults = Arc::<Faults>::default();
        let switched = Arc::clone(&faults);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(server) else {
                    continue;
                };
                client.set_nodelay(true).ok();
                server.set_nodelay(true).ok();
                let (from, to) = (client.try_clone(), server.try_clone());
                let faults = [Arc::clone(&switched), Arc::clone(&switched)];
                let [requests, responses] = faults;
                if let (Ok(from), Ok(to)) = (from, to) {
                    thread::spawn(move || forward(from, to, |_| false, &requests));
                }
                let is_noisy = |faults: &Faults| faults.noise.load(Ordering::SeqCst);
                thread::spawn(move || forward(server, client, is_noisy, &responses));
            }
        });
        Self { address, faults }
    }

    pub(super) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(super) fn cut(&self, cut: bool) {
        self.faults.cut.store(cut, Ordering::SeqCst);
    }
}

fn forward(
    mut from: TcpStream,
    mut to: TcpStream,
    is_noisy: impl Fn(&Faults) -> bool,
    faults: &Faults,
) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let data = if is_noisy(faults) {
            &b"\x00\xffHTTP/1.1 418 \r\n*9\r\n?"[..]
        } else {
            &buffer[..length]
        };
        if faults.cut.load(Ordering::SeqCst) || to.write_all(data).is_err() {
            break;
        }
    }
    // Whichever side has gone, the other hears of it.
    to.shutdown(Shutdown::Both).ok();
    from.shutdown(Shutdown::Both).ok();
}

#[test]
fn a_store_that_sends_garbage_counts_as_away() {
    let redis = Redis::start();
    let relay = Relay::before(redis.address());
    let store = format!("redis: '{}', timeout: 100ms", relay.url());
    let weir = gateway(&store, "rate: 1r/m", "burst: 8, nodelay: true");
    assert_eq!(passed(&[&weir], 4), 4);
    relay.faults.noise.store(true, Ordering::SeqCst);
    assert_eq!(passed(&[&weir], 20), 5);
    eventually("the outage is noticed", || degraded(&weir));
    relay.faults.noise.store(false, Ordering::SeqCst);
    eventually("the store is back", || !degraded(&weir));
    assert!(passed(&[&weir], 20) <= 5);
}
