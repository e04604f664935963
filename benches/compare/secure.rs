//! TLS from the client's side: the certificate that all proxies show, and a connection that trusts it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::Result;

/// Whatever one can read from and write to.
pub(crate) trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

/// ECDSA on P-256, as most sites have.
static PAIR: LazyLock<rcgen::CertifiedKey<rcgen::KeyPair>> = LazyLock::new(|| {
    rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a key can be made")
});

static CONFIG: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add(PAIR.cert.der().clone()).expect("it is sound");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("they are there")
        .with_root_certificates(roots)
        .with_no_client_auth();
    // All servers here have one name: a ticket of one would be shown to the next.
    config.resumption = Resumption::disabled();
    Arc::new(config)
});

/// Writes the certificate, its key, and both in one file, as HAProxy wants them.
pub(crate) fn write(home: &Path) -> std::io::Result<()> {
    let (chain, key) = (PAIR.cert.pem(), PAIR.signing_key.serialize_pem());
    std::fs::write(home.join("cert.pem"), &chain)?;
    std::fs::write(home.join("key.pem"), &key)?;
    std::fs::write(home.join("both.pem"), chain + &key)
}

/// A connection, inside TLS or not.
pub(crate) fn connect(address: SocketAddr, tls: bool) -> Result<Box<dyn Stream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    if !tls {
        return Ok(Box::new(stream));
    }
    let name = ServerName::try_from("localhost")?;
    let tls = ClientConnection::new(Arc::clone(&CONFIG), name)?;
    Ok(Box::new(StreamOwned::new(tls, stream)))
}
