//! Comparisons of our code with the programs of `tests/go/`: many inputs, one answer to each, and a table of the results.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::go_program::GoProgram;
use crate::random::seed;

/// The result for one input: a word for the table, or the difference.
pub type Compared = Result<&'static str, String>;

/// How many inputs a program is given at once.
const BATCH: usize = 20_000;

/// The number of inputs by result.
#[derive(Debug, Default)]
pub struct Words(BTreeMap<&'static str, usize>);

impl Words {
    /// Fails unless each result has occurred: a generator that never makes a kind of input does not test it.
    pub fn occurred(&self, expected: &[&str]) {
        let missing: Vec<_> = expected.iter().filter(|word| !self.0.contains_key(**word)).collect();
        assert!(missing.is_empty(), "{missing:?} are not among {:?}", self.0);
    }

    /// How often a result has occurred.
    pub fn count(&self, word: &str) -> usize {
        self.0.get(word).copied().unwrap_or_default()
    }
}

impl GoProgram {
    /// Asks the program about each input, and judges its answers. Fails with the shortest of the differences; `what`
    /// names the inputs, and `show` prints one.
    pub fn compare<I>(
        &self,
        what: &str,
        inputs: &[I],
        question: impl Fn(&I) -> Value,
        show: impl Fn(&I) -> String,
        mut judge: impl FnMut(&I, &Value) -> Compared,
    ) -> Words {
        let mut words = Words::default();
        let mut differences = Vec::new();
        for batch in inputs.chunks(BATCH) {
            let questions: Vec<Value> = batch.iter().map(&question).collect();
            for (input, answer) in batch.iter().zip(self.ask(&questions)) {
                match judge(input, &answer) {
                    Ok(word) => *words.0.entry(word).or_default() += 1,
                    Err(difference) => differences.push(format!("{}\n  {difference}", show(input))),
                }
            }
        }
        differences.sort_by_key(String::len);
        let found = differences.len();
        differences.dedup();
        let shown = differences.iter().take(12).cloned().collect::<Vec<_>>().join("\n");
        assert!(found == 0, "{found} of {} {what} differ, seed {}:\n{shown}", inputs.len(), seed());
        eprintln!("{} {what}, seed {}: {:?}", inputs.len(), seed(), words.0);
        words
    }
}
