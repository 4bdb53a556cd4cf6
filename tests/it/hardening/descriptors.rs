//! A process that has run out of file descriptors.

use std::process::Command;
use std::time::Duration;

use http::StatusCode;
use testkit::gateway_process::GatewayProcess;
use testkit::{FakeBackend, Pki, flags, in_time, until};
use tokio::net::TcpStream;

/// The CPU time of a process, in hundredths of a second.
fn processor_time(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The name may contain any character and ends at the last parenthesis; user and system time are fields 14 and 15.
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    rest.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

fn open_files(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

#[tokio::test]
async fn without_file_descriptors_the_gateway_pauses_accepting_and_then_resumes() {
    const LIMIT: usize = 64;
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("ulimit -n {LIMIT} && exec \"$0\" \"$@\""), crate::gateway::PORTCULLIS])
        .arg("serve")
        .args(flags(&pki, backend.address))
        .arg("--max-connections=1000");
    let process = GatewayProcess::serve(command).await;
    let gateway = &process.gateway;
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut known = gateway.http2(Some(&alice)).await;
    assert_eq!(known.get("/api", &[]).await.status(), StatusCode::OK);

    let mut silent = Vec::new();
    for _ in 0..2 * LIMIT {
        silent.push(TcpStream::connect(process.gateway.address).await.unwrap());
    }
    until("the last file descriptor", || open_files(process.id()) >= LIMIT).await;
    let before = processor_time(process.id());
    let waiting = std::time::Instant::now();
    while waiting.elapsed() < Duration::from_secs(1) {
        assert_eq!(known.get("/api", &[]).await.status(), StatusCode::OK);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (used, whole) = (processor_time(process.id()) - before, waiting.elapsed());
    // Retrying accept in a loop would use a whole core.
    assert!(
        Duration::from_millis(used * 10) < whole.mul_f64(0.6),
        "{used} hundredths of a second in {whole:?}"
    );

    drop(silent);
    let mut new = in_time(gateway.http1(Some(&alice))).await;
    assert_eq!(new.get("/api", &[]).await.status(), StatusCode::OK);
    let (ended, log) = process.end().await;
    assert!(ended.success());
    let lines = log.matches("cannot accept connections").count();
    assert_eq!(lines, 1, "{log}");
    assert!(log.contains("the limit of open files does not allow so many connections"), "{log}");
}
