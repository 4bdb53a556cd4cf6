//! Log lines on standard error. What is logged at which level follows kube-apiserver's `-v`: errors, failed
//! authentication and slow requests always; every request from 3 on.

mod fields;

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

pub(crate) use fields::{QuotedFields, cut};

use crate::config::flags::LogFormat;

/// The target of the one line per request.
pub(crate) const REQUEST_LOG: &str = "portcullis::request";

/// Starts logging. A second call does nothing.
pub(crate) fn init(verbosity: u8, format: LogFormat) {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(verbosity))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // A logger that is already there (a test's) stays.
    let _already_there = match format {
        LogFormat::Text => builder.fmt_fields(QuotedFields).try_init().is_err(),
        LogFormat::Json => builder.json().flatten_event(true).try_init().is_err(),
    };
}

/// Which lines are shown.
// threat: log-flood
fn filter(verbosity: u8) -> EnvFilter {
    // No line of another crate can carry a header: theirs are only shown when they warn. `kube` warns with the whole of
    // an answer that it cannot read, and answers hold secrets; who asked has the error.
    // `h2` and `rustls` warn of single frames and messages of a client, as many as it likes to send.
    EnvFilter::new(match verbosity {
        0..=2 => "warn,kube_client=off,h2=error,rustls=error,portcullis=info,portcullis::request=warn",
        3..=4 => "warn,kube_client=off,h2=error,rustls=error,portcullis=info",
        5 => "warn,kube_client=off,h2=error,rustls=error,portcullis=debug",
        _ => "info,kube_client=off,portcullis=trace,rustls=debug,hyper=info",
    })
}

/// An error in words, with its causes: hyper leaves them out of its own.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        // Some errors say what caused them.
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Secret;
    use kube::client::Body;
    use kube::{Api, Client};
    use tower::service_fn;
    use tracing::instrument::WithSubscriber as _;

    use super::*;

    /// What is written for one line with this as its fields and in its message.
    fn written(log: impl FnOnce()) -> String {
        let lines = CapturedLog::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(filter(0))
            .fmt_fields(QuotedFields)
            .with_ansi(false)
            .without_time()
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, log);
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn no_value_looks_like_another_field_or_line() {
        let long = "x".repeat(100_000);
        let cut = format!("\"{}… (100000 bytes)\"", "x".repeat(1024));
        for (value, expected) in [
            ("plain-1.2:3", "plain-1.2:3"),
            ("", "\"\""),
            ("two words", "\"two words\""),
            ("x user=\"admin\" code=200", r#""x user=\"admin\" code=200""#),
            ("a=b", "\"a=b\""),
            ("x\n2025-11-22T00:00:00Z  INFO request", r#""x\n2025-11-22T00:00:00Z  INFO request""#),
            ("a\r\tb", r#""a\r\tb""#),
            ("\u{1b}[31mred", r#""\u{1b}[31mred""#),
            ("\u{9b}31m", r#""\u{9b}31m""#),
            ("\u{202e}gnp", r#""\u{202e}gnp""#),
            ("\u{2028}", r#""\u{2028}""#),
            ("\0\u{7f}", r#""\0\u{7f}""#),
            ("Zoë", "\"Zoë\""),
            (&long, &cut),
        ] {
            let line = written(|| tracing::warn!(before = 1, value = %value, after = true, "message"));
            let fields = format!("message before=1 value={expected} after=true");
            assert_eq!(line, format!(" WARN portcullis::telemetry::tests: {fields}\n"));
            let text = written(|| tracing::warn!(value, "message"));
            assert_eq!(text.lines().count(), 1, "{text:?}");
            assert!(text.ends_with("\"\n") && text.contains(" value=\""), "{text:?}");
            let message = written(|| tracing::warn!("cannot watch: {value}"));
            assert_eq!(message.lines().count(), 1, "{message:?}");
            let shown = message.trim_end_matches('\n');
            assert!(
                !shown.contains(|c: char| c.is_control() || c == '\u{202e}' || c == '\u{2028}'),
                "{message:?}"
            );
            assert!(message.len() < 20_000, "{}", message.len());
            let debug = written(|| tracing::warn!(value = ?Some(value), "message"));
            assert_eq!(debug.lines().count(), 1, "{debug:?}");
        }
    }

    #[derive(Clone, Default)]
    struct CapturedLog(Arc<Mutex<Vec<u8>>>);

    impl Write for CapturedLog {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn an_answer_that_cannot_be_read_is_not_shown() {
        for verbosity in 0..=10 {
            let service = service_fn(|_: Request<Body>| {
                let body =
                    Body::from(br#"{"kind":"Secret","data":{"token":"aHVudGVyMg=="},"type":5}"#.to_vec());
                std::future::ready(Ok::<_, Infallible>(Response::new(body)))
            });
            let lines = CapturedLog::default();
            let writer = lines.clone();
            let log = tracing_subscriber::fmt()
                .with_env_filter(filter(verbosity))
                .with_writer(move || writer.clone())
                .finish();
            let asking = async {
                tracing::warn!(target: "another", "a warning");
                Api::<Secret>::namespaced(Client::new(service, "default"), "n").get("s").await
            };
            let error = asking.with_subscriber(log).await.unwrap_err();
            let shown = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
            assert!(shown.contains("a warning"), "{shown}");
            assert!(!format!("{shown}{error}").contains("aHVudGVyMg"), "{shown}{error}");
        }
    }
}
