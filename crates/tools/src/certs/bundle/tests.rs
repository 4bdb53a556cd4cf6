use serde_json::{Value, json};
use testkit::pki::{Ca, SERVER_AUTH};

use super::objects::testing::bundle;
use super::*;

/// 2030-01-01T00:00:00Z.
const NOW: UnixTime = Duration::from_hours(525_960);
const YEAR: i64 = 365 * 86_400;

fn seconds(time: UnixTime) -> i64 {
    i64::try_from(time.as_secs()).unwrap()
}

/// A CA that is valid for years from now, or was.
fn ca(name: &str, years: i64) -> Ca {
    ends(name, years * YEAR)
}

/// The same for seconds.
fn ends(name: &str, seconds_from_now: i64) -> Ca {
    Ca::build(name).validity(seconds(NOW) - 10 * YEAR, seconds(NOW) + seconds_from_now).issue_ca()
}

fn leaf(ca: &Ca, dns: &[&str]) -> String {
    let mut builder = ca.leaf().cn("leaf").validity(seconds(NOW) - YEAR, seconds(NOW) + YEAR);
    if !dns.is_empty() {
        builder = builder.eku(&[SERVER_AUTH]);
    }
    dns.iter().fold(builder, |builder, name| builder.san_dns(name)).issue().cert_pem()
}

fn flags(certificates: &[PathBuf]) -> BundleVerifyFlags {
    BundleVerifyFlags {
        selection: SelectionFlags {
            cluster: ClusterFlags::default(),
            signer_name: Some("example.com/service".to_owned()),
            selector: None,
            name: None,
        },
        certificates: certificates.to_vec(),
        expires_within: Duration::from_hours(24 * 30),
        output: Output::Text,
    }
}

fn report(bundles: &[PublishedBundle]) -> BundleReport {
    BundleReport::of(bundles, &flags(&[]), NOW).unwrap()
}

#[test]
fn bundles_are_merged_without_duplicates_in_a_fixed_order() {
    let (one, other) = (ca("one", 10), ca("other", 10));
    let both = one.cert_pem() + &other.cert_pem() + &one.cert_pem();
    let bundles = [bundle("a", &both, &Value::Null), bundle("b", &one.cert_pem(), &Value::Null)];
    let (rows, problems) = anchors(&bundles, NOW);
    assert_eq!((rows.len(), problems.len()), (2, 0));
    let names = |subject: &str| rows.iter().find(|row| row.subject == subject).unwrap().bundles.join(",");
    assert_eq!((names("CN=one").as_str(), names("CN=other").as_str()), ("a,a,b", "a"));
    let (reversed, _) = anchors(&[bundles[1].clone(), bundles[0].clone()], NOW);
    let order = |rows: &[AnchorRow]| rows.iter().map(|row| row.sha256.clone()).collect::<Vec<_>>();
    assert_eq!(order(&rows), order(&reversed));
}

#[test]
fn what_a_reader_cannot_use_is_a_problem() {
    let one = ca("one", 10);
    let cases = [
        (one.cert_pem(), None),
        (String::new(), Some("x: has no certificate")),
        (
            "-----BEGIN CERTIFICATE-----\nQUFB\n-----END CERTIFICATE-----\n".to_owned(),
            Some("x: x509: malformed certificate"),
        ),
        (one.cert_pem() + &leaf(&one, &[]), Some("CN=leaf: is not the certificate of a CA")),
        (ca("old", -1).cert_pem(), Some("every trust anchor has expired")),
    ];
    for (pem, problem) in cases {
        let found = report(&[bundle("x", &pem, &Value::Null)]).problems;
        assert_eq!(found.first().map(String::as_str), problem, "{pem}");
    }
}

#[test]
fn a_ca_in_use_that_expires_soon_is_a_warning_and_a_former_one_is_not() {
    let (soon, fine, gone) = (ends("soon", 14 * 86_400), ca("fine", 10), ca("gone", -1));
    let pem = soon.cert_pem() + &fine.cert_pem() + &gone.cert_pem();
    let mut warnings = report(&[bundle("x", &pem, &Value::Null)]).warnings;
    warnings.sort();
    assert_eq!(
        warnings,
        [
            "CN=gone: has expired at 2029-01-01T00:00:00Z",
            "CN=soon: expires at 2030-01-15T00:00:00Z; replace the CA before"
        ]
    );
    let former = json!({fingerprint(&soon.cert): {"until": "2030-01-10T00:00:00Z"}});
    let report = report(&[bundle("x", &(soon.cert_pem() + &fine.cert_pem()), &former)]);
    assert_eq!(report.warnings, Vec::<String>::new());
    let text = report.text();
    assert!(text.contains("2030-01-10T00:00:00Z") && text.contains("in use"), "{text}");
    assert!(text.ends_with("no problems found\n"), "{text}");
}

#[test]
fn certificates_verify_with_the_published_anchors_alone() {
    let (own, other) = (ca("own", 10), ca("other", 10));
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, pem: String| {
        let file = directory.path().join(name);
        std::fs::write(&file, pem).unwrap();
        file
    };
    let files = [
        write("client.crt", leaf(&own, &[])),
        write("server.crt", leaf(&own, &["a.example.com"])),
        write("wildcard.crt", leaf(&own, &["*.example.com"])),
    ];
    let bundles = [bundle("x", &own.cert_pem(), &Value::Null)];
    let good = BundleReport::of(&bundles, &flags(&files), NOW).unwrap();
    assert_eq!(good.problems, Vec::<String>::new());
    let foreign = write("foreign.crt", leaf(&other, &[]));
    let bad = BundleReport::of(&bundles, &flags(std::slice::from_ref(&foreign)), NOW).unwrap();
    let expected = format!("{}: x509: certificate signed by unknown authority", foreign.display());
    assert_eq!(bad.problems, [expected]);
    let empty = write("empty.crt", String::new());
    let bad = BundleReport::of(&bundles, &flags(&[empty]), NOW).unwrap();
    assert!(bad.problems[0].ends_with("has no certificate"), "{:?}", bad.problems);
}

#[test]
fn names_of_an_api_server_do_nothing_to_the_terminal() {
    let text = report(&[bundle("a\u{1b}[2J\u{202e}\nb", "", &Value::Null)]).text();
    assert!(text.contains("error  a\u{fffd}[2J\u{fffd}\u{fffd}b: has no certificate\n"), "{text:?}");
}
