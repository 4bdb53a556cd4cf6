//! Session buses that cannot be used. Real services are in `tests/keyring`.

use std::str::FromStr as _;

use super::*;

fn keyring(address: &str) -> Result<Keyring, KeyringError> {
    Keyring::at(Address::from_str(address).unwrap(), true)
}

#[test]
fn secrets_go_to_no_other_machine() {
    for address in ["tcp:host=127.0.0.1,port=1", "unixexec:path=/bin/true"] {
        let error = keyring(address).unwrap_err();
        assert!(matches!(error, KeyringError::NoBus(_)) && error.is_absent(), "{address}: {error}");
    }
}

#[tokio::test]
async fn an_absent_bus_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let keyring = keyring(&format!("unix:path={}/bus", directory.path().display())).unwrap();
    let error = keyring.read("name").await.unwrap_err();
    assert!(matches!(error, KeyringError::NoBus(_)) && !error.is_usage(), "{error}");
    let text = error.to_string();
    for part in ["no D-Bus session bus", "/bus", "--credential-store=file"] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bus_that_never_answers_ends_by_the_deadline() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bus");
    let silent = tokio::net::UnixListener::bind(&path).unwrap();
    let keyring = keyring(&format!("unix:path={}", path.display())).unwrap();
    let error = keyring.write("name", b"secret").await.unwrap_err();
    assert!(matches!(error, KeyringError::Timeout { .. }), "{error}");
    drop(silent);
}
