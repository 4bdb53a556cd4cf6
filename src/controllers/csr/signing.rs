//! The controller that signs approved requests.
//!
//! Follows `pkg/controller/certificates/signer/signer.go`. A request that violates a rule of its signer gets a Failed
//! condition, which is final; any other failure is retried. One rule is stricter: a request whose key or signature is
//! too weak fails, too.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use k8s_openapi::ByteString;
use kube::ResourceExt as _;
use portcullis_pki::issuance::alt_names::AltNames;
use portcullis_pki::issuance::issue::{IssuanceRequest, IssueError, IssuedCertificate};
use portcullis_pki::issuance::request::CertificateRequest;
use portcullis_system::clock::UnixTime;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tracing::{error, warn};

use super::audit::AuditLine;
use super::conditions::Conditions;
use super::summary::CsrSummary;
use super::{
    APPROVED, Csr, DENIED, FAILED, PATH, Subresource, WriteOutcome, condition, has_condition,
    has_true_condition, usages, with_condition, write,
};
use crate::controllers::ControllerContext;
use crate::controllers::expiration::ExpirationGauges;
use crate::controllers::queue::{AttemptOutcome, RetryPolicy};
use crate::controllers::request_feed::{RequestFeed, RequestKey};
use crate::controllers::settings::{ControllerName, ControllerSettings, SignerSettings};
use crate::controllers::signing_log::{LogAttempt, LogDetails, LogVerdict};
use crate::controllers::worker::{WORKERS, work};

/// The reason of a Failed condition.
const FAILED_REASON: &str = "SignerValidationFailure";

/// The decision about a request.
#[derive(Debug)]
enum SigningDecision {
    /// The request is not approved, has failed, or is for another signer.
    NotOurs,
    /// The request violates a rule of its signer.
    Refused(String),
    /// The certificate, and the alternative names of the request.
    Issued(Box<(IssuedCertificate, AltNames)>),
    /// Signing failed, and is retried.
    Later(String),
}

impl SigningDecision {
    /// Logs the certificate, if there is one and a log. Blocks.
    fn log(
        &self,
        cluster: &str,
        csr: &Csr,
        settings: &ControllerSettings,
        now: UnixTime,
    ) -> Option<LogAttempt> {
        let (Self::Issued(issued), Some(log)) = (self, &settings.log) else { return None };
        let details = LogDetails {
            cluster,
            signer_name: &csr.spec.signer_name,
            request: csr.metadata.name.as_deref().unwrap_or_default(),
            uid: csr.metadata.uid.as_deref().unwrap_or_default(),
            requester: csr.spec.username.as_deref().unwrap_or_default(),
        };
        Some(log.append(issued.0.der(), &details, now))
    }
}

/// Runs the controller.
pub(crate) async fn run(context: ControllerContext) -> std::convert::Infallible {
    let signers = &context.settings.signers;
    let ends = signers.iter().map(|signer| (signer.name(), signer.authority.not_after()));
    let _expirations = ExpirationGauges::show(&context, ends);
    let forgotten = AtomicU64::new(0);
    let signers = context.settings.signers.iter().map(|signer| signer.name().to_owned()).collect();
    let feed = RequestFeed {
        context: &context,
        controller: ControllerName::CsrSigning,
        path: PATH,
        signers,
        is_wanted: is_signable,
        forgotten: &forgotten,
        absent: None,
    };
    let (requests, feeding) = feed.start();
    let permits = Arc::new(Semaphore::new(WORKERS));
    let handle = |key| handle(&context, &permits, key);
    let working =
        work(&context, ControllerName::CsrSigning, RetryPolicy::CERTIFICATES, requests, &forgotten, handle);
    tokio::select! {
        never = working => never,
        never = feeding => match never {},
    }
}

/// Whether a request may need a signature, by its summary.
fn is_signable(summary: &CsrSummary) -> bool {
    let Conditions { approved, denied, failed, .. } = summary.conditions();
    approved.is_there && !denied.is_there && !failed.is_true && !summary.is_issued()
}

/// Processes a request. A signature holds one of `permits` until it ends, even if its attempt has timed out: a PKCS#11
/// token that does not answer must not block more and more threads.
// threat: signing-twice
async fn handle(context: &ControllerContext, permits: &Arc<Semaphore>, key: RequestKey) -> AttemptOutcome {
    let csr = match super::read_unissued(context, ControllerName::CsrSigning, &key).await {
        Ok(csr) => Arc::new(csr),
        Err(outcome) => return outcome,
    };
    let Ok(permit) = Arc::clone(permits).acquire_owned().await else { return AttemptOutcome::Retry };
    let (settings, now) = (Arc::clone(&context.settings), context.clock.now());
    let checked = Arc::clone(&csr);
    // The key may be in an HSM, so signing may block. Only this future writes: once it is dropped, the signature is
    // lost.
    let cluster = Arc::clone(&context.cluster);
    let signing = spawn_blocking(move || {
        let decision = decision(&checked, &settings, now);
        let logged = decision.log(&cluster, &checked, &settings, now);
        drop(permit);
        (decision, logged)
    });
    let Ok((decision, logged)) = signing.await else {
        context.metrics.panics.inc();
        error!(cluster = &*context.cluster, csr = &*key.name, "signing panicked");
        return AttemptOutcome::Retry;
    };
    if context.writes.is_closed() {
        // The replica is stopping: the next leader signs the request.
        return AttemptOutcome::Retry;
    }
    let logged =
        logged.map_or(LogVerdict::Issue, |attempt| attempt.verdict(context, ControllerName::CsrSigning));
    let decision = match logged {
        LogVerdict::Issue => decision,
        LogVerdict::Retry => return AttemptOutcome::Retry,
        LogVerdict::Refuse(problem) => SigningDecision::Refused(problem),
    };
    let spec = &csr.spec;
    let (cluster, signer) = (&*context.cluster, spec.signer_name.as_str());
    let requester = spec.username.as_deref().unwrap_or_default();
    let metrics = &context.metrics.controllers;
    match decision {
        SigningDecision::NotOurs => AttemptOutcome::Done,
        SigningDecision::Later(problem) => {
            error!(cluster, csr = &*key.name, signer, requester, "signing failed, will retry: {problem}");
            AttemptOutcome::Retry
        }
        SigningDecision::Refused(message) => {
            let failed = condition(FAILED, FAILED_REASON, &message, Some(now));
            let failed = with_condition(Csr::clone(&csr), failed);
            let written = write(context, ControllerName::CsrSigning, Subresource::Status, &failed).await;
            if written == WriteOutcome::Yes {
                metrics.refused.with_label_values(&[cluster, signer]).inc();
                warn!(cluster, csr = &*key.name, signer, requester, reason = message, "certificate refused");
            }
            written.outcome()
        }
        SigningDecision::Issued(issued) => {
            let (issued, names) = *issued;
            let mut signed = Csr::clone(&csr);
            let certificate = ByteString(issued.pem().as_bytes().to_vec());
            signed.status.get_or_insert_default().certificate = Some(certificate);
            let line = AuditLine::begin(cluster, &csr, &issued, &names);
            let written = write(context, ControllerName::CsrSigning, Subresource::Status, &signed).await;
            if written == WriteOutcome::Yes {
                metrics.signed.with_label_values(&[cluster, signer]).inc();
            }
            line.end(written);
            written.outcome()
        }
    }
}

/// Checks and signs a request. Blocks.
fn decision(csr: &Csr, settings: &ControllerSettings, now: UnixTime) -> SigningDecision {
    if !has_condition(csr, APPROVED) || has_condition(csr, DENIED) || has_true_condition(csr, FAILED) {
        return SigningDecision::NotOurs;
    }
    let Some(signer) = settings.signers.iter().find(|signer| signer.name() == csr.spec.signer_name) else {
        return SigningDecision::NotOurs;
    };
    match issue(csr, signer, settings.signing_duration, now) {
        Ok(issued) => SigningDecision::Issued(Box::new(issued)),
        Err(IssueError::Refused(refusal)) => SigningDecision::Refused(refusal.to_string()),
        Err(IssueError::Request(error)) if error.is_policy() => SigningDecision::Refused(error.to_string()),
        Err(IssueError::Request(error)) => {
            SigningDecision::Later(format!("unable to parse csr {:?}: {error}", csr.name_any()))
        }
        Err(error) => SigningDecision::Later(format!("error auto signing csr: {error}")),
    }
}

fn issue(
    csr: &Csr,
    signer: &SignerSettings,
    signing_duration: Duration,
    now: UnixTime,
) -> Result<(IssuedCertificate, AltNames), IssueError> {
    let request = CertificateRequest::from_pem(&csr.spec.request.0)?;
    let wanted = IssuanceRequest {
        request: &request,
        usages: usages(&csr.spec),
        // A negative duration counts as zero, and gives the minimum.
        expiration: csr
            .spec
            .expiration_seconds
            .map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or_default())),
        signing_duration,
    };
    let prepared = signer.authority.prepare(&signer.profile, &wanted, now)?;
    Ok((signer.authority.issue(prepared)?, request.alt_names().clone()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::convert::Infallible;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::client::Body;
    use portcullis_pki::issuance::authority::CertificateAuthority;
    use portcullis_pki::issuance::profile::{CertificateProfile, KUBELET_SERVING};
    use portcullis_pki::issuance::signer::{PemKey, SignError, Signer, SigningAlgorithm};
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, date_time_ymd};

    use tower::service_fn;
    use tracing::instrument::WithSubscriber as _;

    use aws_lc_rs::digest::{SHA256, digest};
    use portcullis_go::hex::hex;
    use portcullis_tlog::entry::LogEntry;
    use portcullis_tlog::verify::verified;
    use portcullis_tlog::{CertificateLog, LogDirectory, certificate_log};

    use super::super::testing::{CapturedLog, Wanted, decided};
    use super::*;
    use crate::controllers::settings::SigningLog;
    use crate::controllers::signing_log::LogFailurePolicy;
    use crate::controllers::testing::FakeCluster;
    use crate::telemetry::QuotedFields;

    /// 2030-01-01T00:00:00Z, when the authority is valid.
    const NOW: UnixTime = Duration::from_hours(525_960);

    /// Settings with only the signer of kubelet client certificates.
    fn settings() -> ControllerSettings {
        settings_by(|key| Box::new(key))
    }

    fn settings_by(signer: impl FnOnce(PemKey) -> Box<dyn Signer>) -> ControllerSettings {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2031, 1, 1));
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        let key = PemKey::from_pem(key.serialize_pem().as_bytes()).unwrap();
        let authority = Arc::new(CertificateAuthority::new(certificate.as_bytes(), signer(key)).unwrap());
        ControllerSettings {
            names: BTreeSet::from([ControllerName::CsrSigning]),
            signers: vec![SignerSettings::kubernetes(
                CertificateProfile::kubelet_client(),
                authority,
                Vec::new(),
            )],
            pod_signers: Vec::new(),
            signing_duration: Duration::from_hours(1),
            published: Vec::new(),
            log: None,
            election: None,
        }
    }

    /// The decision about a request as text: `-`, `issued`, `refused: …` or `later: …`.
    fn outcome(csr: &Csr, settings: &ControllerSettings, now: UnixTime) -> String {
        match decision(csr, settings, now) {
            SigningDecision::NotOurs => "-".to_owned(),
            SigningDecision::Issued(_) => "issued".to_owned(),
            SigningDecision::Refused(message) => format!("refused: {message}"),
            SigningDecision::Later(problem) => format!("later: {problem}"),
        }
    }

    // kubernetes: pkg/controller/certificates/signer/signer_test.go, TestHandle; the last cases are our own
    #[test]
    fn an_approved_request_is_signed_or_fails_or_is_retried() {
        let settings = settings();
        let good = || Wanted::default().csr();
        let approved = |wanted: Wanted| decided(wanted.csr(), &[APPROVED]);
        let edited = |edit: fn(&mut Csr)| {
            let mut csr = approved(Wanted::default());
            edit(&mut csr);
            csr
        };
        let serving = Wanted { signer: KUBELET_SERVING, ..Wanted::default() };
        let masters = Wanted { organizations: &["system:masters"], ..Wanted::default() };
        let cases = [
            ("approved", approved(Wanted::default()), "issued"),
            ("pending", good(), "-"),
            ("denied", decided(good(), &[DENIED]), "-"),
            ("approved and denied", decided(good(), &[APPROVED, DENIED]), "-"),
            ("failed", decided(good(), &[APPROVED, FAILED]), "-"),
            ("failed without a status", edited(|csr| failed(csr, "")), "-"),
            ("failed with status False", edited(|csr| failed(csr, "False")), "issued"),
            ("another signer", approved(serving), "-"),
            ("a violated rule", approved(masters), "refused: subject organization is not system:nodes"),
            (
                "garbage",
                edited(|csr| csr.spec.request.0 = b"garbage".to_vec()),
                "later: unable to parse csr \"csr\": PEM block type must be CERTIFICATE REQUEST",
            ),
            (
                "a weak key",
                edited(|csr| csr.spec.request.0 = WEAK.as_bytes().to_vec()),
                "refused: RSA keys of 1024 bits are not accepted: use 2048 bits or more",
            ),
        ];
        for (name, csr, expected) in cases {
            assert_eq!(outcome(&csr, &settings, NOW), expected, "{name}");
        }
    }

    fn failed(csr: &mut Csr, status: &str) {
        let mut failed = condition(FAILED, "", "", None);
        failed.status = status.to_owned();
        *csr = with_condition(std::mem::take(csr), failed);
    }

    #[test]
    fn requests_are_retried_while_the_authority_is_expired() {
        let settings = settings();
        let csr = decided(Wanted::default().csr(), &[APPROVED]);
        // A year and an hour later.
        let outcome = outcome(&csr, &settings, NOW + Duration::from_hours(24 * 365 + 1));
        assert_eq!(
            outcome,
            "later: error auto signing csr: the signer has expired: NotAfter=2031-01-01 00:00:00 +0000 UTC"
        );
    }

    #[test]
    fn a_request_may_ask_for_less_than_the_maximum_duration() {
        let settings = settings();
        for (seconds, minutes) in [(None, 60), (Some(1200), 20), (Some(86_400), 60), (Some(-1), 10)] {
            let mut csr = decided(Wanted::default().csr(), &[APPROVED]);
            csr.spec.expiration_seconds = seconds;
            let SigningDecision::Issued(issued) = decision(&csr, &settings, NOW) else {
                panic!("{seconds:?}")
            };
            assert_eq!(issued.0.not_after(), NOW + Duration::from_mins(minutes), "{seconds:?}");
        }
    }

    /// The log of signing a request with this name and common name.
    async fn logged(name: &str, common_name: &'static str) -> String {
        let mut csr = decided(Wanted { common_name, ..Wanted::default() }.csr(), &[APPROVED]);
        csr.metadata.name = Some(name.to_owned());
        logged_of(csr).await
    }

    async fn logged_of(csr: Csr) -> String {
        let (handled, text) = handled(csr, settings()).await;
        assert_eq!(handled, AttemptOutcome::Done);
        text
    }

    /// The outcome of an attempt at a request, and the log.
    async fn handled(csr: Csr, settings: ControllerSettings) -> (AttemptOutcome, String) {
        let name = csr.name_any();
        let cluster = FakeCluster::new();
        let mut context = cluster.context();
        context.settings = Arc::new(settings);
        context.client = holding(csr);
        let lines = CapturedLog::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt()
            .with_ansi(false)
            .fmt_fields(QuotedFields)
            .with_writer(move || writer.clone())
            .finish();
        let permits = Arc::new(Semaphore::new(1));
        let handled = handle(&context, &permits, RequestKey::of(&name)).with_subscriber(log).await;
        (handled, lines.text())
    }

    #[tokio::test]
    async fn each_certificate_is_in_the_log_before_it_is_issued() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("log");
        certificate_log::create(&directory, "example.com/log").unwrap();
        let with = |policy| {
            let log = Arc::new(CertificateLog::open(&directory).unwrap());
            ControllerSettings { log: Some(SigningLog::new(log, policy)), ..settings() }
        };
        let csr = || decided(Wanted::default().csr(), &[APPROVED]);
        let (outcome, text) = handled(csr(), with(LogFailurePolicy::Fail)).await;
        assert_eq!(outcome, AttemptOutcome::Done);
        let mut entries = Vec::new();
        let log = CertificateLog::open(&directory).unwrap();
        verified(&LogDirectory::new(&directory), log.verifier(), |_, entry| {
            entries.push(LogEntry::decode(entry).unwrap());
            Ok(())
        })
        .unwrap();
        let [entry] = entries.as_slice() else { panic!("{entries:?}") };
        let details = r#"{"cluster":"c","signerName":"kubernetes.io/kube-apiserver-client-kubelet","request":"csr","uid":"","requester":"system:node:foo"}"#;
        assert_eq!(entry.details, details);
        let sha256 = hex(digest(&SHA256, &entry.certificate).as_ref());
        assert!(text.contains(&sha256) && text.contains("certificate issued"), "{text}");

        // No file of the log can be written, as on a full disk.
        std::fs::remove_dir_all(directory.join("tile/entries")).unwrap();
        std::fs::write(directory.join("tile/entries"), "").unwrap();
        let (outcome, text) = handled(csr(), with(LogFailurePolicy::Fail)).await;
        assert_eq!(outcome, AttemptOutcome::Retry);
        assert!(text.contains("no certificate is issued, will retry: certificate log: "), "{text}");
        assert!(!text.contains("signing cluster"), "{text}");
        let (outcome, text) = handled(csr(), with(LogFailurePolicy::Ignore)).await;
        assert_eq!(outcome, AttemptOutcome::Done);
        assert!(text.contains("certificates are issued without being logged: certificate log: "), "{text}");
        assert!(text.contains("certificate issued"), "{text}");

        // A request whose certificate does not fit into the log fails: its requester can do something about it.
        let mut params = CertificateParams::default();
        let name = &mut params.distinguished_name;
        name.push(DnType::StateOrProvinceName, "s".repeat(65_150));
        name.push(DnType::OrganizationName, "system:nodes");
        name.push(DnType::CommonName, "system:node:foo");
        let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        let mut large = csr();
        large.spec.request = ByteString(request.into_bytes());
        let (outcome, text) = handled(large, with(LogFailurePolicy::Ignore)).await;
        assert_eq!(outcome, AttemptOutcome::Done);
        assert!(text.contains("certificate refused") && text.contains("of an entry"), "{text}");
    }

    #[tokio::test]
    async fn audit_lines_are_not_truncated() {
        let mut params = CertificateParams::default();
        let name = &mut params.distinguished_name;
        name.push(DnType::StateOrProvinceName, "s".repeat(1100));
        name.push(DnType::OrganizationName, "system:nodes");
        name.push(DnType::CommonName, "system:node:foo");
        let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        let mut csr = decided(Wanted::default().csr(), &[APPROVED]);
        csr.spec.request = ByteString(request.into_bytes());
        csr.spec.username = Some(format!("system:node:{}", "r".repeat(1100)));
        let text = logged_of(csr).await;
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        for line in lines {
            assert!(line.contains("O=system:nodes") && line.contains("CN=system:node:foo"), "{line}");
            assert!(line.contains(&"s".repeat(1100)) && line.contains(&"r".repeat(1100)), "{line}");
            assert!(!line.contains(" bytes)"), "{line}");
        }
    }

    /// A client of an API server that has this request, and accepts every write.
    fn holding(csr: Csr) -> kube::Client {
        let service = service_fn(move |request: Request<Body>| {
            let held = serde_json::to_vec(&csr).unwrap();
            async move {
                let body = request.into_body().collect_bytes().await.unwrap();
                let body = if body.is_empty() { held } else { body.to_vec() };
                Ok::<_, Infallible>(Response::new(Body::from(body)))
            }
        });
        kube::Client::new(service, "default")
    }

    /// A key in a token that does not answer until the sender of `answers` is dropped.
    #[derive(Debug)]
    struct Silent {
        key: PemKey,
        asked: Arc<AtomicUsize>,
        answers: Mutex<std::sync::mpsc::Receiver<()>>,
    }

    impl Signer for Silent {
        fn public_key(&self) -> &[u8] {
            self.key.public_key()
        }

        fn sign(&self, algorithm: SigningAlgorithm, message: &[u8]) -> Result<Vec<u8>, SignError> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            // Returns when the sender is dropped.
            self.answers.lock().unwrap().recv().ok();
            self.key.sign(algorithm, message)
        }
    }

    #[tokio::test]
    async fn a_token_that_does_not_answer_blocks_at_most_one_thread_for_each_worker() {
        let (asked, (answering, answers)) = (Arc::new(AtomicUsize::new(0)), std::sync::mpsc::channel());
        let counted = Arc::clone(&asked);
        let settings =
            settings_by(|key| Box::new(Silent { key, asked: counted, answers: Mutex::new(answers) }));
        let mut context = FakeCluster::new().context();
        context.settings = Arc::new(settings);
        context.client = holding(decided(Wanted::default().csr(), &[APPROVED]));
        let permits = Arc::new(Semaphore::new(WORKERS));
        for _ in 0..3 * WORKERS {
            // The attempt times out.
            let attempt = handle(&context, &permits, RequestKey::of("csr"));
            assert!(tokio::time::timeout(Duration::from_millis(50), attempt).await.is_err());
        }
        assert_eq!(permits.available_permits(), 0);
        drop(answering);
        while permits.available_permits() < WORKERS {
            tokio::task::yield_now().await;
        }
        assert_eq!(asked.load(Ordering::SeqCst), WORKERS);
    }

    #[tokio::test]
    async fn names_cannot_forge_log_lines() {
        let forged = "a\n2030-01-01T00:00:00Z  INFO portcullis: certificate issued csr=b\u{1b}[2J";
        let text =
            logged(forged, "system:node:a\n2030-01-01T00:00:00Z  INFO portcullis: certificate issued").await;
        // One line before the write, one after.
        assert_eq!((text.lines().count(), text.contains('\u{1b}')), (2, false), "{text}");
        assert!(text.contains(r#"csr="a\n2030-01-01"#) && text.contains(r"CN=system:node:a\n2030"), "{text}");
    }

    /// A request with an RSA key of 1024 bits.
    const WEAK: &str = "-----BEGIN CERTIFICATE REQUEST-----\n\
MIIBcDCB2gIBADAxMRUwEwYDVQQKDAxzeXN0ZW06bm9kZXMxGDAWBgNVBAMMD3N5\n\
c3RlbTpub2RlOmZvbzCBnzANBgkqhkiG9w0BAQEFAAOBjQAwgYkCgYEA0sw8GyGz\n\
cYvfG1xF+fCoWoSBsCAuxphBZCmggmZYaQ/tVhNmVDypP4H2f7IKtM25J3/4hKqt\n\
mW9XUFVi2JWE5Y9S2yi//aWlsxig468HE1uhoiQVO+5rMBVQ6/eh1MdVKfdTKoBU\n\
l+Kleqj8UFlxw38bbLP/RKwrk85a3zlz/k0CAwEAAaAAMA0GCSqGSIb3DQEBCwUA\n\
A4GBAItcJE/Ewk4+JNVR5JAp8TMLQvvoCxJFCcXGjHp724Ryr4FdeJN3hCC7W10D\n\
mDCVjzv4ELTXlRs5m5IQAA4XC1RmTPo6ZtNkle1oOdQB0XZ/AWZ+f0J2uGttggce\n\
TvmAfSAQYiNUdrCwE2sMyaFXX8dfy3a2+q/9CwGxKaoResGx\n\
-----END CERTIFICATE REQUEST-----";
}
