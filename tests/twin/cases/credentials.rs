//! Helpers for cases about tokens: the client authenticates with the token, and then an administrator creates a
//! TokenReview for it, which contains the server's error message.

use serde_json::{Value, json};

use crate::case::{Case, H1, whoami};
use crate::mint::Token;

/// The group of all authenticated users.
pub(super) const ALL: &str = "system:authenticated";

/// The reason to skip the comparison of reviews of service account tokens with `--oidc-*` flags.
pub(super) const APART: &str =
    "the backend answers it by its own flags, which are those of the other setting";

/// The reason to skip the comparison of some error messages.
pub(super) const GO: &str = "an error message of Go's JSON decoder, which contains Go types";

pub(super) const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// A SelfSubjectReview with this token.
pub(super) fn by(group: &'static str, name: &str, token: impl Into<Token>) -> Case {
    whoami(group, name).only(H1).token("t", token).bearer("{token:t}")
}

impl Case {
    /// Adds a SelfSubjectReview with the token of this name.
    pub(super) fn then_by(self, token: &str) -> Self {
        let mut next = whoami("", "").bearer(&format!("{{token:{token}}}"));
        self.step(next.steps.remove(0))
    }

    /// Adds a TokenReview of the token `t` by an administrator.
    pub(super) fn reviewed(self) -> Self {
        self.review(&json!({"token": "{token:t}"})).cert("admin").answers(201)
    }

    /// Adds a TokenReview with this spec; the caller sets the client certificate.
    pub(super) fn review(self, spec: &Value) -> Self {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec});
        self.then("POST", REVIEWS).json(&review.to_string())
    }

    /// Expects this user, also in a review.
    pub(super) fn accepted(self, user: &str, groups: &[&str]) -> Self {
        self.is(user, groups).reviewed().contains(r#""authenticated":true"#)
    }

    /// Expects a 401, and a review with this error.
    pub(super) fn refused(self, reason: &str) -> Self {
        // Go's JSON encoder escapes HTML characters.
        let quoted =
            json!(reason).to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
        self.unauthorized()
            .reviewed()
            .contains(r#""error":"#)
            .contains(quoted.trim_matches('"'))
            .lacks(r#""authenticated":true"#)
    }

    /// Expects a 401, and a review with the error that no authenticator accepts the token.
    pub(super) fn unknown(self) -> Self {
        self.refused("invalid bearer token").contains(r#""error":"invalid bearer token"#)
    }
}
