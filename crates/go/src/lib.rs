//! Functions that must equal Go's standard library. Each file names the code that it follows.
//!
//! | file | Go | compared with Go by |
//! |---|---|---|
//! | [`base64`] | `encoding/base64` | a table that Go printed |
//! | [`duration`] | `time.ParseDuration` | a table that Go printed; twin group `paths`; `crates/cel/tests/reference` |
//! | [`csv`] | `encoding/csv` | tables that Go printed; twin group `token_file` |
//! | [`hex`] | `encoding/hex` | – |
//! | [`json`] | `encoding/json`, the decoder of go-jose | `crates/admission/tests/reference`; `crates/audit/tests/reference`; `tests/it/compared_id_tokens.rs` |
//! | [`netip`] | `net/netip` | `crates/cel/tests/reference` |
//! | [`pem`] | `encoding/pem` | `tests/it/parsers` |
//! | [`number`] | `strconv.Atoi` | a table that Go printed |
//! | [`quote`] | `strconv.Quote` | twin groups whose messages quote |
//! | [`regexp`] | `regexp`, with bounds | `crates/cel/tests/reference/patterns.rs` |
//! | [`time`] | `time.Parse`, `time.Time` | a table that Go printed; `crates/cel/tests/reference` |
//! | [`url`] | `net/url` | `tests/it/parsers`; `crates/cel/tests/reference` |
//!
//! [`octets!`] is what their tests of texts are made with.

pub mod base64;
pub mod csv;
pub mod duration;
pub mod hex;
pub mod json;
pub mod netip;
pub mod number;
pub mod octets;
pub mod pem;
pub mod quote;
pub mod regexp;
pub mod time;
pub mod url;
