//! Webhook configurations: decoding, defaults and validation.
