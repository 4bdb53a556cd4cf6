//! What `portcullis dev --full` has beside the gateway and its first cluster: a second cluster, the OpenID provider, the
//! webhook, and the files of their configuration.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_system::clock::Clock;
use secrecy::SecretString;

use super::DevError;
use super::https::{BoxError, HttpsServer};
use super::pki::{self, DevPaths, file_error};
use super::provider::Provider;
use super::server::DemoServer;
use super::webhook::StampWebhook;

/// The namespace that only the second cluster has.
pub(super) const GREEN_NAMESPACE: &str = "only-in-green";

const GATEWAY: &str = include_str!("../../templates/dev/gateway.yaml");
const AUTHENTICATION: &str = include_str!("../../templates/dev/authentication.yaml");
const ADMISSION: &str = include_str!("../../templates/dev/admission.yaml");
const WEBHOOK: &str = include_str!("../../templates/dev/webhook.yaml");
const AUDIT_POLICY: &str = include_str!("../../templates/dev/audit-policy.yaml");
const DENY_LIST: &str = "# user=NAME revokes the credentials of a user within a second.\n";

/// The running parts. Dropping them closes their listeners.
#[derive(Debug)]
pub(super) struct Full {
    pub(super) page: String,
    pub(super) issuer: String,
    /// An ID token of the provider.
    pub(super) token: SecretString,
    green: DemoServer,
    webhook: HttpsServer,
    _provider: HttpsServer,
}

impl Full {
    /// Starts the parts. The page's port is the gateway's to bind; the provider serves on its listener.
    pub(super) async fn start(
        paths: &DevPaths,
        page_port: u16,
        provider: TcpListener,
        clock: Clock,
    ) -> Result<Self, BoxError> {
        let pair = pki::load_pair(paths, "gateway")?;
        let green = DemoServer::start(paths, clock.clone(), &[GREEN_NAMESPACE]).await?;
        let webhook = HttpsServer::start(&pair, None, StampWebhook).await?;
        provider.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(provider)?;
        let (page, issuer) =
            (format!("https://localhost:{page_port}"), format!("https://{}", listener.local_addr()?));
        let provider = Provider::new(issuer.clone(), &page, clock)?;
        let token = provider.sample_token().ok_or("the provider cannot sign")?.into();
        let provider = HttpsServer::serve(listener, &pair, None, provider)?;
        Ok(Self { page, issuer, token, green, webhook, _provider: provider })
    }

    /// Writes the configuration of the gateway, and removes the logins of the last start: its provider is gone.
    pub(super) fn write_files(&self, paths: &DevPaths, port: u16) -> Result<(), DevError> {
        for old in [paths.login_kubeconfig(), paths.logins(), paths.audit_log()] {
            remove(&old)?;
        }
        let webhooks = paths.dir().join("webhooks");
        pki::make_dir(&webhooks)?;
        let absolute = fs::canonicalize(&webhooks).map_err(file_error(&webhooks))?;
        let ca = paths.pki("server-ca.crt");
        let ca = fs::read_to_string(&ca).map_err(file_error(&ca))?;
        let page_port = self.page.rsplit(':').next().unwrap_or_default();
        let values = [
            ("@PORT@", port.to_string()),
            ("@PAGE_PORT@", page_port.to_owned()),
            ("@ISSUER@", self.issuer.clone()),
            // A string of JSON is one of YAML.
            ("@CA@", serde_json::Value::from(ca.as_str()).to_string()),
            ("@CA_BASE64@", STANDARD.encode(&ca)),
            ("@WEBHOOKS@", serde_json::Value::from(absolute.display().to_string()).to_string()),
            ("@URL@", format!("https://{}/", self.webhook.address)),
        ];
        let filled = |template: &str| {
            values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(name, value))
        };
        for (file, template) in [
            (paths.gateway_config(), GATEWAY),
            (paths.dir().join("authentication.yaml"), AUTHENTICATION),
            (paths.dir().join("admission.yaml"), ADMISSION),
            (webhooks.join("stamp.yaml"), WEBHOOK),
            (paths.dir().join("audit-policy.yaml"), AUDIT_POLICY),
            (paths.deny_list(), DENY_LIST),
        ] {
            pki::write(&file, filled(template).as_bytes())?;
        }
        pki::write_backend_kubeconfig(&paths.dir().join("green.kubeconfig"), self.green.address().port())
    }
}

/// The files of `--full`.
impl DevPaths {
    /// The configuration file of the gateway.
    pub fn gateway_config(&self) -> PathBuf {
        self.dir().join("gateway.yaml")
    }

    /// The audit log.
    pub fn audit_log(&self) -> PathBuf {
        self.dir().join("audit.log")
    }

    /// The deny list.
    pub fn deny_list(&self) -> PathBuf {
        self.dir().join("denied")
    }

    /// The gateway's log, of a tour.
    pub fn gateway_log(&self) -> PathBuf {
        self.dir().join("gateway.log")
    }

    pub(super) fn login_kubeconfig(&self) -> PathBuf {
        self.dir().join("login.kubeconfig")
    }

    /// The cached tokens of logins.
    pub(super) fn logins(&self) -> PathBuf {
        self.dir().join("logins")
    }
}

fn remove(path: &Path) -> Result<(), DevError> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error(path)(error)),
        _ => Ok(()),
    }
}
