//! Logging to standard error. Verbosity follows kube-apiserver's `-v`: errors, failed authentication and slow requests
//! at every level; every request from 3 on.

mod fields;
mod log_throttle;
mod tenant_lines;

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

pub(crate) use fields::{QuotedFields, cut};
pub(crate) use log_throttle::{ClientLogThrottle, LogPermit};
use tenant_lines::TenantLines;
pub(crate) use tenant_lines::limit_lines_about;

use crate::config::flags::LogFormat;

/// The tracing target of the access log.
pub(crate) const REQUEST_LOG: &str = "portcullis::request";

/// Starts logging. A second call does nothing.
pub(crate) fn init(verbosity: u8, format: LogFormat) {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(verbosity))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // A subscriber that a test has installed stays.
    let lines = TenantLines::default();
    let _already_set = match format {
        LogFormat::Text => builder.fmt_fields(QuotedFields).finish().with(lines).try_init().is_err(),
        LogFormat::Json => builder.json().flatten_event(true).finish().with(lines).try_init().is_err(),
    };
}

/// Starts logging into a file, as [`init`] does by default: a later call of that does nothing.
#[cfg(feature = "dev")]
pub(crate) fn init_into(file: std::fs::File) {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(0))
        .with_writer(std::sync::Mutex::new(file))
        .with_ansi(false);
    let lines = TenantLines::default();
    let _already_set = builder.fmt_fields(QuotedFields).finish().with(lines).try_init().is_err();
}

/// The filter for a verbosity.
// threat: log-flood
fn filter(verbosity: u8) -> EnvFilter {
    // Other crates log at warn only, so that their lines cannot contain request headers. `kube` logs the whole body of
    // a response that it cannot parse, and responses contain Secrets; the caller gets the error anyway.
    // `h2` and `rustls` warn about single frames and messages, so a client could flood the log.
    EnvFilter::new(match verbosity {
        0..=2 => "warn,kube_client=off,h2=error,rustls=error,portcullis=info,portcullis::request=warn",
        3..=4 => "warn,kube_client=off,h2=error,rustls=error,portcullis=info",
        5 => "warn,kube_client=off,h2=error,rustls=error,portcullis=debug",
        _ => "info,kube_client=off,portcullis=trace,rustls=debug,hyper=info",
    })
}

/// The message of an error and of all its sources; hyper's messages omit their sources.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        // Some messages already end with the message of their source.
        if !text.ends_with(&message) {
            text = format!("{text}: {message}");
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

    /// The text of the lines that `log` writes.
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
    async fn a_response_that_cannot_be_parsed_is_not_logged() {
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
            let request = async {
                tracing::warn!(target: "another", "a warning");
                Api::<Secret>::namespaced(Client::new(service, "default"), "n").get("s").await
            };
            let error = request.with_subscriber(log).await.unwrap_err();
            let shown = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
            assert!(shown.contains("a warning"), "{shown}");
            assert!(!format!("{shown}{error}").contains("aHVudGVyMg"), "{shown}{error}");
        }
    }
}
