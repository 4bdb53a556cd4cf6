//! The PKI and the client files of `portcullis dev`.
//!
//! There are three CAs, as in a real cluster: for serving certificates, for client certificates and for front proxies.
//! The PKI is complete before it gets its directory name, so an interrupted first start leaves no partial one. A valid
//! PKI is reused, an expired one is moved to `pki.old` and replaced, and a damaged one is an error that names the file:
//! files of other programs are never overwritten. Every file is readable by its owner only.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use portcullis_go::pem::encode_pem;
use portcullis_pki::issuance::alt_names::AltNames;
use portcullis_pki::issuance::authority::CertificateAuthority;
use portcullis_pki::issuance::ca::CaCertificate;
use portcullis_pki::issuance::issue::IssuanceRequest;
use portcullis_pki::issuance::profile::CertificateProfile;
use portcullis_pki::issuance::request;
use portcullis_pki::issuance::signer::{KeyKind, PemKey};
use portcullis_pki::issuance::subject::Subject;
use portcullis_pki::issuance::validity::{BACKDATE, Validity};
use portcullis_pki::x509::CaBundle;
use portcullis_pki::x509::key_pair::CertificateKeyPair;
use portcullis_system::clock::UnixTime;
use secrecy::ExposeSecret as _;
use tempfile::NamedTempFile;
use uuid::Uuid;

use super::DevError;
use super::https::BoxError;

/// The common name of the gateway's client certificate; the backend accepts no other.
pub(super) const GATEWAY_CLIENT_NAME: &str = "portcullis";
/// The common name of the front proxy that the gateway accepts.
pub(super) const FRONT_PROXY_NAME: &str = "front-proxy";

const VALIDITY: Duration = Duration::from_hours(365 * 24);
/// A PKI that expires within this time is renewed at the start, so that it does not expire during a session.
const RENEW_BEFORE: Duration = Duration::from_hours(24);

const SERVER_CA: &str = "server-ca";
const CLIENT_CA: &str = "client-ca";
const FRONT_PROXY_CA: &str = "front-proxy-ca";

/// The file, CA, common name and organizations of a certificate. A CA issues its own.
type CertificateRow = (&'static str, &'static str, &'static str, &'static [&'static str]);

const CERTIFICATES: &[CertificateRow] = &[
    (SERVER_CA, SERVER_CA, "portcullis-dev-server-ca", &[]),
    (CLIENT_CA, CLIENT_CA, "portcullis-dev-client-ca", &[]),
    (FRONT_PROXY_CA, FRONT_PROXY_CA, "portcullis-dev-front-proxy-ca", &[]),
    ("gateway", SERVER_CA, "portcullis-dev-gateway", &[]),
    ("backend", SERVER_CA, "portcullis-dev-backend", &[]),
    ("gateway-client", FRONT_PROXY_CA, GATEWAY_CLIENT_NAME, &[]),
    ("front-proxy", FRONT_PROXY_CA, FRONT_PROXY_NAME, &[]),
    ("alice", CLIENT_CA, "alice", &["developers"]),
    ("admin", CLIENT_CA, "admin", &["system:masters"]),
];

/// The files of `portcullis dev`.
#[derive(Debug, Clone)]
pub struct DevPaths {
    dir: PathBuf,
}

impl DevPaths {
    pub(super) fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The directory of all files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A file of the PKI, for example `gateway.crt`.
    pub fn pki(&self, file: &str) -> PathBuf {
        self.dir.join("pki").join(file)
    }

    /// The kubeconfig for kubectl, with a context for each user.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// The file with bob's bearer token.
    pub fn token(&self) -> PathBuf {
        self.dir.join("bob.token")
    }

    pub(super) fn backend_kubeconfig(&self) -> PathBuf {
        self.dir.join("backend.kubeconfig")
    }

    pub(super) fn tokens(&self) -> PathBuf {
        self.dir.join("tokens.csv")
    }
}

/// The values of [`DevPki::origin`].
const CREATED: &str = "new";
const REUSED: &str = "reused";
const RENEWED: &str = "renewed, the expired one is in pki.old";

/// A valid PKI on disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct DevPki {
    pub(super) origin: &'static str,
    /// The notAfter of the certificate that expires first.
    pub(super) expires: UnixTime,
}

/// Loads the PKI and the token file, or creates them.
pub(super) fn open(paths: &DevPaths, now: UnixTime) -> Result<DevPki, DevError> {
    make_dir(paths.dir())?;
    // The directory has keys, and is often in a checkout.
    write_once(&paths.dir().join(".gitignore"), b"*\n")?;
    write_tokens(paths)?;

    let current = paths.pki("");
    let origin = if exists(&current)? {
        let expires = check(paths)?;
        if expires > now + RENEW_BEFORE {
            return Ok(DevPki { origin: REUSED, expires });
        }
        let old = paths.dir().join("pki.old");
        remove_dir(&old)?;
        fs::rename(&current, &old).map_err(file_error(&old))?;
        RENEWED
    } else {
        CREATED
    };
    create(paths, now).map_err(DevError::CreatePki)?;
    Ok(DevPki { origin, expires: check(paths)? })
}

/// Writes the kubeconfig for kubectl, with a context for each user in each cluster: `alice` in the first one, then
/// `CLUSTER-alice`. The first context is the current one. The ports change with each start.
pub(super) fn write_kubeconfig(paths: &DevPaths, clusters: &[(&str, String)]) -> Result<(), DevError> {
    let certificate =
        |name| (name, format!("client-certificate: pki/{name}.crt, client-key: pki/{name}.key"));
    let users = [certificate("alice"), certificate("admin"), ("bob", "tokenFile: bob.token".to_owned())];
    write(&paths.kubeconfig(), kubeconfig(clusters, &users).as_bytes())
}

/// Writes the gateway's kubeconfig for a backend.
pub(super) fn write_backend_kubeconfig(path: &Path, port: u16) -> Result<(), DevError> {
    let name = "gateway-client";
    let user = (name, format!("client-certificate: pki/{name}.crt, client-key: pki/{name}.key"));
    write(path, kubeconfig(&[("backend", format!("https://127.0.0.1:{port}"))], &[user]).as_bytes())
}

/// A kubeconfig. Its paths are relative to it, so the directory can be moved.
fn kubeconfig(clusters: &[(&str, String)], users: &[(&str, String)]) -> String {
    let cluster = |(name, server): &(&str, String)| {
        let ca = format!("certificate-authority: pki/{SERVER_CA}.crt");
        format!("- name: {name}\n  cluster: {{server: \"{server}\", {ca}}}\n")
    };
    let user = |(name, credential): &(&str, String)| format!("- name: {name}\n  user: {{{credential}}}\n");
    let contexts = clusters.iter().enumerate().flat_map(|(number, (cluster, _))| {
        let prefix = if number == 0 { String::new() } else { format!("{cluster}-") };
        users.iter().map(move |(user, _)| {
            format!("- name: {prefix}{user}\n  context: {{cluster: {cluster}, user: {user}}}\n")
        })
    });
    format!(
        "\
# Written by `portcullis dev` at every start.
apiVersion: v1
kind: Config
clusters:
{}users:
{}contexts:
{}current-context: {}
",
        clusters.iter().map(cluster).collect::<String>(),
        users.iter().map(user).collect::<String>(),
        contexts.collect::<String>(),
        users.first().map_or("", |(name, _)| name),
    )
}

/// Creates the PKI under another name, then renames it.
fn create(paths: &DevPaths, now: UnixTime) -> Result<(), BoxError> {
    let now = UnixTime::from_secs(now.as_secs());
    let new = paths.dir().join("pki.new");
    remove_dir(&new)?;
    make_dir(&new)?;
    let mut authorities = BTreeMap::new();
    for row @ &(file, ca, common_name, _) in CERTIFICATES {
        let key = PemKey::generate(KeyKind::EcdsaP256)?;
        let pem = if let Some(authority) = authorities.get(ca) {
            issue(authority, row, &key, now)?
        } else {
            let validity = Validity { not_before: now.saturating_sub(BACKDATE), not_after: now + VALIDITY };
            let root = CaCertificate { common_name, validity, path_length: 0, purpose: None, key_id: None };
            encode_pem("CERTIFICATE", &root.self_signed(&key)?.der)
        };
        write(&new.join(format!("{file}.crt")), pem.as_bytes())?;
        write(&new.join(format!("{file}.key")), key.to_pem().expose_secret().as_bytes())?;
        if file == ca {
            authorities.insert(ca, CertificateAuthority::new(pem.as_bytes(), Box::new(key))?);
        }
    }
    Ok(fs::rename(&new, paths.pki(""))?)
}

fn issue(
    authority: &CertificateAuthority,
    (_, ca, common_name, organizations): &CertificateRow,
    key: &PemKey,
    now: UnixTime,
) -> Result<String, BoxError> {
    let organization = organizations.iter().map(ToString::to_string).collect();
    let subject = Subject { common_name: (*common_name).to_owned(), organization, ..Subject::default() };
    let ips = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let localhost = AltNames { dns: vec!["localhost".to_owned()], ips, ..AltNames::default() };
    let (profile, purpose, alt_names) = match *ca {
        SERVER_CA => (CertificateProfile::serving(), "server auth", localhost),
        CLIENT_CA => (CertificateProfile::client(), "client auth", AltNames::default()),
        _ => (CertificateProfile::front_proxy(), "client auth", AltNames::default()),
    };
    let request = IssuanceRequest {
        request: &request::build(&subject, &alt_names, key)?,
        usages: &["digital signature", purpose].map(str::to_owned),
        expiration: None,
        signing_duration: VALIDITY + BACKDATE,
    };
    Ok(authority.issue(authority.prepare(&profile, &request, now)?)?.pem().to_owned())
}

/// Checks that all files exist, each key matches its certificate, and each certificate is signed by its CA. Returns the
/// notAfter of the certificate that expires first.
fn check(paths: &DevPaths) -> Result<UnixTime, DevError> {
    let mut expires = i64::MAX;
    for (file, ca, ..) in CERTIFICATES {
        let (pair, issuer) = (load_pair(paths, file)?, load_pair(paths, ca)?);
        for (certificate, issuer) in pair.certificates().iter().zip(issuer.certificates()) {
            let (tbs, signature) = (&certificate.tbs, &certificate.signature);
            if issuer.public_key.verify(certificate.algorithm, tbs, signature).is_err() {
                return Err(damaged(paths, &format!("{file}.crt"), "not signed by the authority beside it"));
            }
            expires = expires.min(certificate.not_after);
        }
    }
    Ok(UnixTime::from_secs(u64::try_from(expires).unwrap_or_default()))
}

/// Loads a certificate and its key, and removes other users' permissions for the key.
pub(super) fn load_pair(paths: &DevPaths, name: &str) -> Result<CertificateKeyPair, DevError> {
    let [crt, key] = ["crt", "key"].map(|extension| format!("{name}.{extension}"));
    let (certificate_pem, key_pem) = (read(paths, &crt)?, read(paths, &key)?);
    let key_path = paths.pki(&key);
    fs::set_permissions(&key_path, Permissions::from_mode(0o600)).map_err(file_error(&key_path))?;
    CertificateKeyPair::from_pem(&certificate_pem, &key_pem)
        .map_err(|error| damaged(paths, if error.concerns_key() { &key } else { &crt }, error))
}

/// Loads the CA of the gateway's client certificate.
pub(super) fn load_front_proxy_ca(paths: &DevPaths) -> Result<CaBundle, DevError> {
    load_ca(paths, FRONT_PROXY_CA)
}

/// Loads the CA of all serving certificates.
pub(super) fn load_server_ca(paths: &DevPaths) -> Result<CaBundle, DevError> {
    load_ca(paths, SERVER_CA)
}

fn load_ca(paths: &DevPaths, name: &str) -> Result<CaBundle, DevError> {
    let file = format!("{name}.crt");
    CaBundle::from_pem(&read(paths, &file)?).map_err(|error| damaged(paths, &file, error))
}

fn read(paths: &DevPaths, file: &str) -> Result<Vec<u8>, DevError> {
    let path = paths.pki(file);
    if !exists(&path)? {
        return Err(damaged(paths, file, "missing"));
    }
    fs::read(&path).map_err(file_error(&path))
}

fn damaged(paths: &DevPaths, file: &str, problem: impl fmt::Display) -> DevError {
    DevError::DamagedPki(paths.pki(file), problem.to_string(), paths.pki(""))
}

/// Writes bob's token and the token file unless they exist: users may have added lines.
fn write_tokens(paths: &DevPaths) -> Result<(), DevError> {
    let path = paths.token();
    write_once(&path, Uuid::new_v4().simple().to_string().as_bytes())?;
    let token = fs::read_to_string(&path).map_err(file_error(&path))?;
    write_once(&paths.tokens(), format!("{},bob,uid-bob,\"testers,developers\"\n", token.trim()).as_bytes())
}

fn write_once(path: &Path, content: &[u8]) -> Result<(), DevError> {
    if exists(path)? { Ok(()) } else { write(path, content) }
}

/// Writes a file with mode 0600. A temporary file keeps readers from seeing a partial one.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), DevError> {
    let persist = || {
        let mut file = NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
        file.write_all(content)?;
        file.persist(path).map(drop).map_err(|error| error.error)
    };
    persist().map_err(file_error(path))
}

fn exists(path: &Path) -> Result<bool, DevError> {
    path.try_exists().map_err(file_error(path))
}

/// Creates a directory with mode 0700.
pub(super) fn make_dir(path: &Path) -> Result<(), DevError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(file_error(path))
}

fn remove_dir(path: &Path) -> Result<(), DevError> {
    if exists(path)? { fs::remove_dir_all(path).map_err(file_error(path)) } else { Ok(()) }
}

/// Adds the path to an error of the operating system.
pub(super) fn file_error(path: &Path) -> impl Fn(io::Error) -> DevError {
    |error| DevError::File(path.to_owned(), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = Duration::from_secs(1_900_000_000);
    const DAY: u64 = 86_400;

    fn fresh() -> (tempfile::TempDir, DevPaths) {
        let dir = tempfile::tempdir().unwrap();
        let paths = DevPaths::new(dir.path().join("dev"));
        (dir, paths)
    }

    #[test]
    fn second_start_uses_the_same_pki_and_tokens() {
        let (_dir, paths) = fresh();
        assert_eq!(open(&paths, NOW).unwrap().origin, CREATED);
        let first = (fs::read(paths.pki("alice.crt")).unwrap(), fs::read(paths.tokens()).unwrap());
        assert_eq!(open(&paths, NOW).unwrap().origin, REUSED);
        assert_eq!(first, (fs::read(paths.pki("alice.crt")).unwrap(), fs::read(paths.tokens()).unwrap()));
    }

    #[test]
    fn files_are_readable_by_their_owner_alone() {
        let (_dir, paths) = fresh();
        open(&paths, NOW).unwrap();
        write_kubeconfig(&paths, &[("a", "https://127.0.0.1:6443".to_owned())]).unwrap();
        write_backend_kubeconfig(&paths.backend_kubeconfig(), 1).unwrap();
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
        assert_eq!(renewed.origin, RENEWED);
        assert_eq!(renewed.expires.as_secs(), later.as_secs() + 365 * DAY);
        assert!(paths.dir().join("pki.old/alice.key").exists());
        assert_eq!(token, fs::read(paths.token()).unwrap());
        assert_eq!(open(&paths, later).unwrap().origin, REUSED);
    }

    #[test]
    fn damaged_pki_is_an_error_that_names_the_file() {
        type Damage = fn(&DevPaths);
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
