//! Replays the transcripts of pages in `docs/` against a real cluster. Each page has its own API server, and a gateway
//! that runs all controllers and holds the lease.

use std::path::Path;
use std::process::Command;

use portcullis::internal::PublicKeyPins;
use testkit::transcript;
use tokio::task::spawn_blocking;

use crate::client::{Api, text};
use crate::clusters::{CONTROLLERS, Clusters, Side, kubeconfig};

/// Checks that the commands of a page print the output that the page shows.
pub(crate) async fn replay(clusters: &Clusters, page: &str) -> Result<(), String> {
    let (starter, name) = (clusters.starter(), format!("page-{page}"));
    let (server, _api_server) = starter.apiserver(&name).await?;
    starter
        .grant(&Api::new(server, &clusters.authorities.servers, Some(&clusters.authorities.admin)))
        .await?;
    let mut flags = vec![CONTROLLERS.to_owned()];
    flags.extend(starter.signing_flags(Side::Bare));
    let gateway = starter.gateway(&format!("{name}-gateway"), server, &flags).await?;
    let dir = clusters.dir.join(&name);
    std::fs::create_dir_all(&dir).map_err(text)?;
    let config = clusters.dir.join(format!("{name}-admin.kubeconfig"));
    let admin = kubeconfig(&clusters.dir, gateway.address, "admin");
    std::fs::write(&config, admin).map_err(text)?;
    let pin = PublicKeyPins::of(&clusters.authorities.servers.cert).ok_or("the CA has no key")?;
    let programs = [Path::new(crate::PORTCULLIS), &clusters.programs.kubectl];
    let programs = programs.iter().filter_map(|program| program.parent());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(programs.map(Path::to_owned).chain(std::env::split_paths(&path)));
    let (path, ca) = (path.map_err(text)?, clusters.dir.join("servers-ca.crt"));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(format!("{page}.md"));
    let replaying = spawn_blocking(move || {
        transcript::replay(&page, &["cluster", "kubernetes"], &dir, |command: &mut Command| {
            command.env("PATH", &path).env("KUBECONFIG", &config).env("HOME", &dir).env("NO_COLOR", "1");
            command.env("GATEWAY", format!("https://{}", gateway.address)).env("CA", &ca).env("PIN", &pin);
        })
        .map(|_| drop(gateway))
    });
    replaying.await.map_err(text)?
}
