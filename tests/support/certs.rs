//! Certificates made for a test, by an authority of its own.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
};
use tempfile::TempDir;

/// An authority and a directory with what it has issued.
#[derive(Debug)]
pub(crate) struct Certs {
    directory: TempDir,
    authority: Issuer<'static, KeyPair>,
}

/// What a certificate is to be.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    names: Vec<String>,
    years: (i32, i32),
    serial: u64,
    rsa: bool,
    authority: bool,
}

/// One for these names, good for long.
pub(crate) fn wanted(names: &[&str]) -> Wanted {
    Wanted {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        years: (2020, 2090),
        serial: 0x1A2B,
        rsa: false,
        authority: false,
    }
}

impl Wanted {
    /// From one new year to another.
    pub(crate) fn years(mut self, from: i32, to: i32) -> Self {
        self.years = (from, to);
        self
    }

    pub(crate) fn serial(mut self, serial: u64) -> Self {
        self.serial = serial;
        self
    }

    pub(crate) fn rsa(mut self) -> Self {
        self.rsa = true;
        self
    }

    /// One that could issue others, as `openssl req -x509` makes them.
    pub(crate) fn authority(mut self) -> Self {
        self.authority = true;
        self
    }

    fn params(&self) -> CertificateParams {
        let mut params = CertificateParams::new(self.names.clone()).expect("they are names");
        let name = &mut params.distinguished_name;
        name.push(DnType::CountryName, "DE");
        name.push(DnType::OrganizationName, "Wehr, Mühle & Co");
        let first = self.names.first().map_or("unnamed", String::as_str);
        name.push(DnType::CommonName, first);
        params.not_before = rcgen::date_time_ymd(self.years.0, 1, 1);
        params.not_after = rcgen::date_time_ymd(self.years.1, 1, 1);
        if self.authority {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        params.serial_number = Some(SerialNumber::from(self.serial));
        params
    }

    fn key(&self) -> KeyPair {
        match self.rsa {
            true => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048),
            false => KeyPair::generate(),
        }
        .expect("a key can be made")
    }
}

impl Certs {
    /// An authority whose certificate is in `ca.pem`, and its key in `ca.key`.
    pub(crate) fn new() -> Self {
        Self::named("Weir's own authority")
    }

    /// One of another name.
    pub(crate) fn named(name: &str) -> Self {
        let directory = tempfile::tempdir().expect("the temporary directory can be written");
        let key = KeyPair::generate().expect("a key can be made");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let made = params.self_signed(&key).expect("it can be signed");
        let certs = Self {
            directory,
            authority: Issuer::new(params, key),
        };
        certs.write("ca.pem", made.pem());
        certs.write("ca.key", certs.authority.key().serialize_pem());
        certs
    }

    /// Issues one as `NAME.pem` and `NAME.key`.
    pub(crate) fn issue(&self, name: &str, wanted: &Wanted) {
        let key = wanted.key();
        let made = wanted.params().signed_by(&key, &self.authority);
        self.write(
            &format!("{name}.pem"),
            made.expect("it can be signed").pem(),
        );
        self.write(&format!("{name}.key"), key.serialize_pem());
    }

    /// The same with another authority in between, which is in `NAME.pem`, too.
    pub(crate) fn issue_through(&self, name: &str, wanted: &Wanted) {
        let (between, key) = (
            KeyPair::generate().expect("a key can be made"),
            wanted.key(),
        );
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
            .distinguished_name
            .push(DnType::CommonName, "Intermediate authority");
        let made = params
            .signed_by(&between, &self.authority)
            .expect("it can be signed");
        let own = wanted
            .params()
            .signed_by(&key, &Issuer::new(params, between));
        let own = own.expect("it can be signed").pem();
        self.write(&format!("{name}.pem"), own + &made.pem());
        self.write(&format!("{name}.key"), key.serialize_pem());
    }

    /// A self-signed certificate.
    pub(crate) fn sign_itself(&self, name: &str, wanted: &Wanted) {
        let key = wanted.key();
        let made = wanted.params().self_signed(&key);
        self.write(
            &format!("{name}.pem"),
            made.expect("it can be signed").pem(),
        );
        self.write(&format!("{name}.key"), key.serialize_pem());
    }

    /// A list in `NAME` of the revoked certificates with these numbers.
    pub(crate) fn revoke(&self, name: &str, serials: &[u64]) {
        self.revoke_in(name, serials, (2024, 2090));
    }

    /// The same, good from one new year to another.
    pub(crate) fn revoke_in(&self, name: &str, serials: &[u64], (from, to): (i32, i32)) {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: rcgen::date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(from, 1, 1),
            next_update: rcgen::date_time_ymd(to, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.authority).expect("it can be signed");
        self.write(name, list.pem().expect("it can be written"));
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        // Atomically: weir may be reading it.
        let beside = self.path(&format!("{name}.new"));
        std::fs::write(&beside, text).expect("the directory can be written");
        std::fs::rename(&beside, self.path(name)).expect("the directory can be written");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A text with `CERTS` standing for the directory.
    pub(crate) fn filled(&self, text: &str) -> String {
        text.replace("CERTS", &self.directory.path().display().to_string())
    }

    /// curl, trusting this authority, with every name leading to this machine.
    pub(crate) fn curl(&self, arguments: &[&str]) -> Output {
        let filled: Vec<_> = arguments.iter().map(|text| self.filled(text)).collect();
        Command::new("curl")
            .args(["--silent", "--show-error", "--max-time", "15"])
            .args(["--connect-to", "::127.0.0.1:", "--cacert"])
            .arg(self.path("ca.pem"))
            .args(filled)
            .stdin(Stdio::null())
            .output()
            .expect("curl can be run")
    }

    /// What curl was answered with.
    pub(crate) fn fetch(&self, arguments: &[&str]) -> String {
        let output = self.curl(arguments);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "curl {arguments:?}: {told}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// openssl, in the directory, with this on its standard input. What it says, on both of its outputs.
    pub(crate) fn openssl(&self, arguments: &[&str], input: &str) -> String {
        let file = tempfile::NamedTempFile::new().expect("it can be written");
        std::fs::write(file.path(), input).expect("it can be written");
        let output = Command::new("timeout")
            .args(["15", "openssl"])
            .args(arguments)
            .current_dir(self.directory.path())
            .stdin(std::fs::File::open(file.path()).expect("it is there"))
            .output()
            .expect("openssl can be run");
        let [out, err] =
            [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
        out + &err
    }
}
