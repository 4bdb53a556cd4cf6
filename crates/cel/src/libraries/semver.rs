//! Semantic versions.

use std::cmp::Ordering;
use std::fmt;

use portcullis_go::quote::Quoted;

use crate::evaluation::{EvalResult, Evaluation, Halt, error};
use crate::library::{Call, Library};
use crate::native::{Native, unconvertible};
use crate::number;
use crate::price::{self, Price, tenth};
use crate::value::Datum;

/// A version.
// blang/semver: semver.go
#[derive(Debug)]
struct Semver {
    numbers: [u64; 3],
    /// The parts, with dots between them; empty without any.
    pre_release: String,
    /// The parts, with dots between them; empty without any.
    build: String,
}

/// A part of a pre-release; a number is lower than a text.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PreRelease<'a> {
    Number(u64),
    Text(&'a str),
}

/// The functions of semantic versions, from Kubernetes.
#[derive(Debug)]
pub(crate) struct Semvers;

const SIGNATURES: &str = "
semver | (string) -> kubernetes.Semver | (string, bool) -> kubernetes.Semver
isSemver | (string) -> bool | (string, bool) -> bool
major | kubernetes.Semver.() -> int
minor | kubernetes.Semver.() -> int
patch | kubernetes.Semver.() -> int
isLessThan | kubernetes.Semver.(kubernetes.Semver) -> bool
isGreaterThan | kubernetes.Semver.(kubernetes.Semver) -> bool
compareTo | kubernetes.Semver.(kubernetes.Semver) -> int
";

impl Library for Semvers {
    fn signatures(&self) -> &'static str {
        SIGNATURES
    }

    // apiserver: pkg/cel/library/cost.go — CallCost
    fn price(&self, call: &Call<'_>) -> Price {
        match call.function {
            "semver" | "isSemver" => Price::Units(tenth(call.size(0))),
            // One unit in the reference, however long versions are.
            "compareTo" | "isLessThan" | "isGreaterThan" => {
                Price::Units(1 + price::compared(call.values) / 10)
            }
            _ => Price::ONE,
        }
    }

    // apiserver: pkg/cel/library/semverlib.go
    fn call(&self, _evaluation: &mut Evaluation<'_>, call: &Call<'_>) -> EvalResult {
        match call.values {
            [Datum::String(text)] => construct(call.function, text, false),
            [Datum::String(text), Datum::Bool(normalize)] => construct(call.function, text, *normalize),
            [version] => version.native().map_or(Err(Halt::Unsuited), |version| part(call.function, version)),
            [left, right] => match (left.native(), right.native()) {
                (Some(left), Some(right)) => compared(call.function, left, right),
                _ => Err(Halt::Unsuited),
            },
            _ => Err(Halt::Unsuited),
        }
    }
}

fn part(function: &str, version: &Semver) -> EvalResult {
    let [major, minor, patch] = version.numbers;
    let number = match function {
        "major" => major,
        "minor" => minor,
        "patch" => patch,
        _ => return Err(Halt::Unsuited),
    };
    // Go converts without a check.
    Ok(Datum::Int(number.cast_signed()))
}

fn compared(function: &str, left: &Semver, right: &Semver) -> EvalResult {
    let order = left.precedence(right);
    Ok(match function {
        "compareTo" => Datum::Int(number::signum(order)),
        "isLessThan" => Datum::Bool(order.is_lt()),
        "isGreaterThan" => Datum::Bool(order.is_gt()),
        _ => return Err(Halt::Unsuited),
    })
}

fn construct(function: &str, text: &str, normalize: bool) -> EvalResult {
    let parsed = if normalize { normalized(text).and_then(|text| parse(&text)) } else { parse(text) };
    match function {
        "isSemver" => Ok(Datum::Bool(parsed.is_ok())),
        "semver" => match parsed {
            Ok(version) => Ok(Datum::of_native(version)),
            Err(text) => error(text),
        },
        _ => Err(Halt::Unsuited),
    }
}

/// Drops a `v` and leading zeros, and adds the numbers that are missing.
// apiserver: pkg/cel/library/semverlib.go — normalizeAndParse
fn normalized(text: &str) -> Result<String, String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text.splitn(3, '.').map(without_leading_zeros).collect();
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        return Err("short version cannot contain PreRelease/Build meta data".to_owned());
    }
    parts.resize(3, "0".to_owned());
    Ok(parts.join("."))
}

fn without_leading_zeros(part: &str) -> String {
    let rest = part.trim_start_matches('0');
    let is_number = rest.starts_with(|first: char| first.is_ascii_digit());
    match part.len() {
        0 | 1 => part.to_owned(),
        _ if is_number => rest.to_owned(),
        _ => format!("0{rest}"),
    }
}

// blang/semver: Parse
fn parse(text: &str) -> Result<Semver, String> {
    if text.is_empty() {
        return Err("Version string empty".to_owned());
    }
    let [major, minor, rest] = text.splitn(3, '.').collect::<Vec<_>>()[..] else {
        return Err("No Major.Minor.Patch elements found".to_owned());
    };
    let (major, minor) = (read_number("major", major)?, read_number("minor", minor)?);
    let (rest, build) = rest.split_once('+').map_or((rest, None), |(rest, build)| (rest, Some(build)));
    let (patch, pre_release) = rest.split_once('-').map_or((rest, None), |(patch, pre)| (patch, Some(pre)));
    let patch = read_number("patch", patch)?;
    for part in pre_release.into_iter().flat_map(|parts| parts.split('.')) {
        read_pre_release(part)?;
    }
    for part in build.into_iter().flat_map(|parts| parts.split('.')) {
        check_build(part)?;
    }
    let text = |parts: Option<&str>| parts.unwrap_or_default().to_owned();
    Ok(Semver { numbers: [major, minor, patch], pre_release: text(pre_release), build: text(build) })
}

fn read_number(name: &str, digits: &str) -> Result<u64, String> {
    if !is_number(digits) {
        return Err(format!("Invalid character(s) found in {name} number {}", Quoted(digits)));
    }
    if digits.len() > 1 && digits.starts_with('0') {
        let name = match name {
            "major" => "Major",
            "minor" => "Minor",
            _ => "Patch",
        };
        return Err(format!("{name} number must not contain leading zeroes {}", Quoted(digits)));
    }
    parse_uint(digits)
}

// Go: strconv.ParseUint
fn parse_uint(digits: &str) -> Result<u64, String> {
    let problem = if digits.is_empty() { "invalid syntax" } else { "value out of range" };
    digits.parse().map_err(|_| format!("strconv.ParseUint: parsing {}: {problem}", Quoted(digits)))
}

fn read_pre_release(part: &str) -> Result<PreRelease<'_>, String> {
    if part.is_empty() {
        return Err("Prerelease is empty".to_owned());
    }
    if is_number(part) {
        if part.len() > 1 && part.starts_with('0') {
            let problem = "Numeric PreRelease version must not contain leading zeroes";
            return Err(format!("{problem} {}", Quoted(part)));
        }
        return parse_uint(part).map(PreRelease::Number);
    }
    if is_alphanumeric(part) {
        return Ok(PreRelease::Text(part));
    }
    Err(format!("Invalid character(s) found in prerelease {}", Quoted(part)))
}

fn check_build(part: &str) -> Result<(), String> {
    if part.is_empty() {
        return Err("Build meta data is empty".to_owned());
    }
    if is_alphanumeric(part) {
        return Ok(());
    }
    Err(format!("Invalid character(s) found in build meta data {}", Quoted(part)))
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_alphanumeric(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

impl Semver {
    /// The parts of the pre-release.
    fn parts(&self) -> impl Iterator<Item = PreRelease<'_>> {
        // All have been read before.
        self.pre_release.split('.').map(|part| read_pre_release(part).unwrap_or(PreRelease::Text(part)))
    }

    /// The order of versions, without their builds.
    // blang/semver: Compare
    fn precedence(&self, other: &Self) -> Ordering {
        let release = |version: &Self| version.pre_release.is_empty();
        self.numbers
            .cmp(&other.numbers)
            .then_with(|| release(self).cmp(&release(other)))
            .then_with(|| self.parts().cmp(other.parts()))
    }
}

impl Native for Semver {
    fn type_name(&self) -> &'static str {
        "kubernetes.Semver"
    }

    fn go_type(&self) -> &'static str {
        "cel.Semver"
    }

    fn shown(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn go_round_trip(&self) -> Result<(), String> {
        Err(unconvertible("semver.Version", &self.to_string()))
    }

    /// It contains slices there.
    fn is_go_key(&self) -> bool {
        false
    }

    fn compared_length(&self) -> usize {
        self.pre_release.len().max(1)
    }

    /// Versions of the same precedence are equal.
    fn equals(&self, other: &dyn Native) -> Option<bool> {
        other.downcast().map(|other| self.precedence(other).is_eq())
    }
}

impl fmt::Display for Semver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(out, "{major}.{minor}.{patch}")?;
        if !self.pre_release.is_empty() {
            write!(out, "-{}", self.pre_release)?;
        }
        if !self.build.is_empty() {
            write!(out, "+{}", self.build)?;
        }
        Ok(())
    }
}
