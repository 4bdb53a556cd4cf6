//! Opens a URL in the user's browser, by a program and never by a shell.
//!
//! Other users of the machine can read the URL in the process list. That of a login is the start address of its listener,
//! which another user is refused at, or noticed.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use portcullis_system::platform;

/// The environment that decides whether there is a browser.
#[derive(Debug, Default)]
pub(super) struct BrowserEnvironment {
    pub(super) browser: Option<String>,
    /// A graphical session, or a system that always has one.
    pub(super) has_display: bool,
}

impl BrowserEnvironment {
    /// That of this process.
    pub(super) fn current() -> Self {
        let is_set = |name| std::env::var_os(name).is_some_and(|value: OsString| !value.is_empty());
        Self {
            browser: std::env::var("BROWSER").ok().filter(|browser| !browser.is_empty()),
            has_display: platform::has_display()
                || ["DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"].into_iter().any(is_set),
        }
    }

    /// The programs to try, in order; empty: there is no browser.
    fn programs(&self, command: Option<&str>) -> Vec<Vec<String>> {
        let split = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        if let Some(command) = command {
            return vec![split(command)];
        }
        if let Some(browsers) = &self.browser {
            return browsers
                .split(platform::LIST_SEPARATOR)
                .map(split)
                .filter(|program| !program.is_empty())
                .collect();
        }
        if self.has_display { vec![platform::url_opener()] } else { Vec::new() }
    }

    /// Whether there is a program to try.
    pub(super) fn is_available(&self, command: Option<&str>) -> bool {
        self.programs(command).iter().any(|program| !program.is_empty())
    }

    /// Starts a browser, and does not wait for it: some end at once, others when the user closes them.
    pub(super) fn open(&self, command: Option<&str>, url: &str) -> Result<(), String> {
        let mut problems = Vec::new();
        for program in self.programs(command) {
            match start(&program, url) {
                Ok(()) => return Ok(()),
                Err(problem) => problems.push(problem),
            }
        }
        Err(if problems.is_empty() { "no browser was found".to_owned() } else { problems.join("; ") })
    }
}

fn start(program: &[String], url: &str) -> Result<(), String> {
    let Some((name, arguments)) = program.split_first() else {
        return Err("the command is empty".to_owned());
    };
    if !platform::is_one_argument(url) {
        return Err("the URL has characters that a program could take for another argument".to_owned());
    }
    let mut has_place = false;
    let mut arguments: Vec<String> = arguments
        .iter()
        .map(|argument| {
            has_place |= argument.contains("%s");
            argument.replace("%s", url)
        })
        .collect();
    if !has_place {
        arguments.push(url.to_owned());
    }
    // Standard output belongs to the credential.
    let mut command = Command::new(name);
    command
        .args(arguments)
        .env_remove(super::settings::SECRET_VARIABLE)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // Ctrl-C in the terminal goes to the process group of the command: the browser, which may have been started by it and
    // shows other pages, too, goes on.
    platform::own_process_group(&mut command)
        .spawn()
        .map(drop)
        .map_err(|error| format!("cannot start {name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_the_flags_then_the_environments_then_the_systems() {
        let environment = |browser: Option<&str>, has_display| BrowserEnvironment {
            browser: browser.map(str::to_owned),
            has_display,
        };
        let first = |environment: &BrowserEnvironment, command: Option<&str>| {
            environment.programs(command).first().map(|program| program.join(" "))
        };
        let both = environment(Some("firefox -P work:w3m"), true);
        assert_eq!(first(&both, Some("chromium --new-window")).as_deref(), Some("chromium --new-window"));
        assert_eq!(first(&both, None).as_deref(), Some("firefox -P work"));
        assert_eq!(first(&environment(None, false), None), None);
        assert!(!environment(None, false).is_available(None));
        assert!(environment(None, false).is_available(Some("w3m")));
    }

    /// A browser that writes what `text` stands for in its shell to the file `url`.
    fn browser(directory: &std::path::Path, text: &str) {
        use std::os::unix::fs::PermissionsExt as _;

        let url = directory.join("url");
        let script =
            format!("#!/bin/sh\nprintf '%s' \"{text}\" > {0}.new && mv {0}.new {0}\n", url.display());
        std::fs::write(directory.join("browser"), script).unwrap();
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(directory.join("browser"), mode).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn ctrl_c_does_not_reach_the_browser() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        browser(directory.path(), "$$ $(cut -d ' ' -f 5 /proc/$$/stat)");
        let environment = BrowserEnvironment::default();
        environment.open(Some(&file("browser").display().to_string()), "https://issuer.test/").unwrap();
        testkit::until("the browser to be started", || file("url").exists()).await;
        let text = std::fs::read_to_string(file("url")).unwrap();
        let (process, group) = text.split_once(' ').unwrap();
        assert_eq!(process, group, "it leads a process group of its own");
    }

    #[tokio::test]
    async fn no_shell_reads_the_url() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        browser(directory.path(), "$#:$1");
        let url = "https://issuer.test/auth?a=b&c=$(touch x);d='e'";
        let environment = BrowserEnvironment::default();
        assert!(environment.open(Some(&file("absent").display().to_string()), url).is_err());
        assert!(environment.open(None, url).unwrap_err().contains("no browser"));
        environment.open(Some(&file("browser").display().to_string()), url).unwrap();
        testkit::until("the browser to be started", || file("url").exists()).await;
        assert_eq!(std::fs::read_to_string(file("url")).unwrap(), format!("1:{url}"));
    }
}
