//! One request on a connection of its own: for those who come seldom and share nothing.

use std::pin::pin;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, Request};

use super::broken;
use super::io::UpstreamHttp2Io;
use super::pool::builder;
use crate::upstream::error::Error;
use crate::upstream::wire::UpstreamSocket;

/// An answer, and what was read of its body.
#[derive(Debug)]
pub(in crate::upstream) struct ProbeResponse {
    pub(in crate::upstream) head: Parts,
    pub(in crate::upstream) body: Vec<u8>,
    pub(in crate::upstream) trailers: Option<HeaderMap>,
}

/// Asks, and reads no more than about `most` bytes of the answer's body.
pub(in crate::upstream) async fn once(
    socket: UpstreamSocket,
    request: Request<()>,
    body: Bytes,
    most: usize,
) -> Result<ProbeResponse, Error> {
    let io = UpstreamHttp2Io::new(socket, Default::default());
    let (send, connection) = builder().handshake::<_, Bytes>(io).await.map_err(broken)?;
    let mut asking = pin!(async move {
        let mut send = send.ready().await?;
        let (response, mut stream) = send.send_request(request, body.is_empty())?;
        if !body.is_empty() {
            stream.send_data(body, true)?;
        }
        let (head, mut stream) = response.await?.into_parts();
        let mut body = Vec::new();
        while body.len() < most
            && let Some(data) = stream.data().await
        {
            let data = data?;
            stream.flow_control().release_capacity(data.len())?;
            body.extend_from_slice(&data);
        }
        let trailers = match body.len() < most {
            true => stream.trailers().await?,
            false => None,
        };
        Ok::<_, h2::Error>(ProbeResponse {
            head,
            body,
            trailers,
        })
    });
    let answered = tokio::select! {
        biased;
        answered = &mut asking => answered,
        // What it has read before its end is still there to be asked for.
        _ = connection => asking.await,
    };
    answered.map_err(broken)
}
