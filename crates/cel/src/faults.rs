//! Errors of compilation, as the reference words them, each with a fix where there is one to name.

use std::fmt;

/// The longest source line in bytes that an error shows.
// cel-go: common/error.go — maxSnippetLength
const MAX_SNIPPET_BYTES: usize = 16384;

/// The most errors of one expression that are shown.
// cel-go: common/errors.go — maxErrorsToReport
const MAX_FAULTS: usize = 100;

/// Why an expression does not compile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct CompileError {
    text: String,
    fix: Option<String>,
}

impl CompileError {
    /// What to write instead, as far as the error shows it.
    pub fn fix(&self) -> Option<&str> {
        self.fix.as_deref()
    }
}

/// A compile error and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CompileFault {
    /// The offset in the text, in characters; `None` for an error of the whole expression.
    pub(super) at: Option<usize>,
    pub(super) text: String,
    pub(super) fix: Option<String>,
}

impl CompileFault {
    pub(super) fn new(at: usize, text: impl Into<String>) -> Self {
        Self { at: Some(at), text: text.into(), fix: None }
    }

    pub(super) fn of_whole(text: impl Into<String>) -> Self {
        Self { at: None, text: text.into(), fix: None }
    }

    /// An error of the parser without a position.
    pub(super) fn unplaced(text: impl fmt::Display) -> Self {
        Self::of_whole(format!("compilation failed: ERROR: <input>:-1:0: {text}"))
    }

    pub(super) fn with_fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }

    /// A type whose name a macro hides, or that only objects have: the reference finds it when it checks the expression, and not when
    /// it plans it.
    pub(super) fn undefined_type(name: &str) -> Self {
        Self::of_whole(format!("program instantiation failed: reference to undefined type: {name}"))
    }

    /// A reference to a function that is not among those that are declared.
    pub(super) fn undeclared_function<'n>(
        at: usize,
        function: &str,
        declared: impl Iterator<Item = &'n str>,
    ) -> Self {
        let fault = Self::new(at, format!("undeclared reference to '{function}' (in container '')"));
        match nearest(function, declared) {
            Some(similar) => fault.with_fix(format!("did you mean '{similar}'?")),
            None => fault,
        }
    }

    /// The error, with the source line and a mark at the column.
    // cel-go: common/error.go — ToDisplayString
    pub(super) fn display(self, source: &str) -> CompileError {
        let text = match self.at {
            Some(_) => format!("compilation failed: {}", self.placed(source)),
            None => self.text,
        };
        CompileError { text, fix: self.fix }
    }

    /// The error with its place, and with no word of what it is an error of.
    fn placed(&self, source: &str) -> String {
        let Self { at, text: reason, .. } = self;
        let Some(at) = *at else { return reason.clone() };
        let (line, column) = position(source, at);
        let head = format!("ERROR: <input>:{}:{}: {reason}", line + 1, column + 1);
        let shown = source.split('\n').nth(line).unwrap_or_default().replace('\t', " ");
        if shown.len() > MAX_SNIPPET_BYTES {
            return head;
        }
        let mut characters = shown.chars();
        let before = characters.by_ref().take(column);
        let dots: String = before.map(|c| if c.is_ascii() { '.' } else { '．' }).collect();
        let mark = if characters.next().is_none_or(|c| c.is_ascii()) { '^' } else { '＾' };
        format!("{head}\n | {shown}\n | {dots}{mark}")
    }

    /// Several errors of one expression, in the order of their places; the fix is that of the first.
    // cel-go: common/errors.go — ToDisplayString
    pub(super) fn display_all(mut faults: Vec<Self>, source: &str) -> CompileError {
        faults.sort_by_key(|fault| fault.at);
        let omitted = faults.len().saturating_sub(MAX_FAULTS);
        let shown = faults.iter().take(MAX_FAULTS).map(|fault| fault.placed(source));
        let omitted = (omitted > 0).then(|| format!("{omitted} more errors were truncated"));
        let lines: Vec<String> = shown.chain(omitted).collect();
        CompileError { text: lines.join("\n"), fix: faults.into_iter().next().and_then(|fault| fault.fix) }
    }
}

/// The line and the column of an offset in characters, from 0.
fn position(source: &str, at: usize) -> (usize, usize) {
    let before: String = source.chars().take(at).collect();
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count(), before.get(line_start..).map_or(0, |line| line.chars().count()))
}

/// The name with the smallest edit distance whatever the case, if it is similar at all.
fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > 40 {
        return None;
    }
    let near = names.filter(|known| known.starts_with(|first: char| first.is_ascii_alphabetic()));
    let name = name.to_ascii_lowercase();
    let distance = |known: &str| edit_distance(&name, &known.to_ascii_lowercase());
    let (distance, nearest) = near.map(|known| (distance(known), known)).min()?;
    (distance <= 1 + name.len() / 5).then_some(nearest)
}

/// The number of insertions, deletions and replacements between two texts.
fn edit_distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (line, left) in from.chars().enumerate() {
        let mut diagonal = line;
        let mut previous = line + 1;
        let mut next = vec![previous];
        for (right, above) in to.chars().zip(row.iter().skip(1)) {
            let replaced = diagonal + usize::from(left != right);
            diagonal = *above;
            previous = replaced.min(previous + 1).min(*above + 1);
            next.push(previous);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;

    #[test]
    fn a_misspelt_function_has_a_suggestion() {
        for (name, expected) in [
            ("startWith", Some("startsWith")),
            ("lowerASCII", Some("lowerAscii")),
            ("siz", Some("size")),
            ("splitt", Some("split")),
            ("somethingElse", None),
            (&*"x".repeat(100_000), None),
        ] {
            let declared = Environment::MUTATION.functions().names();
            let fix = CompileFault::undeclared_function(0, name, declared).fix;
            assert_eq!(fix, expected.map(|name| format!("did you mean '{name}'?")), "{name:.20}");
        }
    }

    #[test]
    fn an_error_shows_its_place() {
        let shown = |source: &str, at: usize| CompileFault::new(at, "no").display(source).to_string();
        let head = "compilation failed: ERROR: <input>:";
        for (source, at, expected) in [
            ("a +", 3, "1:4: no\n | a +\n | ...^"),
            ("a\n\tb", 3, "2:2: no\n |  b\n | .^"),
            ("é + ü", 4, "1:5: no\n | é + ü\n | ．...＾"),
            ("é + a", 4, "1:5: no\n | é + a\n | ．...^"),
            ("a", 9, "1:2: no\n | a\n | .^"),
        ] {
            assert_eq!(shown(source, at), format!("{head}{expected}"));
        }
        assert_eq!(shown(&"x".repeat(20_000), 1), format!("{head}1:2: no"));
        assert_eq!(
            CompileFault::of_whole("must evaluate to bool").display("1").to_string(),
            "must evaluate to bool"
        );
    }
}
