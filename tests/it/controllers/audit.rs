//! The audit log of a gateway that terminates while it signs: every certificate has a log line.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use rustix::process::Signal;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::Value;
use testkit::until;

use super::*;
use crate::gateway::start_process;

const REQUESTS: usize = 200;

/// The serial numbers of the certificates in the API, and the log of a gateway that received a signal while it signed.
async fn ended_by(signal: Signal) -> (BTreeSet<String>, Vec<Value>) {
    let setup = ControllerGateway::new().await;
    let spec = TestCsr::node("one").spec;
    for number in 0..REQUESTS {
        setup.cluster.request(&format!("csr-{number:03}"), &spec, &approved());
    }
    // Delayed responses, so that some writes are in flight at any time.
    setup.cluster.late.store(true, Ordering::SeqCst);
    let process = start_process(setup.flags("csrsigning", &["--shutdown-grace-period=10s"])).await;
    until("certificates", || setup.cluster.certificates().len() >= 20).await;
    process.signal(signal);
    let (_, log) = process.end().await;
    let written = setup.cluster.certificates();
    assert!(written.len() < REQUESTS, "all requests were signed before the signal");
    let serial = |pem: &str| {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).unwrap();
        parsed.raw_serial_as_string().replace(':', "")
    };
    let pem = |text: &str| String::from_utf8(BASE64_STANDARD.decode(text).unwrap()).unwrap();
    let serials = written.iter().map(|(_, certificate)| serial(&pem(certificate))).collect();
    (serials, log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// The serial numbers in the lines with this message, without leading zeros, which DER omits.
fn serials(log: &[Value], message: &str) -> BTreeSet<String> {
    let lines =
        log.iter().filter(|line| line["message"].as_str().is_some_and(|text| text.starts_with(message)));
    lines.map(|line| line["serial"].as_str().unwrap().to_owned()).collect()
}

/// Removes leading zeros.
fn numbers(serials: &BTreeSet<String>) -> BTreeSet<String> {
    serials.iter().map(|serial| serial.trim_start_matches('0').to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_sigterm_the_log_has_the_outcome_of_every_certificate() {
    let (written, log) = ended_by(Signal::TERM).await;
    let issued = numbers(&serials(&log, "certificate issued"));
    let missing: Vec<_> = numbers(&written).difference(&issued).cloned().collect();
    assert!(missing.is_empty(), "{} of {} have no line: {missing:?}", missing.len(), written.len());
    assert_eq!(issued, numbers(&written), "every line has its certificate");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_sigkill_the_log_names_every_certificate_that_was_written() {
    let (written, log) = ended_by(Signal::KILL).await;
    let named: BTreeSet<String> =
        ["signing", "certificate issued"].iter().flat_map(|m| serials(&log, m)).collect();
    let missing: Vec<_> = numbers(&written).difference(&numbers(&named)).cloned().collect();
    assert!(missing.is_empty(), "{} of {} have no line: {missing:?}", missing.len(), written.len());
    let line = log.iter().find(|line| line["message"] == "signing").expect("a line before the certificate");
    for field in
        ["cluster", "csr", "uid", "signer", "requester", "subject", "serial", "sha256", "usages", "not_after"]
    {
        assert!(line[field].is_string(), "{field} is missing in {line}");
    }
}
