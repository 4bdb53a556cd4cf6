//! Validated settings of one issuer of JSON Web Tokens, from the `--oidc-*` flags or an entry of an
//! `AuthenticationConfiguration`.

use portcullis_cel::Expression;
use portcullis_http::client_tls::TrustedRoots;

use portcullis_openid::jwt::keys::JwsAlgorithm;

/// Settings of one JWT authenticator.
#[derive(Debug, Clone, PartialEq)]
pub struct JwtAuthenticator {
    /// The issuer and its audiences.
    pub issuer: IssuerSettings,
    /// The accepted signature algorithms; not empty.
    pub algorithms: Vec<JwsAlgorithm>,
    /// Validation rules on the claims.
    pub claim_rules: Vec<ClaimRule>,
    /// Source of the user name.
    pub username: AttributeMapping,
    /// Source of the groups, if configured.
    pub groups: Option<AttributeMapping>,
    /// Source of the UID, if configured.
    pub uid: Option<AttributeMapping>,
    /// Extra attributes: each key and the expression for its values.
    pub extra: Vec<(String, Expression)>,
    /// Validation rules on the user.
    pub user_rules: Vec<ExpressionRule>,
}

/// An issuer and its audiences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerSettings {
    /// The value of `iss`.
    pub url: String,
    /// URL of the discovery document, if not below `url`.
    pub discovery_url: Option<String>,
    /// CAs for the issuer's serving certificate; `None` for the system roots.
    pub certificate_authority: Option<TrustedRoots>,
    /// Audiences of which a token must have one; not empty.
    pub audiences: Vec<String>,
}

/// The source of a user attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum AttributeMapping {
    /// A claim, with a prefix for its values.
    Claim {
        /// Name of the claim.
        name: String,
        /// The prefix; may be empty.
        prefix: String,
    },
    /// An expression over `claims`.
    Expression(Expression),
}

/// A validation rule on the claims.
#[derive(Debug, Clone, PartialEq)]
pub enum ClaimRule {
    /// The claim is present and has this value.
    Required {
        /// Name of the claim.
        claim: String,
        /// Its value; may be empty.
        value: String,
    },
    /// The expression over `claims` evaluates to true.
    Expression(ExpressionRule),
}

/// An expression that must evaluate to true.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpressionRule {
    /// The expression.
    pub expression: Expression,
    /// Message if the expression is false; may be empty.
    pub message: String,
}
