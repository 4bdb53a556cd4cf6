//! The TLS groups, cipher suites and signature algorithms of every connection, compared with those of Go: what a client
//! offers is what a server accepts, in Go and in rustls.
//!
//! `docs/conformance.md` declares what is missing here: D-tls-suites and D-tls-groups.

use portcullis::internal::offered_schemes;
use rustls::crypto::aws_lc_rs::default_provider;
use serde_json::Value;
use testkit::go_program::GoProgram;

/// `TLS_ECDHE_{ECDSA,RSA}_WITH_AES_{128,256}_CBC_SHA`.
const WITHOUT_SUITES: [u16; 4] = [0xc009, 0xc00a, 0xc013, 0xc014];
/// `secp521r1`, `SecP256r1MLKEM768`, `SecP384r1MLKEM1024`.
const WITHOUT_GROUPS: [u16; 3] = [0x0019, 0x11eb, 0x11ed];

fn sorted(list: impl IntoIterator<Item = u16>) -> Vec<u16> {
    let mut list: Vec<u16> = list.into_iter().collect();
    list.sort_unstable();
    list
}

#[test]
fn tls_offers_what_go_offers_except_for_what_is_declared() {
    let Some(program) = GoProgram::build("chains") else { return };
    let answer: Value = serde_json::from_slice(&program.run(&["-tls"], b"")).unwrap();
    let theirs = |key: &str, without: &[u16]| {
        let list: Vec<u16> = serde_json::from_value(answer[key].clone()).unwrap();
        assert!(without.iter().all(|one| list.contains(one)), "Go has no longer all of {key} {without:x?}");
        sorted(list.into_iter().filter(|one| !without.contains(one)))
    };
    let provider = default_provider();
    let suites = provider.cipher_suites.iter().map(|suite| suite.suite().into());
    let groups = provider.kx_groups.iter().map(|group| group.name().into());
    let schemes = offered_schemes(&provider.signature_verification_algorithms).into_iter().map(u16::from);
    assert_eq!(sorted(suites), theirs("suites", &WITHOUT_SUITES));
    assert_eq!(sorted(groups), theirs("groups", &WITHOUT_GROUPS));
    assert_eq!(sorted(schemes), theirs("schemes", &[]));
}
