//! Large tokens.

use http::StatusCode;
use testkit::issuer::SigningKey;
use testkit::{Pki, text};

use super::LoggedGateway;

#[tokio::test]
async fn large_tokens_are_refused_like_others() {
    let pki = Pki::new();
    let accounts = SigningKey::of_service_accounts();
    let file = pki.write("accounts.pub", accounts.public_pem());
    let flags = [
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", file.display()),
    ];
    let setup = LoggedGateway::new(&pki, flags).await;
    let filling = "x".repeat(700_000);
    let signed = accounts.sign(&serde_json::json!({"iss": "https://kubernetes.default.svc", "sub": filling}));
    let opaque = "x".repeat(1_000_000);
    let dots = ".".repeat(1_000_000);
    let nested = format!("{}.{}.x", "W1tb".repeat(120_000), "W1tb".repeat(120_000));
    for token in [&signed, &opaque, &dots, &nested] {
        assert_eq!(setup.code("/api", token).await, 401, "{token:.20}");
        let mut client = setup.process.gateway.http1(None).await;
        let response = client.get("/api", &[("authorization", &format!("Bearer {token}"))]).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{token:.20}");
        setup.others_are_served().await;
    }
    // A header of more than 1 MiB is refused without a `Status` body, as by Go's server.
    let response = setup.get("/api", &"x".repeat((1 << 20) + 8192)).await;
    assert_eq!(response.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    assert_eq!(text(response).await, "");
    setup.others_are_served().await;
    setup.logged(&[], &[&signed[..50], &opaque[..50], &dots[..50], &nested[..50]]).await;
}
