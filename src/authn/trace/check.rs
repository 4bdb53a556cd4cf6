//! The checks that authenticators make. `portcullis explain` shows each by its word and chooses its advice by the
//! variant: what it advises depends on no text.

use std::fmt;

use crate::pki::x509::VerifyError;

/// What an authenticator looked at. `Display` is the word that people see; several checks may share one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// The issuer's configuration and keys are known.
    IssuerInitialized,
    /// The token can be read.
    Token,
    /// The algorithm of an ID token.
    Algorithm,
    /// The signature of an ID token.
    Signature,
    /// The same, when the issuer's keys could not be fetched.
    KeysFetched,
    /// The audience of an ID token.
    Audience,
    /// The end of a token.
    Expiry,
    /// The begin of a token.
    NotBefore,
    /// When a token was made.
    IssuedAt,
    /// A claim with a fixed value.
    RequiredClaim(String),
    /// An expression over claims.
    ClaimRule,
    /// An expression over the user.
    UserRule,
    /// The claim or expression of the user name.
    Username,
    /// The claim that an address is verified.
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
    /// The service account of a token is the one it was made for.
    ServiceAccount,
    /// The object that a token is bound to, by its kind in lower case.
    BoundObject(&'static str),
    /// The secret that holds a legacy token.
    LegacySecret,
    /// There is a secret of a bootstrap token.
    BootstrapSecret,
    /// The secret part of a bootstrap token.
    BootstrapTokenSecret,
    /// The end of a bootstrap token.
    BootstrapExpiration,
    /// A bootstrap token is for authentication, by the key that says so.
    BootstrapUsage(&'static str),
    /// Another part of the secret of a bootstrap token.
    BootstrapField(&'static str),
    /// The webhook answers.
    WebhookAnswer,
    /// The webhook knows the token.
    WebhookVerdict,
    /// The token, or its authenticator, is for the audiences that are asked for.
    RequestedAudiences,
    /// The certificate chain.
    Chain,
    /// The same: no authority of the bundle has signed it.
    ChainAuthority,
    /// The same: it is not for clients.
    ChainUsage,
    /// The same: it has ended or not begun.
    ChainValidity,
    /// The user fits into headers.
    Identity,
    /// All checks of an authenticator together.
    Verdict,
    /// Any other, by its word.
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

impl From<&'static str> for Check {
    fn from(word: &'static str) -> Self {
        Self::Other(word)
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
