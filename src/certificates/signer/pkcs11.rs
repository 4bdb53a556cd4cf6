//! Keys in a token.
