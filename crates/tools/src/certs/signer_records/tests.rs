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

    fn owner(&self) -> RecordOwner<'_> {
        RecordOwner { cluster: "c", authority: &self.authority }
    }

    /// Issues a certificate to a pod; returns its serial number.
    fn issue(&self, pod: &IndexedPod, now: UnixTime) -> String {
        let (issued, names) = certificate(&self.authority, now);
        let alt_names = names.alt_names();
        let certificate = RecordedCertificate { issued: &issued, alt_names, signer: "example.com/pods", pod };
        self.records.record(certificate, self.owner(), now).unwrap();
        issued.serial_hex().trim_start_matches('0').to_owned()
    }

    fn revoke(&self, uids: &[&str], now: UnixTime) -> CrlOutcome {
        let gone = uids.iter().map(|uid| (*uid).to_owned()).collect();
        let outcome = self.records.revoke(self.owner(), &gone, now).unwrap().unwrap();
        assert_eq!(outcome.problem, None);
        outcome.crl
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
        let IndexedPods { pods, problem, .. } = self.records.pods(self.owner(), now).unwrap();
        assert_eq!(problem, None);
        let mut names: Vec<_> = pods.into_iter().map(|pod| pod.uid).collect();
        names.sort();
        names
    }

    /// The size of the last line of the index.
    fn line_size(&self) -> usize {
        let text = std::fs::read_to_string(&self.records.index).unwrap();
        text.lines().last().map_or(0, |line| line.len() + 1)
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
    let outcome = bed.records.revoke(bed.owner(), &HashSet::new(), NOW).unwrap().unwrap();
    assert!(!outcome.crl.is_written, "the clock was set back");
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

/// The last entry of the index is copied with these changes, as another writer of the file would add it.
fn add_foreign(bed: &Bed, change: impl FnOnce(&mut IndexEntry)) {
    let mut entry = bed.records.issuance().read().unwrap().pop().unwrap();
    entry.sha256 = "00".to_owned();
    entry.serial = "77".to_owned();
    change(&mut entry);
    bed.records.issuance().record(&[entry]).unwrap();
}

#[test]
fn lines_of_another_ca_and_of_another_cluster_count_for_nothing() {
    let bed = Bed::new();
    let own = bed.issue(&pod("web", "u1"), NOW);
    add_foreign(&bed, |entry| entry.cluster = Some("other".to_owned()));
    add_foreign(&bed, |entry| entry.issuer_key_sha256 = Some("01".to_owned()));
    add_foreign(&bed, |entry| {
        entry.issuer_key_sha256 = None;
        entry.issuer_sha256 = Some("01".to_owned());
    });
    let found = bed.records.pods(bed.owner(), NOW).unwrap();
    assert_eq!((found.pods.len(), found.foreign), (1, 3));
    // The UID is that of the lines of the others, too.
    assert_eq!(bed.revoke(&["u1"], NOW).revoked, 1);
    assert_eq!(bed.listed(), [own]);
    // Each cluster revokes its own certificates alone.
    let owner = RecordOwner { cluster: "other", ..bed.owner() };
    let outcome = bed.records.revoke(owner, &["u1".to_owned()].into(), NOW).unwrap().unwrap();
    assert_eq!(outcome.crl.revoked, 1, "its own line");
}

#[test]
fn the_crl_of_another_ca_is_not_replaced_and_the_revocation_is_recorded() {
    let bed = Bed::new();
    bed.issue(&pod("web", "u1"), NOW);
    bed.revoke(&[], NOW);
    let other = Bed { authority: authority(), ..bed };
    let before = std::fs::read(other.directory.path().join("pods.crl")).unwrap();
    let serial = other.issue(&pod("web", "u2"), NOW);
    let error = other.records.revoke(other.owner(), &["u2".to_owned()].into(), NOW).unwrap_err().to_string();
    assert!(error.contains("a CRL of another CA, by its signature; give another crlFile"), "{error}");
    assert!(error.contains("pods.revoked.jsonl records"), "{error}");
    assert_eq!(std::fs::read(other.directory.path().join("pods.crl")).unwrap(), before);
    assert_eq!(other.lines("pods.revoked.jsonl"), 1);
    // The operator moves it away.
    std::fs::remove_file(other.directory.path().join("pods.crl")).unwrap();
    assert_eq!(other.revoke(&["u2"], NOW).revoked, 0);
    assert_eq!(other.listed(), [serial]);
}

#[test]
fn a_new_key_of_the_ca_goes_on_with_the_records_of_the_former_one() {
    let bed = Bed::new();
    let first = bed.issue(&pod("web", "u1"), NOW);
    let second = bed.issue(&pod("web", "u2"), NOW);
    bed.revoke(&["u1"], NOW);
    let bundle = encode_pem("CERTIFICATE", &bed.authority.certificate().der);
    let renewed = Bed { authority: authority(), ..bed };
    renewed.records.revoke(renewed.owner(), &HashSet::new(), NOW).unwrap_err();
    std::fs::write(renewed.directory.path().join("pods.bundle.crt"), bundle).unwrap();
    assert_eq!(renewed.names(NOW), ["u2"]);
    let outcome = renewed.revoke(&[], NOW);
    assert!(outcome.is_written, "by the new key, although it was not due");
    // The test bed verifies the signature by the new key.
    assert_eq!(renewed.listed(), std::slice::from_ref(&first));
    renewed.revoke(&["u2"], NOW);
    assert_eq!(renewed.listed(), sorted(vec![first, second]));
}

#[test]
fn a_part_of_a_line_stops_neither_certificates_nor_revocations() {
    let bed = Bed::new();
    bed.issue(&pod("web", "u1"), NOW);
    let tear = |file: &str| {
        let path = bed.directory.path().join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        std::fs::write(&path, format!("{text}{{\"serial\":")).unwrap();
    };
    tear("pods.index.jsonl");
    bed.issue(&pod("web", "u2"), NOW);
    assert_eq!(bed.names(NOW), ["u1", "u2"]);
    tear("pods.index.jsonl");
    tear("pods.revoked.jsonl");
    assert_eq!(bed.revoke(&["u1"], NOW).revoked, 1);
    tear("pods.revoked.jsonl");
    assert_eq!(bed.names(NOW), ["u2"]);
    assert_eq!((bed.lines("pods.index.jsonl"), bed.lines("pods.revoked.jsonl")), (2, 1));
}

#[test]
fn a_damaged_index_refuses_certificates_and_the_others_are_revoked() {
    let bed = Bed::new();
    bed.issue(&pod("web", "u1"), NOW);
    let text = std::fs::read_to_string(&bed.records.index).unwrap();
    // A whole line, which no writer was stopped in.
    std::fs::write(&bed.records.index, format!("{text}{{\"serial\":\n")).unwrap();
    let (issued, names) = certificate(&bed.authority, NOW);
    let (one, alt_names) = (pod("web", "u2"), names.alt_names());
    let certificate = RecordedCertificate { issued: &issued, alt_names, signer: "s", pod: &one };
    let error = bed.records.record(certificate, bed.owner(), NOW).unwrap_err().to_string();
    assert!(error.contains("line 2 is not an entry"), "{error}");
    let found = bed.records.pods(bed.owner(), NOW).unwrap();
    assert_eq!(found.pods.len(), 1);
    assert!(found.problem.unwrap().to_string().contains("line 2 is not an entry"));
    let outcome = bed.records.revoke(bed.owner(), &["u1".to_owned()].into(), NOW).unwrap().unwrap();
    assert_eq!(outcome.crl, CrlOutcome { revoked: 1, entries: 1, is_written: true });
    assert!(outcome.problem.unwrap().to_string().contains("line 2 is not an entry"));
    assert_eq!(bed.listed().len(), 1);
    bed.records.prune(NOW + 49 * HOUR).unwrap_err();
    assert_eq!(bed.lines("pods.index.jsonl"), 2, "nothing is dropped");
}

#[test]
fn the_crl_stays_fresh_without_its_index() {
    let bed = Bed::new();
    let serial = bed.issue(&pod("web", "u1"), NOW);
    bed.revoke(&["u1"], NOW);
    std::fs::remove_file(&bed.records.index).unwrap();
    std::fs::create_dir(&bed.records.index).unwrap();
    let outcome = bed.records.revoke(bed.owner(), &HashSet::new(), NOW + 13 * HOUR).unwrap().unwrap();
    assert!(outcome.crl.is_written && outcome.problem.is_some());
    assert_eq!(bed.listed(), [serial]);
}

/// Larger than the files that are read elsewhere.
#[test]
fn a_large_index_loses_its_old_lines() {
    let bed = Bed::new();
    bed.issue(&pod("web", "u1"), NOW);
    let line = std::fs::read_to_string(&bed.records.index).unwrap();
    let count = (17 << 20) / line.len() + 1;
    std::fs::write(&bed.records.index, line.repeat(count)).unwrap();
    std::fs::set_permissions(&bed.records.index, std::os::unix::fs::PermissionsExt::from_mode(0o640))
        .unwrap();
    bed.issue(&pod("web", "u2"), NOW + 48 * HOUR);
    bed.records.prune(NOW + 49 * HOUR).unwrap();
    assert_eq!(bed.names(NOW + 49 * HOUR), ["u2"]);
    assert_eq!(bed.lines("pods.index.jsonl"), 1);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(&bed.records.index).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o640);
    // The other record, too: it is read up to the same size.
    bed.revoke(&["u2"], NOW + 49 * HOUR);
    let revoked = bed.directory.path().join("pods.revoked.jsonl");
    let line = std::fs::read_to_string(&revoked).unwrap();
    std::fs::write(&revoked, line.repeat((17 << 20) / line.len() + 1)).unwrap();
    bed.records.prune(NOW + 98 * HOUR).unwrap();
    assert_eq!(bed.lines("pods.revoked.jsonl"), 0);
}

#[test]
fn a_half_full_index_loses_the_lines_of_revoked_certificates() {
    let bed = Bed::new();
    bed.issue(&pod("web", "u1"), NOW);
    bed.issue(&pod("web", "u2"), NOW);
    bed.revoke(&["u1"], NOW);
    bed.records.prune(NOW).unwrap();
    assert_eq!(bed.lines("pods.index.jsonl"), 2);
    let text = std::fs::read_to_string(&bed.records.index).unwrap();
    let first = text.lines().next().unwrap();
    let count = usize::try_from(MAX_INDEX / 2).unwrap() / (first.len() + 1);
    std::fs::write(&bed.records.index, format!("{}{text}", format!("{first}\n").repeat(count))).unwrap();
    bed.records.prune(NOW).unwrap();
    assert_eq!(bed.lines("pods.index.jsonl"), 1);
    assert_eq!(bed.names(NOW), ["u2"]);
    assert_eq!(bed.revoke(&["u1"], NOW).entries, 1);
}

#[test]
fn files_are_compared_by_their_paths_without_links() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::create_dir(path("real")).unwrap();
    std::os::unix::fs::symlink("real", path("link")).unwrap();
    let files = |at: &str| {
        let crl = Some(SignerCrl { file: path(at).join("pods.crl"), lifetime: HOUR });
        SignerRecords { index: path(at).join("pods.index.jsonl"), crl }.resolved_files().unwrap()
    };
    let root = directory.path().canonicalize().unwrap().join("real");
    let expected =
        ["pods.index.jsonl", "pods.revoked.jsonl", "pods.held", "pods.crl"].map(|name| root.join(name));
    for at in ["real", "link", "./link/../real"] {
        assert_eq!(files(at), expected, "{at}");
    }
}

/// As many revocations as the record may have: the CRL is written, read and signed again, and nothing more is issued.
#[test]
fn a_full_record_of_revocations_stops_certificates_and_no_crl() {
    let bed = Bed::new();
    bed.issue(&pod("web", "u1"), NOW);
    bed.revoke(&["u1"], NOW);
    let revoked = bed.directory.path().join("pods.revoked.jsonl");
    let line = std::fs::read_to_string(&revoked).unwrap();
    let mut record: RevocationRecord = serde_json::from_str(&line).unwrap();
    record.subject = String::new();
    let mut text = String::new();
    let mut serial = 1_u128 << 126;
    while u64::try_from(text.len()).unwrap() <= MAX_REVOKED {
        record.serial = format!("{serial:032x}");
        text += &serde_json::to_string(&record).unwrap();
        text.push('\n');
        serial += 1;
    }
    let lines = text.lines().count();
    std::fs::write(&revoked, text).unwrap();
    for now in [NOW + HOUR, NOW + 14 * HOUR] {
        let crl = bed.revoke(&[], now);
        assert!(crl.is_written && crl.entries >= lines, "{crl:?}");
    }
    // With an index that is full of others.
    let size = std::fs::metadata(bed.directory.path().join("pods.crl")).unwrap().len();
    let others = MAX_INDEX / u64::try_from(bed.line_size()).unwrap() * size / u64::try_from(lines).unwrap();
    assert!(size + others <= 16 << 20, "{size} + {others}");
    let (issued, names) = certificate(&bed.authority, NOW);
    let of = pod("web", "u2");
    let alt_names = names.alt_names();
    let certificate =
        RecordedCertificate { issued: &issued, alt_names, signer: "example.com/pods", pod: &of };
    let error = bed.records.record(certificate, bed.owner(), NOW).unwrap_err().to_string();
    assert!(
        error.ends_with("pods.revoked.jsonl: is larger than 28 MiB; the revoked certificates must end first"),
        "{error}"
    );
}

#[test]
fn a_damaged_record_of_revocations_stops_no_crl() {
    let bed = Bed::new();
    let serials = ["u1", "u2", "u3"].map(|uid| bed.issue(&pod("web", uid), NOW));
    bed.revoke(&["u1"], NOW);
    bed.revoke(&["u2"], NOW);
    let revoked = bed.directory.path().join("pods.revoked.jsonl");
    let text = std::fs::read_to_string(&revoked).unwrap();
    std::fs::write(&revoked, text.replacen("serial", "?", 1)).unwrap();
    let gone = HashSet::from(["u3".to_owned()]);
    let outcome = bed.records.revoke(bed.owner(), &gone, NOW + 13 * HOUR).unwrap().unwrap();
    assert!(outcome.problem.unwrap().to_string().contains("pods.revoked.jsonl: line 1 is not a record"));
    assert_eq!(bed.listed(), sorted(serials.to_vec()), "the CRL before has the first one");
    assert!(bed.records.prune(NOW + 100 * HOUR).is_err(), "a line that cannot be read is not dropped");
}
