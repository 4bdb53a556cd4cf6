//! Client certificates. (A stub: the certificate checks replace this file.)

use super::{AuthnError, AuthnInput};

/// The certificates a client presented.
#[derive(Debug, Default)]
pub struct UnverifiedChain(());
/// Remembered verdicts.
#[derive(Debug, Default)]
pub struct VerdictMemo(());

/// Judges whether the client's certificate is that of a front proxy. (A stub: it finds no certificate.)
#[derive(Debug)]
pub struct FrontProxyVerifier;

impl FrontProxyVerifier {
    /// `false` when the client presented no certificate; an error when it presented another one.
    pub fn verify(&self, _input: &AuthnInput<'_>) -> Result<bool, AuthnError> {
        Ok(false)
    }
}
