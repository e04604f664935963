//! Certificates, keys and lists from PEM files, what can be wrong with them, and their renewal while weir runs.
//!
//! Files are polled rather than watched: certificates are renewed by writes in place, by renames, or by a link to another
//! folder, as in Kubernetes, and only polling sees all of that. A change is used when the files are the same in two polls, so
//! that no half-written file is read.

use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, io};

use memchr::memmem;
use parking_lot::{Mutex, RwLock};
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::sign;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime, pem,
};
use rustls::sign::{CertifiedKey, SigningKey};

use super::x509;
use crate::clock::Clock;
use crate::config::plan::{Certificate, TlsFile};
use crate::config::{FileStamp, stamp};

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("`{}` {kind}", file.path.display())]
pub struct Error {
    /// Which, and where it is named.
    pub file: TlsFile,
    /// Why not.
    pub kind: FileErrorKind,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum FileErrorKind {
    /// The content of the PEM block is not a certificate.
    #[error("holds a certificate that is damaged")]
    Damaged,
    /// A key behind a passphrase, which cannot be entered.
    #[error("holds an encrypted key")]
    EncryptedKey,
    /// Its time is over.
    #[error("holds a certificate that expired on {}", day(*.0))]
    Expired(i64),
    /// Most often the certificate was renewed and the key was not, or an intermediate stands first.
    #[error("holds a key that does not match the certificate in `{0}`")]
    Mismatch(String),
    /// The file is something else; often the key was named in place of the certificate.
    #[error("holds no certificate")]
    NoCertificate,
    /// The file is something else; often the certificate was named in place of the key.
    #[error("holds no private key")]
    NoKey,
    /// The file holds none of the lists it was named for.
    #[error("holds no list of revoked certificates that can be read")]
    NoList,
    /// Its time has not come; often a clock is wrong.
    #[error("holds a certificate that is not valid before {}", day(*.0))]
    NotYetValid(i64),
    /// Often DER.
    #[error("is not PEM")]
    NotPem,
    /// Not there, or not ours to read.
    #[error("cannot be read: {}", reason(.0))]
    Read(#[source] io::Error),
    /// rustls refuses it.
    #[error("cannot be used: {0}")]
    Refused(#[source] rustls::Error),
    /// An OCSP response is one element of DER.
    #[error("is not an OCSP answer in DER")]
    Staple,
}

impl FileErrorKind {
    /// What to do about it.
    pub(super) fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::EncryptedKey => {
                "weir cannot ask for a passphrase: `openssl pkey -in key.pem -out plain.pem`"
            }
            Self::Mismatch(_) => {
                "the server's own certificate comes first in its file, those that lead to a root behind it"
            }
            Self::NotPem => {
                "a file in DER is converted with `openssl x509 -inform der` or `openssl pkey -inform der`"
            }
            Self::Read(_) => "a relative name is looked for beside the file that names it",
            _ => return None,
        })
    }

    /// Whether there is nothing wrong but the time.
    pub(super) fn is_validity_error(&self) -> bool {
        matches!(self, Self::Expired(_) | Self::NotYetValid(_))
    }

    pub(super) fn of(self, file: &TlsFile) -> Error {
        Error {
            file: file.clone(),
            kind: self,
        }
    }
}

/// The certificates in a file, the first of which has to be readable.
pub(super) fn chain(file: &TlsFile) -> Result<Vec<CertificateDer<'static>>, Error> {
    let text = read(file)?;
    let chain = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| FileErrorKind::NotPem.of(file))?;
    match chain.first() {
        None if !text.is_empty() && memmem::find(&text, b"-----BEGIN ").is_none() => {
            Err(FileErrorKind::NotPem.of(file))
        }
        None => Err(FileErrorKind::NoCertificate.of(file)),
        Some(own) if parse(own).is_none() => Err(FileErrorKind::Damaged.of(file)),
        Some(_) => Ok(chain),
    }
}

/// The first key in a file.
pub(super) fn key(file: &TlsFile) -> Result<Arc<dyn SigningKey>, Error> {
    let text = read(file)?;
    // An old form says so only inside: it is decoded, and not a key then.
    let is_encrypted = memmem::find(&text, b"ENCRYPTED").is_some();
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let kind = match error {
            _ if is_encrypted => FileErrorKind::EncryptedKey,
            pem::Error::NoItemsFound => FileErrorKind::NoKey,
            _ => FileErrorKind::NotPem,
        };
        kind.of(file)
    })?;
    sign::any_supported_type(&key).map_err(|_| {
        let unusable = rustls::Error::General("a kind of key that is not supported".into());
        let kind = match is_encrypted {
            true => FileErrorKind::EncryptedKey,
            false => FileErrorKind::Refused(unusable),
        };
        kind.of(file)
    })
}

/// A certificate and its key, if they belong together.
pub(super) fn pair(
    chain: Vec<CertificateDer<'static>>,
    key: Arc<dyn SigningKey>,
    named: &Certificate,
) -> Result<CertifiedKey, Error> {
    let pair = CertifiedKey::new(chain, key);
    match pair.keys_match() {
        // A key whose kind does not allow the check passes.
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
            Ok(pair)
        }
        Err(rustls::Error::InconsistentKeys(_)) => {
            let chain = named.chain.path.display().to_string();
            Err(FileErrorKind::Mismatch(chain).of(&named.key))
        }
        Err(error) => Err(FileErrorKind::Refused(error).of(&named.chain)),
    }
}

/// An OCSP response about a certificate.
pub(super) fn staple(file: &TlsFile) -> Result<Vec<u8>, Error> {
    let bytes = read(file)?;
    let mut elements = x509::DerReader(&bytes);
    match elements.content(x509::SEQUENCE) {
        Some(_) if elements.0.is_empty() => Ok(bytes),
        _ => Err(FileErrorKind::Staple.of(file)),
    }
}

/// A certificate, its key and its OCSP response.
pub(super) fn certified_key(named: &Certificate) -> Result<CertifiedKey, Error> {
    let mut made = pair(chain(&named.chain)?, key(&named.key)?, named)?;
    made.ocsp = named.staple.as_ref().map(staple).transpose()?;
    Ok(made)
}

/// Certificates to trust.
pub(super) fn roots(file: &TlsFile) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for root in chain(file)? {
        roots
            .add(root)
            .map_err(|error| FileErrorKind::Refused(error).of(file))?;
    }
    Ok(roots)
}

/// Lists of revoked certificates.
pub(super) fn lists(file: &TlsFile) -> Result<Vec<CertificateRevocationListDer<'static>>, Error> {
    let text = read(file)?;
    let lists = CertificateRevocationListDer::pem_slice_iter(&text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| FileErrorKind::NotPem.of(file))?;
    let sound = |list: &CertificateRevocationListDer<'_>| {
        webpki::BorrowedCertRevocationList::from_der(list).is_ok()
    };
    if lists.is_empty() || !lists.iter().all(sound) {
        return Err(FileErrorKind::NoList.of(file));
    }
    Ok(lists)
}

/// What is wrong with the time of a chain's own certificate.
pub(super) fn validity_error(own: &CertificateDer<'_>, now: UnixTime) -> Option<FileErrorKind> {
    let certificate = parse(own)?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now > certificate.not_after {
        return Some(FileErrorKind::Expired(certificate.not_after));
    }
    (now < certificate.not_before).then_some(FileErrorKind::NotYetValid(certificate.not_before))
}

/// The time of day, to compare with that of certificates.
pub(super) fn now() -> UnixTime {
    UnixTime::since_unix_epoch(Clock::wall())
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Option<x509::X509Parts<'a>> {
    webpki::EndEntityCert::try_from(certificate).ok()?;
    x509::X509Parts::parse(certificate)
}

fn read(file: &TlsFile) -> Result<Vec<u8>, Error> {
    fs::read(&file.path).map_err(|error| FileErrorKind::Read(error).of(file))
}

/// An error of rustls about the files of a plan, reported at `file`.
pub(super) fn refused(error: rustls::Error, file: Option<&TlsFile>) -> Error {
    let nowhere = TlsFile::nowhere();
    FileErrorKind::Refused(error).of(file.unwrap_or(&nowhere))
}

fn day(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map_or_else(
        |_| format!("{seconds} s after 1970"),
        |moment| moment.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
    )
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".into(),
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        io::ErrorKind::IsADirectory => "it is a directory".into(),
        _ => error.to_string(),
    }
}

/// Something made from files, and made again when they change.
#[derive(Debug)]
pub(super) struct Reloadable<T> {
    current: RwLock<Arc<T>>,
    files: Vec<PathBuf>,
    stamps: Mutex<FileStamps>,
}

/// The result of polling the files.
#[derive(Debug)]
pub enum ReloadResult {
    /// They changed and cannot be used; what was made before stays.
    Kept(Error),
    /// They changed, and what is made from them is in use.
    Renewed,
    /// They are as they were.
    Same,
}

/// The stamps of the files as they are used, and as they were at the last poll.
#[derive(Debug)]
struct FileStamps {
    used: Vec<FileStamp>,
    seen: Vec<FileStamp>,
}

impl<T> Reloadable<T> {
    /// Makes it for the first time.
    pub(super) fn new(
        files: Vec<PathBuf>,
        make: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Self, Error> {
        // Before they are read: what changes meanwhile is then noticed.
        let used: Vec<_> = files.iter().map(|file| stamp(file)).collect();
        let seen = used.clone();
        Ok(Self {
            current: RwLock::new(Arc::new(make()?)),
            files,
            stamps: Mutex::new(FileStamps { used, seen }),
        })
    }

    /// As it is now.
    pub(super) fn get(&self) -> Arc<T> {
        Arc::clone(&self.current.read())
    }

    /// Polls the files, and makes it again if they have changed and were the same in the last poll.
    pub(super) fn refresh(&self, make: impl FnOnce() -> Result<T, Error>) -> ReloadResult {
        if !self.has_changed() {
            return ReloadResult::Same;
        }
        match make() {
            Ok(made) => {
                *self.current.write() = Arc::new(made);
                ReloadResult::Renewed
            }
            Err(error) => ReloadResult::Kept(error),
        }
    }

    /// Whether there is a change to use. True once for each: a file that cannot be used is not tried again until it changes.
    fn has_changed(&self) -> bool {
        let now: Vec<_> = self.files.iter().map(|file| stamp(file)).collect();
        let mut stamps = self.stamps.lock();
        let is_stable = now == stamps.seen;
        let is_new = now != stamps.used;
        stamps.seen = now;
        if is_stable && is_new {
            stamps.used = stamps.seen.clone();
        }
        is_stable && is_new
    }
}

#[cfg(test)]
mod tests {

    use std::fs;

    use super::*;

    #[test]
    fn a_change_is_taken_up_once_and_when_it_stands_still() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a");
        fs::write(&path, "one").unwrap();
        let read = || Ok(fs::read_to_string(&path).unwrap());
        let watched = Reloadable::new(vec![path.clone()], read).unwrap();
        assert!(matches!(watched.refresh(read), ReloadResult::Same));

        fs::write(&path, "three").unwrap();
        assert!(
            matches!(watched.refresh(read), ReloadResult::Same),
            "too soon"
        );
        assert!(matches!(watched.refresh(read), ReloadResult::Renewed));
        assert!(matches!(watched.refresh(read), ReloadResult::Same));
        assert_eq!(*watched.get(), "three");
    }

    #[test]
    fn a_swapped_link_to_a_folder_is_a_change() {
        let home = tempfile::tempdir().unwrap();
        let link = home.path().join("data");
        for name in ["1", "2"] {
            fs::create_dir(home.path().join(name)).unwrap();
            fs::write(home.path().join(name).join("a"), name).unwrap();
        }
        std::os::unix::fs::symlink("1", &link).unwrap();
        let path = link.join("a");
        let read = || Ok(fs::read_to_string(&path).unwrap());
        let watched = Reloadable::new(vec![path.clone()], read).unwrap();

        let next = home.path().join("next");
        std::os::unix::fs::symlink("2", &next).unwrap();
        fs::rename(&next, &link).unwrap();
        watched.refresh(read);
        assert!(matches!(watched.refresh(read), ReloadResult::Renewed));
        assert_eq!(*watched.get(), "2");
    }
}
