//! One issuer of JSON Web Tokens, read and found to be in order: what `--oidc-*` flags and each entry of an
//! `AuthenticationConfiguration` come down to.

use crate::authn::jwt::keys::Algorithm;
use crate::http::client_tls::Roots;
use portcullis_cel::Expression;

/// An issuer, and what is made of its tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct JwtAuthenticator {
    /// Who issues the tokens, and for whom.
    pub issuer: Issuer,
    /// The signature algorithms that are taken; not empty.
    pub algorithms: Vec<Algorithm>,
    /// What claims must be like.
    pub claim_rules: Vec<ClaimRule>,
    /// The user name.
    pub username: Mapping,
    /// The groups, if the tokens have any.
    pub groups: Option<Mapping>,
    /// The uid, if the tokens have one.
    pub uid: Option<Mapping>,
    /// Further attributes: the key, and what its values come from.
    pub extra: Vec<(String, Expression)>,
    /// What the user must be like.
    pub user_rules: Vec<Rule>,
}

/// Who issues tokens, and for whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuer {
    /// The value of `iss`.
    pub url: String,
    /// Where its configuration is, if not below `url`.
    pub discovery_url: Option<String>,
    /// The CAs of its certificate; those of the system, if not given.
    pub certificate_authority: Option<Roots>,
    /// Tokens must be for one of these; not empty.
    pub audiences: Vec<String>,
}

/// Where a part of the identity comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Mapping {
    /// A claim, and what precedes its values.
    Claim {
        /// The claim.
        name: String,
        /// May be empty.
        prefix: String,
    },
    /// An expression over `claims`.
    Expression(Expression),
}

/// What a claim must be like.
#[derive(Debug, Clone, PartialEq)]
pub enum ClaimRule {
    /// It is there, and this text.
    Required {
        /// The claim.
        claim: String,
        /// Its value; may be empty.
        value: String,
    },
    /// An expression over `claims` is true.
    Expression(Rule),
}

/// An expression that must be true.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// The expression.
    pub expression: Expression,
    /// What is said when it is not; may be empty.
    pub message: String,
}
