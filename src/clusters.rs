//! The clusters behind the gateway: which request is for which, who their clients are, where they are.

pub mod settings;
