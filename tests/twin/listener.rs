//! TLS listeners of the tests, on free ports.

use std::sync::Arc;

use rustls::ServerConfig;
use testkit::pki::Issued;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;

/// Listens until it is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) port: u16,
    task: tokio::task::JoinHandle<()>,
}

/// A bound port that is not served yet.
#[derive(Debug)]
pub(crate) struct Bound {
    listener: TcpListener,
    pub(crate) port: u16,
}

impl Bound {
    pub(crate) fn new(runtime: &tokio::runtime::Runtime) -> Result<Self, String> {
        let listener =
            runtime.block_on(TcpListener::bind("127.0.0.1:0")).map_err(|error| error.to_string())?;
        let port = listener.local_addr().map_err(|error| error.to_string())?.port();
        Ok(Self { listener, port })
    }

    /// Serves every connection in its own task, with HTTP/1.1.
    pub(crate) fn serve<F, S>(
        self,
        runtime: &tokio::runtime::Runtime,
        certificate: &Issued,
        serve: S,
    ) -> Result<Listener, String>
    where
        F: Future<Output = ()> + Send + 'static,
        S: Fn(TlsStream<TcpStream>) -> F + Send + Sync + 'static,
    {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_single_cert(certificate.chain.clone(), certificate.key.clone_key())
            .map_err(|error| error.to_string())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let serve = Arc::new(serve);
        let Self { listener, port } = self;
        let task = runtime.spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, serve) = (acceptor.clone(), Arc::clone(&serve));
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(tcp).await {
                        serve(stream).await;
                    }
                });
            }
        });
        Ok(Listener { port, task })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}
