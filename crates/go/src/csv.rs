//! Comma-separated values as Go's `encoding/csv` reads them, errors included.
//!
//! Follows `encoding/csv.Reader` with no comments, no lazy quotes, no trimming and any number of fields per record.
//! Works on bytes; columns in errors count bytes from one, as there.

use std::fmt;

/// An error of the CSV parser, with its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CsvError {
    start_line: usize,
    line: usize,
    column: usize,
    problem: Problem,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Problem {
    BareQuote,
    Quote,
}

impl std::error::Error for CsvError {}

impl fmt::Display for CsvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.start_line != self.line {
            write!(f, "record on line {}; ", self.start_line)?;
        }
        write!(f, "parse error on line {}, column {}: ", self.line, self.column)?;
        f.write_str(match self.problem {
            Problem::BareQuote => "bare \" in non-quoted-field",
            Problem::Quote => "extraneous or missing \" in quoted-field",
        })
    }
}

/// A record and the line it starts on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The line on which the record begins, from 1.
    pub line: usize,
    /// The fields, without their quotes.
    pub fields: Vec<Vec<u8>>,
}

/// Reads records one after the other.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    line: usize,
}

impl<'a> Reader<'a> {
    /// A reader of `text` from its beginning.
    pub fn new(text: &'a [u8]) -> Self {
        Self { rest: text, line: 0 }
    }

    /// The next line with its line feed, a carriage return before it or at the end of the text dropped.
    fn next_line(&mut self) -> Option<Vec<u8>> {
        if self.rest.is_empty() {
            return None;
        }
        let length = self.rest.iter().position(|byte| *byte == b'\n').map_or(self.rest.len(), |at| at + 1);
        let (line, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        self.line += 1;
        let (body, end) = match line.strip_suffix(b"\n") {
            Some(body) => (body, &b"\n"[..]),
            None => (line, &b""[..]),
        };
        Some([body.strip_suffix(b"\r").unwrap_or(body), end].concat())
    }

    /// The next record; blank lines are passed over.
    pub fn next_record(&mut self) -> Result<Option<Record>, CsvError> {
        let first = loop {
            match self.next_line() {
                None => return Ok(None),
                Some(line) if is_end(&line) => {}
                Some(line) => break line,
            }
        };
        let start_line = self.line;
        let mut fields = Vec::new();
        // Where the next field starts, in which line. Nothing is copied but fields: a line may be long.
        let (mut line, mut at, mut at_line) = (first, 0, self.line);
        loop {
            let rest = line.get(at..).unwrap_or_default();
            if rest.first() != Some(&b'"') {
                let comma = rest.iter().position(|byte| *byte == b',');
                let field = match comma {
                    Some(comma) => rest.get(..comma).unwrap_or_default(),
                    None => rest.strip_suffix(b"\n").unwrap_or(rest),
                };
                if let Some(quote) = field.iter().position(|byte| *byte == b'"') {
                    let column = at + quote + 1;
                    let problem = Problem::BareQuote;
                    return Err(CsvError { start_line, line: self.line, column, problem });
                }
                fields.push(field.to_vec());
                match comma {
                    Some(comma) => at += comma + 1,
                    None => break,
                }
                continue;
            }
            at += 1;
            let mut field = Vec::new();
            let is_last = loop {
                let error = |line, column| CsvError { start_line, line, column, problem: Problem::Quote };
                let rest = line.get(at..).unwrap_or_default();
                if let Some(quote) = rest.iter().position(|byte| *byte == b'"') {
                    field.extend_from_slice(rest.get(..quote).unwrap_or_default());
                    let after = rest.get(quote + 1..).unwrap_or_default();
                    at += quote + 1;
                    match after.first() {
                        Some(b'"') => field.push(b'"'),
                        Some(b',') => break false,
                        _ if is_end(after) => break true,
                        _ => return Err(error(self.line, at)),
                    }
                    at += 1;
                } else {
                    // The field goes on in the next line.
                    field.extend_from_slice(rest);
                    let next = self.next_line().unwrap_or_default();
                    if next.is_empty() {
                        return Err(error(at_line, line.len() + 1));
                    }
                    (line, at, at_line) = (next, 0, at_line + 1);
                }
            };
            fields.push(field);
            if is_last {
                break;
            }
            // The comma.
            at += 1;
        }
        Ok(Some(Record { line: start_line, fields }))
    }
}

fn is_end(line: &[u8]) -> bool {
    line.is_empty() || line == b"\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Vec<String>>, String> {
        let mut reader = Reader::new(text.as_bytes());
        let mut records = Vec::new();
        while let Some(record) = reader.next_record().map_err(|error| error.to_string())? {
            let text = |field: Vec<u8>| String::from_utf8(field).expect("text");
            records.push(record.fields.into_iter().map(text).collect());
        }
        Ok(records)
    }

    #[test]
    fn records_are_read_as_go_reads_them() {
        let cases: &[(&str, &[&[&str]])] = &[
            ("", &[]),
            ("\n\r\n\n", &[]),
            ("a,b,c", &[&["a", "b", "c"]]),
            ("a,b,c\n", &[&["a", "b", "c"]]),
            ("a,b\r\nc\r", &[&["a", "b"], &["c"]]),
            ("a\rb,c", &[&["a\rb", "c"]]),
            (",", &[&["", ""]]),
            (" a , b ", &[&[" a ", " b "]]),
            ("\"a,b\",c", &[&["a,b", "c"]]),
            ("\"a\"\"b\"", &[&["a\"b"]]),
            ("\"\"", &[&[""]]),
            ("\"\",", &[&["", ""]]),
            ("\"a\r\nb\",c\nd", &[&["a\nb", "c"], &["d"]]),
            ("\"a\n\nb\"", &[&["a\n\nb"]]),
            ("#a,b", &[&["#a", "b"]]),
            ("a,b\n\nc", &[&["a", "b"], &["c"]]),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text).expect("CSV"), *expected, "{text:?}");
        }
    }

    /// Copying the rest of the line for each field would take hours.
    #[test]
    fn a_line_of_millions_of_fields_is_read() {
        let many = 1 << 21;
        for field in ["", "\"\"", "\"\"\"\""] {
            let text = vec![field; many].join(",");
            let mut reader = Reader::new(text.as_bytes());
            assert_eq!(reader.next_record().unwrap().unwrap().fields.len(), many);
        }
        let text = format!("\"{}\"", "\"\"".repeat(many));
        assert_eq!(read(&text).unwrap(), [["\"".repeat(many)]]);
    }

    #[test]
    fn errors_are_those_of_go() {
        // Go printed the texts on the right.
        const CASES: &[(&str, &str)] = &[
            ("a\"b", "parse error on line 1, column 2: bare \" in non-quoted-field"),
            ("a,b\nc,d \"e\"", "parse error on line 2, column 5: bare \" in non-quoted-field"),
            ("\"a\"b", "parse error on line 1, column 3: extraneous or missing \" in quoted-field"),
            ("\"a\" ,b", "parse error on line 1, column 3: extraneous or missing \" in quoted-field"),
            ("\"a", "parse error on line 1, column 3: extraneous or missing \" in quoted-field"),
            ("\"a\n", "parse error on line 1, column 4: extraneous or missing \" in quoted-field"),
            (
                "x\n\"a\nb",
                "record on line 2; parse error on line 3, column 2: extraneous or missing \" in quoted-field",
            ),
            (
                "\"a\nb\"c",
                "record on line 1; parse error on line 2, column 2: extraneous or missing \" in quoted-field",
            ),
            (
                "\"a\nb\",c\"",
                "record on line 1; parse error on line 2, column 5: bare \" in non-quoted-field",
            ),
        ];
        for (text, expected) in CASES {
            assert_eq!(read(text).expect_err("no CSV"), *expected, "{text:?}");
        }
    }
}
