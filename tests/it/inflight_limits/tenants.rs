//! The limit of the process, and a tenant whose users have whatever groups it likes.

use http::StatusCode;
use testkit::{Gateway, Pki};

use super::{HELD, Holding, is_refused, send};
use crate::gateway::InProcess as _;
use crate::management_cluster::{DOCUMENT, Management, add_own_cluster, flags, inline, trusted};

/// `--max-requests-inflight-total`, and the share of one tenant.
const TOTAL: usize = 40;
const OF_TENANT: usize = TOTAL / 8;

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

// threat: tenant-privilege
#[tokio::test]
async fn a_tenants_masters_have_no_more_of_the_process_than_its_share() {
    let pki = Pki::new();
    let (management, holding) = (Management::start(&pki).await, Holding::start(&pki).await);
    let config = inline(&pki, &holding.backend);
    for (name, tokens) in [("flood", "one,root,1,system:masters\n"), ("calm", "two,carol,7\n")] {
        management.put(name, &[("value", &config), ("cluster", DOCUMENT), ("tokens", tokens)]);
    }
    let mut flags = flags(&pki, management.server.address);
    flags.extend([format!("--max-requests-inflight-total={TOTAL}"), "--max-requests-inflight=1".to_owned()]);
    add_own_cluster(&pki, &config, "three,alice,7\nfour,admin,8,system:masters\n");
    let gateway = Gateway::with(flags);
    for name in ["flood", "calm", "own"] {
        trusted(&gateway, name).await;
    }
    let mut client = gateway.http2(None).await;
    let held = format!("/clusters/flood{HELD}");
    let flood: Vec<_> =
        (0..OF_TENANT).map(|_| send(&client, "GET", &held, &[("authorization", &bearer("one"))])).collect();
    // The limit of its own cluster is 1, which its masters pass.
    holding.received(OF_TENANT).await;
    for _ in 0..3 {
        is_refused(client.get("/clusters/flood/api", &[("authorization", &bearer("one"))]).await).await;
    }
    let rejected = "portcullis_inflight_rejected_requests_total{cluster=\"flood\",reason=\"process-limit\",\
                    request_kind=\"readOnly\"}";
    assert_eq!(gateway.count(rejected).await, 3);
    for (path, token) in [("/clusters/calm/api", "two"), ("/own/api", "three"), ("/own/api", "four")] {
        let code = send(&client, "GET", path, &[("authorization", &bearer(token))]).await.unwrap();
        assert_eq!(code, StatusCode::OK, "{path} {token}");
    }
    holding.release(OF_TENANT);
    for code in flood {
        assert_eq!(code.await.unwrap(), StatusCode::OK);
    }
    gateway.until_counted("portcullis_process_inflight_requests 0").await;
}
