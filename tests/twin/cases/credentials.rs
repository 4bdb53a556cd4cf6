//! What all cases about tokens share: the token is sent as a credential, and then an admin asks for a review of it, which says in the
//! server's own words why it is refused.

use serde_json::{Value, json};

use crate::case::{Case, H1, whoami};
use crate::mint::Token;

/// In the groups of every authenticated user.
pub(super) const ALL: &str = "system:authenticated";

/// Why a review of a service account's token is left out of the comparison with `--oidc-*` flags.
pub(super) const APART: &str =
    "the backend answers it by its own flags, which are those of the other setting";

/// Why a reason is left out of the comparison.
pub(super) const GO: &str = "the words of Go's JSON decoder, which name its types";

pub(super) const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// Who is it that sends this token?
pub(super) fn by(group: &'static str, name: &str, token: impl Into<Token>) -> Case {
    whoami(group, name).only(H1).token("t", token).bearer("{token:t}")
}

impl Case {
    /// One more step: who is it that sends the token of this name?
    pub(super) fn then_by(self, token: &str) -> Self {
        let mut next = whoami("", "").bearer(&format!("{{token:{token}}}"));
        self.step(next.steps.remove(0))
    }

    /// One more step: an admin has the token `t` reviewed.
    pub(super) fn reviewed(self) -> Self {
        self.review(&json!({"token": "{token:t}"})).cert("admin").answers(201)
    }

    /// One more step: a review of this specification, by a client that is still to be named.
    pub(super) fn review(self, spec: &Value) -> Self {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec});
        self.then("POST", REVIEWS).json(&review.to_string())
    }

    /// This user, and a review agrees.
    pub(super) fn accepted(self, user: &str, groups: &[&str]) -> Self {
        self.is(user, groups).reviewed().contains(r#""authenticated":true"#)
    }

    /// 401, and a review gives this reason.
    pub(super) fn refused(self, why: &str) -> Self {
        // Go escapes what HTML would read.
        let quoted =
            json!(why).to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
        self.unauthorized()
            .reviewed()
            .contains(r#""error":"#)
            .contains(quoted.trim_matches('"'))
            .lacks(r#""authenticated":true"#)
    }

    /// 401, and a review says only that no authenticator accepts the token.
    pub(super) fn unknown(self) -> Self {
        self.refused("invalid bearer token").contains(r#""error":"invalid bearer token"#)
    }
}
