//! A store that is still loading, and one whose answers turn into noise.

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

/// Hands on what a server says, or, as long as it is told to, noise instead.
struct Relay {
    address: SocketAddr,
    noise: Arc<AtomicBool>,
}

impl Relay {
    fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let address = listener.local_addr().expect("it is bound");
        let noise = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&noise);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(server) else {
                    continue;
                };
                let (from, to) = (client.try_clone(), server.try_clone());
                if let (Ok(from), Ok(to)) = (from, to) {
                    thread::spawn(move || hand_on(from, to, None));
                }
                let noise = Arc::clone(&told);
                thread::spawn(move || hand_on(server, client, Some(&noise)));
            }
        });
        Self { address, noise }
    }
}

fn hand_on(mut from: TcpStream, mut to: TcpStream, noise: Option<&AtomicBool>) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let noisy = noise.is_some_and(|noise| noise.load(Ordering::SeqCst));
        let said = if noisy {
            &b"\x00\xffHTTP/1.1 418 \r\n*9\r\n?"[..]
        } else {
            &buffer[..length]
        };
        if to.write_all(said).is_err() {
            break;
        }
    }
    // Whichever side has gone, the other hears of it.
    to.shutdown(Shutdown::Both).ok();
    from.shutdown(Shutdown::Both).ok();
}

#[test]
fn answers_that_turn_into_noise_are_not_believed() {
    let redis = Redis::start();
    let relay = Relay::before(redis.address());
    let store = format!("redis: 'redis://{}', timeout: 100ms", relay.address);
    let weir = gateway(&store, "rate: 1r/m", "burst: 8, nodelay: true");
    assert_eq!(passed(&[&weir], 4), 4);
    relay.noise.store(true, Ordering::SeqCst);
    assert_eq!(passed(&[&weir], 20), 5);
    eventually("the outage is noticed", || degraded(&weir));
    relay.noise.store(false, Ordering::SeqCst);
    eventually("the store is back", || !degraded(&weir));
    assert!(passed(&[&weir], 20) <= 5);
}
