//! Tokens from a file (`--token-auth-file`): `token,user,uid[,"group,group"]` in each line.
//!
//! Follows `k8s.io/apiserver/pkg/authentication/token/tokenfile/tokenfile.go`. The table is keyed by the HMAC of each
//! token under a random key, and never holds the tokens themselves: neither the timing of a comparison nor the memory
//! of the process reveals anything about a token that resembles a valid one. A file that is not UTF-8 is refused.

use std::collections::HashMap;
use std::fmt;

use portcullis_http::identity::Identity;
use portcullis_kubernetes::user::UserInfo;

use aws_lc_rs::{hmac, rand};
use portcullis_go::csv;
pub(crate) use portcullis_go::csv::CsvError;

use super::{
    Authenticated, AuthnMethod, AuthnVerdict, BearerToken, BoxFuture, TokenAuthenticator, TokenContext,
};

const NAME: &str = AuthnMethod::StaticToken.name();
const DIGEST_LENGTH: usize = 32;

/// Authenticates the tokens of a file.
pub struct StaticTokenAuthenticator {
    key: hmac::Key,
    users: HashMap<[u8; DIGEST_LENGTH], Identity>,
}

/// Why a token file cannot be used. Never contains the file's content.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// The file is not valid CSV.
    #[error("token file '{path}': {source}")]
    Csv {
        /// The file.
        path: String,
        /// Position and cause.
        source: CsvError,
    },
    /// A record has fewer than three columns.
    #[error("token file '{path}' must have at least 3 columns (token, user name, user uid), found {found}")]
    Columns {
        /// The file.
        path: String,
        /// The number of columns.
        found: usize,
    },
    /// A record is not UTF-8.
    #[error("token file '{path}': the record on line {line} is not UTF-8")]
    NotText {
        /// The file.
        path: String,
        /// The line.
        line: usize,
    },
    /// The system's random number generator failed.
    #[error("cannot generate a key for the token table: no random numbers")]
    Random,
}

impl StaticTokenAuthenticator {
    /// Parses the content of a token file; `path` appears in messages only.
    pub fn parse(path: &str, content: &[u8]) -> Result<Self, TokenFileError> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new())
            .map_err(|_| TokenFileError::Random)?;
        let mut tokens = Self { key, users: HashMap::new() };
        let mut reader = csv::Reader::new(content);
        let mut number = 0_usize;
        loop {
            let record = reader
                .next_record()
                .map_err(|source| TokenFileError::Csv { path: path.to_owned(), source })?;
            let Some(record) = record else { return Ok(tokens) };
            let fields: Vec<String> = record
                .fields
                .into_iter()
                .map(String::from_utf8)
                .collect::<Result<_, _>>()
                .map_err(|_| TokenFileError::NotText { path: path.to_owned(), line: record.line })?;
            let [token, name, uid, more @ ..] = fields.as_slice() else {
                return Err(TokenFileError::Columns { path: path.to_owned(), found: fields.len() });
            };
            number += 1;
            if token.is_empty() {
                tracing::warn!(path, record = number, "empty token in token file, record skipped");
                continue;
            }
            let user = UserInfo {
                uid: (!uid.is_empty()).then(|| uid.clone()),
                // As in kube-apiserver, an empty fourth column is one group with an empty name.
                groups: more
                    .first()
                    .map_or_else(Vec::new, |groups| groups.split(',').map(str::to_owned).collect()),
                ..UserInfo::named(name)
            };
            let digest = tokens.digest(token);
            if tokens.users.insert(digest, user.into()).is_some() {
                tracing::warn!(path, record = number, "duplicate token in token file, the last one counts");
            }
        }
    }

    /// The number of tokens.
    pub fn count(&self) -> usize {
        self.users.len()
    }

    fn digest(&self, token: &str) -> [u8; DIGEST_LENGTH] {
        let tag = hmac::sign(&self.key, token.as_bytes());
        let mut digest = [0; DIGEST_LENGTH];
        for (to, from) in digest.iter_mut().zip(tag.as_ref()) {
            *to = *from;
        }
        digest
    }
}

impl fmt::Debug for StaticTokenAuthenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StaticTokenAuthenticator").field("tokens", &self.users.len()).finish_non_exhaustive()
    }
}

impl TokenAuthenticator for StaticTokenAuthenticator {
    fn name(&self) -> &'static str {
        NAME
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        _context: TokenContext<'a>,
    ) -> BoxFuture<'a, AuthnVerdict> {
        let user = self.users.get(&self.digest(token.expose()));
        let found = user.map(|user| Authenticated {
            user: user.clone(),
            audiences: Vec::new(),
            method: AuthnMethod::StaticToken,
            certificates: None,
            expires: None,
        });
        Box::pin(std::future::ready(Ok(found)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::testing::TestRequest;
    use super::*;

    fn parse(content: &str) -> Result<StaticTokenAuthenticator, String> {
        StaticTokenAuthenticator::parse("/t.csv", content.as_bytes()).map_err(|error| error.to_string())
    }

    fn user(tokens: &StaticTokenAuthenticator, token: &str) -> Option<UserInfo> {
        let request = TestRequest::new();
        let token = BearerToken::new(token);
        let verdict =
            tokens.authenticate(&token, request.input().for_tokens()).now_or_never().expect("ready");
        verdict.expect("no error").map(|found| (*found.user).clone())
    }

    fn known(name: &str, uid: &str, groups: &[&str]) -> UserInfo {
        UserInfo {
            uid: (!uid.is_empty()).then(|| uid.to_owned()),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..UserInfo::named(name)
        }
    }

    #[test]
    fn tokens_give_the_users_of_their_records() {
        let content = "token1,user1,uid1\ntoken2,user2,uid2\ntoken3,user3,uid3,\"group1,group2\"\n\
                       token4,user4,uid4,group2\ntoken5,user5,uid5,group5,otherdata\ntoken6,user6,uid6,\n\
                       token7,,\ntoken8,user8,uid8,\" a, b\"\ntoken1,again,uid\n,user,uid\n t ,u,i";
        let tokens = parse(content).expect("a token file");
        let cases = [
            ("token1", Some(known("again", "uid", &[]))),
            ("token2", Some(known("user2", "uid2", &[]))),
            ("token3", Some(known("user3", "uid3", &["group1", "group2"]))),
            ("token4", Some(known("user4", "uid4", &["group2"]))),
            ("token5", Some(known("user5", "uid5", &["group5"]))),
            ("token6", Some(known("user6", "uid6", &[""]))),
            ("token7", Some(known("", "", &[]))),
            ("token8", Some(known("user8", "uid8", &[" a", " b"]))),
            (" t ", Some(known("u", "i", &[]))),
            ("t", None),
            ("", None),
            ("token9", None),
            ("Token1", None),
        ];
        for (token, expected) in cases {
            assert_eq!(user(&tokens, token), expected, "{token}");
        }
    }

    #[test]
    fn a_bad_file_is_refused_whole() {
        const CASES: &[(&str, &str)] = &[
            (
                "token1,user1,uid1\ntoken2,user2\n",
                "token file '/t.csv' must have at least 3 columns (token, user name, user uid), found 2",
            ),
            ("x", "token file '/t.csv' must have at least 3 columns (token, user name, user uid), found 1"),
            (",u", "token file '/t.csv' must have at least 3 columns (token, user name, user uid), found 2"),
            ("a,b,c\"", "token file '/t.csv': parse error on line 1, column 6: bare \" in non-quoted-field"),
        ];
        for (content, error) in CASES {
            assert_eq!(parse(content).expect_err("refused"), *error, "{content}");
        }
        let error = StaticTokenAuthenticator::parse("/t.csv", b"a,b,c\na,\xff,c").expect_err("refused");
        assert_eq!(error.to_string(), "token file '/t.csv': the record on line 2 is not UTF-8");
    }

    #[test]
    fn debug_output_shows_no_token() {
        let tokens = parse("secret-token,user1,uid1").expect("a token file");
        let shown = format!("{tokens:?}");
        assert!(!shown.contains("secret"), "{shown}");
        assert!(!shown.contains("user1"), "{shown}");
    }
}
