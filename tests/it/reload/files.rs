//! File changes: those of a mounted Secret, and many in a row under load.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::Signal;
use testkit::client::Client;
use testkit::config_reload::replace;
use testkit::pki::Issued;
use testkit::{FakeBackend, Gateway, Pki, flags, until};

use crate::gateway::InProcess as _;
use crate::gateway::start_process;

const GOOD: (&str, &str) = ("authorization", "Bearer good-token");

/// Mounts files as the kubelet mounts a Secret: constant links through `..data`, which is replaced by a rename.
fn mount(directory: &Path, version: &str, files: &[(&str, &str)]) {
    let data = directory.join(version);
    std::fs::create_dir_all(&data).unwrap();
    for (name, content) in files {
        std::fs::write(data.join(name), content).unwrap();
        if !directory.join(name).exists() {
            symlink(Path::new("..data").join(name), directory.join(name)).unwrap();
        }
    }
    symlink(version, directory.join("..data_tmp")).unwrap();
    std::fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
}

#[tokio::test]
async fn a_changed_mounted_secret_is_detected_without_a_signal() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let secret = pki.directory.path().join("secret");
    let [first, second] = ["first", "second"].map(|name| pki.servers.leaf().cn(name).issue());
    let files = |issued: &Issued, tokens: &str| {
        [("tls.crt", issued.cert_pem()), ("tls.key", issued.key_pem()), ("tokens", tokens.to_owned())]
    };
    let put = |version: &str, files: &[(&str, String)]| {
        let files: Vec<_> = files.iter().map(|(name, content)| (*name, content.as_str())).collect();
        mount(&secret, version, &files);
    };
    put("..2026_01", &files(&first, "good-token,carol,7\n"));
    let path = |name: &str| secret.join(name).display().to_string();
    let gateway = Gateway::with(
        flags(&pki, backend.address)
            .into_iter()
            .chain([
                format!("--tls-cert-file={}", path("tls.crt")),
                format!("--tls-private-key-file={}", path("tls.key")),
                format!("--token-auth-file={}", path("tokens")),
            ])
            .collect(),
    );
    let stream = gateway.tls(b"h2", None).await;
    assert_eq!(stream.get_ref().1.peer_certificates().unwrap(), first.chain);
    let mut client = Client::over(&gateway, stream).await;
    assert_eq!(client.code(&[GOOD]).await, 200);

    put("..2026_02", &files(&second, "new-token,carol,7\n"));
    gateway.reloaded(1).await;
    let stream = gateway.tls(b"h2", None).await;
    assert_eq!(stream.get_ref().1.peer_certificates().unwrap(), second.chain);
    assert_eq!(client.code(&[("authorization", "Bearer new-token")]).await, 200);
    assert_eq!(client.code(&[GOOD]).await, 401);
}

const CONNECTIONS: usize = 20;
const RELOADS: usize = 50;

#[tokio::test]
async fn no_request_fails_while_signals_reload_under_load() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let files = pki.directory.path();
    let process =
        start_process(flags(&pki, backend.address).into_iter().chain(["--workers=2".to_owned()])).await;
    let process = Arc::new(process);
    let alice = Arc::new(pki.clients.leaf().cn("alice").issue());
    let (done, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let loads: Vec<_> = (0..CONNECTIONS)
        .map(|index| {
            let (process, alice) = (Arc::clone(&process), Arc::clone(&alice));
            let (done, answered) = (Arc::clone(&done), Arc::clone(&answered));
            tokio::spawn(async move {
                let connect = async || Client::connect(&process.gateway, index % 2 == 1, Some(&alice)).await;
                let mut client = connect().await;
                while !done.load(Ordering::SeqCst) {
                    let headers: &[_] = if index % 3 == 0 { &[GOOD] } else { &[] };
                    assert_eq!(client.code(headers).await, 200);
                    answered.fetch_add(1, Ordering::SeqCst);
                    // Some clients reconnect each time.
                    if index % 5 == 0 {
                        client = connect().await;
                    }
                }
            })
        })
        .collect();
    for round in 0..RELOADS {
        let before = process.gateway.generation().await;
        let answered_before = answered.load(Ordering::SeqCst);
        let serving = pki.servers.leaf().cn(&format!("round-{round}")).issue();
        replace(&files.join("gateway.crt"), serving.cert_pem());
        replace(&files.join("gateway.key"), serving.key_pem());
        replace(&files.join("tokens.csv"), format!("good-token,carol,7\nof-round-{round},dave,8\n"));
        process.signal(Signal::HUP);
        process.gateway.reloaded(before).await;
        until("more answers", || answered.load(Ordering::SeqCst) > answered_before).await;
    }
    done.store(true, Ordering::SeqCst);
    for load in loads {
        load.await.expect("no request fails");
    }
    assert!(process.gateway.generation().await > u64::try_from(RELOADS).unwrap());
}
