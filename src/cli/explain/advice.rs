//! Why a credential is refused, and what to look at: a claim, a flag, a key.

use serde::Serialize;

use super::credential::Kind;
use super::report::Row;
use crate::authn::settings::Authentication;
use crate::authn::trace::{Check, StepOutcome};
use crate::go::quote::{Quoted, QuotedList};

/// The issuer of tokens in secrets.
pub(super) const LEGACY: &str = "kubernetes/serviceaccount";

/// Why a credential is refused.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Reason {
    /// The authenticator that refuses it; `None` if no authenticator knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) authenticator: Option<String>,
    /// What was looked at.
    pub(super) check: String,
    pub(super) detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

/// The first obstacle at each authenticator whose credential it is; without one, why no authenticator knows it.
pub(super) fn reasons(rows: &[Row], kind: &Kind, settings: &Authentication) -> Vec<Reason> {
    let mut reasons: Vec<Reason> = Vec::new();
    for row in rows.iter().filter(|row| row.is_obstacle()) {
        let authenticator = Some(row.authenticator.clone());
        if reasons.iter().all(|reason| reason.authenticator != authenticator) {
            let fix = fix(row).map(str::to_owned);
            reasons.push(Reason { authenticator, check: row.check.clone(), detail: row.detail.clone(), fix });
        }
    }
    if reasons.is_empty() {
        reasons.push(stranger(rows, kind, settings));
    }
    reasons
}

/// Why no authenticator knows it.
fn stranger(rows: &[Row], kind: &Kind, settings: &Authentication) -> Reason {
    if let Some(row) = rows.iter().find(|row| row.kind == Check::RequestedAudiences) {
        let fix = "ask for another audience, or add it to --api-audiences".to_owned();
        let (check, detail) = (row.check.clone(), row.detail.clone());
        return Reason { authenticator: Some(row.authenticator.clone()), check, detail, fix: Some(fix) };
    }
    let (check, detail, fix) = match kind {
        Kind::Jwt(issuer) => of_no_issuer(issuer, settings),
        Kind::Damaged(problem) => (
            "form",
            format!("a JSON Web Token that cannot be read: {problem}"),
            "copy the token anew: a part of it is missing or changed".to_owned(),
        ),
        Kind::Bootstrap => (
            "form",
            "a bootstrap token, and those are not taken".to_owned(),
            "set --enable-bootstrap-token-auth".to_owned(),
        ),
        Kind::Opaque => (
            "form",
            "no JSON Web Token and no bootstrap token, and no authenticator knows it".to_owned(),
            "see whether all of it was copied; what has no form must stand in --token-auth-file, or be known to the \
             webhook"
                .to_owned(),
        ),
        Kind::Certificate => (
            "client CA",
            "certificates are not taken".to_owned(),
            "set --client-ca-file".to_owned(),
        ),
    };
    Reason { authenticator: None, check: check.to_owned(), detail, fix: Some(fix) }
}

fn of_no_issuer(issuer: &str, settings: &Authentication) -> (&'static str, String, String) {
    let mut known: Vec<&str> = settings.jwt.iter().map(|jwt| jwt.issuer.url.as_str()).collect();
    if let Some(accounts) = &settings.service_accounts {
        known.extend(accounts.issuers.iter().map(String::as_str));
    }
    let detail = format!("no authenticator takes tokens of the issuer {}", Quoted(issuer));
    let plain = |url: &str| {
        let url = url.trim_end_matches('/').to_ascii_lowercase();
        url.strip_prefix("http://").map_or(url.clone(), |rest| format!("https://{rest}"))
    };
    let fix = if known.is_empty() {
        "no issuer is configured: set --oidc-issuer-url, --authentication-config or --service-account-issuer"
            .to_owned()
    } else if let Some(near) = known.iter().find(|known| plain(known) == plain(issuer)) {
        let by = if near.trim_end_matches('/') == issuer.trim_end_matches('/') {
            "by the slash at its end"
        } else {
            "in its scheme, its capitals or a slash"
        };
        format!(
            "{} is configured and differs {by}: make issuer.url (--oidc-issuer-url) what the token says, to the letter",
            Quoted(near)
        )
    } else if issuer == LEGACY {
        "tokens in secrets are taken with --service-account-issuer or --service-account-key-file".to_owned()
    } else {
        format!(
            "configured are {}: is it a token for another cluster? If not, add its issuer",
            QuotedList(&known)
        )
    };
    ("iss", detail, fix)
}

/// What to do about a check that failed.
fn fix(row: &Row) -> Option<&'static str> {
    if row.outcome == StepOutcome::Unavailable {
        return Some(
            "the API server did not say: see that the gateway reaches it, and that system:portcullis may read this",
        );
    }
    Some(match &row.kind {
        Check::IssuerInitialized => {
            "see that the gateway reaches the issuer, and trusts its certificate: issuer.url, discoveryURL, \
             certificateAuthority (--oidc-issuer-url, --oidc-ca-file)"
        }
        Check::Token => "copy the token anew: a part of it is missing or changed",
        Check::Algorithm => {
            "have the issuer sign by one of these; --oidc-signing-algs says which (RS256, if not given), an \
             AuthenticationConfiguration takes all of them"
        }
        Check::KeysFetched => "see that the gateway reaches the jwks_uri of the issuer",
        Check::Signature => {
            "get a new token: this one is older than the issuer's keys, or another issuer of the same name signed it"
        }
        Check::Audience => {
            "get a token for the audience that is expected, or add the token's: issuer.audiences (--oidc-client-id)"
        }
        Check::Expiry => "get a new token; if it is new, compare the clocks",
        Check::NotBefore | Check::IssuedAt => "compare the clocks of the issuer and of the gateway",
        Check::Username => {
            "have the issuer put the claim into its tokens (a scope that is not asked for?), or use another: \
             claimMappings.username (--oidc-username-claim)"
        }
        Check::EmailVerified => {
            "have the issuer verify the address, or take another claim than email: claimMappings.username \
             (--oidc-username-claim)"
        }
        Check::Groups => "see claimMappings.groups (--oidc-groups-claim), and what the issuer puts there",
        Check::Uid => "see claimMappings.uid, and what the issuer puts there",
        Check::Extra => "see claimMappings.extra, and what the issuer puts there",
        Check::ClaimRule => "the token must fulfil claimValidationRules: see its claims, or the rule",
        Check::UserRule => "the user must fulfil userValidationRules: see claimMappings, or the rule",
        Check::RequiredClaim(_) => {
            "the token must have this claim: claimValidationRules (--oidc-required-claim)"
        }
        Check::AccountSignature => {
            "a token of another cluster, or signed by a key that is no longer there: --service-account-key-file, or \
             what the API server publishes at /openid/v1/jwks"
        }
        Check::AccountAudience => {
            "get a token for it: kubectl create token NAME --audience AUDIENCE; what is taken is --api-audiences"
        }
        Check::ServiceAccount => {
            "the token ends with the service account it was made for, even if there is a new one of this name: get a \
             new token"
        }
        Check::BoundObject(_) => {
            "the token ends with the object it is bound to: get a new one, in the pod that uses it"
        }
        Check::LegacySecret => "the token ends with its secret: get a new one (kubectl create token)",
        Check::BootstrapSecret => "see kubeadm token list; make one: kubeadm token create",
        Check::BootstrapTokenSecret => "the part behind the dot is wrong: see kubeadm token list",
        Check::BootstrapExpiration => "make a new one: kubeadm token create",
        Check::BootstrapUsage(_) => {
            "make one for authentication (kubeadm token create --usages authentication), or set this key of the secret \
             to \"true\""
        }
        Check::BootstrapField(_) => "see the secret in kube-system, and kubeadm token list",
        Check::WebhookAnswer => {
            "see that the gateway reaches the webhook, and what it answers: --authentication-token-webhook-config-file"
        }
        Check::RequestedAudiences => "the webhook knows it for other audiences: --api-audiences",
        Check::WebhookVerdict => "the webhook itself refuses it: see its own log",
        Check::ChainAuthority => {
            "add the CA that is its issuer to --client-ca-file, send the intermediates, or get a certificate of a CA \
             that is there"
        }
        Check::ChainUsage => "get a certificate for clients: its extended key usage must have clientAuth",
        Check::ChainValidity => "get a new certificate; if it is new, compare the clocks",
        Check::Identity => {
            "get a credential for a name without blanks at its ends and without control characters: a header would \
             not carry this one as it is"
        }
        Check::Chain | Check::Verdict | Check::Other(_) => return None,
    })
}
