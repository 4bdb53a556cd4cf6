//! Common parts of the tests and benchmarks: certificates and certificate requests, small fake API servers, issuers and
//! webhooks, clients that can send malformed requests, the gateway as a process, the Go programs of `tests/go`, and the
//! real Kubernetes servers.
//!
//! The crate does not depend on `portcullis`, so unit tests can use it and a change of the gateway does not rebuild it.
//! Each integration target passes the path of the program under test, `env!("CARGO_BIN_EXE_portcullis")`.

#![expect(
    missing_debug_implementations,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::as_conversions,
    clippy::print_stderr,
    clippy::return_self_not_must_use,
    clippy::new_without_default,
    clippy::option_option,
    reason = "test support: a panic is a failed test"
)]

pub mod ambiguous_pem;
pub mod body;
mod built_once;
pub mod bystanders;
pub mod client;
pub mod comparison;
pub mod config_reload;
mod connection;
pub mod crl;
pub mod csr;
pub mod fake_accounts;
mod fake_backend;
pub mod fake_cluster;
pub mod frames;
mod gateway;
pub mod gateway_process;
pub mod go_program;
mod go_server;
pub mod go_tool;
pub mod issuer;
pub mod large_headers;
mod messages;
mod metrics;
pub mod open_files;
pub mod paths;
pub mod pki;
pub mod proxy_server;
pub mod published;
pub mod random;
pub mod real;
pub mod replicas;
pub mod self_check;
mod test_pki;
mod tls;
pub mod token_backends;
pub mod transcript;
mod waiting;
pub mod webhooks;
pub mod wire;

pub use connection::{Http1, Http2};
pub use fake_backend::{FakeBackend, H1, H2, ReceivedRequest};
pub use gateway::{Gateway, cluster_flags, flags, kubeconfig};
pub use messages::{BoxedBody, BoxedError, ResponseFuture, empty, full, get, status, text};
pub use metrics::sum_metric;
pub use test_pki::Pki;
pub use tls::{AnyServer, TlsClient, identified, tls_client, tls_client_by};
pub use waiting::{TEST_TIMEOUT, in_time, now, until};
