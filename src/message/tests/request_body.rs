//! A body as the client sends it.

use std::convert::Infallible;

use http_body_util::{BodyExt, Empty};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncWriteExt, duplex};

use super::*;

/// What becomes of a request's body that reads like this on the wire, and how far it came.
async fn read(
    wire: &str,
    limit: Option<u64>,
) -> (Result<Bytes, RequestBodyError>, Arc<UploadProgress>) {
    let (mut client, server) = duplex(4096);
    client.write_all(wire.as_bytes()).await.unwrap();
    let seen = Mutex::new(None);
    let service = service_fn(|request: http::Request<hyper::body::Incoming>| {
        let upload = RequestBody::new(
            IncomingBody::Http1(request.into_body()),
            limit,
            Duration::from_secs(60),
            MinRate(100),
        );
        let progress = upload.progress().unwrap_or_default();
        assert!(!progress.touched.get());
        let seen = &seen;
        async move {
            let result = upload.collect().await.map(|body| body.to_bytes());
            *seen.lock() = Some((result, progress));
            Ok::<_, Infallible>(http::Response::new(Empty::<Bytes>::new()))
        }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(server), service);
    // How the connection itself ends is hyper's affair.
    drop(connection.await);
    drop(client);
    seen.into_inner().expect("the request was seen")
}

#[tokio::test(start_paused = true)]
async fn a_body_within_its_bounds_is_read_to_its_end() {
    let (result, progress) = read(
        "POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nhello",
        Some(5),
    )
    .await;
    assert_eq!(result.unwrap(), "hello");
    assert_eq!(progress.received.get(), 5);
    assert!(progress.touched.get() && progress.ended.get());
}

#[tokio::test(start_paused = true)]
async fn a_chunked_body_is_counted_as_it_comes() {
    let wire = "POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n";
    let (result, progress) = read(wire, Some(5)).await;
    assert!(
        matches!(result, Err(RequestBodyError::TooLarge)),
        "{result:?}"
    );
    assert!(!progress.ended.get());
    assert_eq!(read(wire, None).await.0.unwrap(), "abcdef");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_pauses_too_long_is_given_up() {
    let (result, progress) = read(
        "POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nhe",
        None,
    )
    .await;
    assert!(
        matches!(result, Err(RequestBodyError::Paused)),
        "{result:?}"
    );
    assert_eq!(progress.received.get(), 2);
    assert!(!progress.ended.get());
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_not_well_formed_is_broken() {
    let wire = "POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n";
    let (result, _) = read(wire, None).await;
    assert!(
        matches!(result, Err(RequestBodyError::Broken(_))),
        "{result:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_body_has_no_progress_to_follow() {
    let (result, progress) = read("GET / HTTP/1.1\r\nhost: h\r\n\r\n", None).await;
    assert!(result.unwrap().is_empty());
    assert!(!progress.touched.get());
}
