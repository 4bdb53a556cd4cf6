//! A TCP load balancer before an endpoint, whose server a test replaces.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// A TCP load balancer whose only server a test chooses.
#[derive(Clone)]
pub(crate) struct Balancer {
    pub(crate) address: SocketAddr,
    server: Arc<Mutex<SocketAddr>>,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Balancer {
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let balancer = Self { address, server: Arc::new(Mutex::new(server)), connections: Arc::default() };
        let accepting = balancer.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let server = *accepting.server.lock().unwrap();
                let connection = tokio::spawn(async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    copy_bidirectional(&mut client, &mut server).await.ok();
                });
                accepting.connections.lock().unwrap().push(connection.abort_handle());
            }
        });
        balancer
    }

    /// Ends all connections; new ones go to `server`.
    pub(crate) fn switch(&self, server: SocketAddr) {
        *self.server.lock().unwrap() = server;
        self.connections.lock().unwrap().drain(..).for_each(|connection| connection.abort());
    }
}
