//! The checks of the authenticators. `portcullis explain` prints each by its name and chooses the advice by the variant.

use std::fmt;

use portcullis_pki::x509::VerifyError;

/// A check of an authenticator. `Display` is the printed name, which several checks may share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// OIDC discovery has succeeded, and the keys are known.
    IssuerInitialized,
    /// The token parses.
    Token,
    /// The algorithm of an ID token.
    Algorithm,
    /// The signature of an ID token.
    Signature,
    /// The signature of an ID token whose issuer's keys could not be fetched.
    KeysFetched,
    /// The audience of an ID token.
    Audience,
    /// `exp`.
    Expiry,
    /// `nbf`.
    NotBefore,
    /// `iat`.
    IssuedAt,
    /// A claim with a fixed value.
    RequiredClaim(String),
    /// An expression over claims.
    ClaimRule,
    /// An expression over the user.
    UserRule,
    /// The claim or expression of the user name.
    Username,
    /// `email_verified`.
    EmailVerified,
    /// The claim or expression of the groups.
    Groups,
    /// The claim or expression of the uid.
    Uid,
    /// The expressions of extra values.
    Extra,
    /// The signature of a service-account token.
    AccountSignature,
    /// The audience of a service-account token.
    AccountAudience,
    /// The service account exists and has the UID in the token.
    ServiceAccount,
    /// The object that a token is bound to, by its kind in lower case.
    BoundObject(&'static str),
    /// The secret that holds a legacy token.
    LegacySecret,
    /// The Secret of a bootstrap token exists.
    BootstrapSecret,
    /// The secret part of a bootstrap token.
    BootstrapTokenSecret,
    /// `expiration` of a bootstrap token.
    BootstrapExpiration,
    /// `usage-bootstrap-authentication` of a bootstrap token.
    BootstrapUsage(&'static str),
    /// Another key of the Secret of a bootstrap token.
    BootstrapField(&'static str),
    /// The webhook responds.
    WebhookAnswer,
    /// The webhook accepts the token.
    WebhookVerdict,
    /// The token, or its authenticator, is for the requested audiences.
    RequestedAudiences,
    /// The certificate chain.
    Chain,
    /// The certificate chain: the issuer is not in the bundle.
    ChainAuthority,
    /// The certificate chain: the extended key usage.
    ChainUsage,
    /// The certificate chain: the validity.
    ChainValidity,
    /// Headers can carry the user byte for byte.
    Identity,
    /// All checks of an authenticator together.
    Verdict,
    /// Any other check, by its name; there is no advice on it.
    Other(&'static str),
}

impl Check {
    /// The check that a chain fails with this error.
    pub(crate) fn of_chain(error: &VerifyError) -> Self {
        match error {
            VerifyError::UnknownAuthority(_) => Self::ChainAuthority,
            VerifyError::IncompatibleUsage => Self::ChainUsage,
            VerifyError::NotYetValid { .. } | VerifyError::Expired { .. } => Self::ChainValidity,
            _ => Self::Chain,
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RequiredClaim(claim) => return write!(f, "required claim {claim}"),
            Self::IssuerInitialized => "initialized",
            Self::Token => "token",
            Self::Algorithm => "algorithm",
            Self::Signature | Self::KeysFetched | Self::AccountSignature => "signature",
            Self::Audience | Self::AccountAudience => "aud",
            Self::Expiry => "exp",
            Self::NotBefore => "nbf",
            Self::IssuedAt => "iat",
            Self::ClaimRule => "claim rule",
            Self::UserRule => "user rule",
            Self::Username => "username",
            Self::EmailVerified => "email_verified",
            Self::Groups => "groups",
            Self::Uid => "uid",
            Self::Extra => "extra",
            Self::ServiceAccount => "serviceaccount",
            Self::LegacySecret | Self::BootstrapSecret => "secret",
            Self::BootstrapTokenSecret => "token-secret",
            Self::BootstrapExpiration => "expiration",
            Self::WebhookAnswer => "answer",
            Self::WebhookVerdict => "authenticated",
            Self::RequestedAudiences => "audiences",
            Self::Chain | Self::ChainAuthority | Self::ChainUsage | Self::ChainValidity => "chain",
            Self::Identity => "identity",
            Self::Verdict => "verdict",
            Self::BoundObject(word)
            | Self::BootstrapUsage(word)
            | Self::BootstrapField(word)
            | Self::Other(word) => word,
        })
    }
}
