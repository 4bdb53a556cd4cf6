//! The throw-away PKI and the client files of `portcullis dev`.
//!
//! Three authorities, as in a real cluster: one for serving certificates, one for client certificates, one for front
//! proxies. A PKI is made whole in a directory of its own and then moved into place, so an interrupted first start
//! leaves no half of one. A PKI that is good is used again, one that has expired is set aside and made anew, and one
//! that is damaged is an error that names the file: nothing that may be somebody else's is ever overwritten. Every
//! file here is readable by its owner alone.

use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::clock::UnixTime;
use crate::go::pem;

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

const VALID_FOR: Duration = Duration::days(365);
/// Clocks of virtual machines lag; a certificate made now must be good for them too.
const BACKDATED: Duration = Duration::minutes(5);
/// What expires within this time is renewed at once, not in the middle of a session.
const RENEW_BEFORE: Duration = Duration::days(1);

const SERVER_CA: &str = "server-ca";
const CLIENT_CA: &str = "client-ca";
const FRONT_PROXY_CA: &str = "front-proxy-ca";
const AUTHORITIES: &[&str] = &[SERVER_CA, CLIENT_CA, FRONT_PROXY_CA];

struct Leaf {
    file: &'static str,
    issuer: &'static str,
    common_name: &'static str,
    organization: Option<&'static str>,
    server: bool,
}

const LEAVES: &[Leaf] = &[
    Leaf::server("gateway", "portcullis-dev-gateway"),
    Leaf::server("backend", "portcullis-dev-backend"),
    Leaf::client("gateway-client", FRONT_PROXY_CA, GATEWAY_CLIENT_NAME, None),
    Leaf::client("front-proxy", FRONT_PROXY_CA, FRONT_PROXY_NAME, None),
    Leaf::client("alice", CLIENT_CA, CERTIFICATE_USER.0, Some(CERTIFICATE_USER.1)),
    Leaf::client("admin", CLIENT_CA, ADMIN_USER.0, Some(ADMIN_USER.1)),
];

impl Leaf {
    const fn server(file: &'static str, common_name: &'static str) -> Self {
        Self { file, issuer: SERVER_CA, common_name, organization: None, server: true }
    }

    const fn client(
        file: &'static str,
        issuer: &'static str,
        common_name: &'static str,
        organization: Option<&'static str>,
    ) -> Self {
        Self { file, issuer, common_name, organization, server: false }
    }
}

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
    pub expires: OffsetDateTime,
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
    /// A key or certificate could not be made.
    #[error("making a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The system has no random numbers.
    #[error("the system gave no random numbers for a token")]
    Random,
}

/// Finds a good PKI and token file below `paths`, or makes them.
pub fn open(paths: &Paths, now: UnixTime) -> Result<Pki, PkiError> {
    let now = i64::try_from(now.as_secs())
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .unwrap_or(OffsetDateTime::UNIX_EPOCH);
    make_dir(paths.dir())?;
    // The directory lies in somebody's checkout more often than not, and it holds keys.
    write_once(&paths.dir().join(".gitignore"), b"*\n")?;
    write_tokens(paths)?;

    let current = paths.pki("");
    if !current.try_exists().map_err(at(&current))? {
        make(paths, now)?;
        return Ok(Pki { origin: Origin::Created, expires: check(paths)? });
    }
    let expires = check(paths)?;
    if expires > now + RENEW_BEFORE {
        return Ok(Pki { origin: Origin::Reused, expires });
    }
    let old = paths.dir().join("pki.old");
    remove_dir(&old)?;
    fs::rename(&current, &old).map_err(at(&old))?;
    make(paths, now)?;
    Ok(Pki { origin: Origin::Renewed, expires: check(paths)? })
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
fn make(paths: &Paths, now: OffsetDateTime) -> Result<(), PkiError> {
    let new = paths.dir().join("pki.new");
    remove_dir(&new)?;
    make_dir(&new)?;
    for &authority in AUTHORITIES {
        let mut params = params(&format!("portcullis-dev-{authority}"), None, now)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        write_pair(&new, authority, &certificate.pem(), &key)?;
        let issuer = Issuer::new(params, key);
        for leaf in LEAVES.iter().filter(|leaf| leaf.issuer == authority) {
            let key = KeyPair::generate()?;
            let certificate = leaf_params(leaf, now)?.signed_by(&key, &issuer)?;
            write_pair(&new, leaf.file, &certificate.pem(), &key)?;
        }
    }
    let current = paths.pki("");
    fs::rename(&new, &current).map_err(at(&current))
}

fn leaf_params(leaf: &Leaf, now: OffsetDateTime) -> Result<CertificateParams, PkiError> {
    let mut params = params(leaf.common_name, leaf.organization, now)?;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![if leaf.server {
        ExtendedKeyUsagePurpose::ServerAuth
    } else {
        ExtendedKeyUsagePurpose::ClientAuth
    }];
    if leaf.server {
        let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
        params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
    }
    Ok(params)
}

fn params(
    name: &str,
    organization: Option<&str>,
    now: OffsetDateTime,
) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.not_before = now - BACKDATED;
    params.not_after = now + VALID_FOR;
    params.distinguished_name = DistinguishedName::new();
    if let Some(organization) = organization {
        params.distinguished_name.push(DnType::OrganizationName, organization);
    }
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

/// Checks that every file is there, that keys belong to their certificates and certificates to their authorities.
/// Returns when the first one expires.
fn check(paths: &Paths) -> Result<OffsetDateTime, PkiError> {
    let authorities = AUTHORITIES.iter().map(|&name| (name, name));
    let leaves = LEAVES.iter().map(|leaf| (leaf.file, leaf.issuer));
    let mut expires: Option<OffsetDateTime> = None;
    for (file, issuer) in authorities.chain(leaves) {
        let broken = |suffix: &str, problem: &str| PkiError::Broken {
            path: paths.pki(&format!("{file}.{suffix}")),
            problem: problem.to_owned(),
            pki: paths.pki(""),
        };
        let certificate = read(paths, &format!("{file}.crt"))?;
        let issuer = read(paths, &format!("{issuer}.crt"))?;
        let key_path = paths.pki(&format!("{file}.key"));
        let key = read(paths, &format!("{file}.key"))?;
        fs::set_permissions(&key_path, Permissions::from_mode(0o600)).map_err(at(&key_path))?;

        let not_pem = || broken("crt", "not PEM");
        let (block, _) = pem::decode(&certificate).ok_or_else(not_pem)?;
        let (issuer_block, _) = pem::decode(&issuer).ok_or_else(not_pem)?;
        let not_certificate = |_| broken("crt", "not a certificate");
        let (_, certificate) = X509Certificate::from_der(&block.content).map_err(not_certificate)?;
        let (_, issuer) = X509Certificate::from_der(&issuer_block.content).map_err(not_certificate)?;
        if certificate.verify_signature(Some(issuer.public_key())).is_err() {
            return Err(broken("crt", "not signed by the authority beside it"));
        }
        let key = pem::private_key(&key)
            .and_then(|key| KeyPair::try_from(&key).ok())
            .ok_or_else(|| broken("key", "not a private key in PEM"))?;
        if key.public_key_raw() != certificate.public_key().subject_public_key.data.as_ref() {
            return Err(broken("key", "not the key of the certificate beside it"));
        }
        let end = certificate.validity().not_after.to_datetime();
        expires = Some(expires.map_or(end, |first| first.min(end)));
    }
    Ok(expires.unwrap_or(OffsetDateTime::UNIX_EPOCH))
}

fn read(paths: &Paths, file: &str) -> Result<Vec<u8>, PkiError> {
    let path = paths.pki(file);
    fs::read(&path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => {
            PkiError::Broken { path, problem: "missing".to_owned(), pki: paths.pki("") }
        }
        _ => PkiError::Io { path, source },
    })
}

/// The token user's token and the token file, each written once: users add lines of their own.
fn write_tokens(paths: &Paths) -> Result<(), PkiError> {
    let token_path = paths.token();
    if !token_path.try_exists().map_err(at(&token_path))? {
        let mut random = [0; 24];
        aws_lc_rs::rand::fill(&mut random).map_err(|_| PkiError::Random)?;
        write_once(&token_path, data_encoding(&random).as_bytes())?;
    }
    let token = fs::read_to_string(&token_path).map_err(at(&token_path))?;
    let (user, groups) = TOKEN_USER;
    write_once(&paths.tokens(), format!("{},{user},uid-{user},\"{groups}\"\n", token.trim()).as_bytes())
}

fn data_encoding(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

fn write_pair(dir: &Path, name: &str, certificate: &str, key: &KeyPair) -> Result<(), PkiError> {
    write(&dir.join(format!("{name}.crt")), certificate.as_bytes())?;
    write(&dir.join(format!("{name}.key")), key.serialize_pem().as_bytes())
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
    use std::time::Duration as StdDuration;

    const NOW: UnixTime = StdDuration::from_secs(1_900_000_000);
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
        let later = NOW + StdDuration::from_secs(364 * DAY + 1);
        let renewed = open(&paths, later).unwrap();
        assert_eq!(renewed.origin, Origin::Renewed);
        assert_eq!(renewed.expires.unix_timestamp().unsigned_abs(), later.as_secs() + 365 * DAY);
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
            ("not PEM", |p| fs::write(p.pki("admin.crt"), "x").unwrap(), "admin.crt: not PEM"),
            (
                "a key of another",
                |p| {
                    fs::copy(p.pki("alice.key"), p.pki("admin.key")).unwrap();
                },
                "admin.key: not the key of the certificate beside it",
            ),
            (
                "another authority",
                |p| {
                    fs::copy(p.pki("alice.crt"), p.pki("gateway.crt")).unwrap();
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
