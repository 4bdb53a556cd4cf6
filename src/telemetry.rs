//! Log lines on standard error. What is logged at which level follows kube-apiserver's `-v`: errors, failed
//! authentication and slow requests always; every request from 3 on.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

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
        LogFormat::Text => builder.try_init().is_err(),
        LogFormat::Json => builder.json().flatten_event(true).try_init().is_err(),
    };
}

/// Which lines are shown.
fn filter(verbosity: u8) -> EnvFilter {
    // No line of another crate can carry a header: theirs are only shown when they warn. `kube` warns with the whole of
    // an answer that it cannot read, and answers hold secrets; who asked has the error.
    EnvFilter::new(match verbosity {
        0..=2 => "warn,kube_client=off,portcullis=info,portcullis::request=warn",
        3..=4 => "warn,kube_client=off,portcullis=info",
        5 => "warn,kube_client=off,portcullis=debug",
        _ => "info,kube_client=off,portcullis=trace,rustls=debug,hyper=info",
    })
}

/// An error in words, with its causes: hyper leaves them out of its own.
pub(crate) fn in_full(error: &dyn std::error::Error) -> String {
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

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
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
            let lines = Lines::default();
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
