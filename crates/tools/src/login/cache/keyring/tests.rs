//! Session buses that cannot be used. Real services are in `tests/keyring`.

use super::*;

fn keyring(path: &std::path::Path) -> Keyring {
    Keyring::at(BusAddresses::parse(&format!("unix:path={}", path.display())).unwrap(), true)
}

#[tokio::test]
async fn an_absent_bus_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let keyring = keyring(&directory.path().join("bus"));
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
    let keyring = keyring(&path);
    let error = keyring.write("name", b"secret").await.unwrap_err();
    assert!(matches!(error, KeyringError::Timeout { .. }), "{error}");
    drop(silent);
}
