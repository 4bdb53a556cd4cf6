//! Regular expressions as Go's `regexp` reads them, by the `regex` crate, whose time is linear too.
//!
//! The two differ in what they accept and in what classes hold beyond ASCII, so a pattern is translated first.

use std::collections::HashMap;
use std::fmt::Write as _;

use regex::{Regex, RegexBuilder};

/// The most that a compiled pattern may take; for patterns that come with the data it bounds the work of compiling.
const COMPILED_SIZE: usize = 1 << 20;
const DYNAMIC_SIZE: usize = 1 << 16;
/// Go's limit of one repetition.
const REPEAT_LIMIT: u32 = 1000;

/// The patterns that an expression contains literally, compiled once.
#[derive(Debug, Default)]
pub(super) struct Patterns(HashMap<String, Regex>);

impl Patterns {
    pub(super) fn add(&mut self, pattern: &str) -> Result<(), String> {
        self.0.insert(pattern.to_owned(), build(pattern, COMPILED_SIZE)?);
        Ok(())
    }

    /// Whether a pattern was computed.
    pub(super) fn is_new(&self, pattern: &str) -> bool {
        !self.0.contains_key(pattern)
    }

    /// A pattern of the expression or one that was computed.
    pub(super) fn find(&self, pattern: &str) -> Result<Regex, String> {
        match self.0.get(pattern) {
            Some(compiled) => Ok(compiled.clone()),
            None => build(pattern, DYNAMIC_SIZE),
        }
    }
}

fn build(pattern: &str, size: usize) -> Result<Regex, String> {
    let invalid = |what: &str| format!("error parsing regexp: {what}: `{pattern}`");
    let translated = Translator { rest: pattern, out: String::new() }.run().map_err(invalid)?;
    RegexBuilder::new(&translated)
        .size_limit(size)
        .nest_limit(100)
        .build()
        .map_err(|_| invalid("not supported"))
}

struct Translator<'a> {
    rest: &'a str,
    out: String,
}

type Step = Result<(), &'static str>;

impl Translator<'_> {
    fn next(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let next = characters.next();
        self.rest = characters.as_str();
        next
    }

    fn run(mut self) -> Result<String, &'static str> {
        // Whether something to be repeated precedes, and whether it is a repetition already.
        let mut repeated = false;
        while let Some(character) = self.next() {
            let repetition = match character {
                '*' | '+' | '?' => true,
                '{' => {
                    let Some(counted) = self.counted()? else {
                        self.out.push_str("\\{");
                        repeated = false;
                        continue;
                    };
                    if repeated {
                        return Err("invalid nested repetition operator");
                    }
                    self.out.push_str(&counted);
                    self.lazy();
                    repeated = true;
                    continue;
                }
                _ => false,
            };
            if repetition {
                if repeated {
                    return Err("invalid nested repetition operator");
                }
                self.out.push(character);
                self.lazy();
                repeated = true;
                continue;
            }
            repeated = false;
            match character {
                '\\' => self.escape(false)?,
                '[' => self.class()?,
                '(' => self.group()?,
                '}' => self.out.push_str("\\}"),
                other => self.out.push(other),
            }
        }
        Ok(self.out)
    }

    /// The `?` that makes a repetition lazy.
    fn lazy(&mut self) {
        if let Some(rest) = self.rest.strip_prefix('?') {
            self.rest = rest;
            self.out.push('?');
        }
    }

    /// `{n}`, `{n,}`, `{n,m}`; anything else is literal text.
    fn counted(&mut self) -> Result<Option<String>, &'static str> {
        let Some((inside, rest)) = self.rest.split_once('}') else { return Ok(None) };
        let (least, most) = inside.split_once(',').unwrap_or((inside, inside));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(least) || !(digits(most) || most.is_empty() && inside.contains(',')) {
            return Ok(None);
        }
        let bound = |text: &str| text.parse::<u32>().ok().filter(|count| *count <= REPEAT_LIMIT);
        let within = bound(least)
            .is_some_and(|least| most.is_empty() || bound(most).is_some_and(|most| least <= most));
        if !within {
            return Err("invalid repeat count");
        }
        self.rest = rest;
        Ok(Some(format!("{{{inside}}}")))
    }

    /// What follows a backslash; inside of a class, classes nest.
    fn escape(&mut self, in_class: bool) -> Step {
        let Some(character) = self.next() else { return Err("trailing backslash at end of expression") };
        let class = match character {
            'd' => "[0-9]",
            'D' => "[^0-9]",
            's' => "[\\t\\n\\x0C\\r ]",
            'S' => "[^\\t\\n\\x0C\\r ]",
            'w' => "[0-9A-Za-z_]",
            'W' => "[^0-9A-Za-z_]",
            'b' if !in_class => "(?-u:\\b)",
            'B' if !in_class => "(?-u:\\B)",
            'A' if !in_class => "\\A",
            'z' if !in_class => "\\z",
            'Q' if !in_class => {
                let (literal, rest) = self.rest.split_once("\\E").unwrap_or((self.rest, ""));
                self.out.push_str(&regex::escape(literal));
                self.rest = rest;
                return Ok(());
            }
            'a' => "\\x07",
            'f' => "\\x0C",
            'n' => "\\n",
            'r' => "\\r",
            't' => "\\t",
            'v' => "\\x0B",
            'p' | 'P' | 'x' => {
                self.out.push('\\');
                self.out.push(character);
                return Ok(());
            }
            '0'..='7' => return self.octal(character),
            other if other.is_ascii() && !other.is_ascii_alphanumeric() => {
                self.out.push_str(&literal(other, in_class));
                return Ok(());
            }
            _ => return Err("invalid escape sequence"),
        };
        self.out.push_str(class);
        Ok(())
    }

    /// `\0`, `\012`, `\123`: a single digit but zero would be a back reference.
    fn octal(&mut self, first: char) -> Step {
        let more = self.rest.bytes().take(2).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
        if first != '0' && more == 0 {
            return Err("invalid escape sequence");
        }
        let (digits, rest) = self.rest.split_at_checked(more).unwrap_or(("", self.rest));
        self.rest = rest;
        let value =
            u32::from_str_radix(&format!("{first}{digits}"), 8).map_err(|_| "invalid escape sequence")?;
        write!(self.out, "\\x{{{value:X}}}").map_err(|_| "invalid escape sequence")?;
        Ok(())
    }

    fn class(&mut self) -> Step {
        self.out.push('[');
        if let Some(rest) = self.rest.strip_prefix('^') {
            self.rest = rest;
            self.out.push('^');
        }
        let mut first = true;
        loop {
            if let Some(name) = self.rest.strip_prefix("[:") {
                let Some((name, rest)) = name.split_once(":]") else { return Err("missing closing ]") };
                if name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'^') {
                    self.out.extend(["[:", name, ":]"]);
                    self.rest = rest;
                    first = false;
                    continue;
                }
            }
            match self.next() {
                None => return Err("missing closing ]"),
                Some(']') if !first => break,
                Some('\\') => self.escape(true)?,
                // A range keeps its hyphen; at either end it is a hyphen.
                Some('-') if first || self.rest.starts_with(']') => self.out.push_str("\\-"),
                Some('-') => self.out.push('-'),
                Some(other) => self.out.push_str(&literal(other, true)),
            }
            first = false;
        }
        self.out.push(']');
        Ok(())
    }

    /// `(?…`: what Go does not know is refused, as is what it knows otherwise.
    fn group(&mut self) -> Step {
        self.out.push('(');
        let Some(rest) = self.rest.strip_prefix('?') else { return Ok(()) };
        let known = if rest.starts_with("P<") || rest.starts_with('<') {
            !rest.starts_with("<=") && !rest.starts_with("<!")
        } else {
            let end = rest.find([':', ')']).unwrap_or(rest.len());
            rest.bytes().take(end).all(|byte| b"imsU-".contains(&byte))
        };
        if !known {
            return Err("invalid or unsupported Perl syntax");
        }
        self.out.push('?');
        self.rest = rest;
        // The name or the flags, so that their characters are not taken for repetitions.
        let end = self.rest.find(['>', ':', ')']).unwrap_or(self.rest.len());
        let (head, rest) = self.rest.split_at_checked(end).unwrap_or((self.rest, ""));
        self.out.push_str(head);
        self.rest = rest;
        Ok(())
    }
}

/// A character that stands for itself.
fn literal(character: char, in_class: bool) -> String {
    if in_class && "[]&~-^\\".contains(character) {
        return format!("\\{character}");
    }
    if in_class { character.to_string() } else { regex::escape(&character.to_string()) }
}
