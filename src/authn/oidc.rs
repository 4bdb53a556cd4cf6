//! ID tokens of OpenID issuers.

pub mod settings;
