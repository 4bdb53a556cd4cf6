//! Requests per CPU-second of the gateway with audit at level Metadata, in both modes of the log.

use std::fs;
use std::path::PathBuf;

use crate::Options;
use crate::figures::{Figures, Measure};
use crate::proxies::Proxy;
use crate::rates::{SHAPES, rate};
use crate::setup::{CommonSetup, SMALL};
use crate::wire::RequestTemplate;

/// The baseline: a gateway without audit.
pub(crate) const WITHOUT: &str = "no-audit";
/// The values of `--audit-log-mode`; the second is the default.
pub(crate) const MODES: [&str; 2] = ["batch", "blocking"];

/// Of each request one event: that of its completion.
const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
";

/// The flags of a gateway that audits in this mode.
pub(crate) fn flags(setup: &CommonSetup, mode: &str) -> Vec<String> {
    let policy = setup.pki.write("audit-policy.yaml", POLICY);
    vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log(setup, mode).display()),
        format!("--audit-log-mode={mode}"),
    ]
}

fn log(setup: &CommonSetup, mode: &str) -> PathBuf {
    setup.pki.directory.path().join(format!("audit-{mode}.log"))
}

pub(crate) async fn measure(options: &Options, setup: &CommonSetup, figures: &mut Figures) {
    let mut gateways = vec![(WITHOUT, None, Proxy::gateway_with(setup, &[]).await)];
    for mode in MODES {
        gateways.push((mode, Some(log(setup, mode)), Proxy::gateway_with(setup, &flags(setup, mode)).await));
    }
    let template = RequestTemplate::get(SMALL);
    for (version, shape) in SHAPES.into_iter().filter(|(version, _)| options.includes(version)) {
        for turn in options.turns(gateways.len()) {
            let (name, log, gateway) = &gateways[turn];
            let connector = setup.certificate_connector(gateway.address());
            let rate = rate(options, gateway, &connector, &template, shape).await;
            figures.add(Measure::Audit, version, name, rate);
            if let Some(log) = log {
                let written = fs::metadata(log).unwrap().len();
                assert!(written > 0, "the gateway wrote no events");
                // The next round writes to an empty file again, as with rotation.
                fs::OpenOptions::new().write(true).open(log).unwrap().set_len(0).unwrap();
            }
        }
    }
    for (_, _, gateway) in gateways {
        gateway.end().await;
    }
}
