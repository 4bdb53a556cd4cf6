//! Text for a terminal: words that survive a shell, commands over several lines, and styles.

use std::path::Path;

/// The width of a terminal, within which texts and commands are wrapped.
const WIDTH: usize = 96;

/// Whether texts have styles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Painter {
    pub(super) color: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Bold,
    Dim,
    Red,
    Green,
    Cyan,
}

impl Painter {
    /// The text with a style, if it may have one.
    pub(super) fn paint(self, style: Style, text: &str) -> String {
        let code = match style {
            Style::Bold => "1",
            Style::Dim => "2",
            Style::Red => "31",
            Style::Green => "32",
            Style::Cyan => "36",
        };
        if self.color && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The command that the user typed, such as the path that `cargo run` uses. In a test, its name.
pub(super) fn program() -> String {
    let typed = std::env::args().next().unwrap_or_default();
    let is_portcullis = Path::new(&typed).file_name().is_some_and(|name| name == "portcullis");
    if is_portcullis { quoted(&typed) } else { "portcullis".to_owned() }
}

pub(super) fn quoted_path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

/// Quotes a word for a POSIX shell.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A command in lines that a shell reads as one. A flag and its value stay together, and so do a redirection and its file.
pub(super) fn command_line(words: &[String], indent: &str) -> String {
    let mut lines = vec![String::new()];
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let mut part = word.clone();
        if word.starts_with(['-', '|', '>', '<']) && !word.contains('=') {
            while let Some(value) = words.next_if(|next| !next.starts_with(['-', '|', '>', '<'])) {
                part = format!("{part} {value}");
            }
        }
        let begun = lines.last().map_or(0, |line| line.chars().count());
        match lines.last_mut() {
            Some(line) if begun == 0 => *line = part,
            Some(line) if begun + part.chars().count() < WIDTH - 6 => line.extend([" ", &part]),
            _ => lines.push(part),
        }
    }
    lines.join(&format!(" \\\n{indent}"))
}

/// Breaks a text between words.
pub(super) fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![indent.to_owned()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.as_str() == indent => *line += word,
            Some(line) if line.chars().count() + word.chars().count() < WIDTH => line.extend([" ", word]),
            _ => lines.push(format!("{indent}{word}")),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_shell() {
        for (word, want) in [
            ("/a/b-c_1.kubeconfig", "/a/b-c_1.kubeconfig"),
            ("--flag=a,b", "--flag=a,b"),
            ("my dir", "'my dir'"),
            ("it's", r"'it'\''s'"),
            ("$(x)", "'$(x)'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(word), want);
        }
    }

    #[test]
    fn a_long_command_is_broken_before_flags() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(command_line(&words("a -b c d"), "  "), "a -b c d");
        let long = "x".repeat(60);
        let line = command_line(&words(&format!("program --one {long} --two {long} | jq")), "  ");
        assert_eq!(line, format!("program --one {long} \\\n  --two {long} | jq"));
        let line = command_line(&words(&format!("program {long} --one {} < file", "x".repeat(15))), "  ");
        assert!(line.ends_with(" \\\n  < file"), "{line}");
    }

    #[test]
    fn texts_are_broken_between_words() {
        let text = wrapped(&"word ".repeat(40), "  ");
        assert!(
            text.lines().all(|line| line.starts_with("  word") && line.chars().count() <= WIDTH),
            "{text}"
        );
        assert_eq!(text.split_whitespace().count(), 40);
    }
}
