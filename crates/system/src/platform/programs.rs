//! Programs: their names, and the one by which the system opens a URL in the user's browser.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::System;

/// Whether the user has a display on this system, unless the environment says otherwise: it does on Linux.
pub const fn has_display() -> bool {
    matches!(System::THIS, System::MacOs | System::Windows)
}

/// The program with its first arguments; the URL is the last one. No shell reads it.
pub fn url_opener() -> Vec<String> {
    opener_of(System::THIS, std::env::var_os("SystemRoot").map(PathBuf::from).as_deref())
}

fn opener_of(system: System, system_root: Option<&Path>) -> Vec<String> {
    match system {
        System::Xdg => vec!["xdg-open".to_owned()],
        System::MacOs => vec!["open".to_owned()],
        // Not `cmd /c start`, to which the `&` of a query begins another command. By its path: the directory of this
        // program would be searched first.
        System::Windows => {
            let program = system_root
                .filter(|root| root.is_absolute())
                .map(|root| root.join("System32").join("rundll32.exe").display().to_string());
            let program = program.unwrap_or_else(|| "rundll32.exe".to_owned());
            vec![program, "url.dll,FileProtocolHandler".to_owned()]
        }
    }
}

/// Whether any program gets the URL as it is. On Windows a program splits its command line itself, each by its own rules, and
/// `rundll32` also opens what is no page.
pub fn is_one_argument(url: &str) -> bool {
    is_one_argument_of(System::THIS, url)
}

fn is_one_argument_of(system: System, url: &str) -> bool {
    match system {
        System::Xdg | System::MacOs => true,
        System::Windows => {
            let is_page = ["https://", "http://"].iter().any(|scheme| url.starts_with(scheme));
            is_page && url.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"')
        }
    }
}

/// Whether the name of a file is that of a program.
pub fn is_named(file: &OsStr, program: &str) -> bool {
    is_named_of(System::THIS, file, program)
}

fn is_named_of(system: System, file: &OsStr, program: &str) -> bool {
    match system {
        System::Xdg | System::MacOs => file == program,
        System::Windows => {
            let name = file.to_string_lossy().to_ascii_lowercase();
            name.strip_suffix(".exe").unwrap_or(&name) == program
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_an_extension_on_windows_alone() {
        let cases = [
            ("login", true, true),
            ("login.exe", false, true),
            ("Login.EXE", false, true),
            ("login.bat", false, false),
        ];
        for (file, on_unix, on_windows) in cases {
            assert_eq!(is_named_of(System::Xdg, file.as_ref(), "login"), on_unix, "{file}");
            assert_eq!(is_named_of(System::Windows, file.as_ref(), "login"), on_windows, "{file}");
        }
    }

    #[test]
    fn each_system_has_its_opener() {
        let opener = |system, root: Option<&Path>| opener_of(system, root).join(" ");
        assert_eq!(opener(System::Xdg, None), "xdg-open");
        assert_eq!(opener(System::MacOs, None), "open");
        // Absolute on the system of the test.
        let root = std::env::temp_dir();
        let program = root.join("System32").join("rundll32.exe");
        let expected = format!("{} url.dll,FileProtocolHandler", program.display());
        assert_eq!(opener(System::Windows, Some(&root)), expected);
        for root in [None, Some(Path::new("Windows"))] {
            assert_eq!(opener(System::Windows, root), "rundll32.exe url.dll,FileProtocolHandler");
        }
    }

    #[test]
    fn on_windows_only_the_url_of_a_page_is_opened() {
        let cases = [
            ("https://issuer.test/auth?a=b&c=%22d%22&e='f'^%25(g),h", true),
            ("https://issuer.test/a b", false),
            ("https://issuer.test/\"&calc", false),
            ("https://issuer.test/\u{e9}", false),
            ("https://issuer.test/\n", false),
            ("http://127.0.0.1:8000/start", true),
            ("HTTPS://issuer.test/", false),
            ("file:///C:/Windows/System32/calc.exe", false),
            ("calc.exe", false),
        ];
        for (url, expected) in cases {
            assert_eq!(is_one_argument_of(System::Windows, url), expected, "{url}");
            assert!(is_one_argument_of(System::Xdg, url) && is_one_argument_of(System::MacOs, url), "{url}");
        }
    }
}
