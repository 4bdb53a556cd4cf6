//! The redirect of a browser on another machine: it cannot reach the listener here, so that the user pastes the address of the page
//! that does not load.
//!
//! The address is verified as if the listener had received it: state, issuer, and by the exchange the PKCE verifier.
// threat: forged-callback

use std::future::pending;
use std::io::BufRead as _;
use std::sync::LazyLock;

use tokio::sync::{Mutex, mpsc};

use super::callback::{Callback, ExpectedCallback, is_equal, unique};
use super::error::CallbackError;
use crate::print_error;

/// Terminals cut longer lines.
// linux: drivers/tty/n_tty.c, N_TTY_BUF_SIZE
const MAX_TERMINAL_LINE: usize = 4095;

/// Where the user types.
#[derive(Debug)]
pub(super) enum TypedLines {
    /// Standard input is the user's terminal.
    Terminal,
    /// The command must not read standard input, or it is no terminal.
    Absent,
    #[cfg(test)]
    Given(Mutex<mpsc::Receiver<String>>),
}

/// The lines of standard input. One thread for the process: a read cannot be cancelled, and the line that it waits for is for
/// the next login that asks.
static TERMINAL: LazyLock<Mutex<mpsc::Receiver<String>>> = LazyLock::new(|| {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        let lines = std::io::stdin().lock().lines().map_while(Result::ok);
        for line in lines {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    Mutex::new(receiver)
});

impl TypedLines {
    pub(super) fn is_present(&self) -> bool {
        !matches!(self, Self::Absent)
    }

    /// The next line; never, after the last one.
    async fn next(&self) -> String {
        let line = match self {
            Self::Absent => None,
            Self::Terminal => TERMINAL.lock().await.recv().await,
            #[cfg(test)]
            Self::Given(lines) => lines.lock().await.recv().await,
        };
        match line {
            Some(line) => line,
            None => pending().await,
        }
    }
}

/// Waits for the address of this login's redirect. A wrong one is named, and the user can paste another.
pub(super) async fn pasted(
    lines: &TypedLines,
    redirect: &str,
    expected: &ExpectedCallback,
) -> Result<Callback, CallbackError> {
    loop {
        let line = lines.next().await;
        if line.trim().is_empty() {
            continue;
        }
        match read(&line, redirect, expected) {
            Ok(outcome) => return outcome,
            Err(problem) => print_error(&format!("this is not the address: {problem}; paste it again")),
        }
    }
}

/// The outcome of an address; an error if it is not that of this login's redirect.
fn read(
    line: &str,
    redirect: &str,
    expected: &ExpectedCallback,
) -> Result<Result<Callback, CallbackError>, String> {
    let address = line.trim();
    if line.len() >= MAX_TERMINAL_LINE {
        return Err(
            "the terminal has cut it; log in on a machine with a browser, or by --flow device".to_owned()
        );
    }
    let bare = redirect.strip_prefix("http://").unwrap_or(redirect);
    let rest = address.strip_prefix(redirect).or_else(|| address.strip_prefix(bare));
    let query = rest.and_then(|rest| rest.strip_prefix('?'));
    let query = query.ok_or_else(|| format!("it does not begin with {redirect}?"))?;
    let query = query.split('#').next().unwrap_or_default();
    let parameters = unique(query).map_err(|name| format!("it repeats the parameter {name}"))?;
    let state = parameters.get("state").map(String::as_str).unwrap_or_default();
    if !is_equal(state, &expected.state) {
        return Err("it belongs to another login, or is not complete".to_owned());
    }
    Ok(expected.outcome(&parameters))
}

#[cfg(test)]
mod tests {
    use secrecy::{ExposeSecret as _, SecretString};

    use super::*;

    const REDIRECT: &str = "http://127.0.0.1:18000/callback";

    fn expected(has_issuer: bool) -> ExpectedCallback {
        ExpectedCallback {
            state: SecretString::from("right"),
            issuer: "https://issuer.test".to_owned(),
            has_issuer,
        }
    }

    /// The code, the error that ends the login, or the problem that does not.
    fn outcome(line: &str, has_issuer: bool) -> String {
        match read(line, REDIRECT, &expected(has_issuer)) {
            Ok(Ok(Callback::Code(code))) => format!("code {}", code.expose_secret()),
            Ok(Ok(Callback::Refused(refusal))) => format!("refused {}", refusal.code),
            Ok(Err(error)) => format!("error {error}"),
            Err(problem) => format!("again {problem}"),
        }
    }

    #[test]
    fn a_pasted_address_is_verified_as_a_redirect() {
        let good = format!("{REDIRECT}?code=c&state=right");
        let cases = [
            (good.clone(), false, "code c"),
            (format!("  {good}\r"), false, "code c"),
            (good.replace("http://", ""), false, "code c"),
            (format!("{good}&session_state=s#fragment"), false, "code c"),
            (format!("{good}&iss=https%3A%2F%2Fissuer.test"), true, "code c"),
            (
                format!("{good}&iss=https%3A%2F%2Fother.test"),
                false,
                "error the redirect from the browser names the issuer",
            ),
            (good.clone(), true, "error the redirect from the browser does not name the issuer"),
            (format!("{REDIRECT}?error=access_denied&state=right"), false, "refused access_denied"),
            (format!("{REDIRECT}?state=right"), false, "error the redirect from the browser has no code"),
            (format!("{REDIRECT}?code=c&state=wrong"), false, "again it belongs to another login"),
            (format!("{REDIRECT}?code=c"), false, "again it belongs to another login"),
            (format!("{good}&state=right"), false, "again it repeats the parameter state"),
            (format!("{good}&code=d"), false, "again it repeats the parameter code"),
            ("c".to_owned(), false, "again it does not begin with http://127.0.0.1:18000/callback?"),
            ("https://issuer.test/auth?state=right".to_owned(), false, "again it does not begin with"),
            (good.replace("18000", "18001"), false, "again it does not begin with"),
            (format!("{good}{}", "x".repeat(MAX_TERMINAL_LINE)), false, "again the terminal has cut it"),
        ];
        for (line, has_issuer, part) in cases {
            let found = outcome(&line, has_issuer);
            assert!(found.starts_with(part), "{line}: {found}");
        }
    }

    #[tokio::test]
    async fn a_wrong_paste_is_followed_by_another() {
        let (sender, receiver) = mpsc::channel(4);
        let lines = TypedLines::Given(Mutex::new(receiver));
        for line in
            ["", "c", &format!("{REDIRECT}?code=c&state=wrong"), &format!("{REDIRECT}?code=c&state=right")]
        {
            sender.send(line.to_owned()).await.unwrap();
        }
        let outcome = pasted(&lines, REDIRECT, &expected(false)).await;
        assert!(matches!(outcome, Ok(Callback::Code(code)) if code.expose_secret() == "c"));
    }
}
