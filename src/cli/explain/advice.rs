//! The reason of a refusal, and the claim, flag or key to change.

use portcullis_go::quote::{Quoted, QuotedList};
use serde::Serialize;

use super::credential::Kind;
use super::report::Row;
use crate::authn::settings::Authentication;
use crate::authn::trace::{Check, StepOutcome};

/// The issuer of tokens in secrets.
pub(super) const LEGACY: &str = "kubernetes/serviceaccount";

/// Why a credential is refused.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RefusalReason {
    /// The authenticator that refuses it; `None` if no authenticator knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) authenticator: Option<String>,
    /// The failed check.
    pub(super) check: String,
    pub(super) detail: String,
    /// Advice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

/// The first failed check of each authenticator that the credential is for. If there is none, the reason why no
/// authenticator recognizes it.
pub(super) fn reasons(rows: &[Row], kind: &Kind, settings: &Authentication) -> Vec<RefusalReason> {
    let mut reasons: Vec<RefusalReason> = Vec::new();
    for row in rows.iter().filter(|row| row.is_obstacle()) {
        let authenticator = Some(row.authenticator.clone());
        if reasons.iter().all(|reason| reason.authenticator != authenticator) {
            let fix = fix(row).map(str::to_owned);
            reasons.push(RefusalReason {
                authenticator,
                check: row.check.clone(),
                detail: row.detail.clone(),
                fix,
            });
        }
    }
    if reasons.is_empty() {
        reasons.push(unrecognized(rows, kind, settings));
    }
    reasons
}

/// Why no authenticator recognizes the credential.
fn unrecognized(rows: &[Row], kind: &Kind, settings: &Authentication) -> RefusalReason {
    if let Some(row) = rows.iter().find(|row| row.kind == Check::RequestedAudiences) {
        let fix = "request a token for another audience, or add the audience to --api-audiences".to_owned();
        let (check, detail) = (row.check.clone(), row.detail.clone());
        return RefusalReason {
            authenticator: Some(row.authenticator.clone()),
            check,
            detail,
            fix: Some(fix),
        };
    }
    let (check, detail, fix) = match kind {
        Kind::Jwt(issuer) => unknown_issuer(issuer, settings),
        Kind::Damaged(problem) => (
            "form",
            format!("a JSON Web Token that does not parse: {problem}"),
            "copy the token again: a part of it is missing or changed".to_owned(),
        ),
        Kind::Bootstrap => (
            "form",
            "a bootstrap token, but bootstrap tokens are not enabled".to_owned(),
            "set --enable-bootstrap-token-auth".to_owned(),
        ),
        Kind::Opaque => (
            "form",
            "neither a JSON Web Token nor a bootstrap token, and no authenticator recognizes it".to_owned(),
            "check that the whole token was copied; such a token must be in --token-auth-file, or the webhook must \
             recognize it"
                .to_owned(),
        ),
        // The authenticator has no opinion of such a certificate, as kube-apiserver's.
        // apiserver: pkg/authentication/request/x509/x509.go, CommonNameUserConversion
        Kind::Certificate | Kind::PodCertificate if settings.client_ca.is_some() => (
            "common name",
            "the certificate has no CommonName, which would name the user".to_owned(),
            "issue a certificate with a CommonName; a certificate with alternative names alone, such as a SPIFFE ID, authenticates \
             servers and workloads to each other; it is no user of an API server"
                .to_owned(),
        ),
        Kind::Certificate => (
            "client CA",
            "client certificates are not enabled".to_owned(),
            "set --client-ca-file".to_owned(),
        ),
        Kind::PodCertificate => (
            "client CA",
            "client certificates of pods are not enabled".to_owned(),
            "set --pod-client-ca-file; with --client-ca-file alone nothing would look the pod up".to_owned(),
        ),
    };
    RefusalReason { authenticator: None, check: check.to_owned(), detail, fix: Some(fix) }
}

fn unknown_issuer(issuer: &str, settings: &Authentication) -> (&'static str, String, String) {
    let mut known: Vec<&str> = settings.jwt.iter().map(|jwt| jwt.issuer.url.as_str()).collect();
    if let Some(accounts) = &settings.service_accounts {
        known.extend(accounts.issuers.iter().map(String::as_str));
    }
    let detail = format!("no authenticator accepts tokens of the issuer {}", Quoted(issuer));
    let plain = |url: &str| {
        let url = url.trim_end_matches('/').to_ascii_lowercase();
        url.strip_prefix("http://").map_or(url.clone(), |rest| format!("https://{rest}"))
    };
    let fix = if known.is_empty() {
        "no issuer is configured: set --oidc-issuer-url, --authentication-config or --service-account-issuer"
            .to_owned()
    } else if let Some(near) = known.iter().find(|known| plain(known) == plain(issuer)) {
        let by = if near.trim_end_matches('/') == issuer.trim_end_matches('/') {
            "in the slash at its end"
        } else {
            "in scheme, capitals or a slash"
        };
        format!(
            "{} is configured and differs {by}: issuer.url (--oidc-issuer-url) must equal the token's iss exactly",
            Quoted(near)
        )
    } else if issuer == LEGACY {
        "set --service-account-issuer or --service-account-key-file, which enable tokens in secrets"
            .to_owned()
    } else {
        format!(
            "the configured issuers are {}: use a token for this cluster, or add the issuer",
            QuotedList(&known)
        )
    };
    ("iss", detail, fix)
}

/// Advice on a failed check.
fn fix(row: &Row) -> Option<&'static str> {
    if row.outcome == StepOutcome::Unavailable {
        return Some(
            "the API server did not return the object: check that the gateway can reach it, and that system:portcullis may read it",
        );
    }
    Some(match &row.kind {
        Check::IssuerInitialized => {
            "check that the gateway can reach the issuer and trusts its certificate: issuer.url, discoveryURL, \
             certificateAuthority (--oidc-issuer-url, --oidc-ca-file)"
        }
        Check::Token => "copy the token again: a part of it is missing or changed",
        Check::Algorithm => {
            "configure the issuer to sign with one of these; --oidc-signing-algs sets them (default RS256), an \
             AuthenticationConfiguration accepts all"
        }
        Check::KeysFetched => "check that the gateway can reach the jwks_uri of the issuer",
        Check::Signature => {
            "get a new token: this one is older than the issuer's keys, or another issuer of the same name signed it"
        }
        Check::Audience => {
            "get a token for an expected audience, or add the token's audience: issuer.audiences (--oidc-client-id)"
        }
        Check::Expiry => "get a new token; if it is new, compare the clocks",
        Check::NotBefore | Check::IssuedAt => "compare the clocks of the issuer and of the gateway",
        Check::Username => {
            "configure the issuer to set the claim (the client may have to request a scope), or use another claim: \
             claimMappings.username (--oidc-username-claim)"
        }
        Check::EmailVerified => {
            "verify the address at the issuer, or use another claim than email: claimMappings.username \
             (--oidc-username-claim)"
        }
        Check::Groups => "compare claimMappings.groups (--oidc-groups-claim) with the claim of the token",
        Check::Uid => "compare claimMappings.uid with the claim of the token",
        Check::Extra => "compare claimMappings.extra with the claims of the token",
        Check::ClaimRule => "the claims must satisfy claimValidationRules",
        Check::UserRule => "the user, as claimMappings makes it, must satisfy userValidationRules",
        Check::RequiredClaim(_) => {
            "the token must have this claim: claimValidationRules (--oidc-required-claim)"
        }
        Check::AccountSignature => {
            "the token is of another cluster, or its key was removed: see --service-account-key-file, or the keys that \
             the API server publishes at /openid/v1/jwks"
        }
        Check::AccountAudience => {
            "get a token for an accepted audience (kubectl create token NAME --audience AUDIENCE), or set --api-audiences"
        }
        Check::ServiceAccount => {
            "a token is valid only while its service account exists, even if a new one has the same name: get a new token"
        }
        Check::BoundObject(_) => {
            "a token is valid only while the object that it is bound to exists: get a new one, in the pod that uses it"
        }
        Check::LegacySecret => {
            "a token is valid only while its secret exists: get a new one (kubectl create token)"
        }
        Check::BootstrapSecret => "see kubeadm token list; create one: kubeadm token create",
        Check::BootstrapTokenSecret => "the part after the dot is wrong: see kubeadm token list",
        Check::BootstrapExpiration => "create a new one: kubeadm token create",
        Check::BootstrapUsage(_) => {
            "create one for authentication (kubeadm token create --usages authentication), or set this key of the secret \
             to \"true\""
        }
        Check::BootstrapField(_) => "see the secret in kube-system, and kubeadm token list",
        Check::WebhookAnswer => {
            "check that the gateway can reach the webhook, and its response: --authentication-token-webhook-config-file"
        }
        Check::RequestedAudiences => "the webhook accepts the token for other audiences: see --api-audiences",
        Check::WebhookVerdict => "the webhook refuses the token: see the log of the webhook",
        Check::ChainAuthority => {
            "add the issuing CA to --client-ca-file, send the intermediates, or get a certificate of a CA in that file"
        }
        Check::ChainUsage => "get a client certificate: its extended key usage must contain clientAuth",
        Check::ChainValidity => "get a new certificate; if it is new, compare the clocks",
        Check::Identity => {
            "get a credential without spaces at the ends of names and without control characters: an HTTP header cannot \
             carry this one unchanged"
        }
        Check::Chain | Check::Verdict | Check::Other(_) => return None,
    })
}
