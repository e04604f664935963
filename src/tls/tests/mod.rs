//! Both ends of a stream over a pipe that holds less than a record.

use std::io;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::stream::{TlsSession, TlsStream};
use crate::net::Stream;

/// A server's end and a client's, not yet agreed, with a pipe of this size between them.
fn ends(pipe: usize, needs_close_notify: bool) -> (TlsStream, TlsStream) {
    ends_of("a.example", pipe, needs_close_notify)
}

/// The same, with a client that asks for this name.
fn ends_of(name: &'static str, pipe: usize, needs_close_notify: bool) -> (TlsStream, TlsStream) {
    let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let server = ServerConfig::builder_with_provider(crate::tls::stream::provider(&[]))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(crate::tls::stream::provider(&[]))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(name).unwrap();
    let (near, far) = tokio::io::duplex(pipe);
    let (near, far) = (Stream::Test(near), Stream::Test(far));
    let server = UnbufferedServerConnection::new(Arc::new(server)).unwrap();
    let client = UnbufferedClientConnection::new(Arc::new(client), name).unwrap();
    (
        TlsStream::new(near, TlsSession::Server(server), &[], false),
        TlsStream::new(far, TlsSession::Client(client), &[], needs_close_notify),
    )
}

async fn agreed(mut stream: TlsStream) -> TlsStream {
    std::future::poll_fn(|context| stream.poll_handshake(context))
        .await
        .unwrap();
    stream
}

#[tokio::test]
async fn what_does_not_fit_at_once_arrives_whole_and_in_order() {
    for pipe in [7, 1000, 100_000] {
        let (server, client) = ends(pipe, true);
        let sent: Vec<u8> = (0..200_000_u32).map(|i| (i % 251) as u8).collect();
        let expected = sent.clone();
        let serving = tokio::spawn(async move {
            let mut server = agreed(server).await;
            let mut came = vec![0; sent.len()];
            server.read_exact(&mut came).await.unwrap();
            server.write_all(&came).await.unwrap();
            server.shutdown().await.unwrap();
        });
        let mut client = agreed(client).await;
        client.write_all(&expected).await.unwrap();
        let mut back = Vec::new();
        client.read_to_end(&mut back).await.unwrap();
        assert!(back == expected, "{} bytes over {pipe}", back.len());
        serving.await.unwrap();
    }
}

#[tokio::test]
async fn an_end_without_a_goodbye_is_told_where_it_matters() {
    for (needs_close_notify, said) in [(true, Err(io::ErrorKind::UnexpectedEof)), (false, Ok(4))] {
        let (server, client) = ends(100_000, needs_close_notify);
        let serving = tokio::spawn(async move {
            let mut server = agreed(server).await;
            server.write_all(b"half").await.unwrap();
        });
        let mut client = agreed(client).await;
        serving.await.unwrap();
        let mut back = Vec::new();
        let read = client.read_to_end(&mut back).await;
        assert_eq!(read.map_err(|error| error.kind()), said);
        assert_eq!(back, b"half");
    }
}

#[tokio::test]
async fn a_goodbye_is_an_end_like_any_other() {
    let (server, client) = ends(100_000, true);
    let serving = tokio::spawn(async move {
        let mut server = agreed(server).await;
        server.write_all(b"all").await.unwrap();
        server.close_notify();
    });
    let mut client = agreed(client).await;
    serving.await.unwrap();
    let mut back = String::new();
    client.read_to_string(&mut back).await.unwrap();
    assert_eq!(back, "all");
}

/// rustls packs the server's handshake into one record: when the certificate is refused, the rest of it is still to be read.
#[tokio::test]
async fn a_certificate_that_is_refused_fails_the_handshake_and_nothing_else() {
    for pipe in [7, 1000, 100_000] {
        let (mut server, mut client) = ends_of("b.example", pipe, true);
        let serving = tokio::spawn(async move {
            std::future::poll_fn(|context| server.poll_handshake(context)).await?;
            server.read_u8().await
        });
        let refused = std::future::poll_fn(|context| client.poll_handshake(context)).await;
        let objection = crate::tls::client::objection(&refused.unwrap_err());
        assert_eq!(objection, Some(crate::tls::client::ServerCertError::Name));
        // The owner of the stream may still use it.
        let written = client.write_all(b"hello").await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        client.close_notify();
        client.shutdown().await.unwrap();
        let told = serving.await.unwrap().unwrap_err().to_string();
        assert!(told.contains("BadCertificate"), "{told}");
    }
}
