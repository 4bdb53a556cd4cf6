//! `portcullis certs request`: a key, a request for it in the cluster, and in the end the certificate. The key is on disk
//! before the request is made, and stays there if the wait is interrupted: the wait can be taken up again, and no
//! certificate is ever without its key.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use secrecy::ExposeSecret as _;
use serde::Serialize;
use tokio::time::timeout;

use super::super::super::check::{Output, print};
use super::super::super::cluster::{ClusterClient, ClusterFlags};
use super::super::super::terminal::when;
use super::super::error::CommandError;
use super::super::files::{self, CommittedFiles, NewFiles};
use super::super::flags::{KeyType, NameFlags, life};
use super::super::kubeconfig::{self, ServerPart};
use super::super::progress::{Spinner, with_spinner};
use super::super::signing::written;
use super::super::table;
use super::wait::{RequestOutcome, outcome};
use super::{RequestName, has, read, with_cluster};
use crate::clock::{self, Clock};
use crate::go::pem;
use crate::pki::issuance::profile::{KUBE_APISERVER_CLIENT, KUBELET_CLIENT, KUBELET_SERVING};
use crate::pki::issuance::request::{self, CertificateRequest};
use crate::pki::issuance::signer::{PemKey, PrivateKeyError, Signer as _};

pub(in crate::cli::certs) const EXAMPLE: &str = "\
Examples:
  portcullis certs request --common-name alice --out-kubeconfig alice.kubeconfig
  portcullis certs request --signer-name example.com/internal --common-name db \\
    --usages 'digital signature,server auth' --dns db.example.com \\
    --out-cert db.crt --out-key db.key
  portcullis certs request --name portcullis-x7k2p --key alice.kubeconfig.key \\
    --common-name alice --out-kubeconfig alice.kubeconfig

The last one takes up a wait again that was interrupted.";

/// The flags of `portcullis certs request`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct RequestFlags {
    /// Who is to sign it.
    #[arg(long, value_name = "SIGNER", default_value = KUBE_APISERVER_CLIENT, help_heading = "Request")]
    signer_name: String,
    /// The usages to ask for, comma-separated. Default: those that the signers of kubernetes.io sign.
    #[arg(long, value_name = "USAGES", value_delimiter = ',', help_heading = "Request")]
    usages: Vec<String>,
    /// How long the certificate should be good; the signer may give less. At least 600.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(600..), help_heading = "Request")]
    expiration_seconds: Option<i32>,
    /// The name of the request. Default: one that the API server makes up. With --key, a request of that name for that
    /// key is taken up again.
    #[arg(long, value_name = "NAME", help_heading = "Request")]
    name: Option<String>,
    /// The kind of its key.
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = KeyType::EcdsaP256, help_heading = "Request")]
    key_type: KeyType,
    /// Use this key, PEM, and make none.
    #[arg(long, value_name = "FILE", help_heading = "Request", conflicts_with_all = ["key_type", "out_key"])]
    key: Option<PathBuf>,
    /// How long to wait for the certificate.
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = life, help_heading = "Request")]
    timeout: Duration,
    #[command(flatten)]
    names: NameFlags,
    #[command(flatten)]
    cluster: ClusterFlags,
    /// Write the certificate there.
    #[arg(long, value_name = "FILE", help_heading = "Output", required_unless_present = "out_kubeconfig")]
    out_cert: Option<PathBuf>,
    /// Write the key there; it is not encrypted.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    out_key: Option<PathBuf>,
    /// Write a kubeconfig for this cluster there, with the certificate and the key in it.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    out_kubeconfig: Option<PathBuf>,
    /// Replace files that are there.
    #[arg(long, help_heading = "Output")]
    force: bool,
    /// How to print the result.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

/// The key, where it is, and whether it was made here.
struct CsrKeyFile {
    secret: PemKey,
    file: PathBuf,
    made: bool,
    /// Once a key that was made is on disk: it, and the one that was there before.
    placed: Option<CommittedFiles>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestReport {
    name: String,
    signer_name: String,
    subject: String,
    not_after: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kubeconfig: Option<PathBuf>,
    #[serde(skip)]
    until: String,
}

pub(in crate::cli::certs) fn run(flags: &RequestFlags) -> Result<ExitCode, CommandError> {
    let usages = flags.usages()?;
    if flags.out_cert.is_some() && flags.out_key.is_none() && flags.key.is_none() {
        return Err(CommandError::Usage(
            "--out-cert: give --out-key too, or --key with a key of your own".to_owned(),
        ));
    }
    let name = flags.name.as_deref().map(RequestName::parse).transpose()?;
    for file in [&flags.out_cert, &flags.out_kubeconfig].into_iter().flatten() {
        files::must_be_free(file, flags.force)?;
    }
    with_cluster(&flags.cluster, async |cluster, api| {
        let mut key = flags.key()?;
        let request = request::build(&flags.names.subject(), &flags.names.alt_names(), &key.secret)
            .map_err(|error| CommandError::about("making the request", error))?;
        key.place(flags.force)?;
        let made = flags.create(cluster, &api, name.as_ref(), &request, usages).await;
        let made = made.inspect_err(|_| key.forget())?;
        let name = super::name(&made).to_owned();
        if !has(&made, "Approved") {
            super::super::super::print_error(&format!(
                "certificatesigningrequest.certificates.k8s.io/{name} is there; approve it with: portcullis certs \
                 approve {name}"
            ));
        }
        let certificate = flags.wait(cluster, api, &made, &mut key).await?;
        let report = flags.hand_out(cluster, name, &certificate, &request, &mut key)?;
        Ok(print(&flags.output.rendered(&report).unwrap_or_else(|| report.text())))
    })
}

impl CsrKeyFile {
    /// Writes a key that was made to its place.
    fn place(&mut self, force: bool) -> Result<(), CommandError> {
        if self.made {
            let mut files = NewFiles::new(force);
            files.stage(&self.file, self.secret.to_pem().expose_secret().as_bytes())?;
            self.placed = Some(files.commit()?);
        }
        Ok(())
    }

    /// Takes back a key that no certificate will ever be for: the one that it has replaced may be in use.
    fn forget(&mut self) {
        if let Some(placed) = self.placed.take() {
            placed.undo();
        }
    }
}

impl RequestFlags {
    fn usages(&self) -> Result<Vec<String>, CommandError> {
        if !self.usages.is_empty() {
            return Ok(self.usages.clone());
        }
        let purpose = match self.signer_name.as_str() {
            KUBE_APISERVER_CLIENT | KUBELET_CLIENT => "client auth",
            KUBELET_SERVING => "server auth",
            other => {
                return Err(CommandError::Usage(format!(
                    "--usages: give those that {other} signs, such as 'digital signature,client auth'"
                )));
            }
        };
        Ok(vec!["digital signature".to_owned(), purpose.to_owned()])
    }

    /// Reads the key, or makes it.
    fn key(&self) -> Result<CsrKeyFile, CommandError> {
        if let Some(file) = &self.key {
            let pem = std::fs::read(file).map_err(|error| CommandError::about(file.display(), error))?;
            let key = PemKey::from_pem(&pem).map_err(|error| match error {
                PrivateKeyError::Encrypted => CommandError::about(
                    file.display(),
                    "it is encrypted; decrypt it first, with openssl pkey",
                ),
                error => CommandError::about(file.display(), error),
            })?;
            return Ok(CsrKeyFile { secret: key, file: file.clone(), made: false, placed: None });
        }
        // Beside a kubeconfig, until it is in it.
        let beside = || self.out_kubeconfig.as_ref().map(|file| file.with_added_extension("key"));
        let Some(file) = self.out_key.clone().or_else(beside) else {
            return Err(CommandError::Usage("give --out-key or --out-kubeconfig".to_owned()));
        };
        let key = with_spinner("making the key", || PemKey::generate(self.key_type.kind()))
            .map_err(|error| CommandError::about("making the key", error))?;
        Ok(CsrKeyFile { secret: key, file, made: true, placed: None })
    }

    async fn create(
        &self,
        cluster: &ClusterClient,
        api: &Api<CertificateSigningRequest>,
        name: Option<&RequestName>,
        request: &CertificateRequest,
        usages: Vec<String>,
    ) -> Result<CertificateSigningRequest, CommandError> {
        let generate = name.is_none().then(|| "portcullis-".to_owned());
        let object = CertificateSigningRequest {
            metadata: ObjectMeta {
                name: self.name.clone(),
                generate_name: generate,
                ..ObjectMeta::default()
            },
            spec: CertificateSigningRequestSpec {
                request: ByteString(request.to_pem().into_bytes()),
                signer_name: self.signer_name.clone(),
                expiration_seconds: self.expiration_seconds,
                usages: Some(usages),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        };
        let parameters = PostParams::default();
        let made = cluster.ask("create a certificate signing request", async {
            match api.create(&parameters, &object).await {
                // Without a name of ours there is nothing to take up.
                Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" && name.is_some() => {
                    Ok(None)
                }
                made => made.map(Some),
            }
        });
        let made = made.await.map_err(CommandError::Failed)?;
        let name = match (made, name) {
            (Some(made), Some(name)) => return name.check(made),
            (Some(made), None) => return Ok(made),
            (None, Some(name)) => name,
            (None, None) => return Err(CommandError::Failed("the API server made no request".to_owned())),
        };
        // client-go: util/certificate/csr/csr.go, RequestCertificate: one that is there is taken up, if it is ours.
        let found = read(cluster, api, name).await?;
        let same_key = CertificateRequest::from_pem(&found.spec.request.0)
            .is_ok_and(|found| found.public_key() == request.public_key());
        if !same_key {
            let problem =
                "there is such a request already, for another key; choose another --name, or give its --key";
            return Err(CommandError::about(&name.name, problem));
        }
        if found.spec.signer_name != self.signer_name {
            let problem =
                format!("it is for the signer {}; give that as --signer-name", found.spec.signer_name);
            return Err(CommandError::about(&name.name, problem));
        }
        Ok(found)
    }

    /// Waits for the certificate; what it takes to wait again is told if it does not come.
    async fn wait(
        &self,
        cluster: &ClusterClient,
        api: Api<CertificateSigningRequest>,
        made: &CertificateSigningRequest,
        key: &mut CsrKeyFile,
    ) -> Result<Vec<u8>, CommandError> {
        let name = super::name(made);
        let waiting = Spinner::new(&format!("waiting for {name}"));
        let waited =
            timeout(self.timeout, outcome(cluster, api, name, made.metadata.uid.as_deref(), &waiting));
        let ended = tokio::select! {
            _ = tokio::signal::ctrl_c() => Err("interrupted".to_owned()),
            waited = waited => waited.unwrap_or_else(|_| {
                Err(format!("there is no certificate after {} s", self.timeout.as_secs()))
            }),
        };
        drop(waiting);
        match ended {
            Ok(RequestOutcome::Issued(certificate)) => Ok(certificate),
            Ok(RequestOutcome::Never(problem)) => {
                key.forget();
                Err(CommandError::about(name, problem))
            }
            Err(problem) => Err(CommandError::Failed(format!(
                "{name}: {problem}; the request is still there and the key is in {}\n  fix: wait again with the same \
                 flags and --name {name} --key {}, without --out-key",
                key.file.display(),
                key.file.display()
            ))),
        }
    }

    fn hand_out(
        &self,
        cluster: &ClusterClient,
        name: String,
        certificate: &[u8],
        request: &CertificateRequest,
        key: &mut CsrKeyFile,
    ) -> Result<RequestReport, CommandError> {
        let unfit = |problem: &str| {
            let key = key.file.display();
            CommandError::about(&name, format!("{problem}; nothing was written, and the key is in {key}"))
        };
        let chain = pem::certificate_chain(certificate);
        let leaf = chain.first().and_then(|leaf| x509_parser::parse_x509_certificate(leaf).ok());
        let (_, leaf) = leaf.ok_or_else(|| unfit("what the signer gave is no certificate"))?;
        if leaf.public_key().raw != key.secret.public_key() {
            return Err(unfit("the signer gave a certificate for another key"));
        }
        let mut files = NewFiles::new(self.force);
        if let Some(file) = &self.out_cert {
            files.stage_public(file, certificate)?;
        }
        if let Some(file) = &self.out_kubeconfig {
            let server = ServerPart::of(cluster);
            let user = &request.subject().common_name;
            let text = String::from_utf8_lossy(certificate);
            let config = kubeconfig::render(&server, user, &text, &key.secret.to_pem())?;
            files.stage(file, config.expose_secret().as_bytes())?;
        }
        files.commit()?;
        let only_in_kubeconfig = self.out_key.is_none() && key.made;
        if only_in_kubeconfig {
            key.forget();
        }
        let now = Clock::system().now();
        let end = leaf.validity().not_after.timestamp();
        let seconds = u64::try_from(end).unwrap_or_default();
        Ok(RequestReport {
            name,
            signer_name: self.signer_name.clone(),
            subject: leaf.subject().to_string(),
            not_after: clock::rfc3339(Duration::from_secs(seconds)),
            certificate_file: self.out_cert.clone(),
            key_file: (!only_in_kubeconfig).then(|| key.file.clone()),
            kubeconfig: self.out_kubeconfig.clone(),
            until: when(end, now),
        })
    }
}

impl RequestReport {
    fn text(&self) -> String {
        let mut rows = vec![
            ("request", self.name.clone()),
            ("subject", self.subject.clone()),
            ("signed by", self.signer_name.clone()),
            ("until", self.until.clone()),
        ];
        rows.extend(written([&self.certificate_file, &self.key_file, &self.kubeconfig].map(Option::as_ref)));
        table::facts(rows)
    }
}
