//! TLS of the main listener (`tls`).

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{Error as TlsError, InconsistentKeys, ServerConfig};

use super::reader::{Field, Section};

const ALLOWED_CERT: &str = "a PEM file with the certificate first and then those that vouch for it";
const ALLOWED_KEY: &str = "a PEM file with the certificate's private key, not encrypted";

/// `tls`: certificate and key of the main listener, read and found to fit.
#[derive(Clone)]
pub struct TlsConfig {
    /// `cert` (required): PEM file with the chain of certificates.
    pub cert: PathBuf,
    /// `key` (required): PEM file with the private key.
    pub key: PathBuf,
    /// What connections are secured with: TLS 1.2 and 1.3, HTTP/1.1.
    pub server: Arc<ServerConfig>,
}

impl std::fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsConfig").field("cert", &self.cert).field("key", &self.key).finish_non_exhaustive()
    }
}

/// Two are the same if they name the same files.
impl PartialEq for TlsConfig {
    fn eq(&self, other: &Self) -> bool {
        (&self.cert, &self.key) == (&other.cert, &other.key)
    }
}

impl TlsConfig {
    /// Reads `tls` and the files it names. `None` only with a fault noted.
    pub(super) fn read(s: &mut Section<'_>) -> Option<Self> {
        let cert = s.require("cert", ALLOWED_CERT).and_then(|field| read_file(&field, ALLOWED_CERT, chain));
        let key = s.require("key", ALLOWED_KEY).and_then(|field| read_file(&field, ALLOWED_KEY, private_key));
        let ((cert, chain), (key, private_key)) = (cert?, key?);
        let mut server = match server_config(chain, private_key) {
            Ok(server) => server,
            Err(error) => {
                let is_mismatch = matches!(error, TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch));
                let problem = if is_mismatch {
                    format!("not the key of the certificate in {}", cert.display())
                } else {
                    format!("cannot be used with {}: {error}", cert.display())
                };
                s.fault("key", problem, ALLOWED_KEY);
                return None;
            }
        };
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        Some(Self { cert, key, server: Arc::new(server) })
    }
}

fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    builder.with_no_client_auth().with_single_cert(chain, key)
}

fn read_file<T>(
    field: &Field<'_>,
    allowed: &str,
    read: impl FnOnce(&Path) -> Result<T, PemError>,
) -> Option<(PathBuf, T)> {
    let path = field.path(allowed)?;
    match read(&path) {
        Ok(read) => Some((path, read)),
        Err(PemError::Io(error))
            if error.kind() == ErrorKind::NotFound
                && field.may_lack(format!("{} is not there", path.display())) =>
        {
            None
        }
        Err(error) => {
            let problem = match error {
                PemError::Io(error) => format!("cannot read {}: {error}", path.display()),
                error => format!("{} holds no such thing: {error}", path.display()),
            };
            field.fault(problem, allowed);
            None
        }
    }
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let chain = CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>()?;
    if chain.is_empty() { Err(PemError::NoItemsFound) } else { Ok(chain) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_file(path)
}
