//! The transcripts of `docs/` are what the program prints.

#[path = "../support/transcript.rs"]
pub(crate) mod transcript;

#[test]
fn a_page_that_says_something_else_is_found() {
    transcript::rules().unwrap();
}
