//! The commands of people's machines behind the proxies of their company: `HTTPS_PROXY` for the provider, `proxy-url` of the
//! kubeconfig for the cluster. The rules of `NO_PROXY` have tests in `portcullis_http`.

use serde_json::json;
use testkit::pki::Ca;
use testkit::proxy_server::{CONNECTED, ProxyKind, ProxyServer};

use crate::machine::{Machine, cluster, provider, server, text};

const ISSUER: &str = "https://issuer.test";
const LOGIN: [&str; 2] = ["login", "--kubeconfig=kubeconfig"];

fn assert_connects(proxy: &ProxyServer, target: &str) {
    let heads = proxy.take();
    assert!(!heads.is_empty(), "nothing came for {target}");
    for head in heads {
        assert!(head.starts_with(&format!("CONNECT {target} ")), "{head}");
        assert!(head.contains("Proxy-Authorization: Basic dXNlcjpzM2NyM3Q=\r\n"), "{head}");
    }
}

/// A kubeconfig whose cluster has a proxy of its own.
fn write_kubeconfig(machine: &Machine, proxy_url: &str) {
    let cluster = json!({"server": "https://cluster.test", "proxy-url": proxy_url});
    machine.write("kubeconfig", &machine.kubeconfig("c", &cluster));
}

#[tokio::test]
async fn commands_of_people_go_through_their_proxies() {
    let ca = Ca::new("servers");
    let (provider, cluster) =
        (server(&ca, "issuer.test", provider).await, server(&ca, "cluster.test", cluster).await);
    let to_provider = ProxyServer::start(ProxyKind::Connect(CONNECTED), provider.address).await;
    let to_cluster = ProxyServer::start(ProxyKind::Connect(CONNECTED), cluster.address).await;
    let socks = ProxyServer::start(ProxyKind::Socks, cluster.address).await;
    let mut machine = Machine::new(&ca, ISSUER);
    machine.variables = vec![("HTTPS_PROXY", format!("http://user:s3cr3t@{}", to_provider.address))];

    write_kubeconfig(&machine, &format!("http://user:s3cr3t@{}", to_cluster.address));
    let login = machine.run(&LOGIN).await;
    assert!(login.status.success() && text(&login).contains("machine"), "{}", text(&login));
    assert_connects(&to_provider, "issuer.test:443");
    assert_connects(&to_cluster, "cluster.test:443");

    write_kubeconfig(&machine, &format!("socks5://user:s3cr3t@{}", socks.address));
    let login = machine.run(&LOGIN).await;
    assert!(login.status.success(), "{}", text(&login));
    assert_eq!(socks.take(), ["user s3cr3t cluster.test:443"]);
    to_provider.take();

    let credential = machine.run_with_flags(&["credential", "--no-cache"]).await;
    assert!(
        credential.status.success() && text(&credential).contains("machine-token"),
        "{}",
        text(&credential)
    );
    assert_connects(&to_provider, "issuer.test:443");
    machine.run_with_flags(&["logout", "--end-session"]).await;
    assert_connects(&to_provider, "issuer.test:443");
}

#[tokio::test]
async fn a_proxy_that_fails_is_named_without_its_password() {
    let ca = Ca::new("servers");
    // Bound but not listening: no other process gets the port.
    let unheard = tokio::net::TcpSocket::new_v4().unwrap();
    unheard.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = unheard.local_addr().unwrap();
    let proxy = format!("http://user:s3cr3t@{address}");
    let mut machine = Machine::new(&ca, ISSUER);
    write_kubeconfig(&machine, &proxy);
    machine.variables = vec![("HTTPS_PROXY", proxy)];
    for failed in [
        machine.run(&LOGIN).await,
        machine.run_with_flags(&["credential", "--no-cache"]).await,
        machine.run_with_flags(&["logout", "--end-session"]).await,
    ] {
        let text = text(&failed);
        assert!(
            !failed.status.success() && text.contains(&format!("the proxy http://{address}: ")),
            "{text}"
        );
        assert!(text.contains("fix: check the proxy") && !text.contains("s3cr3t"), "{text}");
    }

    // The review, behind the proxy of its cluster.
    let provider = server(&ca, "issuer.test", provider).await;
    let to_provider = ProxyServer::start(ProxyKind::Connect(CONNECTED), provider.address).await;
    machine.variables = vec![("HTTPS_PROXY", format!("user:s3cr3t@{}", to_provider.address))];
    let text = text(&machine.run(&LOGIN).await);
    assert!(
        text.contains("ask the cluster who you are") && text.contains(&format!("http://{address}: ")),
        "{text}"
    );
    assert!(!text.contains("s3cr3t"), "{text}");
}
