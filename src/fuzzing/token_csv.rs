//! Token files: the records equal those of a model of Go's reader, and each token authenticates the user of its record
//! only.

use std::collections::HashMap;

use portcullis_kubernetes::user::UserInfo;

use super::certificates::authenticate_without_certificate;
use super::ready;
use crate::authn::static_token::{StaticTokenAuthenticator, TokenFileError};
use crate::authn::{BearerToken, TokenAuthenticator as _};

/// The input is a token file.
pub fn token_csv(data: &[u8]) {
    let expected = records(data);
    let tokens = match StaticTokenAuthenticator::parse("tokens.csv", data) {
        Ok(tokens) => tokens,
        Err(TokenFileError::Csv { .. }) => return assert_eq!(expected, None),
        Err(error) => {
            // A bad record precedes the end of the text or the first CSV error.
            let whole =
                |record: &Vec<Vec<u8>>| record.len() >= 3 && record.iter().all(|field| is_text(field));
            return assert!(!expected.is_some_and(|records| records.iter().all(whole)), "{error}");
        }
    };
    let mut users: HashMap<String, UserInfo> = HashMap::new();
    for record in expected.into_iter().flatten() {
        let texts: Result<Vec<String>, _> = record.into_iter().map(String::from_utf8).collect();
        let texts = texts.unwrap_or_default();
        let [token, name, uid, more @ ..] = texts.as_slice() else {
            return assert!(texts.len() >= 3, "a record of {} fields was accepted", texts.len());
        };
        if !token.is_empty() {
            let mut user = UserInfo::named(name);
            user.uid = (!uid.is_empty()).then(|| uid.clone());
            user.groups =
                more.first().map(|all| all.split(',').map(str::to_owned).collect()).unwrap_or_default();
            users.insert(token.clone(), user);
        }
    }
    assert_eq!(tokens.count(), users.len());
    for (token, user) in &users {
        assert_eq!(ask(&tokens, token).as_ref(), Some(user));
        let longer = format!("{token}x");
        assert_eq!(ask(&tokens, &longer).as_ref(), users.get(&longer));
    }
    assert_eq!(ask(&tokens, ""), None);
}

fn ask(tokens: &StaticTokenAuthenticator, token: &str) -> Option<UserInfo> {
    let token = BearerToken::new(token);
    let verdict =
        authenticate_without_certificate(|input| ready(tokens.authenticate(&token, input.for_tokens())))?;
    Some((*verdict.ok()??.user).clone())
}

fn is_text(field: &[u8]) -> bool {
    std::str::from_utf8(field).is_ok()
}

/// The state of a CSV parser.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Start,
    Plain,
    Quoted,
    /// After a quotation mark within quotes: the end of the field, or the first of two marks.
    Mark,
}

/// Parses records byte by byte; `None` for invalid CSV.
// go: encoding/csv, Reader
fn records(text: &[u8]) -> Option<Vec<Vec<Vec<u8>>>> {
    let text = lines_ended_by_line_feeds(text);
    let (mut records, mut record, mut field, mut at) = (Vec::new(), Vec::new(), Vec::new(), At::Start);
    for byte in text.into_iter().chain([b'\n']) {
        at = match (at, byte) {
            (At::Quoted, b'"') => At::Mark,
            (At::Start, b'"') => At::Quoted,
            (At::Plain, b'"') => return None,
            (At::Start | At::Plain | At::Mark, b',') => {
                record.push(std::mem::take(&mut field));
                At::Start
            }
            // Skips blank lines.
            (At::Start, b'\n') if record.is_empty() => At::Start,
            (At::Start | At::Plain | At::Mark, b'\n') => {
                record.push(std::mem::take(&mut field));
                records.push(std::mem::take(&mut record));
                At::Start
            }
            (At::Mark, byte) if byte != b'"' => return None,
            (At::Quoted | At::Mark, byte) => {
                field.push(byte);
                At::Quoted
            }
            (At::Start | At::Plain, byte) => {
                field.push(byte);
                At::Plain
            }
        };
    }
    // The appended line feed ends every complete record.
    (at == At::Start).then_some(records)
}

/// Removes a carriage return before each line feed and at the end, even within quotes.
fn lines_ended_by_line_feeds(text: &[u8]) -> Vec<u8> {
    let lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.collect::<Vec<_>>().join(&b'\n')
}
