//! Client certificates.

/// The certificates a client presented.
#[derive(Debug)]
pub struct UnverifiedChain;
/// Remembered verdicts.
#[derive(Debug)]
pub struct VerdictMemo;
