//! `portcullis serve` whose signer's token is absent when it starts.

use crate::faults::FaultyModule;
use crate::{Case, Tokens};

use testkit::fake_cluster::FakeCluster;
use testkit::gateway_process::GatewayProcess;
use testkit::{Pki, flags};

pub(crate) const CASES: &[Case] =
    &[("a_gateway_starts_without_the_token_and_finds_it_later", starts_without)];

fn starts_without(tokens: &Tokens) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(serve(tokens));
}

async fn serve(tokens: &Tokens) {
    let module = FaultyModule::new(tokens, "serving");
    module.set_fault("absent");
    let pki = Pki::new();
    let backend = FakeCluster::new().serve(&pki).await;
    let mut flags = flags(&pki, backend.address);
    flags.push("--controllers=csrsigning".to_owned());
    flags.push(format!(
        "--cluster-signing-kubelet-client-cert-file={}",
        tokens.certificate_file("p256").display()
    ));
    flags.push(format!("--cluster-signing-kubelet-client-key-file={}", module.uri(tokens, "p256")));
    let process = GatewayProcess::start(env!("CARGO_BIN_EXE_portcullis"), flags).await;
    assert!(!process.said("nothing is signed until the token of the CA key is back").is_empty());
    let signer = "kubernetes.io/kube-apiserver-client-kubelet";
    let gauge = format!("portcullis_signer_token_key_available{{cluster=\"backend\",signer=\"{signer}\"}}");
    process.gateway.until_counted(&format!("{gauge} 0")).await;
    let check = format!("/readyz/cluster-backend/signer-{signer}");
    let ready = || async { process.gateway.metrics(&check).await };
    let answer = ready().await;
    assert!(answer.contains("no token matches"), "{answer}");
    assert!(
        process
            .gateway
            .metrics("/readyz?verbose")
            .await
            .contains(&format!("[-]cluster-backend/signer-{signer}"))
    );
    // Clients are served all the same: the readiness is that of the API server.
    module.set_fault("");
    process.gateway.until_counted(&format!("{gauge} 1")).await;
    let answer = ready().await;
    assert!(answer.ends_with("ok"), "{answer}");
}
