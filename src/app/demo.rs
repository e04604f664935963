//! The embedded demo: an echo upstream inside the process, and a configuration in front of it.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

/// The demo's configuration; `${ECHO}` in it is the echo upstream's address.
pub(super) const CONFIGURATION: &str = include_str!("../../conf/demo.yaml");

/// Starts the echo upstream on a thread of its own, and gives its address.
///
/// # Errors
/// When no loopback port or no thread can be had.
pub fn start_demo() -> std::io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::Builder::new()
        .name("weir-echo".into())
        .spawn(move || {
            runtime.block_on(async {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
                    return;
                };
                loop {
                    let Ok((stream, _)) = listener.accept().await else {
                        continue;
                    };
                    let connection = http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service_fn(echo));
                    tokio::spawn(async move {
                        if let Err(error) = connection.await {
                            tracing::debug!(%error, "echo connection");
                        }
                    });
                }
            });
        })?;
    Ok(address)
}

/// Responds with the request it got, which shows what weir forwards. `/slow` takes a second.
async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() == "/slow" {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    let mut text = format!("{} {}\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        // Writing to a String cannot fail.
        let _written = writeln!(
            text,
            "{name}: {}",
            String::from_utf8_lossy(value.as_bytes())
        );
    }
    let mut response = Response::new(Full::new(Bytes::from(text)));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    Ok(response)
}
