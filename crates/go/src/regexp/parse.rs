//! Parses a pattern by Go's rules.
//!
//! Follows `parse` of Go's `regexp/syntax/parse.go` with the flags `Perl`, as `regexp.Compile` does. Produces the tree
//! of `regex-syntax` directly, without an intermediate text. Groups do not capture, since no CEL function reads
//! captures.

use regex_syntax::hir::{Dot, Hir, Look, Repetition};

use super::reader::{Characters, Flags, PatternError, PatternReader, Ranges, TOO_DEEP, TOO_LARGE};

/// Maximum length of a pattern, in bytes; shorter than any pattern that could exceed Go's limit of runes in classes.
const MAX_LENGTH: usize = 10_000;
/// Maximum nesting of groups.
const MAX_DEPTH: usize = 100;
/// Maximum height of the tree, with repetitions, sequences, alternatives and capturing groups. The automata are built
/// recursively; this height needs a small part of a thread's stack.
// Go: regexp/syntax, maxHeight, is 1000
const MAX_HEIGHT: usize = 250;
/// Maximum count of a repetition, and product of nested counts.
// Go: regexp/syntax, repeatIsValid
const MAX_REPEAT: u32 = 1000;
/// Maximum number of instructions, counted as Go does; Go's limit is 3,355,443.
const MAX_INSTRUCTIONS: u64 = 100_000;

/// Parses a pattern.
// threat: pattern-other-reading, pattern-exhaustion
pub(super) fn parse(pattern: &str) -> Result<Hir, PatternError> {
    if pattern.len() > MAX_LENGTH {
        return Err(TOO_LARGE);
    }
    let group = Group::new(Flags::default(), false);
    let parser = PatternParser {
        reader: PatternReader { rest: pattern, flags: Flags::default(), ranges: Ranges::default() },
        group,
        outer: Vec::new(),
    };
    parser.run()
}

/// A part of a pattern.
struct PatternPart {
    hir: Hir,
    /// The number of instructions in Go's program.
    // Go: regexp/syntax, calcSize
    size: u64,
    /// The largest product of nested counts.
    copies: u32,
    // Go: regexp/syntax, calcHeight
    height: usize,
}

/// An open group, or the whole pattern.
struct Group {
    /// The flags before the group.
    outside: Flags,
    captures: bool,
    alternatives: Vec<PatternPart>,
    sequence: Vec<PatternPart>,
}

/// The bounds of a repetition.
enum Repeat {
    Star,
    Plus,
    Question,
    Counted(u32, Option<u32>),
}

struct PatternParser<'a> {
    reader: PatternReader<'a>,
    group: Group,
    outer: Vec<Group>,
}

impl PatternParser<'_> {
    fn run(mut self) -> Result<Hir, PatternError> {
        let mut follows_repeat = false;
        while let Some(character) = self.reader.next() {
            follows_repeat = self.step(character, follows_repeat)?;
        }
        if !self.outer.is_empty() {
            return Err("missing closing )");
        }
        Ok(self.group.close()?.hir)
    }

    /// Parses the element that begins with this character; returns whether it was a repetition.
    fn step(&mut self, character: char, follows_repeat: bool) -> Result<bool, PatternError> {
        let repeat = match character {
            '*' => Repeat::Star,
            '+' => Repeat::Plus,
            '?' => Repeat::Question,
            '{' => match self.counted()? {
                Some((least, most)) => Repeat::Counted(least, most),
                None => return self.literal('{').map(|()| false),
            },
            other => return self.plain(other).map(|()| false),
        };
        self.repeat(&repeat, follows_repeat)?;
        Ok(true)
    }

    fn plain(&mut self, character: char) -> Result<(), PatternError> {
        let Flags { multi_line, dot_matches_newline, .. } = self.reader.flags;
        match character {
            '(' => self.open(),
            ')' => self.close(),
            '|' => self.group.next_alternative(),
            '[' => {
                let class = self.reader.class()?;
                self.push_class(class)
            }
            '\\' => self.escape(),
            '^' => self.push(Hir::look(if multi_line { Look::StartLF } else { Look::Start })),
            '$' => self.push(Hir::look(if multi_line { Look::EndLF } else { Look::End })),
            '.' => {
                let dot = if dot_matches_newline { Dot::AnyChar } else { Dot::AnyCharExceptLF };
                self.push(Hir::dot(dot))
            }
            other => self.literal(other),
        }
    }

    /// Parses an escape outside a class, after the backslash.
    fn escape(&mut self) -> Result<(), PatternError> {
        let look = match self.reader.peek() {
            Some('A') => Look::Start,
            Some('z') => Look::End,
            Some('b') => Look::WordAscii,
            Some('B') => Look::WordAsciiNegate,
            Some('Q') => {
                self.reader.next();
                return self.quoted();
            }
            _ => {
                if let Some(group) = self.reader.escaped_group()? {
                    return self.push_class(group);
                }
                let escaped = self.reader.escaped_character()?;
                return self.literal(escaped);
            }
        };
        self.reader.next();
        self.push(Hir::look(look))
    }

    /// `\Q…\E`: literal characters; a repetition applies to the last one.
    fn quoted(&mut self) -> Result<(), PatternError> {
        let (text, rest) = self.reader.rest.split_once("\\E").unwrap_or((self.reader.rest, ""));
        self.reader.rest = rest;
        text.chars().try_for_each(|character| self.literal(character))
    }

    fn literal(&mut self, character: char) -> Result<(), PatternError> {
        if self.reader.flags.fold_case {
            let class = self.reader.ranges.folded(character)?;
            return self.push_class(class);
        }
        self.push(Hir::literal(character.to_string().into_bytes()))
    }

    fn push_class(&mut self, class: Characters) -> Result<(), PatternError> {
        self.push(class.into_hir())
    }

    fn push(&mut self, hir: Hir) -> Result<(), PatternError> {
        self.group.sequence.push(PatternPart::new(hir, 1, 1, 1)?);
        Ok(())
    }

    /// `{n}`, `{n,}` and `{n,m}` without leading zeros; anything else is literal text.
    // Go: regexp/syntax, parseRepeat
    fn counted(&mut self) -> Result<Option<(u32, Option<u32>)>, PatternError> {
        let Some((inside, rest)) = self.reader.rest.split_once('}') else { return Ok(None) };
        let (least, most) = inside.split_once(',').map_or((inside, Some(inside)), |(least, most)| {
            (least, Some(most).filter(|most| !most.is_empty()))
        });
        let is_number = |text: &str| {
            let all_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            all_digits && (text == "0" || !text.starts_with('0'))
        };
        if !is_number(least) || !most.is_none_or(is_number) {
            return Ok(None);
        }
        self.reader.rest = rest;
        let count = |text: &str| text.parse().ok().filter(|count| *count <= MAX_REPEAT);
        let bounds = match (count(least), most.map(count)) {
            (Some(least), None) => Some((least, None)),
            (Some(least), Some(Some(most))) if least <= most => Some((least, Some(most))),
            _ => None,
        };
        bounds.map(Some).ok_or("invalid repeat count")
    }

    fn repeat(&mut self, repeat: &Repeat, follows_repeat: bool) -> Result<(), PatternError> {
        let lazy = self.reader.take("?");
        if follows_repeat {
            return Err("invalid nested repetition operator");
        }
        let repeated = self.group.sequence.pop().ok_or("missing argument to repetition operator")?;
        let greedy = self.reader.flags.non_greedy == lazy;
        self.group.sequence.push(repeated.repeated(repeat, greedy)?);
        Ok(())
    }

    /// `(`, `(?flags)`, `(?flags:`, `(?P<name>` or `(?<name>`.
    fn open(&mut self) -> Result<(), PatternError> {
        if !self.reader.take("?") {
            return self.begin(self.reader.flags, true);
        }
        if self.reader.take("P<") || self.reader.take("<") {
            let (name, rest) = self.reader.rest.split_once('>').ok_or("invalid named capture")?;
            let is_word = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
            if name.is_empty() || !name.bytes().all(is_word) {
                return Err("invalid named capture");
            }
            self.reader.rest = rest;
            return self.begin(self.reader.flags, true);
        }
        self.open_with_flags()
    }

    // Go: regexp/syntax, parsePerlFlags
    fn open_with_flags(&mut self) -> Result<(), PatternError> {
        const REFUSED: PatternError = "invalid or unsupported Perl syntax";
        let (mut flags, mut value, mut complete) = (self.reader.flags, true, true);
        while let Some(character) = self.reader.next() {
            let flag = match character {
                'i' => &mut flags.fold_case,
                'm' => &mut flags.multi_line,
                's' => &mut flags.dot_matches_newline,
                'U' => &mut flags.non_greedy,
                '-' if value => {
                    (value, complete) = (false, false);
                    continue;
                }
                ')' if complete => {
                    self.reader.flags = flags;
                    return Ok(());
                }
                ':' if complete => return self.begin(flags, false),
                _ => return Err(REFUSED),
            };
            (*flag, complete) = (value, true);
        }
        Err(REFUSED)
    }

    fn begin(&mut self, flags: Flags, captures: bool) -> Result<(), PatternError> {
        if self.outer.len() >= MAX_DEPTH {
            return Err(TOO_DEEP);
        }
        let group = Group::new(self.reader.flags, captures);
        self.outer.push(std::mem::replace(&mut self.group, group));
        self.reader.flags = flags;
        Ok(())
    }

    fn close(&mut self) -> Result<(), PatternError> {
        let outer = self.outer.pop().ok_or("unexpected )")?;
        let group = std::mem::replace(&mut self.group, outer);
        self.reader.flags = group.outside;
        self.group.sequence.push(group.close()?);
        Ok(())
    }
}

impl PatternPart {
    fn new(hir: Hir, size: u64, copies: u32, height: usize) -> Result<Self, PatternError> {
        let size = size.max(1);
        if height > MAX_HEIGHT {
            return Err(TOO_DEEP);
        }
        if size > MAX_INSTRUCTIONS { Err(TOO_LARGE) } else { Ok(Self { hir, size, copies, height }) }
    }

    fn repeated(self, repeat: &Repeat, greedy: bool) -> Result<Self, PatternError> {
        let Self { hir, size, copies, height } = self;
        let (min, max, size, copies) = match *repeat {
            Repeat::Star => (0, None, size + 2, copies),
            Repeat::Plus => (1, None, size + 1, copies),
            Repeat::Question => (0, Some(1), size + 1, copies),
            // An element that never occurs needs no instructions.
            Repeat::Counted(min, Some(0)) => (min, Some(0), 0, 1),
            Repeat::Counted(min, max) => {
                let copies = copies.saturating_mul(max.unwrap_or(min).max(1));
                if copies > MAX_REPEAT {
                    return Err("invalid repeat count");
                }
                let size = match max {
                    None if min == 0 => size + 2,
                    None => size.saturating_mul(u64::from(min)) + 1,
                    Some(max) => size.saturating_mul(u64::from(max)) + u64::from(max - min),
                };
                (min, max, size, copies)
            }
        };
        let hir = Hir::repetition(Repetition { min, max, greedy, sub: Box::new(hir) });
        Self::new(hir, size, copies, height + 1)
    }

    /// Combines parts into one.
    fn joined(pieces: Vec<Self>, between: u64, join: fn(Vec<Hir>) -> Hir) -> Result<Self, PatternError> {
        let size = pieces.iter().map(|piece| piece.size + between).sum::<u64>().saturating_sub(between);
        let copies = pieces.iter().map(|piece| piece.copies).max().unwrap_or(1);
        let highest = pieces.iter().map(|piece| piece.height).max().unwrap_or(1);
        let height = if pieces.len() > 1 { highest + 1 } else { highest };
        Self::new(join(pieces.into_iter().map(|piece| piece.hir).collect()), size, copies, height)
    }
}

impl Group {
    fn new(outside: Flags, captures: bool) -> Self {
        Self { outside, captures, alternatives: Vec::new(), sequence: Vec::new() }
    }

    fn next_alternative(&mut self) -> Result<(), PatternError> {
        let sequence = std::mem::take(&mut self.sequence);
        self.alternatives.push(PatternPart::joined(sequence, 0, Hir::concat)?);
        Ok(())
    }

    fn close(mut self) -> Result<PatternPart, PatternError> {
        self.next_alternative()?;
        let whole = PatternPart::joined(self.alternatives, 1, Hir::alternation)?;
        let (captured, above) = if self.captures { (2, 1) } else { (0, 0) };
        PatternPart::new(whole.hir, whole.size + captured, whole.copies, whole.height + above)
    }
}
