//! Real sockets on loopback; descriptors run out in a process of their own.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::Path;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use super::*;
use crate::config::plan::SocketAddress;

fn bind(listen: &SocketAddress, loops: usize) -> Result<Vec<BoundSocket>, Error> {
    Ok(bind_all(&[listen], loops)?.remove(0))
}

fn bind_all(listens: &[&SocketAddress], loops: usize) -> Result<Vec<Vec<BoundSocket>>, Error> {
    AcceptShards::new(loops).bind_all(listens, &[], &mut InheritedSockets::default())
}

fn loopback(port: u16) -> SocketAddress {
    SocketAddress::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

fn port(bound: &BoundSocket) -> u16 {
    tcp(bound).port()
}

fn tcp(bound: &BoundSocket) -> SocketAddr {
    match bound.address() {
        SocketAddress::Tcp(address) => *address,
        SocketAddress::Unix(path) => panic!("{path:?} is not TCP"),
    }
}

#[test]
fn every_event_loop_gets_a_socket_on_the_same_port() {
    let bound = bind(&loopback(0), 3).unwrap();
    assert_eq!(bound.len(), 3);
    assert!(bound.iter().all(|one| port(one) == port(&bound[0])));
    assert_ne!(port(&bound[0]), 0);
}

/// SO_REUSEPORT alone would let both listen and share the connections.
#[test]
fn a_second_process_on_the_same_address_gets_an_error() {
    let first = bind(&loopback(0), 2).unwrap();
    let address = tcp(&first[0]);
    let error = bind(&SocketAddress::Tcp(address), 2).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot listen on {address}: address in use")
    );
    drop(first);
    bind(&SocketAddress::Tcp(address), 2).unwrap();
}

#[test]
fn a_wildcard_of_each_kind_and_one_address_share_a_port() {
    // A port that is free on one address may be taken on another: then the next is tried.
    let bound = (0..50)
        .find_map(|_| {
            let free = port(&bind(&loopback(0), 1).unwrap()[0]);
            let wildcards = [
                IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                IpAddr::V6(Ipv6Addr::UNSPECIFIED),
                IpAddr::V4(Ipv4Addr::LOCALHOST),
            ];
            let wildcards = wildcards.map(|ip| SocketAddress::Tcp(SocketAddr::new(ip, free)));
            bind_all(&wildcards.each_ref(), 2).ok()
        })
        .unwrap();
    assert_eq!(bound.len(), 3);
    assert!(bound.iter().all(|sockets| sockets.len() == 2));
}

#[test]
fn an_address_that_is_not_ours_is_said_so() {
    let address = SocketAddr::from(([192, 0, 2, 1], 8080));
    let error = bind(&SocketAddress::Tcp(address), 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot listen on 192.0.2.1:8080: this machine does not have that address"
    );
}

#[test]
fn a_socket_file_left_behind_is_replaced_and_ours_is_removed_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.sock");
    drop(StdUnixListener::bind(&path).unwrap());
    assert!(path.exists());

    let mut bound = bind(&SocketAddress::Unix(path.clone()), 2).unwrap();
    bound.pop();
    assert!(path.exists(), "another event loop still listens");
    drop(bound);
    assert!(!path.exists());
}

#[test]
fn a_socket_file_in_use_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.sock");
    let _other = StdUnixListener::bind(&path).unwrap();
    let error = bind(&SocketAddress::Unix(path.clone()), 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot listen on unix:{}: address in use", path.display())
    );
    assert!(path.exists());
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    fs::write(&path, "text").unwrap();
    let error = bind(&SocketAddress::Unix(path.clone()), 1).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert_eq!(fs::read_to_string(&path).unwrap(), "text");
}

#[test]
fn a_socket_file_put_in_place_of_ours_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.sock");
    let bound = bind(&SocketAddress::Unix(path.clone()), 1).unwrap();
    fs::rename(&path, folder.path().join("old")).unwrap();
    let _other = StdUnixListener::bind(&path).unwrap();
    drop(bound);
    assert!(path.exists());
}

/// Accepts in the background and keeps the peers it saw; a connection that says `p` panics, others are
/// sent back what they said.
struct Rig {
    peers: Arc<Mutex<Vec<Arc<ClientConnection>>>>,
    connections: TaskTracker,
    stop: CancellationToken,
    accepting: tokio::task::JoinHandle<Result<(), Error>>,
}

impl Rig {
    fn start(bound: BoundSocket) -> Self {
        let (connections, stop) = (TaskTracker::new(), CancellationToken::new());
        let peers = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&peers);
        let accepting = tokio::spawn(accept_loop(
            bound,
            Clock::machine(),
            connections.clone(),
            stop.clone(),
            move |mut stream, peer| {
                seen.lock().push(peer);
                Some(async move {
                    if let Stream::Tcp(stream) = &stream {
                        assert!(stream.nodelay().unwrap());
                    }
                    let byte = stream.read_u8().await.unwrap();
                    assert_ne!(byte, b'p', "asked to");
                    stream.write_u8(byte).await.unwrap();
                })
            },
        ));
        Self {
            peers,
            connections,
            stop,
            accepting,
        }
    }
}

async fn echo(address: SocketAddr, byte: u8) -> io::Result<u8> {
    let mut client = TcpStream::connect(address).await?;
    client.write_u8(byte).await?;
    client.read_u8().await
}

#[tokio::test]
async fn connections_are_named_and_numbered() {
    let bound = bind(&loopback(0), 1).unwrap().remove(0);
    let address = tcp(&bound);
    let rig = Rig::start(bound);
    for _ in 0..2 {
        assert_eq!(echo(address, b'a').await.unwrap(), b'a');
    }
    let peers = rig.peers.lock().clone();
    assert_eq!(peers.len(), 2);
    assert_eq!(peers[0].addr.text(), "127.0.0.1");
    assert_eq!(peers[0].local, Some(address));
    assert!(peers[0].serial < peers[1].serial);
}

#[tokio::test]
async fn on_a_wildcard_a_connection_knows_where_it_arrived() {
    let any = SocketAddress::Tcp(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)));
    let bound = bind(&any, 1).unwrap().remove(0);
    let here = SocketAddr::from((Ipv6Addr::LOCALHOST, port(&bound)));
    let rig = Rig::start(bound);
    assert_eq!(echo(here, b'a').await.unwrap(), b'a');
    assert_eq!(rig.peers.lock()[0].local, Some(here));
}

#[tokio::test]
async fn a_unix_socket_accepts_on_every_event_loop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.sock");
    let rigs: Vec<Rig> = bind(&SocketAddress::Unix(path.clone()), 2)
        .unwrap()
        .into_iter()
        .map(Rig::start)
        .collect();
    for _ in 0..8 {
        let mut client = UnixStream::connect(&path).await.unwrap();
        client.write_u8(b'u').await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'u');
    }
    let peers: Vec<_> = rigs
        .iter()
        .flat_map(|rig| rig.peers.lock().clone())
        .collect();
    assert_eq!(peers.len(), 8);
    assert!(
        peers
            .iter()
            .all(|peer| peer.addr.remote == RemoteAddr::Unix)
    );
}

#[tokio::test]
async fn a_panic_ends_only_its_own_connection() {
    let bound = bind(&loopback(0), 1).unwrap().remove(0);
    let address = tcp(&bound);
    let rig = Rig::start(bound);
    echo(address, b'p').await.unwrap_err();
    assert_eq!(echo(address, b'a').await.unwrap(), b'a');
    rig.connections.close();
    rig.connections.wait().await;
}

#[tokio::test]
async fn a_stop_ends_accepting_and_leaves_connections_to_finish() {
    let bound = bind(&loopback(0), 1).unwrap().remove(0);
    let address = tcp(&bound);
    let rig = Rig::start(bound);
    let mut client = TcpStream::connect(address).await.unwrap();
    while rig.peers.lock().is_empty() {
        tokio::task::yield_now().await;
    }
    rig.stop.cancel();
    rig.accepting.await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
    client.write_u8(b'a').await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'a');
}

#[tokio::test]
async fn who_connected_before_the_stop_is_let_in() {
    let bound = bind(&loopback(0), 1).unwrap().remove(0);
    let address = tcp(&bound);
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let mut client = std::net::TcpStream::connect(address).unwrap();
            io::Write::write_all(&mut client, b"a").unwrap();
            client.set_nonblocking(true).unwrap();
            TcpStream::from_std(client).unwrap()
        })
        .collect();
    let rig = Rig::start(bound);
    // Before the loop has run for the first time.
    rig.stop.cancel();
    rig.accepting.await.unwrap().unwrap();
    for mut client in clients {
        assert_eq!(client.read_u8().await.unwrap(), b'a');
    }
}

/// How many connections each of two loops has when so many clients have come and stay.
async fn shares(clients: usize, listen: &SocketAddress) -> [usize; 2] {
    let bound = bind(listen, 2).unwrap();
    let address = bound[0].address().clone();
    let rigs: Vec<Rig> = bound.into_iter().map(Rig::start).collect();
    let mut connected = Vec::new();
    for _ in 0..clients {
        connected.push(match &address {
            SocketAddress::Tcp(address) => Stream::Tcp(TcpStream::connect(address).await.unwrap()),
            SocketAddress::Unix(path) => Stream::Unix(UnixStream::connect(path).await.unwrap()),
        });
    }
    let seen = || [0, 1].map(|rig: usize| rigs[rig].peers.lock().len());
    while seen().iter().sum::<usize>() < clients {
        tokio::task::yield_now().await;
    }
    for mut client in connected {
        client.write_u8(b'a').await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'a');
    }
    seen()
}

#[tokio::test]
async fn every_loop_gets_its_fair_share_of_few_connections() {
    let folder = tempfile::tempdir().unwrap();
    for clients in [8, 16, 64] {
        for round in 0..5 {
            let path = folder.path().join(format!("{clients}-{round}"));
            for listen in [loopback(0), SocketAddress::Unix(path)] {
                let shares = shares(clients, &listen).await;
                assert!(shares[0].abs_diff(clients / 2) <= 1, "{shares:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_connection_that_is_handed_over_during_a_stop_is_served() {
    for _ in 0..20 {
        let bound = bind(&loopback(0), 2).unwrap();
        let address = tcp(&bound[0]);
        let rigs: Vec<Rig> = bound.into_iter().map(Rig::start).collect();
        let mut clients = Vec::new();
        for number in 0..60 {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_u8(b'a').await.unwrap();
            clients.push(client);
            if number == 30 {
                tokio::task::yield_now().await;
            }
        }
        // One after the other: the second may still hand over to the first.
        rigs[0].stop.cancel();
        tokio::task::yield_now().await;
        rigs[1].stop.cancel();
        for mut client in clients {
            assert_eq!(client.read_u8().await.unwrap(), b'a');
        }
        for rig in rigs {
            rig.accepting.await.unwrap().unwrap();
        }
    }
}

/// Nanoseconds of processor time this thread has used.
fn processor_time() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Started by the test below, in a process that may open only a few files.
#[tokio::test]
#[ignore = "needs a process of its own with few descriptors"]
async fn accept_with_few_descriptors() {
    let bound = bind(&loopback(0), 1).unwrap().remove(0);
    let address = tcp(&bound);
    let rig = Rig::start(bound);
    assert_eq!(echo(address, b'a').await.unwrap(), b'a');
    rig.connections.close();
    rig.connections.wait().await;

    let before = processor_time();
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_u8(b'b').await.unwrap();
    // Taken before the loop has had a chance to run: it finds none left.
    let taken: Vec<File> = std::iter::from_fn(|| File::open(Path::new("/dev/null")).ok()).collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(rig.peers.lock().len(), 1);
    drop(taken);
    assert_eq!(client.read_u8().await.unwrap(), b'b');
    let used = Duration::from_nanos(processor_time() - before);
    assert!(used < Duration::from_millis(200), "it spun: {used:?}");
}

#[test]
fn without_descriptors_accepting_waits_and_recovers() {
    let run = std::process::Command::new("sh")
        .arg("-c")
        .arg("ulimit -n 40; exec \"$0\" --exact listen::tests::accept_with_few_descriptors --ignored --test-threads 1")
        .arg(std::env::current_exe().unwrap())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && told.contains("1 passed"), "{told}");
}
