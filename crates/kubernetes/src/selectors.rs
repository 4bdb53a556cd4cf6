//! Field and label selectors, as kube-apiserver reads them from `?fieldSelector=` and `?labelSelector=`.
//!
//! Follows `k8s.io/apimachinery/pkg/fields/selector.go` and `pkg/labels/selector.go`. The gateway does not refuse an
//! invalid selector; the API server responds to it. The field selector decides the object name of a list, so it is
//! parsed exactly as there.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::names::is_dns_subdomain;

/// A selector does not parse. The text is for logs and authorizers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(String);

/// One requirement of a field selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRequirement<'a> {
    /// The field.
    pub field: &'a str,
    /// Whether the field must have the value; otherwise it must not.
    pub equals: bool,
    /// The value, unescaped.
    pub value: Cow<'a, str>,
}

/// Parses a field selector. The requirements are in kube-apiserver's order: sorted by term.
pub fn parse_fields(selector: &str) -> Result<Vec<FieldRequirement<'_>>, SelectorError> {
    let mut terms = split_terms(selector);
    terms.sort_unstable();
    terms.into_iter().filter(|term| !term.is_empty()).map(|term| parse_term(selector, term)).collect()
}

/// The value that a field selector requires of a field, if it is readable and requires one.
// apimachinery: pkg/fields/selector.go, RequiresExactMatch
pub fn required_field_value<'a>(requirements: &[FieldRequirement<'a>], field: &str) -> Option<Cow<'a, str>> {
    requirements
        .iter()
        .find(|requirement| requirement.equals && requirement.field == field)
        .map(|requirement| requirement.value.clone())
}

/// Cuts at commas that have no backslash before them.
fn split_terms(selector: &str) -> Vec<&str> {
    let mut terms = Vec::with_capacity(1);
    let (mut start, mut escaped) = (0, false);
    for (at, c) in selector.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.extend(selector.get(start..at));
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.extend(selector.get(start..));
    terms
}

fn parse_term<'a>(selector: &str, term: &'a str) -> Result<FieldRequirement<'a>, SelectorError> {
    let unreadable = || SelectorError(format!("invalid selector: '{selector}'; can't understand '{term}'"));
    // The first operator cuts; `==` is tried before `=`, so that no `=` is left in front of the value.
    let at = term
        .char_indices()
        .find(|&(at, c)| c == '=' || c == '!' && term.get(at..).is_some_and(|rest| rest.starts_with("!=")))
        .map(|(at, _)| at)
        .ok_or_else(unreadable)?;
    let (field, rest) = term.split_at_checked(at).ok_or_else(unreadable)?;
    let (equals, value) = if let Some(value) = rest.strip_prefix("!=") {
        (false, value)
    } else {
        (true, rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')).unwrap_or_default())
    };
    Ok(FieldRequirement { field, equals, value: unescape_value(value)? })
}

fn unescape_value(value: &str) -> Result<Cow<'_, str>, SelectorError> {
    if !value.contains(['\\', ',', '=']) {
        return Ok(Cow::Borrowed(value));
    }
    let mut plain = String::with_capacity(value.len());
    let mut escaped = false;
    for c in value.chars() {
        match c {
            '\\' | ',' | '=' if escaped => {
                plain.push(c);
                escaped = false;
            }
            _ if escaped => {
                return Err(SelectorError(format!("invalid field selector: invalid escape sequence: \\{c}")));
            }
            '\\' => escaped = true,
            ',' | '=' => {
                let message = format!("invalid field selector: unescaped character in value: {c}");
                return Err(SelectorError(message));
            }
            c => plain.push(c),
        }
    }
    if escaped {
        return Err(SelectorError("invalid field selector: invalid escape sequence: \\".to_owned()));
    }
    Ok(Cow::Owned(plain))
}

/// One requirement of a label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelRequirement {
    /// The label's key.
    pub key: String,
    /// The operator.
    pub operator: LabelOperator,
    /// The values, sorted, without duplicates; empty for operators without values.
    pub values: Vec<String>,
}

/// An operator of a label selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelOperator {
    /// `in`
    In,
    /// `notin`
    NotIn,
    /// `=` and `==`
    Equals,
    /// `!=`
    NotEquals,
    /// the key alone
    Exists,
    /// `!` and the key
    DoesNotExist,
    /// `>`
    GreaterThan,
    /// `<`
    LessThan,
}

/// Reads a label selector; the requirements come out sorted by key.
pub fn parse_labels(selector: &str) -> Result<Vec<LabelRequirement>, SelectorError> {
    let mut parser = Parser { lexer: Lexer { rest: selector.as_bytes() }, peeked: None };
    let mut requirements = Vec::new();
    loop {
        match parser.peek() {
            Token::Identifier(_) | Token::In | Token::NotIn | Token::Not => {
                requirements.push(parser.requirement()?);
                match parser.next() {
                    Token::End => break,
                    Token::Comma if matches!(parser.peek(), Token::Not) || parser.peek().text().is_some() => {
                    }
                    Token::Comma => return Err(parser.unexpected("identifier after ','")),
                    found => return Err(expected(&found, "',' or 'end of string'")),
                }
            }
            Token::End => break,
            _ => return Err(parser.unexpected("!, identifier, or 'end of string'")),
        }
    }
    requirements.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(requirements)
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    End,
    Open,
    Close,
    Comma,
    Not,
    Equals,
    NotEquals,
    Greater,
    Less,
    In,
    NotIn,
    Identifier(String),
}

impl Token {
    /// The text of an identifier; outside operator position `in` and `notin` are identifiers too.
    fn text(&self) -> Option<&str> {
        match self {
            Self::Identifier(text) => Some(text),
            Self::In => Some("in"),
            Self::NotIn => Some("notin"),
            _ => None,
        }
    }

    fn literal(&self) -> &str {
        match self {
            Self::End => "",
            Self::Open => "(",
            Self::Close => ")",
            Self::Comma => ",",
            Self::Not => "!",
            Self::Equals => "=",
            Self::NotEquals => "!=",
            Self::Greater => ">",
            Self::Less => "<",
            Self::In => "in",
            Self::NotIn => "notin",
            Self::Identifier(text) => text,
        }
    }
}

struct Lexer<'a> {
    rest: &'a [u8],
}

impl Lexer<'_> {
    fn take(&mut self, count: usize) {
        self.rest = self.rest.get(count..).unwrap_or_default();
    }

    /// A NUL ends a token and goes with it.
    fn take_nul(&mut self) {
        if self.rest.first() == Some(&0) {
            self.take(1);
        }
    }

    // apimachinery: pkg/labels/selector.go, Lexer — for which a NUL between tokens is the end of the text
    fn next(&mut self) -> Token {
        let blanks = self.rest.iter().take_while(|byte| is_blank(**byte)).count();
        self.take(blanks);
        let (token, length) = match self.rest {
            [] => return Token::End,
            [0, ..] => (Token::End, 1),
            [b'=', b'=', ..] => (Token::Equals, 2),
            [b'!', b'=', ..] => (Token::NotEquals, 2),
            [b'=', ..] => (Token::Equals, 1),
            [b'!', ..] => (Token::Not, 1),
            [b'(', ..] => (Token::Open, 1),
            [b')', ..] => (Token::Close, 1),
            [b',', ..] => (Token::Comma, 1),
            [b'>', ..] => (Token::Greater, 1),
            [b'<', ..] => (Token::Less, 1),
            _ => return self.identifier(),
        };
        self.take(length);
        if token != Token::End {
            self.take_nul();
        }
        token
    }

    fn identifier(&mut self) -> Token {
        let ends = |byte: u8| byte == 0 || is_blank(byte) || is_special(byte);
        let length = self.rest.iter().take_while(|byte| !ends(**byte)).count();
        let text = String::from_utf8_lossy(self.rest.get(..length).unwrap_or_default()).into_owned();
        self.take(length);
        self.take_nul();
        match text.as_str() {
            "in" => Token::In,
            "notin" => Token::NotIn,
            _ => Token::Identifier(text),
        }
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

fn is_special(byte: u8) -> bool {
    matches!(byte, b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<')
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    peeked: Option<Token>,
}

fn expected(found: &Token, what: &str) -> SelectorError {
    SelectorError(format!("found '{}', expected: {what}", found.literal()))
}

impl Parser<'_> {
    fn peek(&mut self) -> &Token {
        self.peeked.get_or_insert_with(|| self.lexer.next())
    }

    fn next(&mut self) -> Token {
        self.peeked.take().unwrap_or_else(|| self.lexer.next())
    }

    fn unexpected(&mut self, what: &str) -> SelectorError {
        expected(self.peek(), what)
    }

    // apimachinery: pkg/labels/selector.go, parseRequirement and NewRequirement
    fn requirement(&mut self) -> Result<LabelRequirement, SelectorError> {
        let mut token = self.next();
        let negated = token == Token::Not;
        if negated {
            token = self.next();
        }
        let Some(key) = token.text().map(str::to_owned) else {
            return Err(expected(&token, "identifier"));
        };
        if !is_label_key(&key) {
            return Err(SelectorError(format!("invalid label key '{key}'")));
        }
        if matches!(self.peek(), Token::End | Token::Comma) {
            let operator = if negated { LabelOperator::DoesNotExist } else { LabelOperator::Exists };
            return Ok(LabelRequirement { key, operator, values: Vec::new() });
        }
        if negated {
            // A key after `!` has no operator; the caller checks the next token.
            return Ok(LabelRequirement { key, operator: LabelOperator::DoesNotExist, values: Vec::new() });
        }
        let operator = match self.next() {
            Token::In => LabelOperator::In,
            Token::NotIn => LabelOperator::NotIn,
            Token::Equals => LabelOperator::Equals,
            Token::NotEquals => LabelOperator::NotEquals,
            Token::Greater => LabelOperator::GreaterThan,
            Token::Less => LabelOperator::LessThan,
            found => return Err(expected(&found, "in, notin, =, ==, !=, gt, lt")),
        };
        let values = match operator {
            LabelOperator::In | LabelOperator::NotIn => self.values()?,
            _ => BTreeSet::from([self.exact_value()?]),
        };
        let integer = matches!(operator, LabelOperator::GreaterThan | LabelOperator::LessThan);
        for value in &values {
            if !is_label_value(value) || integer && value.parse::<i64>().is_err() {
                return Err(SelectorError(format!("invalid label value '{value}'")));
            }
        }
        Ok(LabelRequirement { key, operator, values: values.into_iter().collect() })
    }

    fn values(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        let open = self.next();
        if open != Token::Open {
            return Err(expected(&open, "'('"));
        }
        let mut values = BTreeSet::new();
        if *self.peek() == Token::Close {
            self.next();
            values.insert(String::new());
            return Ok(values);
        }
        loop {
            let token = self.next();
            if let Some(text) = token.text() {
                values.insert(text.to_owned());
                match self.peek() {
                    Token::Comma => {}
                    Token::Close => break,
                    _ => return Err(self.unexpected("',' or ')'")),
                }
            } else if token == Token::Comma {
                if values.is_empty() || matches!(self.peek(), Token::Comma | Token::Close) {
                    values.insert(String::new());
                }
                if *self.peek() == Token::Close {
                    break;
                }
            } else {
                return Err(expected(&token, "',', ')' or identifier"));
            }
        }
        self.next();
        Ok(values)
    }

    fn exact_value(&mut self) -> Result<String, SelectorError> {
        if matches!(self.peek(), Token::End | Token::Comma) {
            return Ok(String::new());
        }
        let token = self.next();
        token.text().map(str::to_owned).ok_or_else(|| expected(&token, "identifier"))
    }
}

// apimachinery: pkg/api/validate/content/kube.go, IsLabelKey
fn is_label_key(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    prefix.is_none_or(is_dns_subdomain) && !name.is_empty() && is_label_value(name)
}

// apimachinery: pkg/api/validate/content/kube.go, IsLabelValue
fn is_label_value(value: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    value.len() <= 63 && value.bytes().all(inside) && ends_fit(value, |byte| byte.is_ascii_alphanumeric())
}

fn ends_fit(text: &str, fits: impl Fn(u8) -> bool) -> bool {
    [text.as_bytes().first(), text.as_bytes().last()].into_iter().flatten().all(|byte| fits(*byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn field_selectors_require_names_as_in_kube_apiserver() {
        const CASES: &[(&str, Result<Option<&str>, ()>)] = &[
            ("", Ok(None)),
            ("metadata.name=x", Ok(Some("x"))),
            ("metadata.name==x", Ok(Some("x"))),
            ("metadata.name!=x", Ok(None)),
            ("metadata.name=", Ok(Some(""))),
            ("metadata.name=a\\,b", Ok(Some("a,b"))),
            ("metadata.name=a\\=b\\\\", Ok(Some("a=b\\"))),
            ("metadata.name=b,metadata.name=a", Ok(Some("a"))),
            (",,metadata.name=x,", Ok(Some("x"))),
            ("spec.nodeName=n,metadata.name=x", Ok(Some("x"))),
            ("spec.nodeName=n", Ok(None)),
            ("other=metadata.name\\=x", Ok(None)),
            (" metadata.name=x", Ok(None)),
            ("metadata.name=a=b", Err(())),
            ("metadata.name=a\\b", Err(())),
            ("metadata.name=a\\", Err(())),
            ("metadata.name", Err(())),
            ("metadata.name!x", Err(())),
            ("metadata.name===x", Err(())),
        ];
        for (selector, expected) in CASES {
            let found = parse_fields(selector)
                .map(|requirements| required_field_value(&requirements, "metadata.name"))
                .map_err(|_| ());
            assert_eq!(found, expected.map(|name| name.map(Cow::Borrowed)), "{selector}");
        }
    }

    #[test]
    fn label_selectors_parse_as_in_kube_apiserver() {
        use LabelOperator::{DoesNotExist, Equals, Exists, GreaterThan, In, LessThan, NotEquals, NotIn};
        type Expected = Option<&'static [(&'static str, LabelOperator, &'static [&'static str])]>;
        let cases: &[(&str, Expected)] = &[
            ("", Some(&[])),
            ("  ", Some(&[])),
            ("x", Some(&[("x", Exists, &[])])),
            ("!x", Some(&[("x", DoesNotExist, &[])])),
            ("x=a", Some(&[("x", Equals, &["a"])])),
            ("x == a", Some(&[("x", Equals, &["a"])])),
            ("x=", Some(&[("x", Equals, &[""])])),
            ("x=,y=b", Some(&[("x", Equals, &[""]), ("y", Equals, &["b"])])),
            ("y=b,x!=a", Some(&[("x", NotEquals, &["a"]), ("y", Equals, &["b"])])),
            ("x in (b,a,a)", Some(&[("x", In, &["a", "b"])])),
            ("x notin ()", Some(&[("x", NotIn, &[""])])),
            ("x in (,a)", Some(&[("x", In, &["", "a"])])),
            ("x in (a,)", Some(&[("x", In, &["", "a"])])),
            ("x in (a,,b)", Some(&[("x", In, &["", "a", "b"])])),
            ("x>1,y<-2", None),
            ("x>1,y<2", Some(&[("x", GreaterThan, &["1"]), ("y", LessThan, &["2"])])),
            ("in", Some(&[("in", Exists, &[])])),
            ("in in (in,notin)", Some(&[("in", In, &["in", "notin"])])),
            ("acme.io/x=in", Some(&[("acme.io/x", Equals, &["in"])])),
            ("x,\0=", None),
            ("x \0=", Some(&[("x", Exists, &[])])),
            ("x\0,y", Some(&[("x", Exists, &[]), ("y", Exists, &[])])),
            ("x=a,", None),
            (",x", None),
            ("x=a b", None),
            ("!x=a", None),
            ("x in a", None),
            ("x in (a", None),
            ("x in (a b)", None),
            ("x==!a", None),
            ("x>a", None),
            ("x=-a", None),
            ("Acme.io/x", None),
            ("a/b/c", None),
            ("/x", None),
            ("x/", None),
            ("é", None),
            ("!", None),
            ("x!", None),
        ];
        for (selector, expected) in cases {
            let found = parse_labels(selector).ok();
            let expected = expected.map(|requirements| {
                requirements
                    .iter()
                    .map(|(key, operator, values)| LabelRequirement {
                        key: (*key).to_owned(),
                        operator: *operator,
                        values: values.iter().map(|value| (*value).to_owned()).collect(),
                    })
                    .collect::<Vec<_>>()
            });
            assert_eq!(found, expected, "{selector:?}");
        }
    }

    proptest! {
        #[test]
        fn selectors_never_panic(selector in "[a-z!=<>(),\\\\ é\u{0}./]{0,40}") {
            let _fields = parse_fields(&selector);
            let _labels = parse_labels(&selector);
        }
    }
}
