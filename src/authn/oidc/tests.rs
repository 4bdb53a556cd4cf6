//! The rows of kube-apiserver's `oidc_test.go`, and attacks.

mod discovery;
mod distributed;
mod expressions;
mod flood;
mod signatures;
mod spelling;
mod support;
mod tokens;
