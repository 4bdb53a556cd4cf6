//! Functions that must equal Go's library. Each file names the code that it follows.
//!
//! | file | Go | compared with Go by |
//! |---|---|---|
//! | `csv` | `encoding/csv` | tables that Go printed; twin group `token_file` |
//! | [`extra_key`] | `headerrequest` and `transport` of Kubernetes | `tests/it/parsers` |
//! | `json` | `encoding/json`, the decoder of go-jose | `tests/it/compared_id_tokens.rs`, `tests/it/compared_account_tokens.rs` |
//! | [`pem`] | `encoding/pem` | `tests/it/parsers` |
//! | [`rfc3339`] | `time.RFC3339` | a table that Go printed; `tests/signers` |
//!
//! `duration`, `hex`, `quote` and `url` are in `crates/go`, since CEL needs them as well.

pub(crate) mod csv;
pub(crate) mod extra_key;
pub(crate) mod json;
pub(crate) mod pem;
pub(crate) mod rfc3339;

pub(crate) use portcullis_go::{duration, hex, octets, quote, url};
