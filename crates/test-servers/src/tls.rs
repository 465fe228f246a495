//! An authority and a certificate for 127.0.0.1 and localhost, made when a test starts.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use tempfile::TempDir;

/// Files that a server reads, and what its clients must trust.
#[derive(Debug)]
pub struct Tls {
    folder: TempDir,
    roots: String,
}

impl Tls {
    /// A fresh authority and one certificate of it.
    pub fn new() -> anyhow::Result<Tls> {
        Tls::with(|_| {})
    }

    /// The same, but that the certificate has been out of date for years.
    pub fn expired() -> anyhow::Result<Tls> {
        Tls::with(|certificate| {
            certificate.not_before = date_time_ymd(2000, 1, 1);
            certificate.not_after = date_time_ymd(2001, 1, 1);
        })
    }

    fn with(change: impl FnOnce(&mut CertificateParams)) -> anyhow::Result<Tls> {
        let mut authority = CertificateParams::new(Vec::<String>::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut certificate = CertificateParams::new(names)?;
        change(&mut certificate);
        let certificate = certificate.signed_by(&key, &authority)?;
        let tls = Tls { folder: tempfile::tempdir()?, roots: authority.pem() };
        std::fs::write(tls.certificate(), certificate.pem())?;
        std::fs::write(tls.key(), key.serialize_pem())?;
        std::fs::write(tls.roots_file(), &tls.roots)?;
        Ok(tls)
    }

    /// PEM of the authority.
    pub fn roots(&self) -> &str {
        &self.roots
    }

    /// The same in a file.
    pub fn roots_file(&self) -> PathBuf {
        self.file("roots.pem")
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.file("certificate.pem")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.file("key.pem")
    }

    fn file(&self, name: &str) -> PathBuf {
        Path::new(self.folder.path()).join(name)
    }
}
