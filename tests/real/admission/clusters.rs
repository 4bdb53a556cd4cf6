//! Two clusters with the same webhooks: those of the reference are objects in its API, those of the subject are in the files of the
//! gateway before it.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use testkit::go_tool::HELM;
use testkit::real::{ServerProcess, certificate_kubeconfig, eventually};

use super::webhooks::Webhooks;
use crate::servers::{ApiServer, FRONT_PROXY, HeaderFlags, RealGateway, RealServers};

/// The user of kubectl and Helm.
pub(crate) const OPERATOR: &str = "operator";
pub(crate) const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
pub(crate) const SCHEDULER: &str = "system:kube-scheduler";

pub(crate) struct Clusters {
    pub(crate) sides: [Side; 2],
}

/// A cluster, as programs see it.
pub(crate) struct Side {
    name: &'static str,
    /// The API server, or the gateway in front of it.
    pub(crate) address: SocketAddr,
    pub(crate) webhooks: Webhooks,
    /// The home of programs, with a kubeconfig for each user.
    home: PathBuf,
    kubectl: PathBuf,
    _gateway: Option<RealGateway>,
    _server: ApiServer,
}

/// A program that people run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Program {
    Helm,
    Kubectl,
}

/// What a program has printed.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Clusters {
    pub(crate) fn start(servers: &RealServers) -> Result<Self, String> {
        let [reference, subject] = std::thread::scope(|scope| {
            [false, true]
                .map(|by_gateway| scope.spawn(move || Side::start(servers, by_gateway)))
                .map(|side| side.join().unwrap())
        });
        Ok(Self { sides: [reference?, subject?] })
    }

    /// The outcomes of an action on the reference and on the subject, at once.
    pub(crate) fn both<T: Send>(
        &self,
        action: impl Fn(&Side) -> Result<T, String> + Sync,
    ) -> Result<[T; 2], String> {
        let [reference, subject] = std::thread::scope(|scope| {
            self.sides
                .each_ref()
                .map(|side| scope.spawn(|| action(side)))
                .map(|outcome| outcome.join().unwrap())
        });
        let of = |side: &Side, error: String| format!("{}: {error}", side.name);
        Ok([
            reference.map_err(|error| of(&self.sides[0], error))?,
            subject.map_err(|error| of(&self.sides[1], error))?,
        ])
    }
}

impl Side {
    fn start(servers: &RealServers, by_gateway: bool) -> Result<Self, String> {
        let name = if by_gateway { "admission-gateway" } else { "admission-reference" };
        let server = servers.own_server(HeaderFlags::Good, name)?;
        let home = servers.file(name)?.with_extension("home");
        fs::create_dir_all(&home).map_err(text)?;
        fs::copy(servers.file("servers-ca.crt")?, home.join("servers-ca.crt")).map_err(text)?;
        for (user, group) in [(OPERATOR, "system:masters"), (CONTROLLER_MANAGER, ""), (SCHEDULER, "")] {
            let issued = servers.client(user, group)?;
            fs::write(home.join(format!("{user}.crt")), issued.cert_pem()).map_err(text)?;
            fs::write(home.join(format!("{user}.key")), issued.key_pem()).map_err(text)?;
        }
        let kubectl = servers.kubectl()?.to_owned();
        let webhooks = servers.runtime().block_on(Webhooks::start());
        let side =
            Self { name, address: server.address, webhooks, home, kubectl, _gateway: None, _server: server };
        side.write_kubeconfigs()?;
        let side = if by_gateway { side.behind_a_gateway(servers)? } else { side };
        if !by_gateway {
            for configuration in side.webhooks.objects() {
                side.succeeds("create -f -", &configuration.to_string())?;
            }
        }
        let refused = eventually("the webhooks", async || {
            let labelled = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"probe","labels":{"denied":"yes"}}}"#;
            let probe = side.run(Program::Kubectl, "create --dry-run=server -f -", labelled)?;
            Ok(probe.stderr.contains("denied the request"))
        });
        servers.runtime().block_on(refused)?;
        Ok(side)
    }

    /// Puts a gateway with the webhooks in front of the API server.
    fn behind_a_gateway(self, servers: &RealServers) -> Result<Self, String> {
        self.succeeds("apply -f -", include_str!("../../../deploy/rbac.yaml"))?;
        let mut flags = self.webhooks.write(&self.home);
        flags.push("--service-account-issuer=https://kubernetes.default.svc".to_owned());
        flags.push(format!("--service-account-key-file={}", servers.file("sa.pub")?.display()));
        let gateway = servers.gateway_with("admission", self.address, &FRONT_PROXY, &flags)?;
        gateway.line_with(&["self-check passed"])?;
        let side = Self { address: gateway.address, _gateway: Some(gateway), ..self };
        side.write_kubeconfigs()?;
        Ok(side)
    }

    fn write_kubeconfigs(&self) -> Result<(), String> {
        for user in [OPERATOR, CONTROLLER_MANAGER, SCHEDULER] {
            let kubeconfig = certificate_kubeconfig(self.address, &self.home.join("servers-ca.crt"), user);
            fs::write(self.kubeconfig(user), kubeconfig).map_err(text)?;
        }
        Ok(())
    }

    fn kubeconfig(&self, user: &str) -> PathBuf {
        self.home.join(format!("{user}.kubeconfig"))
    }

    /// Runs a program as the operator. The command line is split at blanks.
    pub(crate) fn run(&self, program: Program, arguments: &str, stdin: &str) -> Result<Output, String> {
        let program = match program {
            Program::Helm => HELM.path()?,
            Program::Kubectl => self.kubectl.clone(),
        };
        let input = tempfile::NamedTempFile::new_in(&self.home).map_err(text)?;
        fs::write(input.path(), stdin).map_err(text)?;
        let output = Command::new(program)
            .args(arguments.split_whitespace())
            .env_clear()
            .env("HOME", &self.home)
            .env("KUBECONFIG", self.kubeconfig(OPERATOR))
            .env("TZ", "UTC")
            .current_dir(testkit::paths::workspace_root())
            .stdin(Stdio::from(File::open(input.path()).map_err(text)?))
            .output()
            .map_err(text)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Output { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) })
    }

    /// The standard output of kubectl, which must succeed.
    pub(crate) fn succeeds(&self, arguments: &str, stdin: &str) -> Result<String, String> {
        let output = self.run(Program::Kubectl, arguments, stdin)?;
        if output.code == Some(0) {
            Ok(output.stdout)
        } else {
            Err(format!("kubectl {arguments}: {}{}", output.stdout, output.stderr))
        }
    }

    /// Starts a component of the control plane as its user.
    pub(crate) fn component(
        &self,
        program: &Path,
        user: &str,
        more: &[&str],
    ) -> Result<ServerProcess, String> {
        let name = user.trim_start_matches("system:");
        let mut flags = vec![
            format!("--kubeconfig={}", self.kubeconfig(user).display()),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            "--kube-api-qps=1000".to_owned(),
            "--kube-api-burst=1000".to_owned(),
        ];
        flags.extend(more.iter().map(ToString::to_string));
        ServerProcess::start(&self.home, name, program, flags)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
