//! Addresses, and sockets of other users.

use tokio::io::AsyncReadExt as _;
use tokio::net::UnixListener;

use super::*;

fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn the_sockets_of_a_list_are_parsed() {
    let socket = |socket: &str, guid: Option<&str>| BusAddress {
        socket: PathBuf::from(socket),
        guid: guid.map(str::to_owned),
    };
    let cases = [
        ("unix:path=/a", vec![socket("/a", None)]),
        ("unix:path=/a,guid=0f", vec![socket("/a", Some("0f"))]),
        ("unix:abstract=/a", vec![socket("\0/a", None)]),
        ("unix:path=/a%20b%2c", vec![socket("/a b,", None)]),
        (
            "tcp:host=127.0.0.1,port=1;unix:path=/a;unix:path=/b;",
            vec![socket("/a", None), socket("/b", None)],
        ),
    ];
    for (addresses, expected) in cases {
        assert_eq!(BusAddresses::parse(addresses).unwrap().0, expected, "{addresses}");
    }
}

#[test]
fn secrets_go_to_no_other_machine() {
    for addresses in [
        "",
        "tcp:host=127.0.0.1,port=1",
        "unixexec:path=/bin/true",
        "unix:path=",
        "unix:path=/a,abstract=/b",
        "unix:runtime=yes",
        "unix:path=/a%2",
    ] {
        let error = BusAddresses::parse(addresses).unwrap_err();
        assert!(matches!(error, KeyringError::NoBus(_)) && error.is_absent(), "{addresses}: {error}");
    }
}

#[tokio::test]
async fn a_bus_of_another_user_gets_no_byte() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bus");
    let listener = UnixListener::bind(&path).unwrap();
    let addresses = BusAddresses::parse(&format!("unix:path={}", path.display())).unwrap();
    let error = addresses.stream(own() + 1).await.unwrap_err();
    assert!(matches!(error, KeyringError::ForeignBus) && !error.is_absent(), "{error}");
    let mut sent = Vec::new();
    listener.accept().await.unwrap().0.read_to_end(&mut sent).await.unwrap();
    assert_eq!(sent, b"");
    addresses.stream(own()).await.unwrap();
}

#[tokio::test]
async fn the_addresses_are_tried_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let absent = directory.path().join("absent");
    let name = format!("portcullis-test-{}", directory.path().display());
    let listener = UnixListener::bind(format!("\0{name}")).unwrap();
    let list = format!("unix:path={};unix:abstract={name}", absent.display());
    let addresses = BusAddresses::parse(&list).unwrap();
    let (_, address) = addresses.stream(own()).await.unwrap();
    assert_eq!(address.to_string(), format!("the abstract socket {name}"));
    drop(listener);
    let error = addresses.stream(own()).await.unwrap_err().to_string();
    for part in [absent.display().to_string(), name] {
        assert!(error.contains(&part), "{error}");
    }
}
