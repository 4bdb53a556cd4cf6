//! `portcullis --version`: the version, and with `--output` what the program is made of, for bug reports and inventories.

use std::collections::BTreeMap;
use std::env::consts::{ARCH, OS};
use std::process::ExitCode;

use clap::Parser;
use portcullis_kubernetes::release::Release;
use portcullis_tools::output::{BAD_CONFIGURATION, Output, print};
use serde::Serialize;

/// The libraries that decide about TLS, HTTP and Kubernetes, with their versions in `Cargo.lock`.
const LIBRARIES: [(&str, &str); 7] = [
    ("aws-lc-rs", "1.19.0"),
    ("aws-lc-sys", "0.47.0"),
    ("h2", "0.4.20"),
    ("hyper", "1.12.0"),
    ("kube", "5.0.0"),
    ("rustls", "0.23.46"),
    ("rustls-webpki", "0.103.16"),
];

/// The features of the package that change what the program can do.
const FEATURES: [(&str, bool); 4] = [
    ("dev", cfg!(feature = "dev")),
    ("keyring", cfg!(feature = "keyring")),
    ("page", cfg!(feature = "page")),
    ("pkcs11", cfg!(feature = "pkcs11")),
];

/// What may follow `portcullis --version`.
#[derive(Debug, Parser)]
#[command(name = "portcullis --version", no_binary_name = true)]
struct VersionFlags {
    /// How to print the version: text, or json and yaml with commit, Kubernetes, features and libraries.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    output: Output,
}

/// The program.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct VersionReport {
    version: &'static str,
    /// The commit that it was built from, if the build has named it (`PORTCULLIS_COMMIT`).
    commit: Option<&'static str>,
    platform: String,
    kubernetes: KubernetesReport,
    features: Vec<&'static str>,
    libraries: BTreeMap<&'static str, &'static str>,
}

/// The releases of Kubernetes: the one whose answers the gateway gives, and the oldest API server that is tested behind it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct KubernetesReport {
    reference: String,
    oldest_backend: String,
}

/// Whether a word asks for the version.
pub(super) fn is_asked(word: &str) -> bool {
    matches!(word, "--version" | "-V")
}

/// Prints the version; `arguments` follow `--version`.
pub(super) fn run(arguments: &[String]) -> ExitCode {
    match VersionFlags::try_parse_from(arguments) {
        Ok(flags) => {
            let text = || format!("portcullis {}\n", env!("CARGO_PKG_VERSION"));
            print(&flags.output.rendered(&report()).unwrap_or_else(text))
        }
        Err(error) => {
            // --help is an error to clap, too; it prints each to the right stream.
            error.print().ok();
            if error.use_stderr() { ExitCode::from(BAD_CONFIGURATION) } else { ExitCode::SUCCESS }
        }
    }
}

fn report() -> VersionReport {
    VersionReport {
        version: env!("CARGO_PKG_VERSION"),
        commit: option_env!("PORTCULLIS_COMMIT"),
        platform: format!("{OS}/{ARCH}"),
        kubernetes: KubernetesReport {
            reference: Release::default().to_string(),
            oldest_backend: Release::OLDEST.to_string(),
        },
        features: FEATURES.iter().filter(|(_, is_on)| *is_on).map(|(name, _)| *name).collect(),
        libraries: LIBRARIES.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_of_libraries_are_those_of_the_lock_file() {
        let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.lock")).unwrap();
        for (name, version) in LIBRARIES {
            let package = format!("name = \"{name}\"\nversion = \"");
            let (_, rest) = lock.split_once(&package).unwrap_or_else(|| panic!("{name} is not locked"));
            assert_eq!(rest.split('"').next(), Some(version), "{name} in LIBRARIES and in Cargo.lock");
            assert!(!rest.contains(&package), "{name} is locked in two versions");
        }
    }

    #[test]
    fn features_are_those_of_the_package() {
        let manifest = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
        let (_, features) = manifest.split_once("\n[features]\n").unwrap();
        let (features, _) = features.split_once("\n\n").unwrap();
        let names = features.lines().filter(|line| !line.starts_with('#'));
        let mut names: Vec<&str> = names.filter_map(|line| line.split(' ').next()).collect();
        // Neither is for users.
        names.retain(|name| !["default", "fuzzing"].contains(name));
        names.sort_unstable();
        assert_eq!(names, FEATURES.map(|(name, _)| name));
    }
}
