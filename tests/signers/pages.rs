//! The pages of `docs/` that show a cluster, replayed in front of a real API server: each has one of its own, with a gateway that
//! runs every controller and holds a lease.

use std::path::Path;
use std::process::Command;

use portcullis::pki::bootstrap_tokens::pins::PublicKeyPins;
use tokio::task::spawn_blocking;

use crate::bed::{Bed, CONTROLLERS, Side, kubeconfig};
use crate::client::{Api, text};
use crate::transcript;

/// Everything that the page shows must be what is printed.
pub async fn replay(bed: &Bed, page: &str) -> Result<(), String> {
    let (starter, name) = (bed.starter(), format!("page-{page}"));
    let (server, _api_server) = starter.apiserver(&name).await?;
    starter.grant(&Api::new(server, &bed.authorities.servers, Some(&bed.authorities.admin))).await?;
    let mut flags = vec![CONTROLLERS.to_owned()];
    flags.extend(starter.signing_flags(Side::Bare));
    let gateway = starter.gateway(&format!("{name}-gateway"), server, &flags).await?;
    let dir = bed.dir.join(&name);
    std::fs::create_dir_all(&dir).map_err(text)?;
    let config = bed.dir.join(format!("{name}-admin.kubeconfig"));
    let admin = kubeconfig(&bed.dir, gateway.address, "admin.crt", "admin.key");
    std::fs::write(&config, admin.to_string()).map_err(text)?;
    let pin = PublicKeyPins::of(&bed.authorities.servers.cert).ok_or("the CA has no key")?;
    let programs = [Path::new(env!("CARGO_BIN_EXE_portcullis")), &bed.programs.kubectl];
    let programs = programs.iter().filter_map(|program| program.parent());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(programs.map(Path::to_owned).chain(std::env::split_paths(&path)));
    let (path, ca) = (path.map_err(text)?, bed.dir.join("servers-ca.crt"));
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
