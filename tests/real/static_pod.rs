//! A gateway in front of the control plane of kubeadm, by what `portcullis convert` makes of the static pod of its API server: kubectl of
//! its administrator, and a node that joins with a bootstrap token, as `kubeadm join` and a kubelet do. And the commands of README beside
//! it.

use std::fs;
use std::io::{Seek as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use testkit::csr::Csr;
use testkit::pki::{Ca, Key, KeyKind, pem};
use testkit::real::{
    ServerProcess, certificate_kubeconfig, eventually, free_ports, kubeconfig, retry_on_collision,
};

use crate::servers::RealServers;
use crate::{Test, quick_start};

/// Where the manifest has the files, and its API server.
const FOLDER: &str = "/etc/kubernetes";
const SERVER: &str = "192.0.2.10:6443";

const TOKEN: &str = "abcdef.0123456789abcdef";
const NODE: &str = "worker";

pub(crate) fn trials(trial: &dyn Fn(&str, Test) -> Trial) -> Vec<Trial> {
    vec![
        trial("of kubeadm, with kubectl and a node that joins", Box::new(kubectl_and_a_node_that_joins)),
        trial("of kubeadm, with the commands of README", Box::new(the_quick_start)),
    ]
}

/// The node of a control plane, whose /etc/kubernetes is a directory of the test.
struct Machine<'a> {
    servers: &'a RealServers,
    name: &'static str,
    etc: PathBuf,
}

/// A user, by a kubeconfig.
struct User<'a> {
    machine: &'a Machine<'a>,
    kubeconfig: PathBuf,
}

fn kubectl_and_a_node_that_joins(servers: &RealServers) -> Result<(), String> {
    let machine = Machine::new(servers, "static-pod")?;
    let manifest = machine.manifest();
    // What `convert` asks for.
    let (server, _server) = machine.start_server(&manifest, &["--requestheader-uid-headers=X-Remote-Uid"])?;
    let direct = machine.administrator("direct", server)?;
    for permissions in
        [include_str!("../../deploy/rbac.yaml"), include_str!("../../deploy/rbac-bootstrap-tokens.yaml")]
    {
        direct.kubectl(&["apply", "-f", "-"], permissions)?;
    }
    let (gateway, _gateway) = machine.start_gateway(&manifest, server)?;
    let administrator = machine.administrator("admin", gateway)?;
    servers.runtime().block_on(eventually("the gateway", async || {
        Ok(administrator.kubectl(&["get", "--raw=/readyz"], "").is_ok())
    }))?;
    for user in [&direct, &administrator] {
        let names = [user.name(&[])?, user.name(&["--as=bob"])?];
        if names != [json!(["kubernetes-admin", "system:masters"]), json!(["bob"])] {
            return Err(format!("the administrator is {names:?}"));
        }
    }
    administrator.kubectl(&["create", "configmap", "made", "--from-literal=by=kubectl"], "")?;
    direct.kubectl(&["get", "configmap", "made"], "")?;

    let _controllers = machine.start_controllers(&administrator)?;
    machine.join(&administrator, gateway)
}

/// The quick start of README, word by word but for directories and ports, beside an API server as kubeadm starts it.
fn the_quick_start(servers: &RealServers) -> Result<(), String> {
    let machine = Machine::new(servers, "quick-start")?;
    let (server, _server) = machine.start_server(&machine.manifest(), &[])?;
    machine.administrator("admin", server)?;
    let directory = quick_start::directory(&machine.etc)?;
    let [port] = free_ports()?;
    let names = [
        (FOLDER, machine.etc.display().to_string()),
        ("127.0.0.1:6443", server.to_string()),
        ("localhost:8443", format!("localhost:{port}")),
        ("--secure-port 8443", format!("--secure-port {port}")),
        ("portcullis serve", "portcullis serve --bind-address=127.0.0.1 --metrics-bind-address=0".to_owned()),
    ];
    let environment = quick_start::environment(servers, &directory)?;
    quick_start::replay("kubeadm", 6, &directory, &names, &environment)
}

impl<'a> Machine<'a> {
    /// The files of the manifest: kubeadm has one CA for servers and clients.
    fn new(servers: &'a RealServers, name: &'static str) -> Result<Self, String> {
        let etc = servers.file(name)?;
        let pki = etc.join("pki");
        fs::create_dir_all(&pki).map_err(text)?;
        let (authority, front_proxies) = (Ca::new("kubernetes"), Ca::new("front-proxy-ca"));
        let accounts = Key::generate(KeyKind::P256);
        for (name, issued) in [
            ("apiserver", authority.server(&["kubernetes", "localhost", "127.0.0.1"])),
            ("apiserver-kubelet-client", authority.leaf().cn("kube-apiserver-kubelet-client").issue()),
            ("front-proxy-client", front_proxies.leaf().cn("front-proxy-client").issue()),
            ("admin", authority.leaf().cn("kubernetes-admin").org("system:masters").issue()),
        ] {
            fs::write(pki.join(format!("{name}.crt")), issued.cert_pem()).map_err(text)?;
            fs::write(pki.join(format!("{name}.key")), issued.key_pem()).map_err(text)?;
        }
        for (name, content) in [
            ("ca.crt", authority.cert_pem()),
            ("ca.key", authority.key_pem()),
            ("front-proxy-ca.crt", front_proxies.cert_pem()),
            ("front-proxy-ca.key", front_proxies.key_pem()),
            ("sa.key", accounts.pem()),
            ("sa.pub", pem("PUBLIC KEY", &accounts.spki())),
        ] {
            fs::write(pki.join(name), content).map_err(text)?;
        }
        Ok(Self { servers, name, etc })
    }

    fn manifest(&self) -> String {
        let manifest = include_str!("../it/distributions/kubeadm.yaml");
        manifest.replace(FOLDER, &self.etc.display().to_string())
    }

    /// The API server with the flags of the manifest, but for those that depend on the machine, and further ones.
    fn start_server(&self, manifest: &str, more: &[&str]) -> Result<(SocketAddr, ServerProcess), String> {
        const OF_THE_MACHINE: [&str; 3] = ["--etcd-", "--secure-port=", "--advertise-address="];
        let programs = self.servers.programs()?;
        let etcd = self.servers.etcd_port()?;
        let lines = manifest.lines().filter_map(|line| line.trim().strip_prefix("- "));
        let flags = lines.filter(|word| word.starts_with("--"));
        let flags = flags.filter(|flag| !OF_THE_MACHINE.iter().any(|other| flag.starts_with(other)));
        let flags: Vec<String> = flags.chain(more.iter().copied()).map(str::to_owned).collect();
        let start = async || {
            let [port] = free_ports()?;
            let own = [
                format!("--etcd-servers=http://127.0.0.1:{etcd}"),
                format!("--etcd-prefix=/{}", self.name),
                format!("--secure-port={port}"),
                "--bind-address=127.0.0.1".to_owned(),
                "--endpoint-reconciler-type=none".to_owned(),
            ];
            let flags = [&flags[..], &own].concat();
            let mut process = ServerProcess::start(&self.etc, "server", &programs.kube_apiserver, flags)?;
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            let administrator = self.administrator("starting", address)?;
            let ready = eventually("the API server", async || {
                process.check()?;
                // What it creates after it is ready.
                let created =
                    ["get", "--namespace=kube-system", "role/extension-apiserver-authentication-reader"];
                Ok(administrator.kubectl(&created, "").is_ok()
                    && administrator
                        .kubectl(&["get", "namespace/default", "namespace/kube-public"], "")
                        .is_ok())
            });
            ready.await.map_err(|error| format!("{error}\n{}", process.log_tail()))?;
            Ok((address, process))
        };
        self.servers.runtime().block_on(retry_on_collision(start))
    }

    /// The gateway as `convert` prints it, with its port and the two values that it cannot know.
    fn start_gateway(
        &self,
        manifest: &str,
        server: SocketAddr,
    ) -> Result<(SocketAddr, ServerProcess), String> {
        let file = self.etc.join("kube-apiserver.yaml");
        fs::write(&file, manifest).map_err(text)?;
        let converted =
            Command::new(crate::PORTCULLIS).args(["convert", "--output=json"]).arg(&file).output();
        let converted = converted.map_err(text)?;
        if !converted.status.success() {
            return Err(String::from_utf8_lossy(&converted.stderr).into_owned());
        }
        let converted: Value = serde_json::from_slice(&converted.stdout).map_err(text)?;
        let authority = self.etc.join("pki/ca.crt").display().to_string();
        let printed = converted["kubeconfig"].to_string();
        let printed = printed.replace("SERVING-CA.crt", &authority).replace(SERVER, &server.to_string());
        fs::write(self.etc.join("backend.kubeconfig"), printed).map_err(text)?;
        let command: Vec<String> = serde_json::from_value(converted["command"].clone()).map_err(text)?;
        let [port] = free_ports()?;
        let own = [
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--metrics-bind-address=0".to_owned(),
            format!("--backend-kubeconfig={}", self.etc.join("backend.kubeconfig").display()),
        ];
        let is_own = |flag: &String| own.iter().any(|own| own.split('=').next() == flag.split('=').next());
        let flags = command.into_iter().skip(1).filter(|flag| !is_own(flag));
        let flags: Vec<String> = flags.chain(own.clone()).collect();
        let process = ServerProcess::start(&self.etc, "gateway", Path::new(crate::PORTCULLIS), flags)?;
        Ok((([127, 0, 0, 1], port).into(), process))
    }

    /// kube-controller-manager, which signs for nodes and signs cluster-info, behind the gateway.
    fn start_controllers(&self, user: &User<'_>) -> Result<ServerProcess, String> {
        let file = |name: &str| self.etc.join("pki").join(name).display().to_string();
        let flags = [
            format!("--kubeconfig={}", user.kubeconfig.display()),
            format!("--cluster-signing-cert-file={}", file("ca.crt")),
            format!("--cluster-signing-key-file={}", file("ca.key")),
            "--controllers=bootstrap-signer-controller,certificatesigningrequest-approving-controller,\
             certificatesigningrequest-signing-controller"
                .to_owned(),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ];
        let program = &self.servers.programs()?.kube_controller_manager;
        ServerProcess::start(&self.etc, "controller-manager", program, flags)
    }

    fn administrator(&self, name: &str, address: SocketAddr) -> Result<User<'_>, String> {
        let pki = self.etc.join("pki");
        self.user(name, &certificate_kubeconfig(address, &pki.join("ca.crt"), "admin"))
    }

    fn user(&self, name: &str, kubeconfig: &str) -> Result<User<'_>, String> {
        let file = self.etc.join(format!("{name}.conf"));
        fs::write(&file, kubeconfig).map_err(text)?;
        Ok(User { machine: self, kubeconfig: file })
    }

    /// Lets a node join: it finds the cluster by its token, gets its certificate, and creates its Node.
    // kubeadm: phases/bootstraptoken/node, cmd/kubeadm/app/discovery/token
    fn join(&self, administrator: &User<'_>, gateway: SocketAddr) -> Result<(), String> {
        const BOOTSTRAPPERS: &str = "system:bootstrappers:kubeadm:default-node-token";
        const AUTO_APPROVED: &str =
            "--clusterrole=system:certificates.k8s.io:certificatesigningrequests:nodeclient";
        for (name, role) in
            [("bootstrap", "--clusterrole=system:node-bootstrapper"), ("approve", AUTO_APPROVED)]
        {
            administrator.kubectl(
                &["create", "clusterrolebinding", name, role, &format!("--group={BOOTSTRAPPERS}")],
                "",
            )?;
        }
        administrator.portcullis(&["token", "create", "-"], TOKEN)?;
        administrator.portcullis(&["cluster-info", "create"], "")?;
        let authority = self.etc.join("pki/ca.crt");
        let (user, runtime) = (
            self.user("token", &kubeconfig(gateway, &authority, &json!({"token": TOKEN})))?,
            self.servers.runtime(),
        );
        let server = format!("--server=https://{gateway}");
        user.portcullis(&["cluster-info", "verify", &server, "--timeout=60s"], TOKEN)?;
        runtime.block_on(eventually("authentication with the token", async || Ok(user.name(&[]).is_ok())))?;
        let name = user.name(&[])?;
        if name != json!(["system:bootstrap:abcdef", "system:bootstrappers", BOOTSTRAPPERS]) {
            return Err(format!("the token is that of {name}"));
        }
        let (certificate, key) = (self.etc.join("pki/node.crt"), self.etc.join("pki/node.key"));
        let own = Key::generate(KeyKind::P256);
        fs::write(&key, own.pem()).map_err(text)?;
        fs::write(&certificate, self.node_certificate(&user, &own)?).map_err(text)?;
        let node = self.user("node", &certificate_kubeconfig(gateway, &authority, "node"))?;
        let name = node.name(&[])?;
        if name != json!([format!("system:node:{NODE}"), "system:nodes"]) {
            return Err(format!("the certificate is that of {name}"));
        }
        let object =
            |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}).to_string();
        node.kubectl(&["create", "-f", "-"], &object(NODE))?;
        // NodeRestriction and the Node authorizer of the API server decide, with the node's identity.
        for (arguments, stdin, refusal) in [
            (&["create", "-f", "-"][..], object("other"), "is not allowed to modify node"),
            (&["get", "secrets", "--all-namespaces"], String::new(), "cannot list resource"),
        ] {
            let refused = node.kubectl(arguments, &stdin);
            if !refused.as_ref().is_err_and(|error| error.contains(refusal)) {
                return Err(format!("{arguments:?}: {refused:?}"));
            }
        }
        Ok(())
    }

    /// Requests the certificate of the node with its bootstrap token, as a kubelet does.
    fn node_certificate(&self, user: &User<'_>, key: &Arc<Key>) -> Result<Vec<u8>, String> {
        let request = Csr::node(NODE).with_key(Arc::clone(key));
        let object = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": "node-csr"},
            "spec": {"request": STANDARD.encode(request.pem()), "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "usages": ["digital signature", "client auth"]},
        });
        user.kubectl(&["create", "-f", "-"], &object.to_string())?;
        let mut signed = String::new();
        let waited = eventually("the certificate of the node", async || {
            signed =
                user.kubectl(&["get", "csr", "node-csr", "--output=jsonpath={.status.certificate}"], "")?;
            Ok(!signed.is_empty())
        });
        self.servers.runtime().block_on(waited)?;
        STANDARD.decode(signed).map_err(text)
    }
}

impl User<'_> {
    /// The standard output of kubectl, which must succeed.
    fn kubectl(&self, arguments: &[&str], stdin: &str) -> Result<String, String> {
        self.run(self.machine.servers.kubectl()?, arguments, stdin)
    }

    fn portcullis(&self, arguments: &[&str], stdin: &str) -> Result<String, String> {
        self.run(Path::new(crate::PORTCULLIS), arguments, stdin)
    }

    fn run(&self, program: &Path, arguments: &[&str], stdin: &str) -> Result<String, String> {
        let mut input = tempfile::tempfile().map_err(text)?;
        input.write_all(stdin.as_bytes()).and_then(|()| input.rewind()).map_err(text)?;
        let output = Command::new(program)
            .args(arguments)
            .env_clear()
            .env("HOME", &self.machine.etc)
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(Stdio::from(input))
            .output()
            .map_err(text)?;
        let printed = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(printed(&output.stdout))
        } else {
            Err(format!("{arguments:?}: {}{}", printed(&output.stdout), printed(&output.stderr)))
        }
    }

    /// Who the user is: the name and the groups, without that of all authenticated users.
    fn name(&self, further: &[&str]) -> Result<Value, String> {
        let arguments = [&["auth", "whoami", "--output=json"], further].concat();
        let review: Value = serde_json::from_str(&self.kubectl(&arguments, "")?).map_err(text)?;
        let user = &review["status"]["userInfo"];
        let groups = user["groups"].as_array().into_iter().flatten();
        let groups = groups.filter(|group| *group != "system:authenticated");
        Ok(Value::Array([&user["username"]].into_iter().chain(groups).cloned().collect()))
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
