//! The throw-away PKI and the client files of `portcullis dev`.
//!
//! Three authorities, as in a real cluster: one for serving certificates, one for client certificates, one for front
//! proxies. A PKI is made whole in a directory of its own and then moved into place, so an interrupted first start
//! leaves no half of one. A good PKI is used again, an expired one is set aside and made anew, and a damaged one is an
//! error that names the file: no file that may belong to another program is overwritten. Every file here is readable
//! by its owner alone.

use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::ExposeSecret as _;

use crate::clock::UnixTime;
use crate::pki::issuance::alt_names::AltNames;
use crate::pki::issuance::authority::CertificateAuthority;
use crate::pki::issuance::ca::CaCertificate;
use crate::pki::issuance::issue::IssuanceRequest;
use crate::pki::issuance::profile::CertificateProfile;
use crate::pki::issuance::request::{self, encode_pem};
use crate::pki::issuance::signer::{KeyKind, PemKey};
use crate::pki::issuance::subject::Subject;
use crate::pki::issuance::validity::{BACKDATE, Validity};
use crate::pki::x509::certificate::Certificate;
use crate::pki::x509::key_pair::CertificateKeyPair;

/// The common name of the certificate that the gateway shows to its backend; the only one the backend accepts.
pub const GATEWAY_CLIENT_NAME: &str = "portcullis";
/// The common name of the front proxy that the gateway accepts in front of itself.
pub const FRONT_PROXY_NAME: &str = "front-proxy";
/// The user with a client certificate, and the group in it.
pub const CERTIFICATE_USER: (&str, &str) = ("alice", "developers");
/// The user with a bearer token, and the groups beside it.
pub const TOKEN_USER: (&str, &str) = ("bob", "testers,developers");
/// The user who may do everything.
pub const ADMIN_USER: (&str, &str) = ("admin", "system:masters");

const VALID_FOR: Duration = Duration::from_hours(365 * 24);
/// A PKI that expires within this time is renewed at once, not in the middle of a session.
const RENEW_BEFORE: Duration = Duration::from_hours(24);

const SERVER_CA: &str = "server-ca";
const CLIENT_CA: &str = "client-ca";
const FRONT_PROXY_CA: &str = "front-proxy-ca";
const AUTHORITIES: &[&str] = &[SERVER_CA, CLIENT_CA, FRONT_PROXY_CA];

/// File, authority, common name, and organization if there is one.
const LEAVES: &[(&str, &str, &str, &str)] = &[
    ("gateway", SERVER_CA, "portcullis-dev-gateway", ""),
    ("backend", SERVER_CA, "portcullis-dev-backend", ""),
    ("gateway-client", FRONT_PROXY_CA, GATEWAY_CLIENT_NAME, ""),
    ("front-proxy", FRONT_PROXY_CA, FRONT_PROXY_NAME, ""),
    ("alice", CLIENT_CA, CERTIFICATE_USER.0, CERTIFICATE_USER.1),
    ("admin", CLIENT_CA, ADMIN_USER.0, ADMIN_USER.1),
];

/// Where the files of `portcullis dev` are.
#[derive(Debug, Clone)]
pub struct Paths {
    dir: PathBuf,
}

impl Paths {
    /// The files below `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The directory of everything.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A file of the PKI, for example `gateway.crt`.
    pub fn pki(&self, file: &str) -> PathBuf {
        self.dir.join("pki").join(file)
    }

    /// kubectl's configuration: one context for each user.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// The gateway's configuration of its backend.
    pub fn backend_kubeconfig(&self) -> PathBuf {
        self.dir.join("backend.kubeconfig")
    }

    /// The gateway's static token file.
    pub fn tokens(&self) -> PathBuf {
        self.dir.join("tokens.csv")
    }

    /// The token user's token.
    pub fn token(&self) -> PathBuf {
        self.dir.join("bob.token")
    }
}

/// Whether the PKI was found or made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// There was none.
    Created,
    /// It was found, and is good.
    Reused,
    /// One that has expired, or is about to, was set aside as `pki.old`.
    Renewed,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Created => "new",
            Self::Reused => "reused",
            Self::Renewed => "renewed, the expired one is in pki.old",
        })
    }
}

/// A PKI that is on disk and good.
#[derive(Debug, Clone, Copy)]
pub struct Pki {
    /// Whether it was found or made.
    pub origin: Origin,
    /// When its first certificate expires.
    pub expires: UnixTime,
}

/// Why there is no PKI. Every text names the file.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of an existing PKI is not what it should be.
    #[error("{}: {problem}; to start afresh remove the directory {}", path.display(), pki.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// The directory to remove.
        pki: PathBuf,
    },
    /// A key, a certificate or a token could not be made.
    #[error("making the PKI: {0}")]
    Make(String),
}

/// Finds a good PKI and token file below `paths`, or makes them.
pub fn open(paths: &Paths, now: UnixTime) -> Result<Pki, PkiError> {
    make_dir(paths.dir())?;
    // The directory often lies in a checkout, and it holds keys.
    write_once(&paths.dir().join(".gitignore"), b"*\n")?;
    write_tokens(paths)?;

    let current = paths.pki("");
    let origin = if current.try_exists().map_err(at(&current))? {
        let expires = check(paths)?;
        if expires > now + RENEW_BEFORE {
            return Ok(Pki { origin: Origin::Reused, expires });
        }
        let old = paths.dir().join("pki.old");
        remove_dir(&old)?;
        fs::rename(&current, &old).map_err(at(&old))?;
        Origin::Renewed
    } else {
        Origin::Created
    };
    make(paths, now)?;
    Ok(Pki { origin, expires: check(paths)? })
}

/// Writes the configurations of kubectl and of the gateway's backend; ports differ from start to start.
pub fn write_kubeconfigs(paths: &Paths, gateway_port: u16, backend_port: u16) -> Result<(), PkiError> {
    // File names in a kubeconfig are relative to it, so the directory can be moved, and no secret is copied.
    let clients = format!(
        "\
# Written by `portcullis dev` at every start.
apiVersion: v1
kind: Config
clusters:
- name: portcullis-dev
  cluster: {{server: \"https://127.0.0.1:{gateway_port}\", certificate-authority: pki/{SERVER_CA}.crt}}
users:
- name: alice
  user: {{client-certificate: pki/alice.crt, client-key: pki/alice.key}}
- name: admin
  user: {{client-certificate: pki/admin.crt, client-key: pki/admin.key}}
- name: bob
  user: {{tokenFile: bob.token}}
contexts:
- name: alice
  context: {{cluster: portcullis-dev, user: alice}}
- name: admin
  context: {{cluster: portcullis-dev, user: admin}}
- name: bob
  context: {{cluster: portcullis-dev, user: bob}}
current-context: alice
"
    );
    let backend = format!(
        "\
# Written by `portcullis dev` at every start: how the gateway reaches the embedded backend.
apiVersion: v1
kind: Config
clusters:
- name: backend
  cluster: {{server: \"https://127.0.0.1:{backend_port}\", certificate-authority: pki/{SERVER_CA}.crt}}
users:
- name: gateway
  user: {{client-certificate: pki/gateway-client.crt, client-key: pki/gateway-client.key}}
contexts:
- name: backend
  context: {{cluster: backend, user: gateway}}
current-context: backend
"
    );
    write(&paths.kubeconfig(), clients.as_bytes())?;
    write(&paths.backend_kubeconfig(), backend.as_bytes())
}

/// Makes the whole PKI beside its place, then moves it there.
fn make(paths: &Paths, now: UnixTime) -> Result<(), PkiError> {
    let now = UnixTime::from_secs(now.as_secs());
    let new = paths.dir().join("pki.new");
    remove_dir(&new)?;
    make_dir(&new)?;
    for &authority in AUTHORITIES {
        let key = PemKey::generate(KeyKind::EcdsaP256).map_err(unmade)?;
        let certificate = CaCertificate {
            common_name: &format!("portcullis-dev-{authority}"),
            validity: Validity { not_before: now.saturating_sub(BACKDATE), not_after: now + VALID_FOR },
            path_length: 0,
            purpose: None,
            key_id: None,
        };
        let pem = encode_pem("CERTIFICATE", &certificate.self_signed(&key).map_err(unmade)?.der);
        write_pair(&new, authority, &pem, &key)?;
        let signer = CertificateAuthority::new(pem.as_bytes(), Box::new(key)).map_err(unmade)?;
        for (file, issuer, common_name, organization) in LEAVES {
            if *issuer == authority {
                let (pem, key) = issue(&signer, authority, common_name, organization, now)?;
                write_pair(&new, file, &pem, &key)?;
            }
        }
    }
    let current = paths.pki("");
    fs::rename(&new, &current).map_err(at(&current))
}

fn issue(
    signer: &CertificateAuthority,
    authority: &str,
    common_name: &str,
    organization: &str,
    now: UnixTime,
) -> Result<(String, PemKey), PkiError> {
    let subject = Subject {
        common_name: common_name.to_owned(),
        organization: [organization].into_iter().filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        ..Subject::default()
    };
    let (profile, purpose, names) = match authority {
        SERVER_CA => {
            let ips = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            let names = AltNames { dns: vec!["localhost".to_owned()], ips, ..AltNames::default() };
            (CertificateProfile::serving(), "server auth", names)
        }
        CLIENT_CA => (CertificateProfile::client(), "client auth", AltNames::default()),
        _ => (CertificateProfile::front_proxy(), "client auth", AltNames::default()),
    };
    let key = PemKey::generate(KeyKind::EcdsaP256).map_err(unmade)?;
    let wanted = IssuanceRequest {
        request: &request::build(&subject, &names, &key).map_err(unmade)?,
        usages: &["digital signature", purpose].map(str::to_owned),
        expiration: None,
        signing_duration: VALID_FOR + BACKDATE,
    };
    let issued = signer.prepare(&profile, &wanted, now).and_then(|prepared| signer.issue(prepared));
    let issued = issued.map_err(unmade)?;
    Ok((issued.pem().to_owned(), key))
}

/// Checks that every file is there, that keys belong to their certificates and certificates to their authorities.
/// Returns when the first one expires.
fn check(paths: &Paths) -> Result<UnixTime, PkiError> {
    let authorities = AUTHORITIES.iter().map(|&name| (name, name));
    let leaves = LEAVES.iter().map(|&(file, issuer, ..)| (file, issuer));
    let mut expires = i64::MAX;
    for (file, issuer) in authorities.chain(leaves) {
        let certificate = check_pair(paths, file)?;
        let issuer = check_pair(paths, issuer)?;
        let (tbs, signature) = (&certificate.tbs, &certificate.signature);
        if issuer.public_key.verify(certificate.algorithm, tbs, signature).is_err() {
            return Err(broken(paths, &format!("{file}.crt"), "not signed by the authority beside it"));
        }
        expires = expires.min(certificate.not_after);
    }
    Ok(UnixTime::from_secs(u64::try_from(expires).unwrap_or_default()))
}

/// The certificate of a pair, whose key only its owner can read from here on.
fn check_pair(paths: &Paths, file: &str) -> Result<Certificate, PkiError> {
    let [crt, key] = ["crt", "key"].map(|suffix| format!("{file}.{suffix}"));
    let read = |file: &str| {
        let path = paths.pki(file);
        fs::read(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => broken(paths, file, "missing"),
            _ => at(&path)(source),
        })
    };
    let (certificate_pem, key_pem) = (read(&crt)?, read(&key)?);
    let key_path = paths.pki(&key);
    fs::set_permissions(&key_path, Permissions::from_mode(0o600)).map_err(at(&key_path))?;
    let pair = CertificateKeyPair::from_pem(&certificate_pem, &key_pem)
        .map_err(|error| broken(paths, if error.concerns_key() { &key } else { &crt }, &error.to_string()))?;
    let first = pair.certificates().first().cloned();
    first.ok_or_else(|| broken(paths, &crt, "no certificate"))
}

fn unmade(problem: impl fmt::Display) -> PkiError {
    PkiError::Make(problem.to_string())
}

fn broken(paths: &Paths, file: &str, problem: &str) -> PkiError {
    PkiError::Broken { path: paths.pki(file), problem: problem.to_owned(), pki: paths.pki("") }
}

/// The token user's token and the token file, each written once: users add lines of their own.
fn write_tokens(paths: &Paths) -> Result<(), PkiError> {
    let token_path = paths.token();
    if !token_path.try_exists().map_err(at(&token_path))? {
        let mut random = [0; 24];
        aws_lc_rs::rand::fill(&mut random).map_err(|_| unmade("the system gave no random numbers"))?;
        write_once(&token_path, URL_SAFE_NO_PAD.encode(random).as_bytes())?;
    }
    let token = fs::read_to_string(&token_path).map_err(at(&token_path))?;
    let (user, groups) = TOKEN_USER;
    write_once(&paths.tokens(), format!("{},{user},uid-{user},\"{groups}\"\n", token.trim()).as_bytes())
}

fn write_pair(dir: &Path, name: &str, certificate: &str, key: &PemKey) -> Result<(), PkiError> {
    write(&dir.join(format!("{name}.crt")), certificate.as_bytes())?;
    write(&dir.join(format!("{name}.key")), key.to_pem().expose_secret().as_bytes())
}

fn write_once(path: &Path, content: &[u8]) -> Result<(), PkiError> {
    if path.try_exists().map_err(at(path))? { Ok(()) } else { write(path, content) }
}

/// Writes a file that only its owner can read, by way of a new file, so that no reader sees half of it.
fn write(path: &Path, content: &[u8]) -> Result<(), PkiError> {
    let new = path.with_added_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .map_err(at(&new))?;
    file.write_all(content).map_err(at(&new))?;
    fs::rename(&new, path).map_err(at(path))
}

/// Makes a directory that only its owner can enter.
pub(super) fn make_dir(path: &Path) -> Result<(), PkiError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at(path))
}

fn remove_dir(path: &Path) -> Result<(), PkiError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

fn at(path: &Path) -> impl Fn(io::Error) -> PkiError + use<> {
    let path = path.to_owned();
    move |source| PkiError::Io { path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = Duration::from_secs(1_900_000_000);
    const DAY: u64 = 86_400;

    fn fresh() -> (tempfile::TempDir, Paths) {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path().join("dev"));
        (dir, paths)
    }

    #[test]
    fn second_start_uses_the_same_pki_and_tokens() {
        let (_dir, paths) = fresh();
        assert_eq!(open(&paths, NOW).unwrap().origin, Origin::Created);
        let first = (fs::read(paths.pki("alice.crt")).unwrap(), fs::read(paths.tokens()).unwrap());
        assert_eq!(open(&paths, NOW).unwrap().origin, Origin::Reused);
        assert_eq!(first, (fs::read(paths.pki("alice.crt")).unwrap(), fs::read(paths.tokens()).unwrap()));
    }

    #[test]
    fn files_are_readable_by_their_owner_alone() {
        let (_dir, paths) = fresh();
        open(&paths, NOW).unwrap();
        write_kubeconfigs(&paths, 6443, 1).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(paths.dir()), mode(&paths.pki(""))), (0o700, 0o700));
        for file in fs::read_dir(paths.dir()).unwrap().chain(fs::read_dir(paths.pki("")).unwrap()) {
            let file = file.unwrap().path();
            if file.is_file() {
                assert_eq!(mode(&file), 0o600, "{}", file.display());
            }
        }
        fs::set_permissions(paths.pki("alice.key"), Permissions::from_mode(0o644)).unwrap();
        open(&paths, NOW).unwrap();
        assert_eq!(mode(&paths.pki("alice.key")), 0o600, "a key that became readable is closed again");
    }

    #[test]
    fn expired_pki_is_renewed_and_the_tokens_are_kept() {
        let (_dir, paths) = fresh();
        open(&paths, NOW).unwrap();
        let token = fs::read(paths.token()).unwrap();
        let later = NOW + Duration::from_secs(364 * DAY + 1);
        let renewed = open(&paths, later).unwrap();
        assert_eq!(renewed.origin, Origin::Renewed);
        assert_eq!(renewed.expires.as_secs(), later.as_secs() + 365 * DAY);
        assert!(paths.dir().join("pki.old/alice.key").exists());
        assert_eq!(token, fs::read(paths.token()).unwrap());
        assert_eq!(open(&paths, later).unwrap().origin, Origin::Reused);
    }

    #[test]
    fn damaged_pki_is_an_error_that_names_the_file() {
        type Damage = fn(&Paths);
        let cases: &[(&str, Damage, &str)] = &[
            ("a file is gone", |p| fs::remove_file(p.pki("alice.key")).unwrap(), "alice.key: missing"),
            (
                "an empty directory",
                |p| {
                    fs::remove_dir_all(p.pki("")).unwrap();
                    fs::create_dir(p.pki("")).unwrap();
                },
                "server-ca.crt: missing",
            ),
            ("not PEM", |p| fs::write(p.pki("admin.crt"), "x").unwrap(), "admin.crt: "),
            (
                "a key of another",
                |p| {
                    fs::copy(p.pki("alice.key"), p.pki("admin.key")).unwrap();
                },
                "admin.key: tls: private key does not match public key",
            ),
            (
                "another authority",
                |p| {
                    fs::copy(p.pki("alice.crt"), p.pki("gateway.crt")).unwrap();
                    fs::copy(p.pki("alice.key"), p.pki("gateway.key")).unwrap();
                },
                "gateway.crt: not signed by the authority beside it",
            ),
        ];
        for (name, damage, want) in cases {
            let (_dir, paths) = fresh();
            open(&paths, NOW).unwrap();
            damage(&paths);
            let error = open(&paths, NOW).unwrap_err().to_string();
            assert!(error.contains(want) && error.contains("remove the directory"), "{name}: {error}");
        }
    }

    #[test]
    fn token_file_is_written_once_and_left_to_the_user() {
        let (_dir, paths) = fresh();
        open(&paths, NOW).unwrap();
        fs::write(paths.tokens(), "t,carol,7\n").unwrap();
        open(&paths, NOW).unwrap();
        assert_eq!(fs::read_to_string(paths.tokens()).unwrap(), "t,carol,7\n");
    }
}
