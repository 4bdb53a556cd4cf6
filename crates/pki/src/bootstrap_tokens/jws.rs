//! The signatures of bootstrap tokens: JSON Web Signatures with detached content, `header..signature`.
//!
//! RFC 7515 appendix F, not RFC 7797: the signature covers the payload in base64url, which is then omitted. Verifiers
//! compare the whole text, so the header must match byte for byte.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::token::TokenId;

/// Signs a payload.
// cluster-bootstrap: token/jws/jws.go, ComputeDetachedSignature
pub fn sign(payload: &str, id: &TokenId, secret: &[u8]) -> String {
    // A token ID has no characters that JSON escapes.
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(payload));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes()));
    format!("{header}..{signature}")
}

/// Verifies a detached signature of a payload.
// cluster-bootstrap: token/jws/jws.go, DetachedTokenIsValid
// threat: impersonated-cluster
pub fn verify(signature: &str, payload: &str, id: &TokenId, secret: &[u8]) -> bool {
    let own = sign(payload, id, secret);
    verify_slices_are_equal(own.as_bytes(), signature.as_bytes()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: &str = "Hello from the other side. I must have called a thousand times.";
    const SECRET: &str = "my voice is my passcode";
    const SIGNATURE: &str =
        "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8";

    fn id(text: &str) -> TokenId {
        TokenId::parse(text).unwrap()
    }

    #[test]
    fn known_payloads_have_known_signatures() {
        // cluster-bootstrap: token/jws/jws_test.go; the last one is of a kube-controller-manager
        let long = "0123456789".repeat(7);
        for (payload, token, secret, signature) in [
            (CONTENT, "joshua", SECRET, SIGNATURE),
            (
                "",
                "joshua",
                SECRET,
                "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..7Ui1ALizW4jXphVUB7xUqC9vLYLL9RZeOFfVLoB7Tgk",
            ),
            (
                CONTENT,
                "joshua",
                "",
                "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..UfkqvDGiIFxrMnFseDj9LYJOLNrvjW8aHhF71mvvAs8",
            ),
            (
                "payload",
                "abc123",
                "tokenSecret",
                "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiYzEyMyJ9..QSxpUG7Q542CirTI2ECPSZjvBOJURUW5a7XqFpNI958",
            ),
            (
                "apiVersion: v1\nkind: Config\n",
                "abc123",
                "0123456789abcdef",
                "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiYzEyMyJ9..qTvWXImTCcLAxj6nw53xOmdsSzLP1_zffoBVin_NQD4",
            ),
        ] {
            assert_eq!(sign(payload, &id(token), secret.as_bytes()), signature, "{payload:?} {secret:?}");
        }
        // The secret may have any length.
        for secret in ["x", "é", &long] {
            assert!(verify(
                &sign("p", &id("abc123"), secret.as_bytes()),
                "p",
                &id("abc123"),
                secret.as_bytes()
            ));
        }
    }

    #[test]
    fn only_the_exact_signature_verifies() {
        let (token, secret) = (id("joshua"), SECRET.as_bytes());
        assert!(verify(SIGNATURE, CONTENT, &token, secret));
        let with_payload = SIGNATURE.replace("..", &format!(".{}.", URL_SAFE_NO_PAD.encode(CONTENT)));
        // The same header in another order: {"kid":"joshua","alg":"HS256"}.
        let other_order = {
            let header = URL_SAFE_NO_PAD.encode(r#"{"kid":"joshua","alg":"HS256"}"#);
            let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
            let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(CONTENT));
            format!("{header}..{}", URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes())))
        };
        for wrong in
            ["", "..", &format!("{SIGNATURE}foo"), &format!("{SIGNATURE}="), &with_payload, &other_order]
        {
            assert!(!verify(wrong, CONTENT, &token, secret), "{wrong}");
        }
        assert!(!verify(SIGNATURE, "another content", &token, secret));
        assert!(!verify(SIGNATURE, CONTENT, &id("joshub"), secret));
        assert!(!verify(SIGNATURE, CONTENT, &token, b"another secret"));
    }
}
