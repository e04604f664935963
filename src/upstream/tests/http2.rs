//! Backends that speak HTTP/2, well and badly.

use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;

use h2::server::SendResponse;
use h2::{Reason, RecvStream, server};
use http::HeaderMap;
use tokio::net::TcpListener;

use super::*;
use crate::upstream::http2::connections;

/// A backend that does this with every request; counts connections and requests.
pub(super) struct Backend2 {
    pub(super) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

/// A request that has come, and where its answer goes.
struct Asked {
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    /// Which request of all.
    number: usize,
}

impl Backend2 {
    async fn start<F>(streams: u32, answer: impl Fn(Asked) -> F + Clone + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let backend = Self {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
            requests: Arc::default(),
        };
        let (connections, requests) = (
            Arc::clone(&backend.connections),
            Arc::clone(&backend.requests),
        );
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                connections.fetch_add(1, Ordering::Relaxed);
                let (requests, answer) = (Arc::clone(&requests), answer.clone());
                tokio::spawn(async move {
                    let mut builder = server::Builder::new();
                    builder.max_concurrent_streams(streams);
                    let mut connection = builder.handshake::<_, Bytes>(socket).await.unwrap();
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        let number = requests.fetch_add(1, Ordering::Relaxed);
                        tokio::spawn(answer(Asked {
                            request,
                            respond,
                            number,
                        }));
                    }
                });
            }
        });
        backend
    }

    fn road(&self) -> Road {
        let mut plan = plan_to(&[]);
        plan.servers = vec![server(self.address)];
        let mut road = Road::with(&plan);
        road.proxy_pass.version = plan::HttpVersion::Two;
        road
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Asked {
    /// Says this, all of it.
    fn say(&mut self, text: &'static str) {
        let mut stream = self
            .respond
            .send_response(Response::new(()), false)
            .unwrap();
        stream
            .send_data(Bytes::from_static(text.as_bytes()), true)
            .unwrap();
    }
}

pub(super) async fn ok() -> Backend2 {
    Backend2::start(100, |mut asked| async move { asked.say("ok") }).await
}

fn streamed(method: Method) -> OutgoingRequest {
    streamed_with(method, RequestBody::none())
}

fn streamed_with(method: Method, body: RequestBody) -> OutgoingRequest {
    let request = Request::builder()
        .method(method.clone())
        .uri("http://origin/path?query")
        .version(http::Version::HTTP_2);
    OutgoingRequest {
        method,
        head: OutgoingHead::Http2(Box::new(request.body(()).unwrap())),
        body: PendingBody::new(body),
        upgrade: None,
        raw_headers: false,
    }
}

/// Asks in a task of its own; all who share `upstream` share its connections.
fn spawn_get(upstream: &Arc<Upstream>, mut road: Road) -> tokio::task::JoinHandle<String> {
    let upstream = Arc::clone(upstream);
    tokio::spawn(async move {
        let (record, proxy_pass) = (&mut road.record, &road.proxy_pass);
        let sent = upstream.send(record, proxy_pass, streamed(Method::GET), &road.clock);
        text(sent.await.unwrap()).await.unwrap()
    })
}

pub(super) async fn get(road: &mut Road) -> String {
    let response = road.send(streamed(Method::GET)).await.unwrap();
    text(response).await.unwrap()
}

#[tokio::test]
async fn requests_share_a_connection() {
    let backend = ok().await;
    let mut road = backend.road();
    for _ in 0..10 {
        assert_eq!(get(&mut road).await, "ok");
    }
    assert_eq!((backend.connections(), backend.requests()), (1, 10));
    assert_eq!(road.statuses(), [200; 10]);
}

#[tokio::test]
async fn a_burst_at_a_cold_start_makes_one_connection() {
    let backend = ok().await;
    let plan = backend.road().upstream;
    let upstream = Arc::new(plan);
    let calls = (0..50).map(|_| spawn_get(&upstream, backend.road()));
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap(), "ok");
    }
    assert_eq!(backend.connections(), 1);
    assert_eq!(
        connections(&upstream.backends()[0], &backend.road().proxy_pass),
        1
    );
}

/// The backend takes two at once: five need three connections.
#[tokio::test]
async fn another_connection_is_made_only_when_none_has_room() {
    let (open, gate) = tokio::sync::watch::channel(false);
    let backend = Backend2::start(2, move |mut asked| {
        let mut gate = gate.clone();
        async move {
            gate.wait_for(|open| *open).await.unwrap();
            asked.say("ok");
        }
    })
    .await;
    let upstream = Arc::new(backend.road().upstream);
    // The first one learns how many the backend takes.
    let call = || spawn_get(&upstream, backend.road());
    let mut calls = Vec::new();
    for count in 1..=5 {
        calls.push(call());
        while backend.requests() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    assert_eq!(backend.connections(), 3);
    open.send(true).unwrap();
    for call in calls {
        assert_eq!(call.await.unwrap(), "ok");
    }
}

#[tokio::test]
async fn a_refused_stream_is_sent_again_even_with_a_body() {
    let backend = Backend2::start(100, |mut asked| async move {
        if asked.number == 0 {
            asked.respond.send_reset(Reason::REFUSED_STREAM);
            return;
        }
        let body = asked.request.body_mut().data().await.unwrap().unwrap();
        assert_eq!(body, "hello");
        asked.say("ok");
    })
    .await;
    let mut road = backend.road();
    let (upload, mut client) = upload("content-length: 5", "").await;
    let outgoing = streamed_with(Method::POST, upload);
    // The body arrives with the second poll.
    let requests = Arc::clone(&backend.requests);
    tokio::spawn(async move {
        while requests.load(Ordering::Relaxed) < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        client.write_all(b"hello").await.unwrap();
        std::future::pending::<()>().await;
    });
    let response = road.send(outgoing).await.unwrap();
    assert_eq!(text(response).await.unwrap(), "ok");
    assert_eq!(road.statuses(), [200]);
}

#[tokio::test]
async fn a_reset_that_is_no_refusal_is_a_failure() {
    let backend = Backend2::start(100, |mut asked| async move {
        asked.respond.send_reset(Reason::INTERNAL_ERROR);
    })
    .await;
    let mut road = backend.road();
    let error = road.send(streamed(Method::POST)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "upstream rejected request with error 2 while reading response header from upstream"
    );
    assert_eq!(backend.requests(), 1);
}

#[tokio::test]
async fn trailers_follow_an_answer() {
    let backend = Backend2::start(100, |mut asked| async move {
        let mut stream = asked
            .respond
            .send_response(Response::new(()), false)
            .unwrap();
        stream
            .send_data(Bytes::from_static(b"body"), false)
            .unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", 0.into());
        stream.send_trailers(trailers).unwrap();
    })
    .await;
    let mut road = backend.road();
    let response = road.send(streamed(Method::GET)).await.unwrap();
    let whole = response.into_body().collect().await.unwrap();
    assert_eq!(whole.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(whole.to_bytes(), "body");
}

#[tokio::test]
async fn an_answer_that_is_reset_is_not_whole() {
    let backend = Backend2::start(100, |mut asked| async move {
        let mut stream = asked
            .respond
            .send_response(Response::new(()), false)
            .unwrap();
        stream
            .send_data(Bytes::from_static(b"part"), false)
            .unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        stream.send_reset(Reason::INTERNAL_ERROR);
    })
    .await;
    let mut road = backend.road();
    let response = road.send(streamed(Method::GET)).await.unwrap();
    assert!(matches!(text(response).await, Err(Error::Truncated(_))));
}

#[tokio::test]
async fn who_gives_up_resets_the_stream_and_keeps_the_connection() {
    let (told, mut reset) = tokio::sync::mpsc::unbounded_channel();
    let backend = Backend2::start(100, move |mut asked| {
        let told = told.clone();
        async move {
            if asked.number > 0 {
                return asked.say("ok");
            }
            let mut stream = asked
                .respond
                .send_response(Response::new(()), false)
                .unwrap();
            let reason = std::future::poll_fn(|context| stream.poll_reset(context)).await;
            told.send(reason.unwrap()).unwrap();
        }
    })
    .await;
    let mut road = backend.road();
    drop(road.send(streamed(Method::GET)).await.unwrap());
    assert_eq!(reset.recv().await, Some(Reason::CANCEL));
    assert_eq!(get(&mut road).await, "ok");
    assert_eq!(backend.connections(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_says_nothing_is_given_up_in_time() {
    let backend = Backend2::start(100, |asked| async move {
        tokio::time::sleep(Duration::from_secs(60)).await;
        drop(asked);
    })
    .await;
    let mut road = backend.road();
    let error = road.send(streamed(Method::GET)).await.unwrap_err();
    assert!(matches!(error, Error::Timeout(Stage::Head)), "{error}");
}

/// The deadline of a call that is under way is told in gRPC's own way.
#[tokio::test(start_paused = true)]
async fn a_call_whose_deadline_passes_ends_with_a_status() {
    let backend = Backend2::start(100, |mut asked| async move {
        let mut stream = asked
            .respond
            .send_response(Response::new(()), false)
            .unwrap();
        stream
            .send_data(Bytes::from_static(b"part"), false)
            .unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
    })
    .await;
    let mut road = backend.road();
    let fields = [("content-type", "application/grpc"), ("grpc-timeout", "2S")];
    road.record = crate::message::testing::request("POST", "/a.B/C", &fields);
    road.clock = Clock::by_hand(Millis(1000));
    let response = road.send(streamed(Method::POST)).await.unwrap();
    let whole = response.into_body().collect().await.unwrap();
    assert_eq!(whole.trailers().unwrap()["grpc-status"], "4");
}

/// Frames without a reply: the other machine is gone, its kernel with it.
#[tokio::test(start_paused = true)]
async fn a_dead_connection_is_noticed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = Backend2 {
        address: listener.local_addr().unwrap(),
        connections: Arc::default(),
        requests: Arc::default(),
    };
    let silent = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket
            .write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])
            .await
            .unwrap();
        std::future::pending::<()>().await;
    });
    let mut road = backend.road();
    road.proxy_pass.settings.proxy_read_timeout = Duration::from_secs(3600);
    let began = tokio::time::Instant::now();
    assert!(road.send(streamed(Method::POST)).await.is_err());
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
    silent.abort();
}
