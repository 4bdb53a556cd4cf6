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

// Of the gateway's packages that need Unix, here for the owners and modes of log files, this one is compiled first: nothing else is
// reported beside its error.
#[cfg(not(unix))]
compile_error!(
    "the gateway is for Unix; for Windows, build the commands of people's machines: cargo build -p portcullis-tools --bin \
     portcullis-login"
);

#[cfg(unix)]
pub mod event;
#[cfg(unix)]
pub mod policy;
#[cfg(unix)]
pub mod sink;
