//! Audit as kube-apiserver does it: which requests are audited and how much of them ([`policy`]), the events ([`event`]),
//! and the backends that store them ([`sink`]).
//!
//! This crate knows nothing of the gateway: `pipeline` makes the events, and `config` reads the flags.
//!
//! | module | upstream (`k8s.io/apiserver`) |
//! |---|---|
//! | [`policy`] | `pkg/audit/policy`, `pkg/apis/audit/validation` |
//! | [`event`] | `pkg/apis/audit/v1`, `pkg/audit` |
//! | [`sink`] | `plugin/pkg/audit/{log,webhook,buffered,truncate}` |

pub mod event;
pub mod policy;
pub mod sink;
