//! The text that a format makes.

use std::fmt;

use crate::evaluation::{Evaluation, Halt};

/// The result so far. Ten bytes cost as much as in other functions, and are paid before they are written.
pub(super) struct Output<'m, 'a> {
    evaluation: &'m mut Evaluation<'a>,
    pub(super) text: String,
    length: usize,
    /// Why a text was not written, which `fmt` does not tell.
    halt: Option<Halt>,
}

impl<'m, 'a> Output<'m, 'a> {
    pub(super) fn new(evaluation: &'m mut Evaluation<'a>) -> Self {
        Self { evaluation, text: String::new(), length: 0, halt: None }
    }

    pub(super) fn charge(&mut self, length: usize) -> Result<(), Halt> {
        let before = self.length / 10;
        self.length = self.length.saturating_add(length);
        self.evaluation.charge(self.length / 10 - before)
    }

    pub(super) fn push(&mut self, text: &str) -> Result<(), Halt> {
        self.charge(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    /// Writes what is longer than its source, such as a quoted text.
    pub(super) fn print(&mut self, what: impl fmt::Display) -> Result<(), Halt> {
        fmt::write(self, format_args!("{what}")).map_err(|fmt::Error| self.halt.take().unwrap_or(Halt::Cost))
    }
}

impl fmt::Write for Output<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text).map_err(|halt| {
            self.halt = Some(halt);
            fmt::Error
        })
    }
}
