//! The first transcript of `docs/login.md` is what a user sees, from an empty home directory to kubectl. `UPDATE_DOCS=1`
//! writes it anew. And the quick start of README, with the gateway.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use regex::Regex;
use testkit::paths::workspace_root;
use testkit::real::free_ports;

use super::ProviderSetup;
use super::login::text;
use super::provider::Provider;
use crate::quick_start;
use crate::servers::{FRONT_PROXY, HeaderFlags, RealServers};

const GATEWAY: &str = "https://gateway.example.com:6443";
const ISSUER: &str = "https://login.example.com";
const START: &str = "```console\n";
const END: &str = "```\n";

/// A page, and where the transcript is in it.
struct Page {
    file: PathBuf,
    before: String,
    transcript: String,
    after: String,
}

impl Page {
    fn read() -> Result<Self, String> {
        let file = workspace_root().join("docs/login.md");
        let page = fs::read_to_string(&file).map_err(|error| error.to_string())?;
        let (before, rest) = page.split_once(START).ok_or("no transcript")?;
        let (transcript, after) = rest.split_once(END).ok_or("the transcript has no end")?;
        let (before, transcript, after) = (before.to_owned(), transcript.to_owned(), after.to_owned());
        Ok(Self { file, before, transcript, after })
    }

    /// The commands, each with its continuation lines.
    fn commands(&self) -> Vec<String> {
        let mut commands: Vec<String> = Vec::new();
        let mut is_continued = false;
        for line in self.transcript.lines() {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(command), _) => commands.push(command.to_owned()),
                (None, Some(last)) if is_continued => {
                    last.push('\n');
                    last.push_str(line);
                }
                _ => {
                    is_continued = false;
                    continue;
                }
            }
            is_continued = line.ends_with('\\');
        }
        commands
    }

    fn update(&self, transcript: &str) -> Result<(), String> {
        let text = [&self.before, START, transcript, END, &self.after].concat();
        fs::write(&self.file, text).map_err(|error| error.to_string())
    }
}

/// The names of the page for those of this run, and nothing that changes from run to run.
fn normal(output: &str, names: &[(String, &str)]) -> String {
    let named = names.iter().fold(output.to_owned(), |text, (real, name)| text.replace(real, name));
    let rules = [
        (r"http://127\.0\.0\.1:\d+/[\w-]{43}", "http://127.0.0.1:40187/…"),
        (r"JTI=[0-9A-Za-z_-]+", "JTI=…"),
    ];
    let text = rules
        .iter()
        .fold(named, |text, (pattern, by)| Regex::new(pattern).unwrap().replace_all(&text, *by).into_owned());
    aligned(&text)
}

/// The tables with columns as wide as the names of the page.
fn aligned(text: &str) -> String {
    let is_row = |line: &str| !line.starts_with(' ') && line.contains("  ");
    let cells = |line: &str| -> Vec<String> {
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        cells.map(str::to_owned).collect()
    };
    let rows: Vec<Vec<String>> = text.lines().filter(|line| is_row(line)).map(cells).collect();
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    let line = |line: &str| {
        if !is_row(line) {
            return line.trim_end().to_owned() + "\n";
        }
        let padded = cells(line).into_iter().enumerate();
        let padded: Vec<String> =
            padded.map(|(at, cell)| format!("{cell:width$}", width = width(at).unwrap_or(0))).collect();
        padded.join("  ").trim_end().to_owned() + "\n"
    };
    text.lines().map(line).collect()
}

pub(super) fn the_transcript_is_what_a_user_sees(servers: &RealServers) -> Result<(), String> {
    let setup = ProviderSetup::new(servers, "transcript")?;
    let file = format!("--authentication-config={}", setup.configuration(&[&setup.provider])?.display());
    let gateway = setup.gateway("login", std::slice::from_ref(&file))?;
    setup.until_known(&gateway, &setup.provider.login("alice")?)?;
    let home = tempfile::tempdir().map_err(|error| error.to_string())?;
    // The programs are in the path, and the provider's CA among those of the system.
    let programs = home.path().join("bin");
    fs::create_dir(&programs).map_err(|error| error.to_string())?;
    for (name, program) in [("portcullis", Path::new(crate::PORTCULLIS)), ("kubectl", servers.kubectl()?)] {
        std::os::unix::fs::symlink(program, programs.join(name)).map_err(|error| error.to_string())?;
    }
    let authority = servers.file("servers-ca.crt")?;
    fs::copy(&authority, home.path().join("gateway-ca.crt")).map_err(|error| error.to_string())?;
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let names = [(format!("https://{}", gateway.address), GATEWAY), (setup.provider.issuer.clone(), ISSUER)];

    let page = Page::read()?;
    let began = Instant::now();
    let mut seen = String::new();
    for command in page.commands() {
        let real = names.iter().fold(command.clone(), |text, (real, name)| text.replace(name, real));
        let output = Command::new("sh")
            .args(["-c", &real])
            .env_clear()
            .env("HOME", home.path())
            .env("PATH", &path)
            .env("BROWSER", Provider::browser("alice")?)
            .env("SSL_CERT_FILE", &authority)
            .current_dir(home.path())
            .output()
            .map_err(|error| error.to_string())?;
        // The login writes what it does to standard error before the table.
        let printed =
            String::from_utf8_lossy(&[output.stderr.as_slice(), &output.stdout].concat()).into_owned();
        if !output.status.success() {
            return Err(format!("{real}: {}", text(&output)));
        }
        seen.extend(["$ ", &command, "\n", &normal(&printed, &names)]);
    }
    eprintln!("real: from an empty home directory to kubectl: {:.1} s", began.elapsed().as_secs_f64());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return page.update(&seen);
    }
    if seen == page.transcript {
        Ok(())
    } else {
        Err(format!("docs/login.md has\n{}\nand a user sees\n{seen}", page.transcript))
    }
}

/// The quick start of README, word by word but for directories, addresses and ports.
pub(super) fn the_quick_start(servers: &RealServers) -> Result<(), String> {
    let setup = ProviderSetup::new(servers, "quick-start")?;
    // As kubeadm starts it.
    let server = servers.server(HeaderFlags::NoUids)?;
    let home = tempfile::tempdir().map_err(|error| error.to_string())?;
    let directory = quick_start::directory(home.path())?;
    let backend = servers.kubeconfig("quick-start-login", server.address, &FRONT_PROXY)?;
    let authority = servers.file("servers-ca.crt")?;
    for (from, to) in [
        (backend, "backend.kubeconfig"),
        (servers.file("server.crt")?, "gateway.crt"),
        (servers.file("server.key")?, "gateway.key"),
    ] {
        fs::copy(from, directory.join(to)).map_err(|error| error.to_string())?;
    }
    let [port] = free_ports()?;
    // The backend's permissions are not part of this quick start: the names of its headers are given.
    let own = "portcullis serve --bind-address=127.0.0.1 --metrics-bind-address=0 \
               --backend-requestheader-username-headers=X-Remote-User --backend-requestheader-uid-headers=X-Remote-Uid \
               --backend-requestheader-group-headers=X-Remote-Group \
               --backend-requestheader-extra-headers-prefix=X-Remote-Extra-";
    let names = [
        ("/etc/kubernetes/pki/ca.crt", authority.display().to_string()),
        ("localhost:8443", format!("localhost:{port}")),
        ("--secure-port 8443", format!("--secure-port {port}")),
        (ISSUER, setup.provider.issuer.clone()),
        ("portcullis serve", own.to_owned()),
    ];
    let mut environment = quick_start::environment(servers, &directory)?;
    environment.push(("BROWSER", Provider::browser("alice")?));
    // The provider's CA is among those of the system.
    environment.push(("SSL_CERT_FILE", authority.display().to_string()));
    quick_start::replay("login", 3, &directory, &names, &environment)
}
