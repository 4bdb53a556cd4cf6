//! Resolves the sessions of a cluster: the policy, and the directory of recordings.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use portcullis_kubernetes::yaml;
use portcullis_sessions::policy::{RecordingLevel, SessionPolicy, SessionPolicyError};
use portcullis_system::platform::is_open_to_all;

use super::ConfigResolver;
use crate::config::error::ConfigError;
use crate::config::flags::SessionFlags;
use crate::config::sections::{KeyLocation, MergedSection};
use crate::sessions::settings::SessionSettings;

const POLICY: &str = "session-policy-file";
const DIRECTORY: &str = "session-recording-directory";
const FIX: &str = "give a directory with the mode 0700 that the user who runs the gateway owns";

impl ConfigResolver<'_> {
    /// The sessions; `None` without a policy, or if it is invalid: then `self.errors` has the errors, and the configuration fails as
    /// a whole.
    pub(super) fn sessions(&mut self, given: &MergedSection<SessionFlags>) -> Option<Arc<SessionSettings>> {
        let before = self.errors.len();
        let SessionFlags { session_policy_file, session_recording_directory } = &given.values;
        let directory = session_recording_directory.as_deref();
        let directory =
            directory.and_then(|directory| self.recording_directory(&given.place(DIRECTORY), directory));
        let Some(file) = session_policy_file else {
            if session_recording_directory.is_some() {
                self.warn_of_no_effect(given, DIRECTORY, POLICY);
            }
            return None;
        };
        let policy = self.session_policy(&given.place(POLICY), file)?;
        let records = policy.rules().iter().position(|rule| rule.decision.level > RecordingLevel::None);
        if let (Some(index), None) = (records, session_recording_directory) {
            let problem = format!("is required: rules[{index}] of {} records sessions", given.key(POLICY));
            let error = ConfigError::new(given.key(DIRECTORY), problem);
            self.errors.push(error.fix(FIX));
        }
        (self.errors.len() == before).then(|| Arc::new(SessionSettings { policy, directory }))
    }

    fn session_policy(&mut self, place: &KeyLocation, file: &Path) -> Option<SessionPolicy> {
        let file = &place.path(file);
        let text = self.read(&place.key, file)?;
        let document = yaml::parse(&text).map_err(|problem| {
            let error = ConfigError::new(&place.key, format!("failed decoding: {problem}"));
            error.in_file(file).fix("give one YAML document; indent by spaces, write each key once")
        });
        let document = self.ok(document)?;
        match SessionPolicy::parse(&document.value) {
            Ok(policy) => Some(policy),
            Err(SessionPolicyError::Undecodable(problem, fix)) => {
                self.fail(ConfigError::new(&place.key, problem).in_file(file).fix(fix))
            }
            Err(SessionPolicyError::Fields(errors)) => {
                self.errors.extend(errors.iter().map(|error| {
                    let fix = format!("line {}: {}", document.lines.of(&error.field), error.fix);
                    ConfigError::new(&place.key, error.to_string()).in_file(file).fix(fix)
                }));
                None
            }
        }
    }

    fn recording_directory(&mut self, place: &KeyLocation, directory: &Path) -> Option<PathBuf> {
        let directory = place.path(directory);
        let usable = self
            .inputs
            .is_usable(&directory, check_directory)
            .map_err(|error| ConfigError::new(&place.key, error.to_string()).in_file(&directory).fix(FIX));
        self.ok(usable).map(|()| directory)
    }
}

/// Checks that recordings can be written to a directory, and that not every user of the machine can enter it.
// threat: readable-recordings
fn check_directory(directory: &Path) -> io::Result<()> {
    let found = fs::metadata(directory)?;
    if !found.is_dir() {
        return Err(io::Error::other("is not a directory"));
    }
    if is_open_to_all(&found) {
        return Err(io::Error::other("has a mode that lets every user of the machine use it"));
    }
    // It has a name that no recording has, and is removed at once.
    tempfile::Builder::new().prefix(".new-").tempfile_in(directory).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use clap::Parser;
    use portcullis_kubernetes::release::Release;

    use super::*;
    use crate::config::flags::ServeFlags;
    use crate::config::inputs::InputReader;
    use crate::config::sections::MergedSection;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        serve: ServeFlags,
    }

    type Resolved = (Option<Arc<SessionSettings>>, Vec<String>, Vec<String>);

    /// The settings, the errors with their fixes, and the warnings.
    fn resolve(flags: &[String], inputs: &mut InputReader) -> Resolved {
        let line = CommandLine::parse_from(["serve".to_owned()].iter().chain(flags));
        let mut resolver = ConfigResolver::new(inputs, false, Release::default());
        let given = MergedSection::read([line.serve.sessions.layer()], &mut resolver.unread).unwrap();
        let settings = resolver.sessions(&given);
        let warnings = std::mem::take(&mut resolver.warnings);
        let errors = resolver.into_errors();
        assert!(errors.iter().all(|error| error.fix.is_some()));
        (settings, errors.iter().map(ToString::to_string).collect(), warnings)
    }

    struct Home(tempfile::TempDir);

    impl Home {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn policy(&self, rules: &str) -> String {
            let file = self.0.path().join("policy.yaml");
            let text = format!("apiVersion: portcullis.dev/v1alpha1\nkind: SessionPolicy\nrules:\n{rules}");
            fs::write(&file, text).unwrap();
            format!("--session-policy-file={}", file.display())
        }

        fn directory(&self, name: &str, mode: u32) -> String {
            let path = self.0.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            self.flag(name)
        }

        fn flag(&self, name: &str) -> String {
            format!("--session-recording-directory={}", self.0.path().join(name).display())
        }
    }

    #[test]
    fn a_policy_that_records_needs_a_directory_and_another_does_not() {
        let home = Home::new();
        let records = home.policy("- level: None\n- level: Metadata\n");
        let (settings, errors, _) = resolve(std::slice::from_ref(&records), &mut InputReader::default());
        assert!(settings.is_none());
        let [error] = &errors[..] else { panic!("{errors:?}") };
        assert!(
            error.starts_with(
                "--session-recording-directory: is required: rules[1] of --session-policy-file records sessions"
            ),
            "{error}"
        );
        let directory = home.directory("recordings", 0o700);
        let (settings, errors, warnings) =
            resolve(&[records, directory.clone()], &mut InputReader::default());
        assert_eq!((errors, warnings), (Vec::new(), Vec::new()));
        let settings = settings.unwrap();
        assert_eq!(settings.directory, Some(home.0.path().join("recordings")));
        assert_eq!(settings.policy.rules().len(), 2);
        assert_eq!(fs::read_dir(home.0.path().join("recordings")).unwrap().count(), 0, "it leaves no file");

        let limits = home.policy("- {level: None, maxSessionsPerUser: 2}\n");
        let (settings, errors, _) = resolve(&[limits], &mut InputReader::default());
        assert_eq!((settings.unwrap().directory.clone(), errors), (None, Vec::new()));

        let (settings, errors, warnings) = resolve(&[directory], &mut InputReader::default());
        assert_eq!((settings.is_none(), errors), (true, Vec::new()));
        assert_eq!(warnings, ["--session-recording-directory has no effect without --session-policy-file"]);
    }

    #[test]
    fn errors_of_the_policy_and_of_the_directory_are_told_at_once() {
        let home = Home::new();
        let policy = home.policy("- level: All\n- level: Output\n  idleTimeout: soon\n");
        let (settings, errors, _) = resolve(&[policy, home.flag("absent")], &mut InputReader::default());
        assert!(settings.is_none());
        let [directory, level, timeout] = &errors[..] else { panic!("{errors:?}") };
        assert!(directory.contains("absent") && directory.contains("No such file"), "{directory}");
        assert!(level.contains("rules[0].level") && level.contains("line 4"), "{level}");
        assert!(timeout.contains("rules[1].idleTimeout") && timeout.contains("line 6"), "{timeout}");
    }

    // threat: readable-recordings
    #[test]
    fn a_directory_is_one_that_the_gateway_can_write_and_others_cannot_enter() {
        let home = Home::new();
        let policy = home.policy("- level: Output\n");
        fs::write(home.0.path().join("file"), "").unwrap();
        let mut cases = vec![
            (home.directory("0700", 0o700), None),
            (home.directory("0770", 0o770), None),
            (home.directory("0755", 0o755), Some("every user")),
            (home.directory("0701", 0o701), Some("every user")),
            (home.directory("0702", 0o702), Some("every user")),
            (home.flag("file"), Some("is not a directory")),
            (home.flag("absent"), Some("No such file")),
        ];
        // Root can write anywhere.
        if !rustix::process::geteuid().is_root() {
            cases.push((home.directory("0500", 0o500), Some("Permission denied")));
        }
        for (directory, expected) in cases {
            let (_, errors, _) = resolve(&[policy.clone(), directory.clone()], &mut InputReader::default());
            match (expected, &errors[..]) {
                (None, []) => {}
                (Some(expected), [error]) if error.contains(expected) => {}
                _ => panic!("{directory}: {errors:?}"),
            }
        }
    }

    /// A reload must not wait for the disk of recordings, and a full disk is no reason to refuse a new policy.
    #[test]
    fn a_directory_that_was_usable_is_not_looked_at_again() {
        let home = Home::new();
        let (policy, mut inputs) = (home.policy("- level: Output\n"), InputReader::default());
        let flags = [policy, home.directory("recordings", 0o700)];
        assert!(resolve(&flags, &mut inputs).0.is_some());
        fs::remove_dir(home.0.path().join("recordings")).unwrap();
        inputs.begin();
        assert!(resolve(&flags, &mut inputs).0.is_some());
        assert!(resolve(&flags, &mut InputReader::default()).0.is_none());
    }
}
