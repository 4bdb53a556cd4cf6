//! Portcullis: an authenticating and admitting front proxy for Kubernetes-style API servers.
//!
//! A client speaks to Portcullis exactly as to kube-apiserver. Portcullis authenticates the client, decides under which
//! identity the request is made, and forwards it to the backend of its cluster with that identity in headers. The measure
//! is kube-apiserver itself: same credential, same request, same answer. This page is the guide to the code.
//!
//! # The life of a request
//!
//! 1. A worker thread of the `listener` accepts the connection. The TLS handshake asks for a client certificate and
//!    proves that the client has its key; the certificate itself is verified later, with each request. HTTP/1.1 or HTTP/2
//!    yields requests. Limits on connections, streams and time hold here, before anything is known of the client.
//! 2. `pipeline` takes each request through stages, one type each, in an order that the compiler holds:
//!    - `Received`: the request is well-formed, so that every receiver reads it the same way ([`request::wellformed`]).
//!    - `Routed`: the `cluster::router` has found its cluster, [`request::info`] its meaning, [`request::deadline`] its
//!      deadline. Then every credential is taken out of the request, so that none can be forwarded.
//!    - `Identified`: the cluster's chain of authenticators ([`authn`]) has authenticated the client.
//!    - `Impersonated`: the identity under which the request is made is decided. It is refused unless headers can carry it
//!      byte for byte (`portcullis_http::identity`).
//!    - `Scheduled`: the request has a place among those in flight, if they are limited ([`limits`]).
//!    - `Authorized`: the gateway's own authorizers allow the request, if there are any ([`authz`]).
//!    - `Admitted`: the request may be forwarded.
//! 3. `pipeline::forward::prepare` makes the request for the backend; it has the table of all headers that are removed.
//!    One function writes the identity (`portcullis_http::identity_headers`); after it come only `Impersonate-*` headers that the
//!    backend authorizes, and the gateway's own credential. A fault of the client that shows only now ends here.
//! 4. [`backend`] sends it to an endpoint that has passed the identity self-check, over connections that no client can
//!    break for another, and the answer streams back. A few answers are post-processed (health checks, `TokenReview`,
//!    the end of watches at a shutdown).
//! 5. When the body of the answer has ended, for whatever reason, the access log and the metrics are written.
//!
//! One place decides the response to every error on the way: `pipeline::error_map`, an exhaustive match.
//!
//! # The life of the process
//!
//! [`server`] starts the threads: workers, the acceptor, those that check tokens, one that follows what tokens depend on, one that
//! asks authorizers, one for reload and self-check, those of the controllers, the admin listener, which serves `/metrics` and the
//! health checks, and the page, if there is one. `state::Live` holds the configuration in force, a snapshot that is built whole
//! and never changed; one request is decided by one snapshot. A reload that fails leaves the old one in force.
//!
//! # The map
//!
//! From the top to the bottom. A module imports only modules below it: `tests/it/layers.rs` reads this table.
//!
//! | module | purpose |
//! |---|---|
//! | `fuzzing` | the entry points of the fuzz targets |
//! | [`internal`] | the parts of the crate that tests and benchmarks use |
//! | [`cli`] | the commands: `serve`, `check`, `convert`, `explain`, `clusters`, `dev`, `certs`, `token`, `cluster-info`, `login`, `logout`, `credential`, `kubeconfig` |
//! | `dev` | `portcullis dev`: in-memory API servers, a provider and a webhook to demonstrate the gateway, and a tour of it |
//! | [`server`] | start, threads, graceful shutdown, admin listener, identity self-check, the controllers of a process |
//! | `page` | the page on which users find their clusters: a listener and a host name of its own |
//! | [`pipeline`] | THE request path; health checks and `TokenReview` are answered here; `forward` sends to the backend |
//! | [`state`] | what is in force: which cluster gets a name that several want, the snapshot, its reload, what stays after an error |
//! | [`telemetry`] | the log |
//! | [`config`] | flags, file and kubeconfig to settings, all errors at once, whatever is in force |
//! | [`listener`] | connections: quotas, TLS, HTTP/1.1 and HTTP/2, limits against floods |
//! | [`cluster`] | everything that belongs to one cluster: router, authenticators, issuers, token objects |
//! | [`controllers`] | certificate and bootstrap controllers, leader election |
//! | [`admission`] | the admission webhooks of a cluster: settings, calls, labels of namespaces; `pipeline` obtains the objects |
//! | [`audit`] | the audit of a cluster: its policy, and the backends that store events; `pipeline` makes the events |
//! | `sessions` | the sessions of a cluster: their policy, and the recordings that are stored; `pipeline` opens them |
//! | [`authz`] | what a user may do, and impersonation: the gateway's own authorizers, access reviews at the API servers |
//! | [`backend`] | endpoints, connections to them, the gateway's own clients, what these follow |
//! | [`authn`] | one authenticator for each kind of credential, their chain, the token cache |
//! | [`limits`] | requests in flight: limits of clusters and of the process, fair queues |
//! | [`traces`] | the spans of requests, for a collector |
//! | [`request`] | `RequestInfo`, credentials, deadlines, well-formedness |
//! | [`operator`] | the users whom the operator names: only they may have privileges in the whole process |
//! | [`descriptors`] | how the open files of the process are divided: clients, API servers, a reserve |
//! | [`tasks`] | background tasks: restart after a panic, threads with a runtime |
//! | [`metrics`] | every metric and its labels |
//!
//! Below the gateway, each with an interface of its own, from the top to the bottom; none knows the gateway:
//!
//! | package | purpose |
//! |---|---|
//! | `crates/tools` | the commands of people and machines without the gateway: logins, certificates, bootstrap tokens, recorded sessions; `portcullis-login` |
//! | `crates/admission` | admission webhooks as kube-apiserver runs them: configuration, matching, reviews |
//! | `crates/audit` | audit as kube-apiserver does it: policies, events, the backends that store them |
//! | `crates/cel` | CEL as kube-apiserver evaluates it |
//! | `crates/merge` | apply configurations, merged into objects as kube-apiserver merges them |
//! | `crates/otlp` | traces for a collector |
//! | `crates/openid` | OpenID Connect: tokens, the keys of their issuers, a client of a provider |
//! | `crates/http` | bodies, hop-by-hop and identity headers, transport, the HTTPS client |
//! | `crates/limits` | what clients and clusters share, and whose share it is: fair limits, rates, queues, lookups, memory |
//! | `crates/sessions` | the streams of exec, attach and port-forward decoded; recordings of them, and the rules for both |
//! | `crates/tlog` | an append-only log of issued certificates, as tiles with signed checkpoints |
//! | `crates/pki` | X.509 as Go reads it, certificate issuance, bootstrap tokens, keys in tokens |
//! | `crates/kubernetes` | what must equal Kubernetes: names, strict decoding, selectors, users, `Status`, client-go's texts |
//! | `crates/go` | what must equal Go's library: URL, PEM, CSV, JSON, quotes, durations, times |
//! | `crates/system` | the injected clock, input files, locks, what differs between systems |
//! | `crates/testkit` | for tests: fake backends, PKI, processes |
//!
//! Tests: `tests/README.md` says which test goes where.
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | *backend* | the API servers of one cluster |
//! | *endpoint* | one of them |
//! | *cluster* | a backend with the routes, authenticators and controllers that belong to it |
//! | *client* | the sender of a request: kubectl, a controller, a front proxy |
//! | *front proxy* | a client that may assert identities in headers, proven by its certificate |
//! | *identity* | user name, UID, groups and extra values, as `SelfSubjectReview` shows them |
//! | *identity mode* | how the backend receives identities: request headers, or impersonation |
//! | *self-check* | the proof that an endpoint accepts forwarded identities unchanged; no request goes to one that fails |
//! | *snapshot*, *generation* | the configuration in force, and its number |
//! | *pending backend* | new backend settings that wait for their self-check |
//! | *policy* | what of the backend settings waits for nothing: which addresses are permitted, and how many requests |
//! | *chain*, *verdict* | the authenticators in order; the result of one of them for a credential |
//! | *token objects* | the Secrets, ServiceAccounts, Pods and Nodes that tokens are verified by |
//! | *lane* | an HTTP/2 connection that requests of one sharing class share |
//! | *owner* | whose share of what the process has once something counts in: a tenant's cluster, else a user's flow, else a network |
//! | *settings* | a part of the configuration after it was validated |

#![cfg_attr(not(feature = "page"), allow(dead_code, unused_imports, reason = "what only the page uses"))]

mod admission;
mod audit;
mod authn;
mod authz;
mod backend;
mod cli;
mod cluster;
mod config;
mod controllers;
mod descriptors;
#[cfg(feature = "dev")]
mod dev;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
#[doc(hidden)]
pub mod internal;
mod limits;
mod listener;
mod metrics;
mod operator;
#[cfg(feature = "page")]
mod page;
mod pipeline;
mod request;
mod server;
mod sessions;
mod state;
mod tasks;
mod telemetry;
mod traces;

pub use cli::Cli;
