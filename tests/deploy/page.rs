//! The commands of docs/deployment.md, and gateways that run as the manifests which they install say; and those of README in front of a
//! cluster that is not configured for the gateway.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use libtest_mimic::Trial;
use serde_json::Value;
use testkit::gateway_process::GatewayProcess;
use testkit::paths::workspace_root;
use testkit::real::free_ports;
use testkit::transcript;

use crate::chart::documents;
use crate::cluster::{Cluster, Running};
use crate::{HELM, PORTCULLIS, Test};

pub(crate) fn trials(trial: &impl Fn(&str, Test) -> Trial) -> Vec<Trial> {
    vec![
        trial("the_sidecar", Box::new(|cluster| sidecar(cluster.running()?, cluster))),
        trial("the_ingress", Box::new(|cluster| ingress(cluster.running()?, cluster))),
        trial("the_managed_cluster", Box::new(|cluster| managed(cluster.running()?))),
    ]
}

/// The directory in which the commands run, and their environment.
struct Replay<'a> {
    running: &'a Running,
    dir: PathBuf,
    variables: Vec<(&'static str, String)>,
}

impl<'a> Replay<'a> {
    fn new(running: &'a Running, name: &str) -> Result<Self, String> {
        let dir = running.dir.join(name);
        fs::create_dir_all(dir.join("portcullis")).map_err(|error| error.to_string())?;
        std::os::unix::fs::symlink(workspace_root().join("deploy"), dir.join("deploy"))
            .map_err(|error| error.to_string())?;
        let helm = HELM.path()?;
        let programs = [Path::new(PORTCULLIS), &running.programs.kubectl, &helm];
        let programs = programs.iter().filter_map(|program| program.parent()).map(Path::to_owned);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(programs.chain(std::env::split_paths(&path))).unwrap();
        let variables = vec![
            ("PATH", path.into_string().unwrap()),
            ("HOME", dir.display().to_string()),
            ("KUBECONFIG", running.dir.join("admin.kubeconfig").display().to_string()),
            ("PKI", running.dir.join("pki").display().to_string()),
            ("DIR", dir.join("portcullis").display().to_string()),
            ("PORT", running.address.port().to_string()),
            ("NODE_IP", "127.0.0.1".to_owned()),
        ];
        Ok(Self { running, dir, variables })
    }

    /// Runs the blocks of a kind, of which there are this many commands.
    fn run(&self, kind: &str, commands: usize) -> Result<(), String> {
        let page = workspace_root().join("docs/deployment.md");
        let played = transcript::replay(&page, &[kind], &self.dir, |command: &mut Command| {
            command.envs(self.variables.iter().cloned());
        })?;
        if played == commands { Ok(()) } else { Err(format!("{played} commands of {kind}")) }
    }

    /// An object of the cluster.
    fn object(&self, arguments: &[&str]) -> Result<Value, String> {
        let text = self.running.kubectl(&[arguments, &["--output=json"]].concat())?;
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }

    /// Writes the ConfigMaps and Secrets that a pod mounts to where it expects them, below the directory.
    fn mount(&self, namespace: &str, pod: &Value) -> Result<(), String> {
        let mounts = pod["containers"][0]["volumeMounts"].as_array().ok_or("no mounts")?;
        for mount in mounts {
            let volumes = pod["volumes"].as_array().ok_or("no volumes")?;
            let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).ok_or("no volume")?;
            let target = self.dir.join(mount["mountPath"].as_str().unwrap().trim_start_matches('/'));
            fs::create_dir_all(&target).unwrap();
            let (kind, name) = match (&volume["configMap"]["name"], &volume["secret"]["secretName"]) {
                (Value::String(name), _) => ("configmap", name),
                (_, Value::String(name)) => ("secret", name),
                _ => return Err(format!("an unknown volume: {volume}")),
            };
            let object = self.object(&["--namespace", namespace, "get", kind, name])?;
            for (key, value) in object["data"].as_object().ok_or("no data")? {
                let mut content = value.as_str().unwrap().as_bytes().to_vec();
                if kind == "secret" {
                    content = BASE64_STANDARD.decode(content).map_err(|error| error.to_string())?;
                }
                fs::write(target.join(key), content).unwrap();
            }
        }
        Ok(())
    }

    /// Starts the gateway with the arguments of a container, below the directory and at free ports.
    async fn start(&self, container: &Value, from: &str, to: &Path) -> GatewayProcess {
        let of_pod = container["args"].as_array().unwrap().iter().skip(1);
        let moved =
            of_pod.map(|argument| argument.as_str().unwrap().replace(from, &to.display().to_string()));
        let ports = ["--secure-port=0", "--bind-address=127.0.0.1", "--metrics-bind-address=127.0.0.1:0"];
        GatewayProcess::start(PORTCULLIS, moved.chain(ports.map(str::to_owned))).await
    }
}

/// Commands that make the files, the gateway with the flags of the static pod, and commands that use it.
fn sidecar(running: &Running, cluster: &Cluster) -> Result<(), String> {
    let mut replay = Replay::new(running, "sidecar")?;
    replay.run("sidecar", 10)?;
    let pod = fs::read_to_string(replay.dir.join("portcullis.yaml")).map_err(|error| error.to_string())?;
    let pods = documents(&pod)?;
    let container = pods[0]["spec"]["containers"][0].clone();
    let gateway = cluster.runtime().block_on(replay.start(
        &container,
        "/etc/kubernetes/portcullis",
        &replay.dir.join("portcullis"),
    ));
    used(&gateway)?;
    replay.variables.push(("GATEWAY", format!("https://{}", address(&gateway))));
    replay.run("use", 3)
}

/// Commands that install the chart, the gateway as its Deployment says, and commands that use it.
fn ingress(running: &Running, cluster: &Cluster) -> Result<(), String> {
    let mut replay = Replay::new(running, "ingress")?;
    // Both clusters are this one.
    for name in ["prod", "staging"] {
        fs::write(replay.dir.join(format!("{name}.kubeconfig")), running.front_proxy_kubeconfig()).unwrap();
    }
    running.apply("ingress-permissions", include_str!("../../deploy/rbac.yaml"), &[])?;
    replay.run("ingress", 10)?;
    let deployment = replay.object(&["--namespace=portcullis", "get", "deployment", "portcullis"])?;
    let pod = &deployment["spec"]["template"]["spec"];
    replay.mount("portcullis", pod)?;
    let mounted = replay.dir.join("etc/portcullis");
    let started = replay.start(&pod["containers"][0], "/etc/portcullis", &mounted);
    let gateway = cluster.runtime().block_on(started);
    used(&gateway)?;
    replay.variables.push(("GATEWAY_ADDRESS", address(&gateway).to_string()));
    replay.run("ingress-use", 2)
}

/// The quick start of README, word by word but for the port. The commands use kubectl's current context alone.
fn managed(running: &Running) -> Result<(), String> {
    let replay = Replay::new(running, "managed")?;
    let [port] = free_ports()?;
    let names = [
        ("localhost:8443", format!("localhost:{port}")),
        ("--secure-port 8443", format!("--secure-port {port}")),
        ("portcullis serve", "portcullis serve --bind-address=127.0.0.1 --metrics-bind-address=0".to_owned()),
    ];
    let page = workspace_root().join("README.md");
    let played = transcript::replay_as(&page, &["managed"], &replay.dir, &names, |command: &mut Command| {
        command.envs(replay.variables.iter().cloned());
    })?;
    if played == 9 { Ok(()) } else { Err(format!("{played} commands")) }
}

fn address(gateway: &GatewayProcess) -> SocketAddr {
    gateway.gateway.address
}

/// Whether the self-check has passed.
fn used(gateway: &GatewayProcess) -> Result<(), String> {
    if gateway.said("self-check passed").is_empty() {
        Err(format!("{:?}", gateway.said("self-check")))
    } else {
        Ok(())
    }
}
