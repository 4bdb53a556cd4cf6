//! Public-key infrastructure: X.509 parsing and path validation, certificate issuance, bootstrap tokens.
//!
//! Decides which certificates are valid and which certificates a signer issues. Must never accept a certificate that
//! kube-apiserver rejects, issue one that breaks its profile, or show a private key or token.
//!
//! Four readers of DER meet here, each for what the others cannot do:
//!
//! | reader | reads | why not another |
//! |---|---|---|
//! | [`x509`], ours | certificates and CRLs that decide about trust | Go's parser decides at kube-apiserver; each other one accepts and refuses other certificates |
//! | `x509-cert`, `der` | requests to sign, and what is signed | re-encodes subjects and extensions to the byte, which the others only read |
//! | `x509-parser` | certificates for `certs inspect`, lints and key files | the second opinion on what was signed: a lint by the parser that has encoded it shows nothing |
//! | `webpki` | raw public keys in handshakes | rustls verifies signatures of handshakes by it |

pub mod bootstrap_tokens;
pub mod issuance;
pub mod revocation;
pub mod x509;
