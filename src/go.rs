//! Functions that must equal Go's library. Each file names the code that it follows.
//!
//! | file | Go | compared with Go by |
//! |---|---|---|
//! | `csv` | `encoding/csv` | tables that Go printed; twin group `token_file` |
//! | [`duration`] | `time.ParseDuration` | a table that Go printed; twin group `paths` |
//! | [`extra_key`] | `headerrequest` and `transport` of Kubernetes | `tests/it/parsers` |
//! | `hex` | `encoding/hex` | – |
//! | `json` | `encoding/json`, the decoder of go-jose | `tests/it/compared_id_tokens.rs`, `tests/it/compared_account_tokens.rs` |
//! | [`pem`] | `encoding/pem` | `tests/it/parsers` |
//! | [`quote`] | `strconv.Quote` | twin groups whose messages quote |
//! | [`rfc3339`] | `time.RFC3339` | a table that Go printed; `tests/signers` |
//! | [`url`] | `net/url` | `tests/it/parsers` |

pub(crate) mod csv;
pub(crate) mod duration;
pub(crate) mod extra_key;
pub(crate) mod hex;
pub(crate) mod json;
pub(crate) mod pem;
pub(crate) mod quote;
pub(crate) mod rfc3339;
pub(crate) mod url;
