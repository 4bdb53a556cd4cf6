//! Integration tests of the gateway, in-process and as a process, with small real servers.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::many_single_char_names,
    clippy::print_stderr,
    clippy::explicit_auto_deref,
    reason = "a test program: a panic is a failed test"
)]

#[cfg(feature = "dev")]
mod admission;
mod audit;
mod authorization;
mod balancing;
mod bootstrap;
mod bound_token_reads;
mod broken_issuers;
mod certs;
mod chains;
mod cli;
mod cluster_directory;
mod clusters;
mod compared_account_tokens;
mod compared_admission;
mod compared_audit_options;
mod compared_autoscalers;
mod compared_configurations;
mod compared_crls;
mod compared_exec_plugin;
mod compared_flags;
mod compared_id_tokens;
mod compared_key_sets;
mod compared_kubeconfigs;
mod compared_pod_identities;
mod compared_proxies;
mod compared_tls;
mod compared_token_answers;
mod configuration;
mod configuration_reference;
mod configured_files;
mod connections;
mod controllers;
mod credential_end;
mod credentials;
#[cfg(feature = "dev")]
mod dependencies;
mod dev_backend;
mod dev_tour;
mod distributions;
mod drain;
mod early_answers;
mod endpoint_discovery;
mod endpoints;
mod explain;
mod failures;
mod forwarding_loops;
mod fuzz_fixtures;
mod gateway;
mod hardening;
mod header_limits;
mod health;
mod identity;
mod impersonation;
mod inflight_limits;
mod layers;
mod links;
mod log_lines;
mod management_cluster;
mod metrics;
mod moved_watches;
mod page;
mod parsers;
mod path_prefixes;
mod proxies;
mod proxy_protocol;
mod random_tokens;
mod recorded_sessions;
mod release_build;
mod releases;
mod reload;
mod revocation;
mod running_clusters;
mod service_account_flags;
mod sessions;
mod shutting_down;
mod streaming;
mod streams;
mod systemd;
mod tcp_balancer;
mod threat_model;
mod token_review;
mod traces;
mod tunnels;
mod upgrade;
mod webhook;
