//! Bootstrap tokens: what the secret must hold, and who the node then is.

use super::tokens::ALL;
use crate::case::{Case, H1, whoami};
use crate::mint::Token;

const GROUPS: &str = "system:bootstrappers";

fn by(name: &str, token: &str) -> Case {
    whoami("bootstrap", name).only(H1).token("t", Token::from(token)).bearer("{token:t}")
}

pub(crate) fn cases() -> Vec<Case> {
    vec![by("unknown id", "zzzzzz.0123456789abcdef").unauthorized(), by("good", "good00.0123456789abcdef").is("system:bootstrap:good00", &[GROUPS, ALL])]
}
