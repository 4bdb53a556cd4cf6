//! What is recorded of the certificates of pods, and which of them a CRL lists, over the life of the certificates.

use portcullis_go::pem;
use portcullis_go::pem::encode_pem;
use portcullis_pki::issuance::ca::CaCertificate;
use portcullis_pki::issuance::pod::{
    Jitter, PodCertificateProfile, PodKey, PodKeyType, PodNames, PodValidity,
};
use portcullis_pki::issuance::signer::{KeyKind, PemKey, Signer as _};
use portcullis_pki::issuance::usage::CertificateUsage;
use portcullis_pki::issuance::validity::Validity;
use portcullis_pki::x509::Crl;
use tempfile::TempDir;

use super::*;

const NOW: UnixTime = UnixTime::from_secs(1_790_000_000);
const HOUR: Duration = Duration::from_hours(1);

fn authority() -> CertificateAuthority {
    let key = PemKey::generate(KeyKind::EcdsaP256).unwrap();
    let validity = Validity { not_before: NOW.saturating_sub(HOUR), not_after: NOW + 24 * 365 * HOUR };
    let plan = CaCertificate { common_name: "pods", validity, path_length: 0, purpose: None, key_id: None };
    let pem = encode_pem("CERTIFICATE", &plan.self_signed(&key).unwrap().der);
    CertificateAuthority::new(pem.as_bytes(), Box::new(key)).unwrap()
}

/// A certificate of 24 hours from `now` on.
fn certificate(authority: &CertificateAuthority, now: UnixTime) -> (IssuedCertificate, PodNames) {
    let profile = PodCertificateProfile {
        usages: [CertificateUsage::DigitalSignature, CertificateUsage::ClientAuth].into(),
        key_types: PodKeyType::ALL.into(),
        max_duration: 24 * HOUR,
        identity: None,
    };
    let key = PodKey::from_pkix(PemKey::generate(KeyKind::EcdsaP256).unwrap().public_key()).unwrap();
    let names = PodNames::new(None, Vec::new(), vec!["web.a.svc".to_owned()], Vec::new()).unwrap();
    let validity = PodValidity::of(now, 24 * HOUR, authority.validity(), [Jitter(0); 2]).unwrap();
    let prepared = authority.prepare_pod(&profile, &key, &names, validity).unwrap();
    (authority.issue(prepared).unwrap(), names)
}

fn pod(name: &str, uid: &str) -> IndexedPod {
    let [namespace, name, uid, service_account, node] = ["a", name, uid, "web", "n1"].map(str::to_owned);
    IndexedPod { namespace, name, uid, service_account, node }
}

/// A signer with files in a directory of its own.
struct Bed {
    directory: TempDir,
    authority: CertificateAuthority,
    records: SignerRecords,
}

impl Bed {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let records = SignerRecords {
            index: directory.path().join("pods.index.jsonl"),
            crl: Some(SignerCrl { file: directory.path().join("pods.crl"), lifetime: 24 * HOUR }),
        };
        Self { directory, authority: authority(), records }
    }

    /// Issues a certificate to a pod; returns its serial number.
    fn issue(&self, pod: &IndexedPod, now: UnixTime) -> String {
        let (issued, names) = certificate(&self.authority, now);
        let alt_names = names.alt_names();
        let certificate = RecordedCertificate { issued: &issued, alt_names, signer: "example.com/pods", pod };
        self.records.record(certificate, &self.authority, now).unwrap();
        issued.serial_hex().trim_start_matches('0').to_owned()
    }

    fn revoke(&self, uids: &[&str], now: UnixTime) -> CrlOutcome {
        let gone = uids.iter().map(|uid| (*uid).to_owned()).collect();
        self.records.revoke(&self.authority, &gone, now).unwrap().unwrap()
    }

    fn crl(&self) -> Crl {
        let content = std::fs::read(self.directory.path().join("pods.crl")).unwrap();
        let crl = Crl::parse(&pem::blocks(&content)[0].content).unwrap();
        crl.check_signature_from(self.authority.certificate()).unwrap();
        crl
    }

    /// The serial numbers in the CRL, sorted.
    fn listed(&self) -> Vec<String> {
        let hex = |entry: &portcullis_pki::x509::crl::RevokedEntry| {
            portcullis_go::hex::hex(&entry.serial).trim_start_matches('0').to_owned()
        };
        let mut serials: Vec<_> = self.crl().entries.iter().map(hex).collect();
        serials.sort();
        serials
    }

    fn names(&self, now: UnixTime) -> Vec<String> {
        let mut names: Vec<_> = self.records.pods(now).unwrap().into_iter().map(|pod| pod.uid).collect();
        names.sort();
        names
    }

    fn lines(&self, file: &str) -> usize {
        std::fs::read_to_string(self.directory.path().join(file)).unwrap_or_default().lines().count()
    }
}

fn sorted(mut all: Vec<String>) -> Vec<String> {
    all.sort();
    all
}

#[test]
fn all_certificates_of_a_pod_that_is_gone_are_in_the_crl_and_no_others() {
    let bed = Bed::new();
    let (one, other) = (pod("web", "u1"), pod("web", "u2"));
    let first = bed.issue(&one, NOW);
    let renewed = bed.issue(&one, NOW + 12 * HOUR);
    // A pod of the same name that was created anew.
    bed.issue(&other, NOW);
    assert_eq!(bed.names(NOW), ["u1", "u2"]);
    let outcome = bed.revoke(&[], NOW);
    assert_eq!(outcome, CrlOutcome { revoked: 0, entries: 0, is_written: true }, "the first CRL");
    let outcome = bed.revoke(&["u1", "unknown"], NOW + 12 * HOUR);
    assert_eq!(outcome, CrlOutcome { revoked: 2, entries: 2, is_written: true });
    assert_eq!(bed.listed(), sorted(vec![first, renewed]));
    assert!(bed.crl().entries.iter().all(|entry| entry.reason == 5), "cessationOfOperation");
    assert_eq!(bed.names(NOW), ["u2"]);
    let outcome = bed.revoke(&["u1"], NOW + 12 * HOUR);
    assert_eq!(outcome, CrlOutcome { revoked: 0, entries: 2, is_written: false }, "once");
}

#[test]
fn the_crl_is_signed_again_at_half_of_its_life_and_its_number_grows() {
    let bed = Bed::new();
    bed.revoke(&[], NOW);
    let first = bed.crl();
    assert!(!bed.revoke(&[], NOW + 11 * HOUR).is_written);
    assert!(bed.revoke(&[], NOW + 13 * HOUR).is_written);
    assert!(bed.crl().number > first.number);
    let outcome = bed.records.revoke(&bed.authority, &HashSet::new(), NOW).unwrap().unwrap();
    assert!(!outcome.is_written, "the clock was set back");
    std::fs::remove_file(bed.directory.path().join("pods.crl")).unwrap();
    assert!(bed.revoke(&[], NOW + 13 * HOUR).is_written, "it was lost");
}

#[test]
fn a_certificate_leaves_the_crl_after_its_end_and_the_records_a_day_later() {
    let bed = Bed::new();
    bed.issue(&pod("web", "u1"), NOW);
    let later = bed.issue(&pod("web", "u2"), NOW + 20 * HOUR);
    bed.revoke(&["u1", "u2"], NOW + 20 * HOUR);
    assert_eq!(bed.listed().len(), 2);
    // It ends 24 hours, less two minutes, after it was signed.
    assert!(!bed.revoke(&[], NOW + 24 * HOUR).is_written, "clocks differ");
    assert_eq!(bed.revoke(&[], NOW + 26 * HOUR).entries, 1);
    assert_eq!(bed.listed(), [later]);
    bed.records.prune(NOW + 26 * HOUR).unwrap();
    assert_eq!((bed.lines("pods.index.jsonl"), bed.lines("pods.revoked.jsonl")), (2, 2));
    bed.records.prune(NOW + 49 * HOUR).unwrap();
    assert_eq!((bed.lines("pods.index.jsonl"), bed.lines("pods.revoked.jsonl")), (1, 1));
    assert_eq!(bed.revoke(&[], NOW + 49 * HOUR).entries, 0);
    assert_eq!(bed.listed(), [""; 0]);
}

#[test]
fn what_certs_revoke_has_recorded_or_listed_stays() {
    let bed = Bed::new();
    let serial = bed.issue(&pod("web", "u1"), NOW);
    // As `certs revoke --serial` records it.
    let entry = &bed.records.issuance().read().unwrap()[0];
    assert_eq!(entry.alt_names, ["DNS:web.a.svc"]);
    let record = RevocationRecord { reason: RevocationReason::KeyCompromise, ..of_deleted_pod(entry, NOW) };
    bed.records.revocations().append(&[record]).unwrap();
    assert_eq!(bed.revoke(&[], NOW).entries, 1);
    assert_eq!(bed.listed(), [serial]);
    assert_eq!(bed.crl().entries[0].reason, 1);
    assert_eq!(bed.names(NOW), [""; 0]);
    // An entry that no record names.
    std::fs::remove_file(bed.directory.path().join("pods.revoked.jsonl")).unwrap();
    assert!(bed.revoke(&[], NOW + 13 * HOUR).is_written);
    assert_eq!(bed.listed().len(), 1);
}

#[test]
fn the_crl_of_another_ca_is_not_replaced_and_nothing_is_recorded() {
    let bed = Bed::new();
    bed.issue(&pod("web", "u1"), NOW);
    bed.revoke(&[], NOW);
    let other = Bed { authority: authority(), ..bed };
    let error = other.records.revoke(&other.authority, &["u1".to_owned()].into(), NOW).unwrap_err();
    assert!(
        error.to_string().ends_with("a CRL of another CA, by its signature; give another crlFile"),
        "{error}"
    );
    assert_eq!(other.lines("pods.revoked.jsonl"), 0);
}

#[test]
fn a_damaged_index_refuses_certificates_and_revokes_nothing_silently() {
    let bed = Bed::new();
    bed.issue(&pod("web", "u1"), NOW);
    let text = std::fs::read_to_string(&bed.records.index).unwrap();
    std::fs::write(&bed.records.index, format!("{text}{{\"serial\":")).unwrap();
    let (issued, names) = certificate(&bed.authority, NOW);
    let (one, alt_names) = (pod("web", "u2"), names.alt_names());
    let certificate = RecordedCertificate { issued: &issued, alt_names, signer: "s", pod: &one };
    let error = bed.records.record(certificate, &bed.authority, NOW).unwrap_err().to_string();
    assert!(error.contains("line 2 is not an entry"), "{error}");
    bed.records.pods(NOW).unwrap_err();
    bed.records.revoke(&bed.authority, &["u1".to_owned()].into(), NOW).unwrap_err();
}
